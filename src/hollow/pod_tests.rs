use std::iter;

use proptest::prelude::*;

use super::*;

const HOST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const IP: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn container(name: &str) -> Container {
    Container { name: name.into(), image: "i".into(), restart_policy: None }
}

fn pod(restart_policy: RestartPolicy) -> PodView {
    let condition = |name: &str, status: &str| PodCondition {
        r#type: name.into(),
        status: status.into(),
        reason: "".into(),
        observed_generation: None,
        since: Some(at(-9)),
    };
    PodView {
        uid: "u".into(),
        generation: Some(1),
        containers: [container("a"), container("b")].into(),
        restart_policy,
        status: PodStatus {
            phase: "Pending".into(),
            conditions: vec![condition("PodScheduled", "True")],
            ..PodStatus::default()
        },
        ..PodView::default()
    }
}

fn script(run_time: Option<u64>, exit_code: i32) -> Script {
    Script { run_time: run_time.map(Duration::from_secs), exit_code, stop_time: Duration::ZERO }
}

fn look(pod: &PodView, script: &Script, second: i64) -> Step {
    step(pod, script, HOST, IP, at(second))
}

/// `pod` as it is after the step at `second`.
fn after(pod: PodView, script: &Script, second: i64) -> PodView {
    match look(&pod, script, second).status {
        Some(status) => PodView { status, ..pod },
        None => pod,
    }
}

fn conditions(pod: &PodView) -> Vec<(String, String)> {
    let shown = |condition: &PodCondition| (condition.r#type.to_string(), condition.status.to_string());
    pod.status.conditions.iter().map(shown).collect()
}

fn deleted(pod: PodView, second: i64, grace: i64) -> PodView {
    PodView { deleted_at: Some(at(second + grace)), grace_seconds: Some(grace), ..pod }
}

#[test]
fn a_pod_starts_in_one_write_and_then_rests() {
    let forever = script(None, 0);
    let running = after(pod(RestartPolicy::Always), &forever, 0);
    assert_eq!(&*running.status.phase, "Running");
    let all_true: Vec<_> = CONDITIONS.map(|name| (name.to_owned(), "True".to_owned())).into();
    assert_eq!(conditions(&running), all_true);
    assert_eq!(running.status.condition("PodScheduled").unwrap().since, Some(at(-9)));
    assert_eq!(running.status.pod_ip.as_deref(), Some("10.128.0.1"));
    assert_eq!(look(&running, &forever, 1_000), Step::default());
}

#[test]
fn a_pod_that_ends_ends_in_time() {
    for (code, phase, reason) in [(0, "Succeeded", "PodCompleted"), (3, "Failed", "PodFailed")] {
        let script = script(Some(5), code);
        let running = after(pod(RestartPolicy::Never), &script, 0);
        assert_eq!(look(&running, &script, 4), Step { again: Some(at(5)), ..Step::default() });
        let over = after(running, &script, 6);
        assert_eq!(&*over.status.phase, phase);
        let ready = over.status.condition("Ready").unwrap();
        assert_eq!((&*ready.status, &*ready.reason), ("False", reason));
        let end = ContainerState::Ended { exit_code: code, started: Some(at(0)), finished: Some(at(5)) };
        assert!(over.status.containers.iter().all(|container| container.state == end && !container.ready));
        assert_eq!(look(&over, &script, 7), Step::default());
    }
}

#[test]
fn what_fails_or_always_runs_starts_again() {
    for (policy, code) in [(RestartPolicy::OnFailure, 1), (RestartPolicy::Always, 0)] {
        let script = script(Some(20), code);
        let again = after(after(pod(policy), &script, 0), &script, 20);
        assert_eq!(&*again.status.phase, "Running");
        assert!(again.status.containers.iter().all(|container| container.restarts == 1 && container.ready));
        assert_eq!(look(&again, &script, 21).again, Some(at(40)));
    }
}

#[test]
fn init_containers_are_done_and_sidecars_run() {
    let sidecar = Container { restart_policy: Some(RestartPolicy::Always), ..container("sidecar") };
    let pod = PodView { init_containers: [container("init"), sidecar].into(), ..pod(RestartPolicy::Never) };
    let script = script(Some(5), 0);
    let running = after(pod, &script, 0);
    assert_eq!(exit_code(&running.status.init_containers[0]), Some(0));
    assert_eq!(running.status.init_containers[1].state, ContainerState::Running { since: Some(at(0)) });
    let over = after(running, &script, 5);
    assert_eq!(exit_code(&over.status.init_containers[1]), Some(0));
    assert_eq!(&*over.status.phase, "Succeeded");
}

#[test]
fn a_readiness_gate_is_waited_for_and_left_alone() {
    let gated = PodView { readiness_gates: ["gate".into()].into(), ..pod(RestartPolicy::Always) };
    let forever = script(None, 0);
    let mut running = after(gated, &forever, 0);
    let ready = running.status.condition("Ready").unwrap();
    assert_eq!((&*ready.status, &*ready.reason), ("False", "ReadinessGatesNotReady"));
    assert_eq!(&*running.status.condition("ContainersReady").unwrap().status, "True");
    running.status.conditions.push(PodCondition {
        r#type: "gate".into(),
        status: "True".into(),
        reason: "".into(),
        observed_generation: None,
        since: None,
    });
    let open = after(running, &forever, 3);
    let ready = open.status.condition("Ready").unwrap();
    assert_eq!((&*ready.status, ready.since), ("True", Some(at(3))));
    assert_eq!(&*open.status.conditions[0].r#type, "gate", "conditions of others come first");
}

#[test]
fn a_ready_condition_that_others_changed_is_repaired() {
    let forever = script(None, 0);
    let mut running = after(pod(RestartPolicy::Always), &forever, 0);
    running.status.conditions[2].status = "False".into();
    let repaired = after(running, &forever, 60);
    assert_eq!(&*repaired.status.condition("Ready").unwrap().status, "True");
    assert_eq!(repaired.status.start_time, Some(at(0)));
}

#[test]
fn a_deleted_pod_ends_before_it_goes() {
    let forever = script(None, 0);
    let running = after(pod(RestartPolicy::Always), &forever, 0);
    let step = look(&deleted(running.clone(), 10, 30), &forever, 10);
    assert!(step.delete);
    assert_eq!(&*step.status.unwrap().phase, "Succeeded");

    let slow = Script { stop_time: Duration::from_secs(8), ..forever };
    let leaving = deleted(running.clone(), 10, 30);
    assert_eq!(look(&leaving, &slow, 12), Step { again: Some(at(18)), ..Step::default() });
    assert!(look(&leaving, &slow, 18).delete);

    // A shorter grace kills.
    let hurried = look(&deleted(running, 10, 5), &slow, 15);
    let status = hurried.status.unwrap();
    assert_eq!((&*status.phase, exit_code(&status.containers[0])), ("Failed", Some(KILLED)));
}

#[test]
fn a_deleted_pod_that_never_ran_goes_at_once() {
    let step = look(&deleted(pod(RestartPolicy::Always), 0, 30), &script(None, 0), 0);
    assert!(step.delete);
    assert_eq!(&*step.status.unwrap().phase, "Failed");
}

proptest! {
    /// Whatever is written is taken as written: at the same moment nothing is left to say. And a look at the announced
    /// moment always does something.
    #[test]
    fn a_step_settles(
        policy in prop::sample::select(vec![RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never]),
        run_time in prop::option::of(1_u64..30),
        exit_code in 0..3,
        stop_time in 0_u64..20,
        deletion in prop::option::of((0_i64..60, 0_i64..30)),
    ) {
        let run_time = if policy == RestartPolicy::Always { run_time } else { run_time.or(Some(1)) };
        let script = Script { stop_time: Duration::from_secs(stop_time), ..script(run_time, exit_code) };
        let mut pod = pod(policy);
        let mut announced = None;
        for second in iter::successors(Some(0), |second| Some(second + 1)).take(120) {
            if let Some((when, grace)) = deletion && when == second {
                pod = deleted(pod, when, grace);
                announced = None;
            }
            let step = look(&pod, &script, second);
            if announced == Some(at(second)) {
                prop_assert!(step.status.is_some() || step.delete, "nothing at {second}");
            }
            if let Some(status) = step.status {
                pod.status = status;
                let settled = look(&pod, &script, second);
                prop_assert!(settled.status.is_none(), "{:?}", settled.status);
            }
            announced = step.again;
            prop_assert!(announced.is_none_or(|again| again > at(second)));
            if step.delete {
                prop_assert!(pod.is_finished());
                return Ok(());
            }
        }
        prop_assert!(deletion.is_none());
    }
}
