//! Tests of machines: node status, endpoints, takeover and deletion.

use std::net::Ipv4Addr;

use uuid::Uuid;

use super::*;
use crate::server::ListenerPool;

#[test]
fn a_new_machine_shows_itself_once_and_keeps_its_lease() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(140);
    assert_eq!(world.times("PATCH status"), [0]);
    assert_eq!(world.times("POST leases"), [0]);
    let renewals = world.times("PUT a");
    assert!((12..=15).contains(&renewals.len()), "{renewals:?}");
    assert!((5..=10).contains(&renewals[0]), "{renewals:?}");
}

#[tokio::test]
async fn a_dedicated_client_renews_unbatched_and_gives_way_to_no_job() {
    let mut world = World::new(vec![node("a", 1), node("b", 1)], vec![]);
    for name in ["a", "b"] {
        world.create(name, None);
    }
    let deaf = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
    });
    let own = DedicatedClient {
        client: kube::Client::new(deaf, "default"),
        rate: Arc::default(),
        silent: tokio::sync::watch::Sender::new(false),
    };
    world.coordinator.dedicate("uid-a", own);
    world.run(4);
    // Both renewals are due, first after 5 to 10 s, under pressure that stops Lease and status writes.
    let late = world.clock(11);
    let handed_out = std::iter::from_fn(|| world.coordinator.next(late, Pressure::Machines));
    let jobs: Vec<(Priority, Arc<str>)> = handed_out.map(|(job, ..)| (job.priority, job.uid)).collect();
    assert_eq!(jobs, [(Priority::Prompt, "uid-a".into())]);
    let due = world.coordinator.schedule.next_due(Pressure::Machines).map(|at| at > late.at);
    assert_eq!(due, Some(true), "the other one waits");
}

#[test]
fn a_renewal_that_failed_gives_way_no_more() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(4);
    let late = world.clock(20);
    let (job, ..) = world.coordinator.next(late, Pressure::Machines).unwrap();
    assert_eq!(job.priority, Priority::Renewal);
    let away = TransportError::Refused(kube::core::Status::default().with_code(503).boxed());
    world.coordinator.finish(&job, Err(&away), late.wall, late);
    let again = world.clock(21);
    assert!(world.coordinator.schedule.next_due(Pressure::Machines).is_some_and(|at| at < again.at));
    let (job, ..) = world.coordinator.next(again, Pressure::Machines).unwrap();
    assert_eq!(job.priority, Priority::Prompt);
    world.coordinator.finish(&job, Ok("9"), again.wall, again);
    assert!(
        world.coordinator.schedule.next_due(Pressure::Machines).is_some_and(|at| at > world.clock(40).at)
    );
}

#[test]
fn an_unchanged_status_is_written_again_after_minutes() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(460);
    let writes = world.times("PATCH status");
    assert!((2..=4).contains(&writes.len()) && writes[1] >= 150, "{writes:?}");
}

#[test]
fn a_machine_of_a_process_before_is_taken_up_without_a_write_of_status() {
    let boot = Uuid::now_v7();
    let known = NodeView {
        kubelet_version: Some("v1.36.3".to_owned()),
        boot_id: Some(boot.to_string()),
        internal_ip: Some("100.64.0.7".to_owned()),
        ..node("a", 1)
    };
    let mut world = World::new(vec![known], vec![]);
    world.create("a", None);
    let machine = world.machine("a");
    let endpoint = Some((Ipv4Addr::new(100, 64, 0, 7), 0));
    assert_eq!((machine.endpoint.get(), machine.boot), (endpoint, Some(boot)));
    assert!(
        world
            .coordinator
            .next(world.start, Pressure::Light)
            .is_some_and(|(job, ..)| job.priority == Priority::Prompt)
    );
}

#[test]
fn a_lease_that_is_taken_over_gives_way_while_it_has_time() {
    let known = |name| NodeView { kubelet_version: Some("v1.36.3".to_owned()), ..node(name, 1) };
    let mut world = World::new(vec![known("young"), known("old")], vec![]);
    let ago = |seconds| world.start.wall - jiff::SignedDuration::from_secs(seconds);
    world.coordinator.renewed_before = [("young".to_owned(), ago(5)), ("old".to_owned(), ago(21))].into();
    world.create("young", None);
    world.create("old", None);
    let mut next = |second| {
        let now = world.clock(second);
        let (job, ..) = world.coordinator.next(now, Pressure::Machines)?;
        world.coordinator.finish(&job, Ok("9"), now.wall, now);
        Some(job.uid)
    };
    assert_eq!((next(0).as_deref(), next(0), next(9)), (Some("uid-old"), None, None));
    assert_eq!(next(11).as_deref(), Some("uid-young"));
}

#[test]
fn a_lease_without_a_status_is_taken_over_too() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.coordinator.renewed_before = [("a".to_owned(), world.start.wall)].into();
    world.create("a", None);
    world.run(1);
    assert_eq!((world.times("POST leases"), world.times("PATCH a")), (vec![], vec![0]));
    assert_eq!(world.times("PATCH status"), [0]);
}

/// A world in which kubelets are served, at 127.0.0.1.
fn served(nodes: Vec<NodeView>, ports: &str) -> (World, Arc<ListenerPool>) {
    let mut world = World::new(nodes, vec![]);
    let metrics = crate::server::metrics::Metrics::new(&prometheus::Registry::new()).unwrap();
    let listeners = ListenerPool::new(Ipv4Addr::LOCALHOST, ports.parse().unwrap(), metrics).unwrap();
    let listeners = Arc::new(listeners);
    world.coordinator.endpoints.listeners = Some(Arc::clone(&listeners));
    (world, listeners)
}

#[test]
fn a_machine_has_the_address_of_the_process_and_a_port_that_it_keeps() {
    let (mut world, _) = served(vec![node("a", 1)], "10300-10399");
    world.create("a", None);
    world.run(5);
    let (ip, port) = world.machine("a").endpoint.get().unwrap();
    assert_eq!(ip, Ipv4Addr::LOCALHOST);
    assert!((10_300..=10_399).contains(&port));
    drop(world);

    let known = NodeView {
        kubelet_version: Some("v1.36.3".to_owned()),
        boot_id: Some(Uuid::now_v7().to_string()),
        internal_ip: Some("127.0.0.1".to_owned()),
        kubelet_port: port,
        ..node("a", 1)
    };
    let (mut world, listeners) = served(vec![known], "10300-10399");
    world.create("a", None);
    assert_eq!(world.machine("a").endpoint.get(), Some((ip, port)));
    assert!(
        world
            .coordinator
            .next(world.start, Pressure::Light)
            .is_some_and(|(job, ..)| job.priority == Priority::Prompt),
        "no status"
    );
    world.coordinator.delete("uid-a");
    assert_eq!(listeners.open(&"uid-b".into(), Some(port)), Some(port), "it was closed");
}

#[test]
fn a_machine_for_which_no_port_is_left_has_an_address_of_its_own() {
    let (mut world, _) = served(vec![node("a", 1), node("b", 1)], "10400-10400");
    world.create("a", None);
    world.create("b", None);
    world.run(5);
    let ips = ["a", "b"].map(|name| world.machine(name).endpoint.get().unwrap().0);
    assert!(
        ips.contains(&Ipv4Addr::LOCALHOST) && ips.iter().any(|ip| crate::addresses::MACHINES.contains(*ip)),
        "{ips:?}"
    );

    // The machine takes the port that becomes free.
    let (left, stays) = if ips[0] == Ipv4Addr::LOCALHOST { ("uid-a", "b") } else { ("uid-b", "a") };
    world.coordinator.delete(left);
    world.run(600);
    assert_eq!(world.machine(stays).endpoint.get(), Some((Ipv4Addr::LOCALHOST, 10_400)));
}

#[test]
fn machines_of_a_process_before_come_in_the_order_in_which_their_leases_end() {
    let known = |name| NodeView { kubelet_version: Some("v1.36.3".to_owned()), ..node(name, 1) };
    let mut world =
        World::new(["young", "unknown", "oldest", "old", "future", "last"].map(known).into(), vec![]);
    let renewed = [("young", -3), ("oldest", -27), ("old", -20), ("future", 500)];
    let renewed =
        renewed.map(|(name, at)| (name.to_owned(), world.start.wall + jiff::SignedDuration::from_secs(at)));
    world.coordinator.renewed_before = renewed.into();
    world.coordinator.renewed_before.insert("last".to_owned(), Timestamp::MAX);
    for name in ["young", "unknown", "old", "future", "last", "oldest"] {
        world.create(name, None);
    }
    world.run(1);
    let patched = world.sent.iter().filter_map(|(_, sent)| sent.strip_prefix("PATCH "));
    let patched: Vec<&str> = patched.filter(|name| *name != "status").collect();
    assert_eq!(patched[..3], ["unknown", "oldest", "old"], "{patched:?}");
    assert_eq!(patched.len(), 6, "and none waits: {patched:?}");
    assert!(world.coordinator.renewed_before.is_empty());
}

#[test]
fn a_deleted_machine_is_quiet_and_its_address_comes_again() {
    let mut world = World::new(vec![node("a", 1)], vec![pod("p", "a")]);
    world.create("a", None);
    world.run(5);
    let ip = world.machine("a").endpoint.get().map(|(ip, _)| ip);
    world.coordinator.delete("uid-a");
    world.sent.clear();
    world.run(60);
    assert!(world.sent.is_empty() && world.coordinator.pods.is_empty());
    assert!(world.coordinator.schedule.next_due(Pressure::Light).is_none());
    assert_eq!(world.coordinator.endpoints.addresses.for_machine(), ip);
}

#[test]
fn an_older_view_is_not_answered() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    let (old, new) = (Arc::new(node("a", 999)), Arc::new(node("a", 1_001)));
    world.sent.clear();
    world.coordinator.update_node(&old, world.clock(2));
    world.run(2);
    assert!(world.times("PATCH status").is_empty());
    world.coordinator.update_node(&new, world.clock(3));
    world.run(12);
    assert_eq!(world.times("PATCH status").len(), 1);
}

#[test]
fn a_node_made_again_under_its_name_keeps_its_new_machine() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    let again = Arc::new(NodeView { uid: "uid-again".into(), ..node("a", 9) });
    let now = world.clock(2);
    world.coordinator.remove_node(&node("a", 1));
    world.coordinator.nodes.list_of([NodeView::clone(&again)]);
    world.coordinator.pods.cache.list_of([pod("web", "a")]);
    world.coordinator.update_node(&again, now);
    world.create_as("a", "uid-again");
    // The earlier Node's machine is found without a Node, and is deleted last.
    world.coordinator.delete("uid-a");
    assert_eq!(world.coordinator.machine_of("a").map(|uid| &**uid), Some("uid-again"));
    world.run(5);
    assert_eq!(world.statuses["web"]["phase"], "Running", "its pods start");
    world.coordinator.delete("uid-again");
    assert!(world.coordinator.machine_of("a").is_none() && world.coordinator.pods.is_empty());
}

#[test]
fn a_restore_of_etcd_does_not_silence_a_machine() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    assert_eq!(world.times("PATCH status"), [0], "it made version 1,000");
    // The restored cluster shows an older status, without the write.
    let restored = Arc::new(node("a", 2));
    world.coordinator.update_node(&restored, world.clock(2));
    world.run(3);
    assert_eq!(world.times("PATCH status"), [0], "the watch might be late");
    world.coordinator.nodes.list_of([node("a", 2)]);
    world.resync(world.clock(4));
    world.run(12);
    assert_eq!(world.times("PATCH status").len(), 2, "{:?}", world.sent);
}

#[test]
fn what_another_client_writes_over_a_status_is_repaired_as_often_as_by_a_kubelet() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    // Another process that runs the machine too writes its own report after each of ours, ten times a second.
    for version in 1_001..1_251 {
        let (from, at) = (world.start, secs(1) + Duration::from_millis(100) * (version - 1_000));
        let now = Clock { at: from.at + at, wall: from.wall + at };
        world.coordinator.update_node(&Arc::new(node("a", version.into())), now);
        world.run_at(now);
    }
    assert_eq!(world.times("PATCH status"), [0, 10, 20]);
    // What changes in the machine itself is written at once.
    let now = world.clock(27);
    world.coordinator.kubelets.get_mut("uid-a").unwrap().machine.endpoint.port += 1;
    world.coordinator.update_node(&Arc::new(node("a", 2_000)), now);
    world.run_at(now);
    assert_eq!(world.times("PATCH status"), [0, 10, 20, 27]);
}
