//! Missing objects, without which a pod or one of its containers does not start: what a kubelet says of them
//! (pkg/kubelet/kubelet.go, pkg/volume, pkg/kubelet/kuberuntime).

use std::collections::BTreeMap;

use kube_node_cache::{
    CONFIG_ERROR, ContainerState, ContainerView, InternedStr, PodStatus, PodView, Reference, ReferenceKind,
    ReferenceUser,
};

use super::{
    container::needs_sandbox,
    events::{PendingEvent, of_pod},
    output::containers,
};

/// Event reason for a volume that cannot be mounted.
const FAILED_MOUNT: &str = "FailedMount";
/// Event reason for a container that cannot be started.
const FAILED: &str = "Failed";

/// A reference of a pod whose object is missing.
#[derive(Clone, Copy, Debug)]
pub struct Missing<'a> {
    /// Reference of the pod.
    pub reference: &'a Reference,
    /// Lookups in a row by which the object is missing.
    pub tries: u32,
}

impl Missing<'_> {
    /// The API server's words for the missing object.
    fn message(&self) -> String {
        let kind = match self.reference.kind {
            ReferenceKind::Secret => "secret",
            ReferenceKind::ConfigMap => "configmap",
            ReferenceKind::Claim => "persistentvolumeclaims",
        };
        format!("{kind} {:?} not found", self.reference.name)
    }
}

/// Number of times that a kubelet has tried in vain.
fn count_of(missing: &[Missing<'_>]) -> i32 {
    let tries = missing.iter().map(|missing| missing.tries).max().unwrap_or_default();
    tries.try_into().unwrap_or(i32::MAX)
}

/// Returns true if the pod has to wait for its volumes, which are mounted before its sandbox exists and stay mounted.
pub fn holds_volumes(pod: &PodView, missing: &[Missing<'_>]) -> bool {
    let is_volume = |missing: &Missing<'_>| matches!(missing.reference.user, ReferenceUser::Volume(_));
    missing.iter().any(is_volume) && !containers(pod).any(|found| found.view.is_some_and(needs_sandbox))
}

/// Message of a container that cannot start, since its variables name a missing object.
pub fn of_container(name: &str, missing: &[Missing<'_>]) -> Option<String> {
    let of = |missing: &&Missing<'_>| matches!(&missing.reference.user, ReferenceUser::Container(user) if **user == *name);
    missing.iter().find(of).map(Missing::message)
}

/// Events of a pod that waits for missing objects, as `status` shows.
pub fn events(pod: &PodView, status: &PodStatus, missing: &[Missing<'_>]) -> Vec<PendingEvent> {
    if holds_volumes(pod, missing) {
        return volume_events(pod, missing);
    }
    let waiting = |view: &&ContainerView| matches!(&view.state, ContainerState::Waiting { reason, .. } if **reason == *CONFIG_ERROR);
    let inits = status.init_containers.iter().map(|view| (view, true));
    let all = inits.chain(status.containers.iter().map(|view| (view, false)));
    let events = all.filter(|(view, _)| waiting(view)).filter_map(|(view, is_init)| {
        let message = of_container(&view.name, missing)?;
        let container = Some((InternedStr::clone(&view.name), is_init));
        let count = count_of(missing);
        Some(PendingEvent { container, count, ..of_pod(true, FAILED, format!("Error: {message}")) })
    });
    events.collect()
}

/// Events of a pod that waits for its volumes: one for each volume, and one for all claims.
fn volume_events(pod: &PodView, missing: &[Missing<'_>]) -> Vec<PendingEvent> {
    let mut volumes: BTreeMap<&InternedStr, Vec<&Missing<'_>>> = BTreeMap::new();
    for missing in missing {
        if let ReferenceUser::Volume(volume) = &missing.reference.user {
            volumes.entry(volume).or_default().push(missing);
        }
    }
    let names = |of: &[&InternedStr]| of.iter().map(|name| &***name).collect::<Vec<_>>().join(" ");
    let is_claim =
        |missing: &[&Missing<'_>]| missing.iter().any(|one| one.reference.kind == ReferenceKind::Claim);
    let all: Vec<&InternedStr> = volumes.keys().copied().collect();
    let claims: Vec<&InternedStr> =
        volumes.iter().filter(|(_, missing)| is_claim(missing)).map(|(volume, _)| *volume).collect();
    let mut errors = Vec::new();
    let mut events = Vec::new();
    let count = count_of(missing);
    for (volume, missing) in &volumes {
        let messages: Vec<String> = missing.iter().map(|missing| missing.message()).collect();
        if is_claim(missing) {
            let claim = &missing[0].reference.name;
            let fetched = format!("failed to fetch PVC from API server: {}", messages.join(", "));
            errors.push(format!("error processing PVC {}/{claim}: {fetched}", pod.namespace));
            continue;
        }
        let message =
            if let [one] = &messages[..] { one.clone() } else { format!("[{}]", messages.join(", ")) };
        let message = format!("MountVolume.SetUp failed for volume {volume:?} : {message}");
        events.push(PendingEvent { count, ..of_pod(true, FAILED_MOUNT, message) });
    }
    if !errors.is_empty() {
        let message = format!(
            "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[{}]: {}",
            names(&all),
            names(&claims),
            errors.join("; ")
        );
        events.push(PendingEvent { count, ..of_pod(true, FAILED_MOUNT, message) });
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_volume_and_the_missing_object_in_the_words_of_a_kubelet() {
        let reference = |kind, name: &str, volume: &str| Reference {
            kind,
            name: name.into(),
            user: ReferenceUser::Volume(volume.into()),
        };
        let references = [
            reference(ReferenceKind::Secret, "keys", "a"),
            reference(ReferenceKind::ConfigMap, "one", "b"),
            reference(ReferenceKind::Secret, "two", "b"),
            reference(ReferenceKind::Claim, "disk", "c"),
        ];
        let missing: Vec<_> = references.iter().map(|reference| Missing { reference, tries: 4 }).collect();
        let pod = PodView { namespace: "ns".into(), ..PodView::default() };
        let events = volume_events(&pod, &missing);
        assert!(events.iter().all(|event| event.warns && event.reason == "FailedMount" && event.count == 4));
        let messages: Vec<&str> = events.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "MountVolume.SetUp failed for volume \"a\" : secret \"keys\" not found",
                "MountVolume.SetUp failed for volume \"b\" : [configmap \"one\" not found, secret \"two\" not found]",
                "Unable to attach or mount volumes: unmounted volumes=[a b c], unattached volumes=[], \
             failed to process volumes=[c]: error processing PVC ns/disk: failed to fetch PVC from API server: \
             persistentvolumeclaims \"disk\" not found",
            ]
        );
    }
}
