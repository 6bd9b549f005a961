//! Scripts against a server that says yes to everything: what is sent, and when.

use std::collections::{HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::*;
use crate::{
    api::{ContainerDefaults, FailureMode, Failures, GoDuration, Resources, names},
    cache::{Container, ContainerState, ContainerView, PodSpecView, PodStatus, PodView},
    wire::Body,
};

/// A state with a clock of its own, and all that it sent: seconds since the start, method and last part of the path.
struct World {
    state: State,
    start: Clock,
    sent: Vec<(u64, String)>,
    /// The status that each pod was last given, by its name.
    statuses: HashMap<String, Value>,
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn node(name: &str, version: u64) -> NodeView {
    NodeView {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        resource_version: version.to_string(),
        ..NodeView::default()
    }
}

fn pod(name: &str, node: &str) -> PodView {
    PodView {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        node: node.into(),
        spec: Arc::new(PodSpecView {
            containers: [Container { name: "a".into(), ..Container::default() }].into(),
            ..PodSpecView::default()
        }),
        status: PodStatus { phase: "Pending".into(), ..PodStatus::default() },
        ..PodView::default()
    }
}

impl World {
    fn new(nodes: Vec<NodeView>, pods: Vec<PodView>) -> Self {
        Self {
            state: State::new(Cache::full(nodes), Cache::full(pods)),
            start: Clock::now(),
            sent: Vec::new(),
            statuses: HashMap::new(),
        }
    }

    fn clock(&self, second: u64) -> Clock {
        Clock { at: self.start.at + secs(second), wall: self.start.wall + secs(second) }
    }

    fn create(&mut self, name: &str, failures: Option<Failures>) {
        let spec = MachineSpec {
            node: name.into(),
            uid: format!("uid-{name}").into(),
            capacity: Resources::new(),
            allocatable: Resources::from([("pods".to_owned(), Quantity("110".to_owned()))]),
            kubelet_version: "v1.36.3".to_owned(),
            container_runtime: "containerd://2.1.0".to_owned(),
            ip: None,
            settings: Settings { failures, containers: ContainerDefaults::default() },
        };
        self.state.create(spec, self.start);
    }

    /// Sends all that is due up to `second`, in hundredths of a second; each write makes version 1,000.
    fn run(&mut self, second: u64) {
        let hundredth = Duration::from_millis(10);
        let end = self.start.at + secs(second);
        let mut now = self.start;
        while now.at <= end {
            while let Some((job, requests)) = self.state.next(now) {
                let after = now.at.duration_since(self.start.at).as_secs();
                for request in requests {
                    let pod = request.path.strip_prefix("/api/v1/namespaces/default/pods/");
                    if let (Body::StrategicPatch(patch), Some(path)) = (&request.body, pod) {
                        let patch: Value = serde_json::from_slice(patch).unwrap();
                        let pod = path.trim_end_matches("/status").to_owned();
                        self.statuses.insert(pod, patch["status"].clone());
                    }
                    let path = request.path.rsplit('/').next().unwrap_or_default();
                    self.sent.push((after, format!("{} {path}", request.method)));
                }
                self.state.finish(&job, Ok("1000"), now.wall, now);
            }
            now = Clock { at: now.at + hundredth, wall: now.wall + hundredth };
        }
    }

    fn times(&self, what: &str) -> Vec<u64> {
        self.sent.iter().filter(|(_, sent)| sent == what).map(|(at, _)| *at).collect()
    }
}

#[test]
fn a_new_machine_shows_itself_once_and_keeps_its_lease() {
    let mut world = World::new(vec![node("a", 1)], vec![]);
    world.create("a", None);
    world.run(140);
    assert_eq!(world.times("PATCH status"), [0]);
    assert_eq!(world.times("POST leases"), [0]);
    let renewals = world.times("PUT a");
    assert!((12..=15).contains(&renewals.len()), "{renewals:?}");
    assert!(renewals[0] >= 10, "{renewals:?}");
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
    assert!(world.state.next(world.start).is_some_and(|(job, _)| job.lane == Lane::Lease));
}

/// A world in which kubelets are served, at 127.0.0.1.
fn served(nodes: Vec<NodeView>, ports: &str) -> World {
    let mut world = World::new(nodes, vec![]);
    let metrics = crate::hollow::server::metrics::Metrics::new(&prometheus::Registry::new()).unwrap();
    let doors = Doors::new(Ipv4Addr::LOCALHOST, ports.parse().unwrap(), metrics).unwrap();
    world.state.doors = Some(Arc::new(doors));
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
    assert!(world.state.next(world.start).is_some_and(|(job, _)| job.lane == Lane::Lease), "no status");
    world.state.delete("uid-a");
    let doors = world.state.doors.clone().unwrap();
    assert_eq!(doors.open(&"uid-b".into(), Some(port)), Some(port), "it was closed");
}

#[test]
fn a_machine_for_which_no_port_is_left_has_an_address_of_its_own() {
    let mut world = served(vec![node("a", 1), node("b", 1)], "10400-10400");
    world.create("a", None);
    world.create("b", None);
    world.run(5);
    let ips = ["uid-a", "uid-b"].map(|uid| world.state.machines[uid].ip.unwrap());
    assert!(ips.contains(&Ipv4Addr::LOCALHOST) && ips.iter().any(|ip| MACHINES.contains(*ip)), "{ips:?}");

    // Once there is one, it gets that.
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
    world.run(0);
    let patched = world.sent.iter().filter_map(|(_, sent)| sent.strip_prefix("PATCH "));
    let patched: Vec<&str> = patched.filter(|name| *name != "status").collect();
    assert_eq!(patched[..2], ["oldest", "old"], "{patched:?}");
    assert_eq!(patched.len(), 6, "and none waits: {patched:?}");
    assert!(world.state.renewed_before.is_empty());
}

#[test]
fn a_silent_machine_says_nothing_until_it_is_healthy() {
    let failures = Failures {
        unhealthy_duration: GoDuration(secs(30)),
        healthy_duration: Some(GoDuration(secs(60))),
        turn_unhealthy_periodically: Some(true),
        mode: Some(FailureMode::Silent),
        ..Failures::default()
    };
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
    let failures = Failures {
        unhealthy_duration: GoDuration(secs(30)),
        healthy_duration: Some(GoDuration(secs(60))),
        turn_unhealthy_periodically: Some(true),
        mode: Some(FailureMode::Silent),
        ..Failures::default()
    };
    // For so many seconds another process carried it; one that comes too late has no outage to make up for.
    for (ago, begins) in [(20, 10), (29, 1), (40, 0), (-500, 30)] {
        let mut world = World::new(vec![], vec![]);
        let created = world.start.wall - jiff::SignedDuration::from_secs(ago);
        let born = Arc::new(NodeView { created: Some(created), ..node("a", 1) });
        world.state.node_cache = Cache::full([NodeView::clone(&born)]);
        world.create("a", Some(failures.clone()));
        world.run(31);
        for what in ["PATCH status", "POST leases"] {
            assert_eq!(world.times(what).first(), Some(&begins), "{what} {ago}: {:?}", world.sent);
        }
        let recorded = world.state.machines["uid-a"].boot.and_then(boot::time).unwrap();
        assert_eq!(recorded.as_second(), created.min(world.start.wall).as_second());
    }
    // Of one that speaks, its first status is the record.
    let old = NodeView { created: Some(Timestamp::UNIX_EPOCH), ..node("a", 1) };
    let mut world = World::new(vec![old], vec![]);
    world.create("a", Some(Failures { mode: Some(FailureMode::Reported), ..failures }));
    world.run(1);
    let recorded = world.state.machines["uid-a"].boot.and_then(boot::time).unwrap();
    assert_eq!(recorded.as_second(), world.start.wall.as_second());
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
            world.state.tell_of_reboot(&name.into(), boot, world.clock(second));
        }
        world.run(second + 1);
        assert_eq!(count(&world), sent, "{:?}", world.sent);
    }
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
    assert!(world.state.schedule.next_due().is_none());
    assert_eq!(world.state.addresses.for_machine(), ip);
}

#[test]
fn pods_have_addresses_of_their_own_and_are_written_once() {
    let pods = (0..50).map(|n| pod(&format!("p{n}"), "a")).collect();
    let mut world = World::new(vec![node("a", 1)], pods);
    world.create("a", None);
    world.run(20);
    assert_eq!(world.sent.iter().filter(|(_, sent)| sent == "PATCH status").count(), 51);
    let ips: HashSet<_> = world.state.pods.values().map(|pod| pod.ip).collect();
    assert_eq!(ips.len(), 50);
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

/// `pod` with another spec.
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
    let labels = [("zone".to_owned(), "b".to_owned())].into();
    let labelled = Arc::new(NodeView { labels, ..node("a", 1_001) });
    world.state.saw_node(&labelled, world.clock(1));
    world.run(3);
    assert_eq!(world.statuses["p"]["phase"], "Running");
}

#[test]
fn a_critical_pod_waits_until_others_have_made_room() {
    let full = (0..110).map(|number| pod(&format!("p{number}"), "a"));
    // It is looked at last: they are in the order of their UIDs.
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
    world.state.saw_pod(&shown, world.clock(21));
    world.run(23);
    assert_eq!(world.statuses["z-critical"]["phase"], "Running");
}

#[test]
fn people_are_told_of_a_pod_and_of_what_its_annotations_get_wrong() {
    let told =
        with(pod("p", "a"), |spec| spec.told = [(names::ANNOTATION_RUN_TIME.into(), "9".into())].into());
    let mut world = World::new(vec![node("a", 1)], vec![told]);
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
    // Three events of each that runs, and one of the one that does not, however often it is looked at.
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
    world.state.saw_pod(&runs, world.clock(5));
    world.state.changed_pod(&runs, &over);
    world.state.saw_pod(&over, world.clock(5));
    world.run(8);
    assert_eq!(world.statuses[&*waits]["podIP"], *ip);
    // The one that ended is deleted at last; the address is another one's by now.
    world.state.lost_pod(&over);
    assert_eq!(world.state.addresses.for_pod(super::super::addresses::Block::of_cidr("10.128.3.0/29")), None);
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
        // As the API server would show it.
        let running = |status: &Value| {
            let since = status["containerStatuses"][0]["state"]["running"]["startedAt"].as_str().unwrap();
            let view = ContainerView {
                name: "a".into(),
                ready: true,
                started: true,
                restarts: 0,
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
        world.state.saw_pod(&running(&first), world.clock(5));
        world.state.update(
            "uid-a",
            Settings { failures: Some(failures), ..Settings::default() },
            world.clock(5),
        );
        world.run(30);
        let ended = &world.statuses["p"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(
            (&ended["exitCode"], &ended["reason"]),
            (&Value::from(255), &Value::from("Unknown")),
            "{mode:?}"
        );
        // Three of the pod's start, and the one of the reboot.
        assert_eq!(world.times("POST events").len(), 4, "{mode:?}");
        let machine = &world.state.machines["uid-a"];
        let booted = boot::rebooted("uid-a", machine.boot.unwrap()).unwrap();
        assert_eq!(booted, boot::time(machine.boot.unwrap()).unwrap() + secs(20));
        assert_eq!(machine.boot_at("uid-a", world.clock(1_000)), machine.boot, "once for each outage");
        // It asked for another address: the one that it shows is not its own any more.
        let shown = running(&first).status.pod_ip.clone().unwrap().parse().unwrap();
        assert_ne!(world.state.pods["uid-p"].ip, Some(shown), "{mode:?}");
    }
}
