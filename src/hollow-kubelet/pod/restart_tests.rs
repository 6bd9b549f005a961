//! Tests of containers that start again: after their end, and because of another image.

use std::sync::Arc;

use super::*;

#[test]
fn restart_back_off_follows_the_kubelet() {
    let crashing = pod(spec(RestartPolicy::Always, &[("run-time.a", "2s"), ("exit-code.a", "1")]));
    let lines = recorded_events(crashing, 2_000);
    let waits: Vec<i64> = lines
        .windows(2)
        .filter(|pair| pair[0].1 == reasons::CRASH_LOOP)
        .map(|pair| pair[1].0 - pair[0].0)
        .collect();
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300, 300, 300]);
    let first: Vec<_> = lines[..4].iter().map(|(at, word, times)| (*at, word.as_str(), *times)).collect();
    let expected = [(0, "Ready", 0), (2, "Ready", 1), (4, reasons::CRASH_LOOP, 1), (14, "Ready", 2)];
    assert_eq!(first, expected, "the first time at once");
}

#[test]
fn an_outage_of_the_kubelet_makes_no_back_off_longer() {
    let annotations = [("run-time.a", "2s"), ("exit-code.a", "1")];
    let waiting = until(pod(spec(RestartPolicy::Always, &annotations)), 5);
    // Back after ten minutes: the second run is over, and the third one ends in time.
    let ended = after(after(waiting, 600), 602);
    let ContainerState::Waiting { back_off, .. } = ended.status.containers[0].state else { panic!() };
    assert_eq!(back_off, Some(Duration::from_secs(20)));
}

#[test]
fn a_long_run_is_forgiven() {
    let slow = recorded_events(pod(spec(RestartPolicy::Always, &[("run-time.a", "11m")])), 2_000);
    let lines: Vec<_> = slow.iter().map(|(at, word, times)| (*at, word.as_str(), *times)).collect();
    assert_eq!(lines, [(0, "Ready", 0), (660, "Ready", 1), (1_320, "Ready", 2), (1_980, "Ready", 3)]);
}

#[test]
fn what_is_shown_while_it_backs_off() {
    let annotations = [("run-time.a", "2s"), ("exit-reason.a", "OOMKilled")];
    let waiting = until(pod(spec(RestartPolicy::Always, &annotations)), 5);
    assert_eq!(&*waiting.status.phase, "Running");
    assert_eq!(shown(&waiting, "Ready"), ("False", "ContainersNotReady"));
    let container = &waiting.status.containers[0];
    let last = container.last.as_ref().unwrap();
    assert_eq!((last.exit_code, &*last.reason, last.finished), (137, "OOMKilled", Some(at(4))));
    assert_eq!((container.restarts, container.ready, container.started), (1, false, false));
    let stays = sync_at(&waiting, 6);
    assert_eq!(stays, SyncResult { again: Some(at(14)), ..SyncResult::default() });
}

#[test]
fn a_container_starts_again_when_its_image_changes_whatever_its_policy() {
    let change = |mut pod: PodView| {
        Arc::make_mut(&mut pod.spec).containers[0].image = "other:2".into();
        pod
    };
    for (policy, annotations, end) in [
        (RestartPolicy::Never, &[("run-time", "1h")][..], (143, "Error")),
        (RestartPolicy::Always, &[("exit-code", "0")], (0, "Completed")),
        (RestartPolicy::Always, &[("stop-time", "1h")], (137, "Error")),
    ] {
        let before = after(pod(spec(policy, annotations)), 0);
        let changed = change(before.clone());
        let result = sync_at(&changed, 5);
        let events = events::of(&changed, &result, &ContainerDefaults::default());
        assert_eq!(events[0].message, "Container a definition changed, will be restarted");
        let after = after(changed, 5);
        let [a, b] = &*after.status.containers else { panic!() };
        assert_eq!((does(a), &*a.image), (("Ready".to_owned(), 1), "docker.io/library/other:2"));
        assert_eq!(a.last.as_ref().map(|last| (last.exit_code, &*last.reason)), Some(end));
        assert_eq!(b, &before.status.containers[1], "another container is left alone");
        let shown = |pod: &PodView| -> serde_json::Value {
            serde_json::from_slice(&patch::patch(pod, &pod.status, None)).unwrap()
        };
        let ids = |pod: &PodView, id: &str| shown(pod)["status"]["containerStatuses"][0][id].to_string();
        assert!(["containerID", "imageID"].iter().all(|id| ids(&before, id) != ids(&after, id)));
    }
    let annotations = [("run-time.a", "2s"), ("exit-code.a", "1")];
    let waiting = change(until(pod(spec(RestartPolicy::Always, &annotations)), 5));
    assert_eq!(
        does(&after(waiting, 6).status.containers[0]),
        ("Ready".to_owned(), 2),
        "no back-off holds it"
    );
    let done = change(until(pod(spec(RestartPolicy::Never, &[("run-time.a", "1s"), ("run-time", "1h")])), 3));
    assert_eq!(
        does(&after(done, 4).status.containers[0]).0,
        "Completed 0",
        "a container that has ended stays so"
    );
    let mut with_sidecar = spec(RestartPolicy::Always, &[]);
    with_sidecar.init_containers = [container("x"), sidecar("s")].into();
    let mut running = until(pod(with_sidecar), 1);
    for init in &mut Arc::make_mut(&mut running.spec).init_containers {
        init.image = "other".into();
    }
    let inits = after(running, 2).status.init_containers;
    assert_eq!((does(&inits[0]), does(&inits[1])), (("Completed 0".to_owned(), 0), ("Ready".to_owned(), 1)));
}
