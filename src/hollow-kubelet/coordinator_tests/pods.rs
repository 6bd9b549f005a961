//! Tests of pods: pod admission, addresses, events.

use super::*;

#[test]
fn pods_have_addresses_of_their_own_and_are_written_once() {
    let pods = (0..50).map(|n| pod(&format!("p{n}"), "a")).collect();
    let mut world = World::new(vec![node("a", 1)], pods);
    world.create("a", None);
    world.run(20);
    assert_eq!(world.sent.iter().filter(|(_, sent)| sent == "PATCH status").count(), 51);
    let ips: HashSet<_> = (0..50).map(|n| world.coordinator.pods.assigned_ip(&format!("uid-p{n}"))).collect();
    assert_eq!(ips.len(), 50);
}

#[test]
fn what_another_process_writes_over_a_pod_is_repaired_as_often_as_by_a_kubelet() {
    let mut world = World::new(vec![node("a", 1)], vec![pod("p", "a")]);
    world.create("a", None);
    world.run(1);
    assert_eq!(world.times("PATCH status"), [0, 0], "of the node and of the pod");
    world.sent.clear();
    // Another process that runs the machine too writes its own address after each write of ours, ten times a second.
    for version in 1_001..1_251 {
        let at = secs(1) + Duration::from_millis(100) * (version - 1_000);
        let now = Clock { at: world.start.at + at, wall: world.start.wall + at };
        let status = PodStatus {
            phase: "Running".into(),
            host_ip: Some("192.0.2.1".into()),
            pod_ip: Some("192.0.2.9".into()),
            ..PodStatus::default()
        };
        let shown = PodView { status, resource_version: version.to_string(), ..pod("p", "a") };
        world.coordinator.update_pod(&Arc::new(shown), now);
        world.run_at(now);
    }
    assert_eq!(world.times("PATCH status"), [10, 20]);
}

/// `pod` with a changed spec.
fn with(pod: PodView, change: impl FnOnce(&mut PodSpecView)) -> PodView {
    let mut spec = (*pod.spec).clone();
    change(&mut spec);
    PodView { spec: Arc::new(spec), ..pod }
}

#[test]
fn a_machine_takes_no_more_pods_than_it_has_room_for() {
    let pods = (0..112).map(|number| pod(&format!("p{number}"), "a")).collect();
    let mut world = World::new(vec![node("a", 1)], pods);
    world.create("a", None);
    world.run(20);
    let refused: Vec<&Value> = world.statuses.values().filter(|status| status["phase"] == "Failed").collect();
    assert_eq!(refused.len(), 2);
    assert!(refused.iter().all(|status| status["reason"] == "OutOfpods"), "{refused:?}");
    assert_eq!(world.statuses.values().filter(|status| status["phase"] == "Running").count(), 110);
}

#[test]
fn a_node_that_may_have_changed_is_given_time_to_show_it() {
    let picky = || with(pod("p", "a"), |spec| spec.node_selector = [("zone".into(), "b".into())].into());
    let mut world = World::new(vec![node("a", 1)], vec![picky()]);
    world.create("a", None);
    world.run(1);
    assert!(world.statuses.is_empty());
    world.run(3);
    assert_eq!(world.statuses["p"]["reason"], "NodeAffinity");

    let mut world = World::new(vec![node("a", 1)], vec![picky()]);
    world.create("a", None);
    world.run(1);
    let labels = [("zone", "b")].into();
    let labelled = Arc::new(NodeView { labels, ..node("a", 1_001) });
    world.coordinator.update_node(&labelled, world.clock(1));
    world.run(3);
    assert_eq!(world.statuses["p"]["phase"], "Running");
}

#[test]
fn a_critical_pod_waits_until_others_have_made_room() {
    let full = (0..110).map(|number| pod(&format!("p{number}"), "a"));
    // Synced last: pods are synced in the order of their UIDs.
    let critical = PodView { priority: 2_000_001_000, ..pod("z-critical", "a") };
    let mut world = World::new(vec![node("a", 1)], full.chain([critical]).collect());
    world.create("a", None);
    world.run(20);
    let of = |phase: &str| -> Vec<String> {
        let all = world.statuses.iter().filter(|(_, status)| status["phase"] == phase);
        all.map(|(name, _)| name.clone()).collect()
    };
    let (running, failed) = (of("Running"), of("Failed"));
    assert_eq!((running.len(), failed.len()), (109, 1), "{failed:?}");
    assert!(!world.statuses.contains_key("z-critical"), "one that leaves is still there");
    assert_eq!(world.statuses[&failed[0]]["reason"], "Preempting");
    let gone = PodStatus { phase: "Failed".into(), ..PodStatus::default() };
    let shown =
        Arc::new(PodView { status: gone, resource_version: "1001".to_owned(), ..pod(&failed[0], "a") });
    world.coordinator.update_pod(&shown, world.clock(21));
    world.run(23);
    assert_eq!(world.statuses["z-critical"]["phase"], "Running");
}

#[test]
fn events_report_a_pod_and_mistakes_in_its_annotations() {
    let annotated = with(pod("p", "a"), |spec| {
        spec.hollow_annotations = [(names::ANNOTATION_RUN_TIME.into(), "9".into())].into();
    });
    let mut world = World::new(vec![node("a", 1)], vec![annotated]);
    world.create("a", None);
    world.run(5);
    assert_eq!(world.times("POST events").len(), 4, "InvalidAnnotation, Pulled, Created, Started");
}

#[test]
fn a_pod_waits_for_an_address_of_its_node_until_another_one_has_ended() {
    let small = NodeView { pod_cidr: Some("10.128.3.0/29".to_owned()), ..node("a", 1) };
    let pods: Vec<PodView> = (0..6).map(|number| pod(&format!("p{number}"), "a")).collect();
    let mut world = World::new(vec![small], pods.clone());
    world.create("a", None);
    world.run(5);
    let ips: HashSet<String> =
        world.statuses.values().map(|status| status["podIP"].as_str().unwrap().to_owned()).collect();
    let all = (2..=6).map(|last| format!("10.128.3.{last}")).collect();
    assert_eq!((world.statuses.len(), ips), (5, all));
    // Three events of each running pod, and one of the pod that waits, however often it is synced.
    assert_eq!(world.times("POST events").len(), 16);
    let waits = pods.iter().find(|pod| !world.statuses.contains_key(&*pod.name)).unwrap().name.clone();
    let ends = pods.into_iter().find(|pod| pod.name != waits).unwrap();
    let ip = world.statuses[&*ends.name]["podIP"].as_str().unwrap().to_owned();
    let shown = |phase: &str, version: &str| {
        let status =
            PodStatus { phase: phase.into(), pod_ip: Some(ip.as_str().into()), ..PodStatus::default() };
        Arc::new(PodView { status, resource_version: version.to_owned(), ..ends.clone() })
    };
    let (runs, over) = (shown("Running", "1000"), shown("Succeeded", "1001"));
    world.coordinator.update_pod(&runs, world.clock(5));
    world.coordinator.pod_changed(Some(&runs), Some(&over), world.clock(5));
    world.run(8);
    assert_eq!(world.statuses[&*waits]["podIP"], *ip);
    // The finished pod is deleted last; its address belongs to another pod by now.
    world.coordinator.pod_changed(Some(&over), None, world.clock(8));
    assert_eq!(
        world.coordinator.endpoints.addresses.for_pod(crate::addresses::Block::of_cidr("10.128.3.0/29")),
        None
    );
}

#[test]
fn a_node_that_shows_another_address_takes_none_from_a_pod() {
    let cidr = "10.128.3.0/29";
    // A machine that is a pod of another cluster may have any address.
    let shows = |ip: &str| {
        Arc::new(NodeView {
            internal_ip: Some(ip.to_owned()),
            pod_cidr: Some(cidr.to_owned()),
            ..node("a", 1)
        })
    };
    let status =
        PodStatus { phase: "Running".into(), pod_ip: Some("10.128.3.2".into()), ..PodStatus::default() };
    let pod = PodView { status, ..pod("p", "a") };
    let mut world = World::new(vec![(*shows("10.128.3.2")).clone()], vec![pod]);
    world.create("a", None);
    world.run(1);
    let (old, new, now) = (shows("10.128.3.2"), shows("10.128.3.3"), world.clock(1));
    world.coordinator.node_changed(Some(&old), Some(&new), now);
    let next = world.coordinator.endpoints.addresses.for_pod(crate::addresses::Block::of_cidr(cidr));
    assert_eq!(next.map(|ip| ip.to_string()).as_deref(), Some("10.128.3.3"));
}

#[test]
fn a_block_of_24_bits_has_room_for_all_pods_of_a_node_and_two_processes_share_none() {
    let process = |name: &str, cidr: &str| {
        let node = NodeView { pod_cidr: Some(cidr.to_owned()), ..node(name, 1) };
        let mut world =
            World::new(vec![node], (0..110).map(|number| pod(&format!("{name}{number}"), name)).collect());
        world.create(name, None);
        world.run(2);
        let ips = world.statuses.values().map(|status| status["podIP"].as_str().unwrap().to_owned());
        ips.collect::<HashSet<String>>()
    };
    let (one, other) = (process("a", "10.128.3.0/24"), process("b", "10.128.4.0/24"));
    assert_eq!((one.len(), other.len(), one.union(&other).count()), (110, 110, 220));
}

/// The lock of the coordinator is taken for each batch: endpoints and other changes come between two of them.
#[test]
fn a_new_list_of_many_pods_is_synced_batch_by_batch() {
    let finished = |number: usize| PodView {
        status: PodStatus { phase: "Succeeded".into(), ..PodStatus::default() },
        ..pod(&format!("p-{number}"), "a")
    };
    let mut world = World::new(vec![node("a", 1)], (0..3 * BATCH).map(finished).collect());
    world.create("a", None);
    world.run(1);
    let now = world.clock(2);
    assert!(world.resync(now) > 3);
    let mut synced = 0;
    while world.coordinator.schedule.next_due(Pressure::Light).is_some_and(|due| due <= now.at) {
        assert!(world.coordinator.next(now, Pressure::Light).is_none(), "no pod needs a write");
        synced += 1;
    }
    assert_eq!(synced, 4, "three batches of pods, and the machine");
}

#[test]
fn pods_of_a_machine_without_an_address_are_synced_again() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    let nodes = Arc::new(Cache::default());
    world.coordinator = Coordinator::new(Arc::clone(&nodes), Cache::full([pod("p", "a")]), secs(15));
    world.create("a", None);
    // The Node comes before the list of all Nodes, and with it of the addresses in use, is complete.
    world.coordinator.update_node(&Arc::new(node("a", 1)), world.start);
    world.run(1);
    assert!(world.statuses.is_empty(), "{:?}", world.sent);
    nodes.list_of([node("a", 1)]);
    world.run(70);
    assert_eq!(world.statuses["p"]["phase"], "Running");
}
