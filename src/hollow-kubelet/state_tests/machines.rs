//! Tests of machines: node status, endpoints, takeover and deletion.

use std::net::Ipv4Addr;

use uuid::Uuid;

use super::*;

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
async fn a_machine_that_stands_alone_renews_with_no_other_and_makes_room_for_none() {
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
    world.state.stand_alone("uid-a", own);
    world.run(4);
    // Both renewals are due, first after 5 to 10 s, under pressure that stops Lease and status writes.
    let late = world.clock(11);
    let handed_out = std::iter::from_fn(|| world.state.next(late, Pressure::Machines));
    let lanes: Vec<(Priority, Arc<str>)> = handed_out.map(|(job, _)| (job.priority, job.uid)).collect();
    assert_eq!(lanes, [(Priority::Prompt, "uid-a".into())]);
    let due = world.state.schedule.next_due(Pressure::Machines).map(|at| at > late.at);
    assert_eq!(due, Some(true), "the other one waits");
}

#[test]
fn a_renewal_that_failed_gives_way_no_more() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(4);
    let late = world.clock(20);
    let (job, _) = world.state.next(late, Pressure::Machines).unwrap();
    assert_eq!(job.priority, Priority::Renewal);
    let away = WireError::Refused { code: 503, reason: String::new(), message: String::new() };
    world.state.finish(&job, Err(&away), late.wall, late);
    let again = world.clock(21);
    assert!(world.state.schedule.next_due(Pressure::Machines).is_some_and(|at| at < again.at));
    let (job, _) = world.state.next(again, Pressure::Machines).unwrap();
    assert_eq!(job.priority, Priority::Prompt);
    world.state.finish(&job, Ok("9"), again.wall, again);
    assert!(world.state.schedule.next_due(Pressure::Machines).is_some_and(|at| at > world.clock(40).at));
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
    let machine = &world.state.machines["uid-a"];
    assert_eq!((machine.ip, machine.boot), (Some(Ipv4Addr::new(100, 64, 0, 7)), Some(boot)));
    assert!(
        world
            .state
            .next(world.start, Pressure::Light)
            .is_some_and(|(job, _)| job.priority == Priority::Prompt)
    );
}

#[test]
fn a_lease_that_is_taken_over_gives_way_while_it_has_time() {
    let known = |name| NodeView { kubelet_version: Some("v1.36.3".to_owned()), ..node(name, 1) };
    let mut world = World::new(vec![known("young"), known("old")], vec![]);
    let ago = |seconds| world.start.wall - jiff::SignedDuration::from_secs(seconds);
    world.state.renewed_before = [("young".to_owned(), ago(5)), ("old".to_owned(), ago(21))].into();
    world.create("young", None);
    world.create("old", None);
    let mut next = |second| {
        let now = world.clock(second);
        let (job, _) = world.state.next(now, Pressure::Machines)?;
        world.state.finish(&job, Ok("9"), now.wall, now);
        Some(job.uid)
    };
    assert_eq!((next(0).as_deref(), next(0), next(9)), (Some("uid-old"), None, None));
    assert_eq!(next(11).as_deref(), Some("uid-young"));
}

#[test]
fn a_lease_without_a_status_is_taken_over_too() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.state.renewed_before = [("a".to_owned(), world.start.wall)].into();
    world.create("a", None);
    world.run(1);
    assert_eq!((world.times("POST leases"), world.times("PATCH a")), (vec![], vec![0]));
    assert_eq!(world.times("PATCH status"), [0]);
}

/// A world in which kubelets are served, at 127.0.0.1.
fn served(nodes: Vec<NodeView>, ports: &str) -> World {
    let mut world = World::new(nodes, vec![]);
    let metrics = crate::server::metrics::Metrics::new(&prometheus::Registry::new()).unwrap();
    let listeners = ListenerPool::new(Ipv4Addr::LOCALHOST, ports.parse().unwrap(), metrics).unwrap();
    world.state.listeners = Some(Arc::new(listeners));
    world
}

#[test]
fn a_machine_has_the_address_of_the_process_and_a_port_that_it_keeps() {
    let mut world = served(vec![node("a", 1)], "10300-10399");
    world.create("a", None);
    world.run(5);
    let machine = &world.state.machines["uid-a"];
    let (ip, port) = (machine.ip, machine.port);
    assert_eq!(ip, Some(Ipv4Addr::LOCALHOST));
    assert!((10_300..=10_399).contains(&port));
    drop(world);

    let known = NodeView {
        kubelet_version: Some("v1.36.3".to_owned()),
        boot_id: Some(Uuid::now_v7().to_string()),
        internal_ip: Some("127.0.0.1".to_owned()),
        kubelet_port: port,
        ..node("a", 1)
    };
    let mut world = served(vec![known], "10300-10399");
    world.create("a", None);
    let machine = &world.state.machines["uid-a"];
    assert_eq!((machine.ip, machine.port), (ip, port));
    assert!(
        world
            .state
            .next(world.start, Pressure::Light)
            .is_some_and(|(job, _)| job.priority == Priority::Prompt),
        "no status"
    );
    world.state.delete("uid-a");
    let listeners = world.state.listeners.clone().unwrap();
    assert_eq!(listeners.open(&"uid-b".into(), Some(port)), Some(port), "it was closed");
}

#[test]
fn a_machine_for_which_no_port_is_left_has_an_address_of_its_own() {
    let mut world = served(vec![node("a", 1), node("b", 1)], "10400-10400");
    world.create("a", None);
    world.create("b", None);
    world.run(5);
    let ips = ["uid-a", "uid-b"].map(|uid| world.state.machines[uid].ip.unwrap());
    assert!(ips.contains(&Ipv4Addr::LOCALHOST) && ips.iter().any(|ip| MACHINES.contains(*ip)), "{ips:?}");

    // The machine takes the port that becomes free.
    let (left, stays) = if ips[0] == Ipv4Addr::LOCALHOST { ("uid-a", "uid-b") } else { ("uid-b", "uid-a") };
    world.state.delete(left);
    world.run(600);
    let machine = &world.state.machines[stays];
    assert_eq!((machine.ip, machine.port), (Some(Ipv4Addr::LOCALHOST), 10_400));
}

#[test]
fn machines_of_a_process_before_come_in_the_order_in_which_their_leases_end() {
    let known = |name| NodeView { kubelet_version: Some("v1.36.3".to_owned()), ..node(name, 1) };
    let mut world =
        World::new(["young", "unknown", "oldest", "old", "future", "last"].map(known).into(), vec![]);
    let renewed = [("young", -3), ("oldest", -27), ("old", -20), ("future", 500)];
    let renewed =
        renewed.map(|(name, at)| (name.to_owned(), world.start.wall + jiff::SignedDuration::from_secs(at)));
    world.state.renewed_before = renewed.into();
    world.state.renewed_before.insert("last".to_owned(), Timestamp::MAX);
    for name in ["young", "unknown", "old", "future", "last", "oldest"] {
        world.create(name, None);
    }
    world.run(1);
    let patched = world.sent.iter().filter_map(|(_, sent)| sent.strip_prefix("PATCH "));
    let patched: Vec<&str> = patched.filter(|name| *name != "status").collect();
    assert_eq!(patched[..3], ["unknown", "oldest", "old"], "{patched:?}");
    assert_eq!(patched.len(), 6, "and none waits: {patched:?}");
    assert!(world.state.renewed_before.is_empty());
}

#[test]
fn a_deleted_machine_is_quiet_and_its_address_comes_again() {
    let mut world = World::new(vec![node("a", 1)], vec![pod("p", "a")]);
    world.create("a", None);
    world.run(5);
    let ip = world.state.machines["uid-a"].ip;
    world.state.delete("uid-a");
    world.sent.clear();
    world.run(60);
    assert!(world.sent.is_empty() && world.state.pods.is_empty());
    assert!(world.state.schedule.next_due(Pressure::Light).is_none());
    assert_eq!(world.state.addresses.for_machine(), ip);
}

#[test]
fn an_older_view_is_not_answered() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    let (old, new) = (Arc::new(node("a", 999)), Arc::new(node("a", 1_001)));
    world.sent.clear();
    world.state.saw_node(&old, world.clock(2));
    world.run(2);
    assert!(world.times("PATCH status").is_empty());
    world.state.saw_node(&new, world.clock(3));
    world.run(3);
    assert_eq!(world.times("PATCH status").len(), 1);
}

#[test]
fn a_node_made_again_under_its_name_keeps_its_new_machine() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    let again = Arc::new(NodeView { uid: "uid-again".into(), ..node("a", 9) });
    let now = world.clock(2);
    world.state.lost_node(&Arc::new(node("a", 1)));
    world.state.node_cache = Cache::full([NodeView::clone(&again)]);
    world.state.pod_cache = Cache::full([pod("web", "a")]);
    world.state.saw_node(&again, now);
    world.create_as("a", "uid-again");
    // The earlier Node's machine is found without a Node, and is deleted last.
    world.state.delete("uid-a");
    assert_eq!(world.state.machine_of("a").map(|uid| &**uid), Some("uid-again"));
    world.run(5);
    assert_eq!(world.statuses["web"]["phase"], "Running", "its pods start");
    world.state.delete("uid-again");
    assert!(world.state.machine_of("a").is_none() && world.state.pods.is_empty());
}

#[test]
fn a_restore_of_etcd_does_not_silence_a_machine() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(1);
    assert_eq!(world.times("PATCH status"), [0], "it made version 1,000");
    // The restored cluster shows an older status, without the write.
    let restored = Arc::new(node("a", 2));
    world.state.saw_node(&restored, world.clock(2));
    world.run(3);
    assert_eq!(world.times("PATCH status"), [0], "the watch might be late");
    world.state.node_cache.list_of([node("a", 2)]);
    world.state.on_resync(world.clock(4));
    world.run(5);
    assert_eq!(world.times("PATCH status").len(), 2, "{:?}", world.sent);
}
