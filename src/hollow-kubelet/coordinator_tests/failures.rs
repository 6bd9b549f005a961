//! Tests of fault injection.

use super::*;

/// Silent for 30 s, then healthy for 60 s, and so on.
fn silent_by_turns() -> Failures {
    Failures {
        unhealthy_duration: GoDuration(secs(30)),
        healthy_duration: Some(GoDuration(secs(60))),
        turn_unhealthy_periodically: Some(true),
        mode: Some(FailureMode::Silent),
        ..Failures::default()
    }
}

#[test]
fn a_silent_machine_says_nothing_until_it_is_healthy() {
    let failures = silent_by_turns();
    let mut world = World::new(vec![node("a", 1)], vec![pod("p", "a")]);
    world.create("a", Some(failures));
    world.run(29);
    assert!(world.sent.is_empty(), "{:?}", world.sent);
    world.run(120);
    let quiet = |at: &u64| (91..120).contains(at);
    assert!(world.sent.iter().any(|(at, _)| *at == 30), "{:?}", world.sent);
    assert!(!world.sent.iter().any(|(at, _)| quiet(at)), "{:?}", world.sent);
}

#[test]
fn a_machine_that_is_silent_from_the_first_counts_from_its_node() {
    let failures = silent_by_turns();
    // Seconds since the Node's creation, under another process, and remaining seconds of silence. A passed
    // outage is not made up for.
    for (ago, begins) in [(20, 10), (29, 1), (40, 0), (-500, 30)] {
        let mut world = World::new(vec![], vec![]);
        let created = world.start.wall - jiff::SignedDuration::from_secs(ago);
        let born = Arc::new(NodeView { created: Some(created), ..node("a", 1) });
        world.coordinator.nodes.list_of([NodeView::clone(&born)]);
        world.create("a", Some(failures.clone()));
        world.run(31);
        for what in ["PATCH status", "POST leases"] {
            assert_eq!(world.times(what).first(), Some(&begins), "{what} {ago}: {:?}", world.sent);
        }
        let recorded = world.machine("a").boot.and_then(boot::time).unwrap();
        assert_eq!(recorded.as_second(), created.min(world.start.wall).as_second());
    }
    // The first status of a machine that is not silent records its boot.
    let old = NodeView { created: Some(Timestamp::UNIX_EPOCH), ..node("a", 1) };
    let mut world = World::new(vec![old], vec![]);
    world.create("a", Some(Failures { mode: Some(FailureMode::Reported), ..failures }));
    world.run(1);
    let recorded = world.machine("a").boot.and_then(boot::time).unwrap();
    assert_eq!(recorded.as_second(), world.start.wall.as_second());
}

#[test]
fn pod_bound_during_silence_starts_afterwards() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", Some(silent_by_turns()));
    world.run(80);
    // Silent from 90 to 120 s: the pod is synced then, and the machine's status for lack of room only later.
    let came = Arc::new(pod("p", "a"));
    world.coordinator.pods.cache.list_of([pod("p", "a")]);
    world.coordinator.pod_changed(None, Some(&came), world.clock(91));
    for second in 91..120 {
        assert!(world.coordinator.next(world.clock(second), Pressure::Machines).is_none());
    }
    world.run_at(world.clock(121));
    assert_eq!(world.statuses["p"]["phase"], "Running");
}

#[test]
fn the_events_of_a_machine_are_lost_with_it() {
    let failures = Failures {
        unhealthy_duration: GoDuration(secs(30)),
        turn_unhealthy_after: Some(true),
        mode: Some(FailureMode::Silent),
        ..Failures::default()
    };
    let mut world = World::new(vec![node("a", 1), node("b", 1)], vec![]);
    world.create("a", Some(failures));
    world.create("b", None);
    world.run(1);
    let count = |world: &World| world.times("POST events").len();
    for (second, sent) in [(2, 2), (40, 3)] {
        for name in ["a", "b"] {
            let boot = boot::first(name, world.clock(second).wall);
            let now = world.clock(second);
            let Coordinator { events, schedule, .. } = &mut world.coordinator;
            events.record_reboot(name, boot, schedule, now);
        }
        world.run(second + 1);
        assert_eq!(count(&world), sent, "{:?}", world.sent);
    }
}

#[test]
fn a_machine_comes_back_from_an_outage_as_one_that_rebooted() {
    for mode in [FailureMode::Silent, FailureMode::Reported] {
        let shown =
            NodeView { boot_id: Some(boot::first("uid-a", Timestamp::now()).to_string()), ..node("a", 1) };
        let mut world = World::new(vec![shown], vec![pod("p", "a")]);
        let failures = Failures {
            unhealthy_duration: GoDuration(secs(20)),
            healthy_duration: Some(GoDuration(secs(3_600))),
            turn_unhealthy_periodically: Some(true),
            mode: Some(mode),
            reboot: Some(true),
            ..Failures::default()
        };
        world.create("a", None);
        world.run(5);
        let first = world.statuses["p"].clone();
        // The pod as the API server would show it.
        let running = |status: &Value| {
            let since = status["containerStatuses"][0]["state"]["running"]["startedAt"].as_str().unwrap();
            let view = ContainerView {
                name: "a".into(),
                ready: true,
                started: true,
                restarts: 0,
                image: status["containerStatuses"][0]["image"].as_str().unwrap().into(),
                crashes: 0,
                state: ContainerState::Running { since: Some(since.parse().unwrap()) },
                last: None,
            };
            let status = PodStatus {
                phase: "Running".into(),
                start_time: Some(since.parse().unwrap()),
                pod_ip: Some(status["podIP"].as_str().unwrap().into()),
                containers: [view].into(),
                ..PodStatus::default()
            };
            Arc::new(PodView { status, resource_version: "1000".to_owned(), ..pod("p", "a") })
        };
        world.coordinator.update_pod(&running(&first), world.clock(5));
        world.coordinator.update(
            "uid-a",
            MachineSettings { failures: Some(failures), ..MachineSettings::default() },
            world.clock(5),
        );
        world.run(30);
        let ended = &world.statuses["p"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(
            (&ended["exitCode"], &ended["reason"]),
            (&Value::from(255), &Value::from("Unknown")),
            "{mode:?}"
        );
        // Three events of the pod's start, and one of the reboot.
        assert_eq!(world.times("POST events").len(), 4, "{mode:?}");
        let machine = world.machine("a");
        let booted = boot::rebooted("uid-a", machine.boot.unwrap()).unwrap();
        assert_eq!(booted, boot::time(machine.boot.unwrap()).unwrap() + secs(20));
        assert_eq!(machine.boot_at("uid-a", world.clock(1_000)), machine.boot, "once for each outage");
        let (uid, now) = (Arc::from("uid-a"), world.clock(31));
        let served = world.coordinator.kubelets[&uid].served(&uid, &world.coordinator.pods.cache, now);
        assert_eq!(served.unwrap().booted, booted, "the endpoints show the last boot");
        // The pod has another address: the shown one is no longer its own.
        let shown = running(&first).status.pod_ip.clone().unwrap().parse().unwrap();
        assert_ne!(world.coordinator.pods.assigned_ip("uid-p"), Some(shown), "{mode:?}");
    }
}
