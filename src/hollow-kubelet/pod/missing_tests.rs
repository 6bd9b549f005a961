//! Tests of pods whose Secrets, `ConfigMaps` or claims are missing.

use kube_node_cache::{CONFIG_ERROR, Reference, ReferenceKind, ReferenceUser};

use super::{missing::Missing, *};

fn reference(kind: ReferenceKind, user: ReferenceUser) -> Reference {
    Reference { kind, name: "x".into(), user }
}

/// `pod` after a sync at `second` by which an object is missing, and the reasons of its events.
fn after_without(pod: PodView, second: i64, reference: &Reference) -> (PodView, Vec<String>) {
    let (missing, defaults) = ([Missing { reference, tries: 1 }], ContainerDefaults::default());
    let (booted, preempted) = (None, None);
    let context =
        SyncContext { host_ip: HOST, ip: IP, defaults: &defaults, booted, preempted, missing: &missing };
    let result = sync_pod(&pod, context, at(second));
    let events = events::of(&pod, &result, &defaults);
    let events = events.into_iter().map(|event| format!("{}: {}", event.reason, event.message)).collect();
    (PodView { status: result.status.unwrap_or_else(|| pod.status.clone()), ..pod }, events)
}

#[test]
fn pod_is_pending_until_its_missing_volume_exists() {
    let claim = reference(ReferenceKind::Secret, ReferenceUser::Volume("v".into()));
    let (held, events) = after_without(pod(spec(RestartPolicy::Always, &[])), 0, &claim);
    assert_eq!((&*held.status.phase, doing(&held)), ("Pending", vec!["ContainerCreating".to_owned(); 2]));
    assert_eq!(shown(&held, "PodReadyToStartContainers").0, "False");
    assert_eq!((held.status.start_time, &held.status.pod_ip), (Some(at(0)), &None));
    assert_eq!(events, ["FailedMount: MountVolume.SetUp failed for volume \"v\" : secret \"x\" not found"]);
    let running = after(held, 20);
    assert!(running.status.has("Ready") && running.status.pod_ip.is_some());
    let (kept, events) = after_without(running.clone(), 30, &claim);
    assert_eq!((kept.status, events), (running.status, vec![]), "a volume that is mounted stays so");
}

#[test]
fn container_with_missing_variables_waits_while_others_run() {
    let map = reference(ReferenceKind::ConfigMap, ReferenceUser::Container("a".into()));
    let (held, events) = after_without(pod(spec(RestartPolicy::Never, &[("run-time", "1h")])), 0, &map);
    assert_eq!(
        (&*held.status.phase, doing(&held)),
        ("Pending", vec![CONFIG_ERROR.to_owned(), "Ready".into()])
    );
    assert_eq!(shown(&held, "PodReadyToStartContainers").0, "True");
    assert_eq!(events[0], "Failed: Error: configmap \"x\" not found");
    let patch: serde_json::Value = serde_json::from_slice(&patch::patch(&held, &held.status, None)).unwrap();
    let waiting = &patch["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["message"], "configmap \"x\" not found");
    assert!(after(held, 20).status.has("Ready"));
}
