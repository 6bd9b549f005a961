//! Tests of `CSINode`s: when a machine creates the object.

use super::*;

/// Sends an answer to the due creations; returns the Nodes that they were for, in order.
fn created(world: &mut World, second: u64, answer: Result<&str, u16>) -> Vec<String> {
    let now = world.clock(second);
    let mut nodes = Vec::new();
    while let Some((job, requests, _)) = world.coordinator.next(now, Pressure::Light) {
        let is_csi_node = requests[0].path == "/apis/storage.k8s.io/v1/csinodes";
        if is_csi_node {
            nodes.push(job.uid.trim_start_matches("uid-").to_owned());
        }
        let refused = |code| TransportError::Refused(kube::core::Status::default().with_code(code).boxed());
        let answer = if is_csi_node { answer.map_err(refused) } else { Ok("1000") };
        world.coordinator.finish(&job, answer.as_deref(), now.wall, now);
    }
    nodes
}

#[test]
fn a_machine_creates_no_csi_node_in_a_cluster_without_a_csi_driver() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(120);
    assert!(world.times("POST csinodes").is_empty());
}

#[test]
fn every_machine_creates_its_csi_node_once_when_the_first_csi_driver_comes() {
    let mut world = World::new(["a", "b", "known"].map(|name| node(name, 1)).into(), vec![]);
    for name in ["a", "b", "known"] {
        world.create(name, None);
    }
    world.run(1);
    world.coordinator.want_csi_nodes(["known", "late-known"].map(str::to_owned).into(), world.clock(2));
    // One is created, one exists already: an earlier process has created it.
    assert_eq!(created(&mut world, 2, Ok("7")), ["a", "b"]);
    world.coordinator.nodes.list_of(["a", "b", "known", "late", "late-known"].map(|name| node(name, 1)));
    for name in ["late", "late-known"] {
        world.create(name, None);
    }
    assert_eq!(created(&mut world, 3, Err(409)), ["late"]);
    world.run(400);
    assert!(
        world.times("POST csinodes").is_empty(),
        "a CSINode that somebody deletes stays away, as with a kubelet"
    );
}

#[test]
fn csi_node_always_is_created_at_once() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    let settings = MachineSettings { csi_node: true, ..MachineSettings::default() };
    world.coordinator.update("uid-a", settings, world.clock(2));
    assert_eq!(created(&mut world, 2, Err(503)), ["a"]);
    assert_eq!(created(&mut world, 30, Err(403)), ["a"], "a failure is tried again");
    assert!(created(&mut world, 90, Ok("7")).is_empty(), "a refusal is final");
}

#[test]
fn silent_machine_creates_its_csi_node_when_healthy() {
    let silent = Failures {
        unhealthy_duration: GoDuration(secs(30)),
        healthy_duration: Some(GoDuration(secs(60))),
        turn_unhealthy_periodically: Some(true),
        mode: Some(FailureMode::Silent),
        ..Failures::default()
    };
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.coordinator.want_csi_nodes(HashSet::new(), world.start);
    world.create("a", Some(silent));
    world.run(40);
    assert_eq!(world.times("POST csinodes"), [30]);
}
