//! Pod status as the patch that a kubelet sends.

use data_encoding::HEXLOWER;
use kube_node_api::{ContainerDefaults, GoDuration};
use kube_node_cache::{
    BACK_OFF, CONFIG_ERROR, Container, ContainerState, ContainerView, PodStatus, PodView, TOKEN_VOLUME,
    Terminated, VolumeMount,
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    FailureReason, conditions,
    container::{has_begun, is_unknown},
    reasons, resources,
    script::{Role, Script},
};

/// Strategic merge patch that makes `pod` show `status`. Parts are moved into it: `json!` would copy them.
pub fn patch(pod: &PodView, status: &PodStatus, failure: Option<&FailureReason>) -> Vec<u8> {
    let order: Vec<Value> =
        status.conditions.iter().map(|condition| json!({ "type": *condition.r#type })).collect();
    let ours = status.conditions.iter().filter(|condition| conditions::is_ours(condition)).map(|condition| {
        json!({
            "type": *condition.r#type,
            "status": *condition.status,
            "reason": Some(&*condition.reason).filter(|reason| !reason.is_empty()),
            "message": conditions::message(pod, status, condition),
            "observedGeneration": condition.observed_generation,
            "lastProbeTime": null,
            "lastTransitionTime": condition.since,
        })
    });
    let gone = pod.status.conditions.iter().filter(|shown| status.condition(&shown.r#type).is_none());
    let gone = gone.map(|shown| json!({ "$patch": "delete", "type": *shown.r#type }));
    let mut patch = json!({
        "phase": *status.phase,
        "observedGeneration": status.observed_generation,
        "startTime": status.start_time,
    });
    let changed: Vec<Value> = ours.chain(gone).collect();
    if !changed.is_empty() {
        patch["conditions"] = changed.into();
    }
    // The order is sent too: without it the API server appends new conditions to those of other writers. It
    // fails at an empty order.
    if !order.is_empty() {
        patch["$setElementOrder/conditions"] = order.into();
    }
    let before = &pod.status;
    for (one, all, ip, before) in [
        ("hostIP", "hostIPs", &status.host_ip, &before.host_ip),
        ("podIP", "podIPs", &status.pod_ip, &before.pod_ip),
    ] {
        if let Some(ip) = ip {
            patch[one] = json!(ip);
            // The list is merged by address, so a replaced address has to be deleted.
            let gone = before.iter().filter(|before| *before != ip);
            let gone = gone.map(|before| json!({ "$patch": "delete", "ip": before }));
            patch[all] = std::iter::once(json!({ "ip": ip })).chain(gone).collect();
        }
    }
    for (name, specs, views) in [
        ("containerStatuses", &pod.spec.containers, &status.containers),
        ("initContainerStatuses", &pod.spec.init_containers, &status.init_containers),
    ] {
        if !views.is_empty() {
            patch[name] = views.iter().map(|view| container(pod, specs, view)).collect();
        }
    }
    if !matches!(failure, Some(FailureReason::Rejected { .. })) {
        let (allotted, has) = resources::of(&pod.spec, &*status.phase != "Pending");
        if !allotted.is_empty() {
            patch["allocatedResources"] = allotted.into();
        }
        patch["resources"] = has;
    }
    // A pod that had to stop but ended well has succeeded, without a reason.
    if let Some(failure) = failure.filter(|_| &*status.phase == "Failed") {
        let (reason, message) = failure.reason_and_message();
        patch["reason"] = json!(reason);
        patch["message"] = json!(message);
    }
    // The API server refuses a patch with another UID.
    let mut whole = json!({ "metadata": { "uid": *pod.uid } });
    whole["status"] = patch;
    whole.to_string().into_bytes()
}

fn container(pod: &PodView, specs: &[Container], view: &ContainerView) -> Value {
    let ContainerView { name, ready, started, restarts, image, crashes, state, last } = view;
    let Some(spec) = specs.iter().find(|spec| spec.name == *name) else { return Value::Null };
    // ID of the run that the status describes: while the container waits for a restart, the run that ended.
    let id = |run: i32, crashes: u8| {
        let digest = digest(&format!("{}/{name}/{run}", pod.uid));
        format!("containerd://{}{crashes:x}", &digest[1..])
    };
    let current_id = (has_begun(view) && !is_unknown(view)).then(|| id(*restarts, *crashes));
    let last_run = if matches!(state, ContainerState::Waiting { .. }) { *restarts } else { restarts - 1 };
    let mut shown = json!({
        "name": **name,
        "image": **image,
        "imageID": if current_id.is_some() { image_id(image) } else { String::new() },
        "ready": ready,
        "started": started,
        "restartCount": restarts,
    });
    shown["state"] = match state {
        ContainerState::Waiting { .. } => json!({ "waiting": waiting(pod, spec, view) }),
        ContainerState::Running { since } => json!({ "running": { "startedAt": since } }),
        ContainerState::Terminated(end) => {
            json!({ "terminated": terminated(pod, spec, end, current_id.as_deref()) })
        }
    };
    shown["lastState"] = match last {
        Some(end) => json!({ "terminated": terminated(pod, spec, end, Some(&id(last_run, end.crashes))) }),
        None => json!({}),
    };
    if !spec.mounts.is_empty() {
        shown["volumeMounts"] = spec.mounts.iter().map(|mount| mounted(pod, mount)).collect();
    }
    if let Some(id) = current_id {
        shown["containerID"] = json!(id);
        let amounts = |amounts: &[(Box<str>, Box<str>)]| -> Map<String, Value> {
            amounts.iter().map(|(name, amount)| (name.to_string(), json!(amount))).collect()
        };
        let (requests, limits) = (amounts(&spec.resources.requests), amounts(&spec.resources.limits));
        if !requests.is_empty() {
            shown["allocatedResources"] = requests.clone().into();
        }
        shown["resources"] = resources::shown(requests, limits);
    }
    shown
}

fn mounted(pod: &PodView, mount: &VolumeMount) -> Value {
    let VolumeMount { name, mount_path, read_only, .. } = mount;
    let suffix = pod.token.filter(|_| name == TOKEN_VOLUME).unwrap_or_default();
    let suffix = str::from_utf8(&suffix).unwrap_or_default().trim_end_matches('\0');
    let mut shown = json!({ "name": format!("{name}{suffix}"), "mountPath": mount_path });
    if *read_only {
        shown["readOnly"] = json!(true);
        shown["recursiveReadOnly"] = json!(if mount.is_recursive() { "Enabled" } else { "Disabled" });
    }
    shown
}

/// Waiting state of a container, with its message.
fn waiting(pod: &PodView, spec: &Container, view: &ContainerView) -> Value {
    let ContainerState::Waiting { reason, back_off, missing } = &view.state else { return Value::Null };
    let message = match &**reason {
        reasons::CRASH_LOOP => {
            let time = GoDuration(back_off.unwrap_or_default());
            format!("{BACK_OFF}{time} restarting failed container={} pod={}", view.name, full_name(pod))
        }
        reasons::PULL_FAILED => pull_error(pod, spec),
        CONFIG_ERROR => missing.to_string(),
        reasons::PULL_BACK_OFF => {
            let (image, error) = (&spec.image, pull_error(pod, spec));
            format!("Back-off pulling image {image:?}: {}: {error}", reasons::PULL_FAILED)
        }
        _ => return json!({ "reason": **reason }),
    };
    json!({ "reason": **reason, "message": message })
}

fn terminated(pod: &PodView, spec: &Container, end: &Terminated, id: Option<&str>) -> Value {
    let Terminated { exit_code, reason, started, finished, .. } = end;
    let mut shown = json!({
        "exitCode": exit_code, "reason": **reason, "startedAt": started, "finishedAt": finished,
    });
    // A container that never ran has none.
    if let Some(id) = id {
        shown["containerID"] = json!(id);
    }
    match &**reason {
        reasons::UNKNOWN => {
            shown["message"] = json!("The container could not be located when the pod was terminated");
        }
        reasons::START_ERROR => shown["message"] = json!(script_of(pod, spec).start_error),
        _ => {}
    }
    shown
}

/// Script of a container, for its texts, which a class cannot set.
fn script_of<'a>(pod: &'a PodView, spec: &Container) -> Script<'a> {
    let is_regular = pod.spec.containers.iter().any(|container| container.name == spec.name);
    let role = if is_regular { Role::Regular } else { Role::of_init(spec) };
    Script::of(&pod.spec, spec, role, &ContainerDefaults::default())
}

fn pull_error(pod: &PodView, spec: &Container) -> String {
    let error = script_of(pod, spec).image_error.unwrap_or_default();
    format!("failed to pull and unpack image {:?}: {error}", spec.image)
}

/// Name of a pod in a kubelet's messages.
pub fn full_name(pod: &PodView) -> String {
    format!("{}_{}({})", pod.name, pod.namespace, pod.uid)
}

/// Image name as container runtimes write it: with a registry, and a tag or digest.
pub fn whole_name(image: &str) -> String {
    let registry = match image.split_once('/') {
        None => "docker.io/library/",
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => "",
        Some(_) => "docker.io/",
    };
    // A colon before a slash belongs to a port.
    let has_tag = image.contains('@') || image.rsplit('/').next().is_some_and(|name| name.contains(':'));
    format!("{registry}{image}{}", if has_tag { "" } else { ":latest" })
}

/// ID of an image from its full name, with a digest derived from that name.
fn image_id(image: &str) -> String {
    match (image.contains('@'), image.rsplit_once(':')) {
        (false, Some((repository, _))) => format!("{repository}@sha256:{}", digest(image)),
        _ => image.to_owned(),
    }
}

/// 64 hexadecimal digits derived from `text`.
pub fn digest(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use kube_node_cache::{PodCondition, PodSpecView};

    fn patched(pod: &PodView, status: &PodStatus, failure: Option<&FailureReason>) -> Value {
        serde_json::from_slice::<Value>(&patch(pod, status, failure)).unwrap()["status"].clone()
    }

    fn condition(name: &str) -> PodCondition {
        PodCondition {
            r#type: name.into(),
            status: "True".into(),
            reason: "".into(),
            observed_generation: None,
            since: None,
        }
    }

    #[test]
    fn an_image_is_named_as_a_runtime_does() {
        for (image, whole) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.29", "docker.io/library/nginx:1.29"),
            ("team/nginx:1", "docker.io/team/nginx:1"),
            ("registry:5000/nginx", "registry:5000/nginx:latest"),
            ("localhost/nginx", "localhost/nginx:latest"),
            ("example.com/a/b:1", "example.com/a/b:1"),
        ] {
            assert_eq!(whole_name(image), whole);
            let id = image_id(whole);
            let (repository, hex) = id.split_once("@sha256:").unwrap();
            assert!(whole.starts_with(&format!("{repository}:")) && hex.len() == 64, "{id}");
        }
        assert_eq!(image_id(&whole_name("example.com/a@sha256:0")), "example.com/a@sha256:0");
    }

    #[test]
    fn the_order_names_the_conditions_of_others_and_the_patch_does_not() {
        let status =
            PodStatus { conditions: [condition("gate"), condition("Ready")].into(), ..PodStatus::default() };
        let patch = patched(&PodView::default(), &status, None);
        assert_eq!(patch["$setElementOrder/conditions"][0]["type"], "gate");
        assert_eq!(patch["conditions"][0]["type"], "Ready");
        assert_eq!(patch["conditions"][0]["reason"], Value::Null);
    }

    #[test]
    fn another_address_takes_the_place_of_the_one_before() {
        let with = |ip: &str| PodStatus { pod_ip: Some(ip.into()), ..PodStatus::default() };
        let pod = PodView { status: with("10.0.0.1"), ..PodView::default() };
        let patch = |status| patched(&pod, &status, None)["podIPs"].clone();
        assert_eq!(patch(with("10.0.0.1")), json!([{ "ip": "10.0.0.1" }]));
        assert_eq!(
            patch(with("10.0.0.2")),
            json!([{ "ip": "10.0.0.2" }, { "$patch": "delete", "ip": "10.0.0.1" }])
        );
    }

    #[test]
    fn the_volumes_of_a_container_are_named_as_the_pod_has_them() {
        let mount = |volume: &str, read_only| VolumeMount {
            name: volume.into(),
            read_only,
            ..VolumeMount::default()
        };
        let mounts = [mount(TOKEN_VOLUME, true), mount("data", false)].into();
        let spec = PodSpecView {
            containers: [Container { name: "a".into(), mounts, ..Container::default() }].into(),
            ..PodSpecView::default()
        };
        let pod = PodView { token: Some(*b"x7k2m"), spec: Arc::new(spec), ..PodView::default() };
        let view = ContainerView {
            name: "a".into(),
            ready: false,
            started: false,
            restarts: 0,
            image: "docker.io/library/i:latest".into(),
            crashes: 0,
            state: ContainerState::waiting(reasons::CREATING.into(), None),
            last: None,
        };
        let status = PodStatus { containers: [view].into(), ..PodStatus::default() };
        let shown = &patched(&pod, &status, None)["containerStatuses"][0]["volumeMounts"];
        let token = json!({
            "name": "kube-api-access-x7k2m", "mountPath": "", "readOnly": true, "recursiveReadOnly": "Disabled",
        });
        assert_eq!(*shown, json!([token, {"name": "data", "mountPath": ""}]));
    }

    #[test]
    fn who_made_room_and_ended_well_has_succeeded() {
        let of = |phase: &str| PodStatus { phase: phase.into(), ..PodStatus::default() };
        let reason = |phase| {
            patched(&PodView::default(), &of(phase), Some(&FailureReason::Preempted))["reason"].clone()
        };
        assert_eq!((reason("Failed"), reason("Succeeded")), (json!("Preempting"), Value::Null));
    }

    #[test]
    fn no_conditions_are_not_named() {
        let patch = patched(&PodView::default(), &PodStatus::default(), None);
        assert!(patch.get("conditions").is_none() && patch.get("$setElementOrder/conditions").is_none());
    }

    #[test]
    fn a_pod_that_was_rejected_loses_what_a_kubelet_says() {
        let shown = PodStatus {
            conditions: [condition("gate"), condition("PodScheduled")].into(),
            ..PodStatus::default()
        };
        let pod = PodView { status: shown, ..PodView::default() };
        let status = PodStatus {
            phase: "Failed".into(),
            conditions: [condition("gate")].into(),
            ..pod.status.clone()
        };
        let failure =
            FailureReason::Rejected { reason: "OutOfcpu".to_owned(), message: "too much".to_owned() };
        let patch = patched(&pod, &status, Some(&failure));
        assert_eq!(patch["conditions"], json!([{ "$patch": "delete", "type": "PodScheduled" }]));
        assert_eq!(
            (&patch["reason"], &patch["message"]),
            (&json!("OutOfcpu"), &json!("Pod was rejected: too much"))
        );
        assert_eq!(patch.get("podIP"), None);
    }

    #[test]
    fn a_back_off_is_told_in_words_that_are_read_again() {
        let spec = PodSpecView {
            containers: [Container { name: "a".into(), image: "i".into(), ..Container::default() }].into(),
            ..PodSpecView::default()
        };
        let pod = PodView {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            spec: Arc::new(spec),
            ..PodView::default()
        };
        let view = ContainerView {
            name: "a".into(),
            ready: false,
            started: false,
            restarts: 4,
            image: "docker.io/library/i:latest".into(),
            crashes: 0,
            state: ContainerState::waiting(reasons::CRASH_LOOP.into(), Some(Duration::from_secs(80))),
            last: Some(Box::default()),
        };
        let status = PodStatus { containers: [view].into(), ..PodStatus::default() };
        let shown = &patched(&pod, &status, None)["containerStatuses"][0];
        let message = "back-off 1m20s restarting failed container=a pod=p_n(u)";
        assert_eq!(shown["state"]["waiting"], json!({ "reason": "CrashLoopBackOff", "message": message }));
        assert_eq!(shown["containerID"], shown["lastState"]["terminated"]["containerID"]);
    }
}
