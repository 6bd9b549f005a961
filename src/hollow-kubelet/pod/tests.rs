//! Pod lifecycles, second by second; their restarts are in [`restart`], their ends in [`termination`], properties of all of them in [`any`].

use std::time::Duration;

use kube_node_api::names;
use kube_node_cache::{
    Container, ContainerState, ContainerView, PodCondition, PodSpecView, Probe, Qos, RestartPolicy,
    Terminated,
};

use super::{conditions::CONDITIONS, events::PendingEvent, *};

#[path = "any_tests.rs"]
mod any;
#[path = "missing_tests.rs"]
mod missing_objects;
#[path = "restart_tests.rs"]
mod restart;
#[path = "termination_tests.rs"]
mod termination;

const HOST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const IP: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn container(name: &str) -> Container {
    Container { name: name.into(), image: "i".into(), ..Container::default() }
}

fn sidecar(name: &str) -> Container {
    Container { restart_policy: Some(RestartPolicy::Always), ..container(name) }
}

fn probe(initial_delay_seconds: i32) -> Probe {
    Probe { initial_delay_seconds, ..Probe::default() }
}

fn condition(name: &str, status: &str) -> PodCondition {
    PodCondition {
        r#type: name.into(),
        status: status.into(),
        reason: "".into(),
        observed_generation: None,
        since: Some(at(-9)),
    }
}

/// A spec of two containers, with annotations.
fn spec(restart_policy: RestartPolicy, annotations: &[(&str, &str)]) -> PodSpecView {
    PodSpecView {
        containers: [container("a"), container("b")].into(),
        restart_policy,
        grace: Duration::from_secs(30),
        hollow_annotations: annotations
            .iter()
            .map(|(key, value)| (format!("{}{key}", names::HOLLOW_PREFIX).into(), (*value).into()))
            .collect(),
        ..PodSpecView::default()
    }
}

/// A pod that the scheduler has just bound.
fn pod(spec: PodSpecView) -> PodView {
    PodView {
        uid: "u".into(),
        generation: Some(1),
        spec: spec.into(),
        status: PodStatus {
            phase: "Pending".into(),
            qos: Qos::BestEffort,
            conditions: [condition("PodScheduled", "True")].into(),
            ..PodStatus::default()
        },
        ..PodView::default()
    }
}

fn sync_preempted(pod: &PodView, preempted: Option<i64>, second: i64) -> SyncResult {
    let defaults = ContainerDefaults::default();
    let context = SyncContext {
        host_ip: HOST,
        ip: IP,
        defaults: &defaults,
        booted: None,
        preempted: preempted.map(at),
        missing: &[],
    };
    sync_pod(pod, context, at(second))
}

fn sync_at(pod: &PodView, second: i64) -> SyncResult {
    sync_preempted(pod, None, second)
}

/// `pod` after the sync at `second`.
fn after(pod: PodView, second: i64) -> PodView {
    match sync_at(&pod, second).status {
        Some(status) => PodView { status, ..pod },
        None => pod,
    }
}

/// `pod` after all syncs up to `second`.
fn until(mut pod: PodView, second: i64) -> PodView {
    for second in 0..=second {
        pod = after(pod, second);
    }
    pod
}

#[test]
fn a_pod_on_the_hosts_network_goes_with_its_machines_address() {
    for (host_network, ip) in [(true, HOST.to_string()), (false, "127.0.0.9".to_owned())] {
        let before = until(pod(PodSpecView { host_network, ..spec(RestartPolicy::Always, &[]) }), 5);
        let status = PodStatus {
            host_ip: Some("127.0.0.9".into()),
            pod_ip: Some("127.0.0.9".into()),
            ..before.status.clone()
        };
        let shown = after(PodView { status, ..before }, 6).status;
        assert_eq!(
            (shown.host_ip.as_deref(), shown.pod_ip.as_deref()),
            (Some(&*HOST.to_string()), Some(&*ip))
        );
    }
}

fn deleted(pod: PodView, second: i64, grace: i64) -> PodView {
    PodView { deleted_at: Some(at(second + grace)), grace_seconds: Some(grace), ..pod }
}

/// State of a container in one word, and its restarts.
fn does(container: &ContainerView) -> (String, i32) {
    let word = match &container.state {
        ContainerState::Waiting { reason, .. } => reason.to_string(),
        ContainerState::Running { .. } if container.ready => "Ready".to_owned(),
        ContainerState::Running { .. } => "Running".to_owned(),
        ContainerState::Terminated(end) => format!("{} {}", end.reason, end.exit_code),
    };
    (word, container.restarts)
}

/// State of each container, init containers first.
fn doing(pod: &PodView) -> Vec<String> {
    let all = pod.status.init_containers.iter().chain(&pod.status.containers);
    all.map(|container| does(container).0).collect()
}

/// Status and reason of a condition.
fn shown<'a>(pod: &'a PodView, name: &str) -> (&'a str, &'a str) {
    let condition = pod.status.condition(name).unwrap();
    (&condition.status, &condition.reason)
}

/// State changes of the first container up to `second`, with their times.
fn recorded_events(mut pod: PodView, second: i64) -> Vec<(i64, String, i32)> {
    let mut lines: Vec<(i64, String, i32)> = Vec::new();
    for second in 0..=second {
        pod = after(pod, second);
        let (word, restarts) = does(&pod.status.containers[0]);
        if lines.last().is_none_or(|(_, last, times)| *last != word || *times != restarts) {
            lines.push((second, word, restarts));
        }
    }
    lines
}

#[test]
fn a_pod_starts_in_one_write_and_then_rests() {
    let running = after(pod(spec(RestartPolicy::Always, &[])), 0);
    assert_eq!(&*running.status.phase, "Running");
    let order: Vec<&str> = running.status.conditions.iter().map(|condition| &*condition.r#type).collect();
    assert_eq!(order, CONDITIONS);
    assert!(CONDITIONS.iter().all(|name| running.status.has(name)));
    assert_eq!(running.status.condition("PodScheduled").unwrap().since, Some(at(-9)));
    assert!(running.status.conditions.iter().all(|condition| condition.observed_generation == Some(1)));
    assert_eq!(
        (running.status.pod_ip.as_deref(), running.status.observed_generation),
        (Some("10.128.0.1"), Some(1))
    );
    assert!(running.status.containers.iter().all(|container| container.started && container.ready));
    assert_eq!(sync_at(&running, 1_000), SyncResult::default());
}

#[test]
fn a_pod_that_takes_time_to_start_shows_it() {
    let starting = after(pod(spec(RestartPolicy::Always, &[("start-time", "5s")])), 0);
    assert_eq!(&*starting.status.phase, "Pending");
    assert_eq!(doing(&starting), ["ContainerCreating", "ContainerCreating"]);
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready"].map(|name| shown(&starting, name));
    assert_eq!(conditions, [("False", ""), ("True", ""), ("False", "ContainersNotReady")]);
    assert_eq!((&starting.status.pod_ip, starting.status.start_time), (&None, Some(at(0))));
    assert_eq!(sync_at(&starting, 1), SyncResult { again: Some(at(5)), ..SyncResult::default() });
    let running = after(starting, 5);
    assert!(running.status.has("Ready") && running.status.pod_ip.is_some());
}

#[test]
fn a_pod_that_ends_ends_in_time() {
    for (code, phase, reason) in [("0", "Succeeded", "PodCompleted"), ("3", "Failed", "PodFailed")] {
        let running = after(pod(spec(RestartPolicy::Never, &[("run-time", "5s"), ("exit-code", code)])), 0);
        assert_eq!(sync_at(&running, 4), SyncResult { again: Some(at(5)), ..SyncResult::default() });
        let over = after(running, 6);
        assert_eq!(&*over.status.phase, phase);
        assert_eq!(shown(&over, "Ready"), ("False", reason));
        assert_eq!(shown(&over, "PodReadyToStartContainers").0, "False");
        let times = Terminated { started: Some(at(0)), finished: Some(at(5)), ..Terminated::default() };
        for container in &over.status.containers {
            let ContainerState::Terminated(end) = &container.state else { panic!() };
            assert_eq!((end.started, end.finished, container.ready), (times.started, times.finished, false));
            assert_eq!(end.exit_code.to_string(), code);
        }
        assert_eq!(sync_at(&over, 7), SyncResult::default());
    }
}

#[test]
fn what_failed_starts_again_and_what_succeeded_does_not() {
    let on_failure =
        |code| until(pod(spec(RestartPolicy::OnFailure, &[("run-time", "1s"), ("exit-code", code)])), 3);
    assert_eq!(&*on_failure("0").status.phase, "Succeeded");
    assert_eq!(
        (&*on_failure("1").status.phase, doing(&on_failure("1"))[0].as_str()),
        ("Running", reasons::CRASH_LOOP)
    );
    let mut own = spec(RestartPolicy::Always, &[("run-time", "1s")]);
    own.containers[0].restart_policy = Some(RestartPolicy::Never);
    let mixed = until(pod(own), 1);
    assert_eq!(
        (&*mixed.status.phase, &doing(&mixed)[..]),
        ("Running", &["Completed 0".to_owned(), "Ready".to_owned()][..])
    );
}

#[test]
fn init_containers_run_one_after_another_and_sidecars_beside() {
    let mut with_inits =
        spec(RestartPolicy::Never, &[("run-time.x", "3s"), ("run-time.y", "2s"), ("run-time", "4s")]);
    with_inits.init_containers = [container("x"), sidecar("s"), container("y")].into();
    let mut pod = pod(with_inits);
    let mut found = Vec::new();
    for second in 0..10 {
        pod = after(pod, second);
        if found.last().is_none_or(|(_, last)| *last != doing(&pod)) {
            found.push((second, doing(&pod)));
        }
        let initialized = shown(&pod, "Initialized");
        assert_eq!(initialized.0, if second < 5 { "False" } else { "True" }, "{second}");
    }
    let waits = reasons::INITIALIZING;
    let lines: Vec<(i64, Vec<&str>)> =
        found.iter().map(|(at, names)| (*at, names.iter().map(String::as_str).collect())).collect();
    assert_eq!(
        lines,
        [
            (0, vec!["Running", waits, waits, waits, waits]),
            (3, vec!["Completed 0", "Ready", "Running", waits, waits]),
            (5, vec!["Completed 0", "Ready", "Completed 0", "Ready", "Ready"]),
            (9, vec!["Completed 0", "Error 143", "Completed 0", "Completed 0", "Completed 0"]),
        ]
    );
    assert_eq!(&*pod.status.phase, "Succeeded");
}

#[test]
fn an_init_container_that_fails_holds_the_pod_up_or_ends_it() {
    let failing = |policy| {
        let mut spec = spec(policy, &[("exit-code.x", "1")]);
        spec.init_containers = [container("x")].into();
        until(pod(spec), 1)
    };
    let waiting = failing(RestartPolicy::Always);
    assert_eq!((&*waiting.status.phase, doing(&waiting)[0].as_str()), ("Pending", reasons::CRASH_LOOP));
    assert_eq!(shown(&waiting, "Initialized"), ("False", "ContainersNotInitialized"));
    let over = failing(RestartPolicy::Never);
    assert_eq!(
        (&*over.status.phase, doing(&over)),
        ("Failed", vec!["Error 1".into(), reasons::INITIALIZING.into(), reasons::INITIALIZING.into()])
    );
    assert_eq!(shown(&over, "Ready"), ("False", "PodFailed"));
}

#[test]
fn a_sidecar_that_starts_slowly_holds_up_what_comes_after_it() {
    let mut slow = spec(RestartPolicy::Always, &[]);
    slow.init_containers = [Container { startup: Some(probe(4)), ..sidecar("s") }].into();
    let starting = until(pod(slow), 3);
    assert_eq!(
        (doing(&starting)[0].as_str(), doing(&starting)[1].as_str()),
        ("Running", reasons::INITIALIZING)
    );
    assert_eq!(&*starting.status.phase, "Pending");
    assert!(after(starting, 4).status.has("Ready"));
}

#[test]
fn probes_delay_readiness() {
    let mut probed = spec(RestartPolicy::Always, &[]);
    probed.containers[0].readiness = Some(probe(3));
    probed.containers[1].startup = Some(probe(5));
    let running = after(pod(probed), 0);
    assert_eq!(
        (&*running.status.phase, doing(&running)),
        ("Running", vec!["Running".to_owned(), "Running".to_owned()])
    );
    let started: Vec<bool> = running.status.containers.iter().map(|container| container.started).collect();
    assert_eq!(started, [true, false]);
    let half = after(running, 3);
    assert_eq!((doing(&half)[0].as_str(), half.status.has("Ready")), ("Ready", false));
    assert!(after(half, 5).status.has("Ready"));
    let never = until(pod(spec(RestartPolicy::Always, &[("ready-time", "never")])), 500);
    assert_eq!((&*never.status.phase, shown(&never, "Ready").1), ("Running", "ContainersNotReady"));
    assert_eq!(sync_at(&never, 501), SyncResult::default());
}

#[test]
fn an_image_that_cannot_be_pulled_is_tried_again_ever_more_rarely() {
    let lines = recorded_events(pod(spec(RestartPolicy::Always, &[("image-error.a", "not found")])), 700);
    let tries: Vec<i64> =
        lines.iter().filter(|(_, word, _)| word == reasons::PULL_FAILED).map(|(at, ..)| *at).collect();
    assert_eq!(tries, [0, 10, 30, 70, 150, 310, 610]);
    let stuck = until(pod(spec(RestartPolicy::Never, &[("image-error.a", "not found")])), 20);
    assert_eq!((&*stuck.status.phase, doing(&stuck)[0].as_str()), ("Pending", reasons::PULL_BACK_OFF));
    assert_eq!(stuck.status.pod_ip.as_deref(), Some("10.128.0.1"), "it has a sandbox");
}

#[test]
fn what_cannot_be_started_fails_at_once() {
    let never = after(pod(spec(RestartPolicy::Never, &[("start-error", "no such file")])), 0);
    assert_eq!((&*never.status.phase, doing(&never)[0].as_str()), ("Failed", "StartError 128"));
    let always = after(pod(spec(RestartPolicy::Always, &[("start-error", "no such file")])), 0);
    assert_eq!(
        (&*always.status.phase, does(&always.status.containers[0])),
        ("Running", (reasons::CRASH_LOOP.to_owned(), 1))
    );
}

#[test]
fn a_readiness_gate_is_waited_for_and_left_alone() {
    let gated = PodSpecView { readiness_gates: ["gate".into()].into(), ..spec(RestartPolicy::Always, &[]) };
    let mut running = after(pod(gated), 0);
    assert_eq!(shown(&running, "Ready"), ("False", "ReadinessGatesNotReady"));
    assert!(running.status.has("ContainersReady"));
    let message = |pod: &PodView| {
        conditions::message(pod, &pod.status, pod.status.condition("Ready").unwrap()).unwrap_or_default()
    };
    assert_eq!(message(&running), "corresponding condition of pod readiness gate \"gate\" does not exist.");
    let add = |pod: &mut PodView, value: &str| {
        let others = pod.status.conditions.iter().filter(|condition| &*condition.r#type != "gate").cloned();
        pod.status.conditions = others.chain([condition("gate", value)]).collect();
    };
    add(&mut running, "False");
    assert_eq!(message(&running), "the status of pod readiness gate \"gate\" is not \"True\", but False");
    add(&mut running, "True");
    let open = after(running, 3);
    let ready = open.status.condition("Ready").unwrap();
    assert_eq!((&*ready.status, ready.since), ("True", Some(at(3))));
    assert_eq!(&*open.status.conditions[0].r#type, "gate", "conditions of others come first");
}

#[test]
fn a_ready_condition_that_others_changed_is_repaired() {
    let mut running = after(pod(spec(RestartPolicy::Always, &[])), 0);
    running.status.conditions[2].status = "False".into();
    let repaired = after(running, 60);
    assert!(repaired.status.has("Ready"));
    assert_eq!(repaired.status.start_time, Some(at(0)));
}

/// Events up to `second`: time, reason and count.
fn events_of(mut pod: PodView, second: i64) -> Vec<(i64, String, i32)> {
    let mut all = Vec::new();
    for second in 0..=second {
        let result = sync_at(&pod, second);
        let events = events::of(&pod, &result, &ContainerDefaults::default());
        let of_a = |event: &PendingEvent| event.container.as_ref().is_none_or(|(name, _)| &**name == "a");
        all.extend(events.into_iter().filter(of_a).map(|event| (second, event.reason, event.count)));
        pod = after(pod, second);
    }
    all
}

#[test]
fn events_are_a_kubelets() {
    let lines =
        events_of(pod(spec(RestartPolicy::Always, &[("run-time.a", "2s"), ("exit-code.a", "1")])), 14);
    let lines: Vec<(i64, &str, i32)> =
        lines.iter().map(|(at, reason, count)| (*at, reason.as_str(), *count)).collect();
    let run = |at, count| ["Pulled", "Created", "Started"].map(|reason| (at, reason, count));
    let expected = [&run(0, 1)[..], &run(2, 2), &[(4, "BackOff", 1)], &run(14, 3)].concat();
    assert_eq!(lines, expected);
    let failing = events_of(pod(spec(RestartPolicy::Always, &[("image-error.a", "not found")])), 6);
    let reasons: Vec<&str> = failing.iter().map(|(_, reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["Pulling", "Failed", "Failed", "BackOff", "Failed"]);
    let leaving = deleted(after(pod(spec(RestartPolicy::Always, &[])), 0), 0, 30);
    let reasons =
        |events: Vec<(i64, String, i32)>| events.into_iter().map(|(_, reason, _)| reason).collect::<Vec<_>>();
    assert_eq!(reasons(events_of(leaving, 0)), ["Killing"]);
    let mut done = spec(RestartPolicy::Never, &[("run-time", "3s")]);
    done.init_containers = [sidecar("a")].into();
    done.containers = [container("main")].into();
    let lines = events_of(pod(done), 4);
    assert_eq!(reasons(lines), ["Pulled", "Created", "Started", "Killing"], "it has done its work");
    let broken = [("start-time.a", "1s"), ("start-error.a", "no such file")];
    let lines = events_of(pod(spec(RestartPolicy::Always, &broken)), 1);
    assert!(reasons(lines).contains(&"Pulling".to_owned()), "also where it is restarted at once");
}
