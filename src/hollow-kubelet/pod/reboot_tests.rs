//! Pods across a boot of their machine, second by second: the pods come at 0, the machine boots at 100.

use std::net::Ipv4Addr;

use kube_node_api::ContainerDefaults;
use kube_node_cache::{Container, PodSpecView, PodStatus};
use proptest::prelude::*;

use super::{
    super::{SyncContext, SyncResult, events, needs_another_sandbox, sync_pod},
    *,
};

const HOST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const BOOT: i64 = 100;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn containers(names: &[&str]) -> Box<[Container]> {
    names.iter().map(|name| Container { name: (*name).into(), ..Container::default() }).collect()
}

fn pod(restart_policy: RestartPolicy, inits: &[&str], annotations: &[(&str, &str)]) -> PodView {
    let spec = PodSpecView {
        restart_policy,
        init_containers: containers(inits),
        containers: containers(&["a", "b"]),
        hollow_annotations: annotations
            .iter()
            .map(|(key, value)| (format!("hollow.kube-node.io/{key}").into(), (*value).into()))
            .collect(),
        ..PodSpecView::default()
    };
    let status = PodStatus { phase: "Pending".into(), ..PodStatus::default() };
    PodView { uid: "u".into(), spec: spec.into(), status, ..PodView::default() }
}

/// Sync at `second`, with a new address for a pod that needs another sandbox.
fn sync_at(pod: &PodView, second: i64) -> SyncResult {
    let booted = (second >= BOOT).then(|| at(BOOT));
    let ip = Ipv4Addr::new(10, 128, 0, if needs_another_sandbox(pod, booted) { 2 } else { 1 });
    let defaults = ContainerDefaults::default();
    let context =
        SyncContext { host_ip: HOST, ip, defaults: &defaults, booted, preempted: None, missing: &[] };
    sync_pod(pod, context, at(second))
}

/// The pod, and the reasons of its events, after all syncs from `from` up to `to`.
fn advance_pod(mut pod: PodView, from: i64, to: i64) -> (PodView, Vec<String>) {
    let mut reasons = Vec::new();
    for second in from..=to {
        let result = sync_at(&pod, second);
        let events = events::of(&pod, &result, &ContainerDefaults::default());
        reasons.extend(events.into_iter().map(|event| event.reason));
        if let Some(status) = result.status {
            pod = PodView { status, ..pod };
        }
    }
    (pod, reasons)
}

/// State, restarts, and end of the previous run, of each container.
fn shows(pod: &PodView) -> Vec<String> {
    let end = |end: &Terminated| format!("{} {}", end.reason, end.exit_code);
    let all = pod.status.init_containers.iter().chain(&pod.status.containers);
    all.map(|view| {
        let state = match &view.state {
            ContainerState::Waiting { reason, .. } => reason.to_string(),
            ContainerState::Running { .. } => if view.ready { "Ready" } else { "Running" }.to_owned(),
            ContainerState::Terminated(ended) => end(ended),
        };
        let last = view.last.as_deref().map(end).unwrap_or_default();
        format!("{state}, {}, {last}", view.restarts)
    })
    .collect()
}

fn is_true(pod: &PodView, condition: &str) -> bool {
    pod.status.has(condition)
}

#[test]
fn containers_end_with_the_machine_and_start_again_in_a_new_sandbox() {
    let (before, _) = advance_pod(pod(RestartPolicy::Always, &[], &[]), 0, BOOT - 1);
    let (found, reasons) = advance_pod(before, BOOT, BOOT);
    assert_eq!(shows(&found), ["Unknown 255, 0, ", "Unknown 255, 0, "]);
    assert_eq!((&*found.status.phase, found.status.pod_ip.as_deref()), ("Running", Some("10.128.0.1")));
    for lost in ["Ready", "ContainersReady", "PodReadyToStartContainers"] {
        assert!(!is_true(&found, lost), "{lost}");
    }
    assert!(reasons.is_empty(), "{reasons:?}");
    let ContainerState::Terminated(end) = &found.status.containers[0].state else { panic!("it ended") };
    assert_eq!((end.started, end.finished), (Some(at(0)), Some(at(BOOT))));
    let (pod, reasons) = advance_pod(found, BOOT + 1, BOOT + 50);
    assert_eq!(shows(&pod), ["Ready, 1, Unknown 255", "Ready, 1, Unknown 255"]);
    assert_eq!(pod.status.pod_ip.as_deref(), Some("10.128.0.2"));
    assert!(is_true(&pod, "Ready") && is_true(&pod, "PodReadyToStartContainers"));
    assert_eq!(pod.status.condition("Ready").unwrap().since, Some(at(BOOT + 1)));
    let of_one = ["Pulled", "Created", "Started"];
    assert_eq!(reasons, [&["SandboxChanged"][..], &of_one, &of_one].concat());
}

#[test]
fn init_containers_run_again_and_first() {
    let annotations = [("run-time.i", "5s")];
    let (before, _) = advance_pod(pod(RestartPolicy::Always, &["i"], &annotations), 0, BOOT - 1);
    assert_eq!(shows(&before)[0], "Completed 0, 0, ");
    let (found, _) = advance_pod(before, BOOT, BOOT);
    assert!(is_true(&found, "Initialized"));
    let (again, _) = advance_pod(found, BOOT + 1, BOOT + 3);
    let waits = "PodInitializing, 0, Unknown 255";
    assert_eq!(shows(&again), ["Running, 1, Completed 0", waits, waits]);
    assert_eq!(&*again.status.phase, "Running");
    assert!(!is_true(&again, "Initialized") && is_true(&again, "PodReadyToStartContainers"));
    assert_eq!(again.status.pod_ip.as_deref(), Some("10.128.0.2"));
    let (pod, _) = advance_pod(again, BOOT + 4, BOOT + 60);
    assert_eq!(
        shows(&pod),
        ["Completed 0, 1, Completed 0", "Ready, 1, Unknown 255", "Ready, 1, Unknown 255"]
    );
    assert!(is_true(&pod, "Initialized") && is_true(&pod, "Ready"));
}

#[test]
fn what_never_starts_again_has_failed() {
    let annotations = [("run-time", "1h"), ("run-time.b", "5s")];
    let (before, _) = advance_pod(pod(RestartPolicy::Never, &["i"], &annotations), 0, BOOT - 1);
    let (pod, reasons) = advance_pod(before, BOOT, BOOT + 5);
    assert_eq!(shows(&pod), ["Completed 0, 0, ", "Unknown 255, 0, ", "Completed 0, 0, "]);
    assert_eq!((&*pod.status.phase, pod.status.pod_ip.as_deref()), ("Failed", Some("10.128.0.1")));
    assert!(reasons.is_empty(), "{reasons:?}");
}

#[test]
fn what_did_its_work_is_not_done_again() {
    let annotations = [("run-time", "2m"), ("run-time.b", "5s")];
    let (before, _) = advance_pod(pod(RestartPolicy::OnFailure, &[], &annotations), 0, BOOT - 1);
    let (pod, _) = advance_pod(before, BOOT, BOOT + 10);
    assert_eq!(shows(&pod), ["Ready, 1, Unknown 255", "Completed 0, 0, "]);
    let (pod, _) = advance_pod(pod, BOOT + 11, BOOT + 130);
    assert_eq!(&*pod.status.phase, "Succeeded");
}

#[test]
fn no_back_off_outlasts_a_boot() {
    let annotations = [("run-time.a", "1s"), ("exit-code.a", "1")];
    let (before, _) = advance_pod(pod(RestartPolicy::Always, &[], &annotations), 0, BOOT - 1);
    let waits = &before.status.containers[0];
    assert!(
        matches!(&waits.state, ContainerState::Waiting { back_off: Some(back_off), .. } if *back_off > Duration::from_secs(20))
    );
    let restarts = waits.restarts;
    let (pod, _) = advance_pod(before, BOOT, BOOT + 1);
    assert!(
        matches!(pod.status.containers[0].state, ContainerState::Running { since } if since == Some(at(BOOT + 1)))
    );
    assert_eq!(pod.status.containers[0].restarts, restarts + 1);
}

#[test]
fn a_pod_that_leaves_ends_with_the_machine() {
    let (before, _) = advance_pod(pod(RestartPolicy::Always, &[], &[("stop-time", "5m")]), 0, BOOT - 5);
    let leaves = PodView { deleted_at: Some(at(BOOT + 500)), grace_seconds: Some(505), ..before };
    let result = sync_at(&leaves, BOOT);
    assert!(result.delete);
    let status = result.status.unwrap();
    assert_eq!(&*status.phase, "Failed");
    assert!(
        status
            .containers
            .iter()
            .all(|view| matches!(&view.state, ContainerState::Terminated(end) if end.exit_code == 255))
    );
}

#[test]
fn a_pod_that_came_later_knows_nothing_of_it() {
    let (here, reasons) = advance_pod(pod(RestartPolicy::Always, &["i"], &[]), BOOT, BOOT + 20);
    assert_eq!(shows(&here), ["Completed 0, 0, ", "Ready, 0, ", "Ready, 0, "]);
    assert!(!reasons.contains(&"SandboxChanged".to_owned()));
}

proptest! {
    /// Soon after a boot every pod runs or is over, no container runs since before the boot, and the result
    /// is stable.
    #[test]
    fn all_that_runs_has_started_since(
        policy in prop_oneof![Just(RestartPolicy::Always), Just(RestartPolicy::OnFailure), Just(RestartPolicy::Never)],
        inits in 0_usize..3,
        run_times in prop::collection::vec(1_u32..200, 4),
        codes in prop::collection::vec(0_u8..2, 4),
        missed in 0_i64..30,
    ) {
        let names = ["a", "b", "i", "j"];
        let mut annotations = Vec::new();
        for ((name, time), code) in names.iter().zip(&run_times).zip(&codes) {
            annotations.push((format!("run-time.{name}"), format!("{time}s")));
            annotations.push((format!("exit-code.{name}"), code.to_string()));
        }
        let annotations: Vec<(&str, &str)> = annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
        let (before, _) = advance_pod(pod(policy, &names[2..2 + inits], &annotations), 0, BOOT - 1 - missed);
        let restarts = |pod: &PodView| -> i32 { pod.status.init_containers.iter().chain(&pod.status.containers).map(|view| view.restarts).sum() };
        let (after, reasons) = advance_pod(before.clone(), BOOT, BOOT + 3);
        let reboot = RebootState { booted: at(BOOT), is_fresh: false, sandbox_at: None };
        let all = || after.status.init_containers.iter().chain(&after.status.containers);
        for view in all() {
            prop_assert!(!matches!(view.state, ContainerState::Running { .. }) || !reboot.is_stale(view), "{:?}", shows(&after));
        }
        let changed = reasons.iter().filter(|reason| *reason == "SandboxChanged").count();
        prop_assert!(changed <= 1);
        if before.is_finished() || policy == RestartPolicy::Never {
            prop_assert_eq!((restarts(&before), changed), (restarts(&after), 0));
        }
        let had_begun = before.status.init_containers.iter().chain(&before.status.containers).any(has_begun);
        if had_begun && policy == RestartPolicy::Always {
            prop_assert_eq!(changed, 1);
            prop_assert_eq!(after.status.pod_ip.as_deref(), Some("10.128.0.2"));
        }
    }
}

#[test]
fn a_clock_that_is_behind_the_boot_restarts_nothing_twice() {
    let mut pod = advance_pod(pod(RestartPolicy::Always, &["i"], &[]), 0, 50).0;
    let defaults = ContainerDefaults::default();
    let context = SyncContext {
        host_ip: HOST,
        ip: Ipv4Addr::new(10, 128, 0, 2),
        defaults: &defaults,
        booted: Some(at(BOOT)),
        preempted: None,
        missing: &[],
    };
    for second in BOOT - 5..BOOT + 5 {
        if let Some(status) = sync_pod(&pod, context, at(second)).status {
            pod = PodView { status, ..pod };
        }
    }
    for view in &pod.status.containers {
        let since = ContainerState::Running { since: Some(at(BOOT)) };
        assert_eq!((&view.state, view.restarts, view.ready), (&since, 1, true), "{pod:?}");
    }
}
