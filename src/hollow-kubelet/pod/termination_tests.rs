//! Tests of pods that are deleted, rejected, active for too long, or preempted.

use super::*;

#[test]
fn a_pod_that_is_active_for_too_long_fails() {
    let limited = PodSpecView {
        active_deadline: Some(Duration::from_secs(8)),
        ..spec(RestartPolicy::Always, &[("stop-time", "3s")])
    };
    let running = until(pod(limited), 7);
    assert_eq!(sync_at(&running, 7).again, Some(at(8)));
    assert_eq!(sync_at(&running, 8).again, Some(at(11)), "its containers have time to stop");
    let result = sync_at(&running, 11);
    assert_eq!(
        result.failure.as_ref().map(|failure| failure.reason_and_message().0.to_owned()).as_deref(),
        Some("DeadlineExceeded")
    );
    let status = result.status.unwrap();
    assert_eq!((&*status.phase, result.delete), ("Failed", false));
}

#[test]
fn a_container_that_is_told_to_stop_ends_by_the_signal_unless_an_exit_code_is_annotated() {
    for (annotations, phase, end) in [
        (&[][..], "Failed", "Error 143"),
        (&[("exit-code", "0")], "Succeeded", "Completed 0"),
        (&[("exit-code", "3")], "Failed", "Error 3"),
        (&[("exit-reason", "OOMKilled")], "Failed", "Error 143"),
        (&[("stop-time", "1h"), ("exit-code", "0")], "Failed", "Error 137"),
    ] {
        let limited = PodSpecView {
            active_deadline: Some(Duration::from_secs(10)),
            ..spec(RestartPolicy::Never, &[&[("run-time", "1h")], annotations].concat())
        };
        let running = after(pod(limited), 0);
        let ended = |status: PodStatus| (status.phase.to_string(), does(&status.containers[0]).0);
        let expected = (phase.to_owned(), end.to_owned());
        assert_eq!(ended(sync_at(&deleted(running.clone(), 5, 0), 5).status.unwrap()), expected);
        assert_eq!(ended(sync_preempted(&running, Some(5), 35).status.unwrap()), expected);
        let overdue = ended(sync_at(&running, 40).status.unwrap());
        assert_eq!(overdue, ("Failed".to_owned(), expected.1), "it has failed, whatever its containers say");
    }
}

#[test]
fn a_deleted_pod_ends_before_it_goes() {
    let running = |annotations: &[(&str, &str)]| after(pod(spec(RestartPolicy::Always, annotations)), 0);
    let result = sync_at(&deleted(running(&[]), 10, 30), 10);
    assert!(result.delete);
    assert_eq!(&*result.status.unwrap().phase, "Failed");

    let leaving = deleted(running(&[("stop-time", "8s")]), 10, 30);
    assert_eq!(
        sync_at(&leaving, 12),
        SyncResult { again: Some(at(18)), stopping: Stopping::All, ..SyncResult::default() }
    );
    assert!(sync_at(&leaving, 18).delete);

    // A shorter grace period kills the container.
    let hurried = sync_at(&deleted(running(&[("stop-time", "8s")]), 10, 5), 15);
    let status = hurried.status.unwrap();
    assert_eq!((&*status.phase, does(&status.containers[0]).0.as_str()), ("Failed", "Error 137"));
}

#[test]
fn a_hook_takes_its_time_and_a_sidecar_stops_last() {
    let mut slow = spec(RestartPolicy::Always, &[("stop-time.s", "4s")]);
    slow.containers[0].pre_stop = Duration::from_secs(5);
    slow.init_containers = [sidecar("s")].into();
    let leaving = deleted(after(pod(slow), 0), 10, 30);
    assert_eq!(sync_at(&leaving, 10).again, Some(at(19)));
    let status = sync_at(&leaving, 19).status.unwrap();
    let finished = |container: &ContainerView| match &container.state {
        ContainerState::Terminated(end) => end.finished,
        _ => None,
    };
    let all = status.containers.iter().chain(&status.init_containers).map(finished);
    assert_eq!(all.collect::<Vec<_>>(), [Some(at(15)), Some(at(10)), Some(at(19))]);
}

#[test]
fn sidecars_stop_one_after_another_the_last_one_first() {
    let mut with_sidecars = spec(
        RestartPolicy::Never,
        &[("run-time", "5s"), ("stop-time", "2s"), ("stop-time.s", "2s"), ("stop-time.t", "4s")],
    );
    with_sidecars.init_containers = [sidecar("s"), sidecar("t")].into();
    with_sidecars.init_containers[0].pre_stop = Duration::from_secs(5);
    let running = after(pod(with_sidecars), 0);
    let ends = |status: &PodStatus| {
        let all = status.init_containers.iter().chain(&status.containers);
        let ends = all.map(|container| match &container.state {
            ContainerState::Terminated(end) => end.finished.unwrap().as_second() - at(0).as_second(),
            _ => -1,
        });
        ends.collect::<Vec<_>>()
    };
    let leaving = deleted(running.clone(), 1, 30);
    assert_eq!(sync_at(&leaving, 1).again, Some(at(9)), "the hook runs beside the others");
    assert_eq!(ends(&sync_at(&leaving, 9).status.unwrap()), [9, 7, 3, 3]);
    let hurried = sync_at(&deleted(running.clone(), 1, 7), 8).status.unwrap();
    assert_eq!(ends(&hurried), [8, 7, 3, 3]);
    assert_eq!(does(&hurried.init_containers[0]).0, "Error 137");

    let done = after(running, 5);
    assert_eq!((&*done.status.phase, ends(&done.status)), ("Running", vec![-1, -1, 5, 5]));
    assert_eq!(shown(&done, "Ready"), ("False", "ContainersNotReady"));
    let events = events::of(&done, &sync_at(&done, 6), &ContainerDefaults::default());
    assert_eq!(events.iter().map(|event| &*event.reason).collect::<Vec<_>>(), ["Killing", "Killing"]);
    assert_eq!(sync_at(&done, 6).again, Some(at(12)), "its own end gives it the same order and time");
    let over = after(done, 12);
    assert_eq!((&*over.status.phase, ends(&over.status)), ("Succeeded", vec![12, 9, 5, 5]));
}

#[test]
fn a_deleted_pod_that_never_ran_goes_at_once() {
    let result = sync_at(&deleted(pod(spec(RestartPolicy::Always, &[])), 0, 30), 0);
    assert!(result.delete);
    let status = result.status.unwrap();
    assert_eq!(
        (&*status.phase, does(&status.containers[0]).0.as_str()),
        ("Failed", "ContainerStatusUnknown 137")
    );
    let mut with_init = spec(RestartPolicy::Always, &[]);
    with_init.init_containers = [container("x"), container("y")].into();
    let status = sync_at(&deleted(pod(with_init), 0, 30), 0).status.unwrap();
    let ends: Vec<String> = status.init_containers.iter().map(|container| does(container).0).collect();
    assert_eq!(ends, ["ContainerStatusUnknown 137", reasons::INITIALIZING]);
    assert_eq!(does(&status.containers[0]).0, reasons::INITIALIZING, "it cannot have run");
}

#[test]
fn of_a_container_that_was_never_made_is_said_what_was_said_before() {
    let stuck = until(pod(spec(RestartPolicy::Always, &[("image-error", "not found")])), 3);
    let leaving = deleted(stuck, 4, 30);
    let result = sync_at(&leaving, 4);
    assert_eq!(events::of(&leaving, &result, &ContainerDefaults::default()), []);
    let over = PodView { status: result.status.unwrap(), ..leaving };
    assert_eq!((&*over.status.phase, shown(&over, "Ready")), ("Failed", ("False", "ContainersNotReady")));
    assert_eq!(shown(&over, "PodReadyToStartContainers").0, "False");
    let patch: serde_json::Value = serde_json::from_slice(&patch::patch(&over, &over.status, None)).unwrap();
    let container = &patch["status"]["containerStatuses"][0];
    assert_eq!((&container["imageID"], container.get("containerID")), (&"".into(), None));
}

#[test]
fn a_pod_that_backs_off_ends_as_it_ended_last() {
    let waiting = until(pod(spec(RestartPolicy::Always, &[("run-time.a", "1s"), ("exit-code.a", "4")])), 3);
    let status = sync_at(&deleted(waiting, 4, 30), 4).status.unwrap();
    assert_eq!((does(&status.containers[0]).0.as_str(), &status.containers[0].last), ("Error 4", &None));
}

#[test]
fn a_pod_makes_room() {
    let running = after(pod(spec(RestartPolicy::Always, &[("stop-time", "2s")])), 0);
    assert_eq!(sync_preempted(&running, Some(5), 5).again, Some(at(7)));
    let result = sync_preempted(&running, Some(5), 7);
    assert_eq!((result.failure, result.delete), (Some(FailureReason::Preempted), false));
    let phase_and_target = |status: PodStatus| {
        let target = status.condition("DisruptionTarget").unwrap();
        (status.phase.to_string(), format!("{} {}", target.status, target.reason))
    };
    let target = "True TerminationByKubelet".to_owned();
    assert_eq!(phase_and_target(result.status.unwrap()), ("Failed".to_owned(), target.clone()));
    let deaf = after(pod(spec(RestartPolicy::Always, &[("stop-time", "1h")])), 0);
    assert_eq!(
        phase_and_target(sync_preempted(&deaf, Some(5), 35).status.unwrap()),
        ("Failed".to_owned(), target)
    );
}

#[test]
fn a_rejected_pod_has_its_reason_and_nothing_else() {
    let result =
        rejected(&pod(spec(RestartPolicy::Always, &[])), "OutOfcpu".into(), "too much".into(), at(3));
    let status = result.status.unwrap();
    assert_eq!((&*status.phase, status.start_time), ("Failed", Some(at(3))));
    assert!(status.conditions.is_empty() && status.containers.is_empty() && status.pod_ip.is_none());
}
