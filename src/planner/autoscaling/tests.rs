use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;
use k8s_pb::api::core::v1::Pod;
use kube_node_api::{NodeClassSpec, NodeSet, NodeTemplate, names};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

use super::*;
use crate::test_fixtures::at;
use crate::{revision, template::DesiredTemplate};

pub(super) fn snapshot(replicas: i32) -> SetSnapshot {
    SetSnapshot {
        uid: "set".to_owned(),
        generation: 1,
        version: "1".to_owned(),
        bounds: Bounds { min: 1, max: 10 },
        replicas,
        victims: BTreeSet::new(),
    }
}

fn victims(uids: &[&str]) -> BTreeSet<String> {
    uids.iter().map(|uid| (*uid).to_owned()).collect()
}

/// A machine that takes pods; its name is also its UID.
fn up(name: &'static str) -> GroupNode<'static> {
    GroupNode {
        name,
        uid: name,
        provider_id: Some(name),
        has_kubelet: true,
        started: true,
        initialized: true,
        ready: true,
        updated: true,
        created: at(1),
        ..GroupNode::default()
    }
}

/// A machine that never started.
fn awaited(name: &'static str, created: i64) -> GroupNode<'static> {
    let up = up(name);
    GroupNode {
        has_kubelet: false,
        started: false,
        initialized: false,
        ready: false,
        created: at(created),
        ..up
    }
}

/// The default budget.
const ROLLING: Option<Rolling> = Some(Rolling { surge: 1, keep: 0 });

fn ours(uid: &str) -> VictimState<'_> {
    VictimState::Ours { uid, leaving: false }
}

#[test]
fn growth_keeps_to_the_maximum_and_is_all_or_nothing() {
    assert_eq!(increase(&snapshot(3), 7).unwrap().replicas, 10);
    for (delta, code) in [
        (8, Code::OutOfRange),
        (i32::MAX, Code::OutOfRange),
        (0, Code::InvalidArgument),
        (-1, Code::InvalidArgument),
        (i32::MIN, Code::InvalidArgument),
    ] {
        assert_eq!(increase(&snapshot(3), delta).unwrap_err().code, code, "{delta}");
    }
    // The replicas exceed a maximum that was lowered.
    assert_eq!(increase(&snapshot(11), 1).unwrap_err().code, Code::OutOfRange);
}

#[test]
fn growth_forgets_nobody_who_is_to_go() {
    let snapshot = SetSnapshot { victims: victims(&["a"]), ..snapshot(3) };
    assert_eq!(increase(&snapshot, 1).unwrap().victims, victims(&["a"]));
}

#[test]
fn a_deletion_names_its_nodes_and_lowers_the_replicas_by_as_many() {
    let change = delete("s", &snapshot(3), 3, &[ours("a"), ours("b")]).unwrap().unwrap();
    assert_eq!(change, ReplicaChange { replicas: 1, victims: victims(&["a", "b"]) });
}

#[test]
fn a_deletion_that_comes_again_changes_nothing() {
    let again = SetSnapshot { victims: victims(&["a"]), ..snapshot(3) };
    for target in [ours("a"), VictimState::Gone, VictimState::Ours { uid: "b", leaving: true }] {
        assert_eq!(delete("s", &again, 3, &[target]), Ok(None), "{target:?}");
    }
    // A Node named twice in one call counts once.
    assert_eq!(delete("s", &snapshot(3), 3, &[ours("a"), ours("a")]).unwrap().unwrap().replicas, 2);
    let mixed = delete("s", &again, 3, &[ours("a"), ours("b")]).unwrap().unwrap();
    assert_eq!(mixed, ReplicaChange { replicas: 2, victims: victims(&["a", "b"]) });
}

#[test]
fn what_is_above_the_replicas_is_taken_from_first() {
    // The surge of a rollout: four machines were counted, and three have to remain.
    let change = delete("s", &snapshot(3), 4, &[ours("a")]).unwrap().unwrap();
    assert_eq!(change, ReplicaChange { replicas: 3, victims: victims(&["a"]) });
    assert_eq!(delete("s", &snapshot(3), 4, &[ours("a"), ours("b")]).unwrap().unwrap().replicas, 2);
    // Even if the minimum was raised in the meantime: nothing is lowered.
    let low = SetSnapshot { bounds: Bounds { min: 5, max: 9 }, ..snapshot(3) };
    assert!(delete("s", &low, 4, &[ours("a")]).is_ok());
    assert!(delete("s", &low, 3, &[ours("a")]).is_err());
}

#[test]
fn a_node_that_cannot_be_deleted_and_serves_nobody_takes_no_replica() {
    let machines = |of_last: GroupNode<'static>| [up("a"), up("b"), up("c"), of_last];
    let broken = GroupNode { ready: false, updated: false, ..up("d") };
    let of = |last: &GroupNode<'static>, undeletable| {
        let staying = serving(&snapshot(3), &machines(last.clone()), 0, undeletable);
        delete("s", &snapshot(3), staying, &[ours("a")]).unwrap().unwrap().replicas
    };
    // The set has three others in its place. If one of them went without its replica, it would be made again.
    assert_eq!(of(&broken, 1), 2);
    assert_eq!(of(&GroupNode { ready: true, started: false, ..broken.clone() }, 1), 2);
    // These are surplus: they go by themselves, or serve.
    assert_eq!(of(&broken, 0), 3);
    assert_eq!(of(&GroupNode { ready: true, ..broken.clone() }, 1), 3);
    assert_eq!(of(&GroupNode { updated: true, ..broken.clone() }, 1), 3);
}

#[test]
fn a_deletion_below_the_minimum_or_of_foreign_nodes_does_nothing_at_all() {
    let refusal = delete("s", &snapshot(2), 2, &[ours("a"), ours("b")]).unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition);
    assert!(refusal.to_string().contains("minReplicas (1)"), "{refusal}");
    let refusal = delete("s", &snapshot(9), 9, &[ours("a"), VictimState::Foreign { name: "x" }]).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidArgument);
    let many: Vec<String> = (0..=MOST_VICTIMS).map(|i| i.to_string()).collect();
    let many: Vec<VictimState<'_>> = many.iter().map(|uid| ours(uid)).collect();
    let rich = SetSnapshot { bounds: Bounds { min: 0, max: 100_000 }, ..snapshot(100_000) };
    assert_eq!(delete("s", &rich, 100_000, &many).unwrap_err().code, Code::ResourceExhausted);
    assert!(delete("s", &rich, 100_000, &many[1..]).unwrap().is_some());
}

#[test]
fn giving_up_takes_only_what_has_no_machine() {
    let machines = [up("a"), up("b"), awaited("c", 5), awaited("d", 7)];
    // One replica has no Node: it goes first, then the youngest Node.
    let change = decrease(&snapshot(5), &machines, 0, false, -2).unwrap();
    assert_eq!(change, ReplicaChange { replicas: 3, victims: victims(&["d"]) });
    // The whole delta of a scale-up that mostly succeeded.
    let change = decrease(&snapshot(5), &machines, 0, false, -100).unwrap();
    assert_eq!(change, ReplicaChange { replicas: 2, victims: victims(&["c", "d"]) });
    assert_eq!(
        decrease(&snapshot(2), &machines[..2], 0, false, -1).unwrap_err().code,
        Code::FailedPrecondition
    );
    assert_eq!(decrease(&snapshot(2), &[], 0, false, i32::MIN).unwrap().replicas, 1, "not below the minimum");
    assert_eq!(decrease(&snapshot(1), &[], 0, false, -1).unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(decrease(&snapshot(5), &machines, 0, false, 1).unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn giving_up_leaves_what_is_created_and_not_shown_alone() {
    let machines = [up("a"), up("b"), awaited("c", 5)];
    // Of six replicas one has no Node, two are being created.
    let change = decrease(&snapshot(6), &machines, 2, false, -1).unwrap();
    assert_eq!(change, ReplicaChange { replicas: 5, victims: victims(&[]) });
    let change = decrease(&snapshot(6), &machines, 2, false, -4).unwrap();
    assert_eq!(change, ReplicaChange { replicas: 4, victims: victims(&["c"]) });
    assert_eq!(
        decrease(&snapshot(5), &machines[..2], 3, false, -3).unwrap_err().code,
        Code::FailedPrecondition
    );
}

#[test]
fn giving_up_leaves_the_surge_of_a_rollout_alone() {
    let machines = [up("a"), up("b"), awaited("new", 5)];
    assert_eq!(decrease(&snapshot(2), &machines, 0, true, -1).unwrap_err().code, Code::FailedPrecondition);
    // A replacement that started after its Node went stays too; a replica without a Node goes.
    let replacing = [up("a"), awaited("new", 5)];
    assert_eq!(decrease(&snapshot(2), &replacing, 0, true, -1).unwrap_err().code, Code::FailedPrecondition);
    let change = ReplicaChange { replicas: 2, victims: victims(&[]) };
    assert_eq!(decrease(&snapshot(3), &replacing, 0, true, -2), Ok(change));
}

#[test]
fn nodes_are_found_byte_for_byte() {
    let id_of = |name: &&str| (*name == "a").then(|| "hollow://a".to_owned());
    let find = |provider_id: &str, name: &str| {
        let by_id = |id: &str| (id == "hollow://a").then_some("a");
        let by_name = |name: &str| ["a", "bare"].into_iter().find(|known| *known == name);
        resolve(NodeRef { provider_id, name }, by_id, by_name, id_of)
    };
    assert_eq!(find("hollow://a", "a"), Ok(Some("a")));
    assert_eq!(find("hollow://a", "hollow://a"), Ok(Some("a")), "as a machine without a Node is named");
    assert_eq!(find("", "a"), Ok(Some("a")));
    assert_eq!(find("cloud://b", "bare"), Ok(Some("bare")), "its providerID has not been written yet");
    assert_eq!(find("hollow://z", "z"), Ok(None));
    assert_eq!(find("hollow%3A//a", "hollow%3A//a"), Ok(None));
    assert_eq!(find("HOLLOW://a", "a").unwrap_err().code, Code::InvalidArgument);
    assert_eq!(find("", "").unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn states_follow_the_machine_and_the_record() {
    let gone = GroupNode { leaving: true, ..up("leaving") };
    let bare = GroupNode { provider_id: None, ..up("without-id") };
    let machines = [up("up"), gone, bare, awaited("coming", 1), up("named")];
    let snapshot = SetSnapshot { victims: victims(&["named"]), ..snapshot(3) };
    let all = instances("s", &snapshot, &machines, 0, false, at(100));
    let states: Vec<(&str, InstanceState)> = all.iter().map(|i| (&*i.id, i.state)).collect();
    assert_eq!(
        states,
        [
            ("coming", InstanceState::Creating),
            ("leaving", InstanceState::Deleting),
            ("named", InstanceState::Deleting),
            ("up", InstanceState::Running)
        ]
    );
}

#[test]
fn a_failure_is_told_where_the_machine_may_go_and_once_it_lasts() {
    let trouble = |reason| Some(Trouble { reason, message: "why", since: Some(at(60)) });
    let machines = [
        GroupNode { trouble: trouble("Unschedulable"), ..awaited("old", 10) },
        GroupNode { trouble: trouble("ImagePullBackOff"), ..awaited("young", 20) },
        // A Node that once worked is judged by its Ready condition.
        GroupNode { trouble: trouble("CrashLoopBackOff"), ..up("up") },
    ];
    let reported = |replicas, rollout, now| -> Vec<(String, bool)> {
        let all = instances("s", &snapshot(replicas), &machines, 0, rollout, at(now));
        all.into_iter().filter_map(|i| Some((i.id.into_owned(), i.error?.is_out_of_resources()))).collect()
    };
    let errors = |replicas, now| reported(replicas, false, now);
    assert!(errors(3, 61).is_empty());
    let both = [("old".to_owned(), true), ("young".to_owned(), false)];
    assert_eq!(errors(3, 90), both);
    assert_eq!(errors(2, 90), both[1..], "only one may go: the one that was asked for last");
    assert!(errors(1, 90).is_empty(), "none may go");
    assert!(reported(3, true, 90).is_empty(), "they are a rollout's, and each would take a replica along");
}

#[test]
fn a_replica_that_has_no_node_and_may_not_go_is_a_placeholder() {
    let placeholders = |replicas, machines: &[GroupNode<'_>], coming| -> Vec<String> {
        let snapshot = SetSnapshot { bounds: Bounds { min: 3, max: 10 }, ..snapshot(replicas) };
        let all = instances("s", &snapshot, machines, coming, false, at(100));
        let vacant = all.into_iter().filter(|instance| placeholder_group(&instance.id).is_some());
        vacant
            .inspect(|vacant| assert_eq!(vacant.state, InstanceState::Creating))
            .map(|i| i.id.into_owned())
            .collect()
    };
    assert_eq!(placeholders(3, &[up("a")], 0).len(), 2);
    assert_eq!(placeholders(3, &[up("a")], 1).len(), 1, "one is on its way");
    // One of the three missing replicas may be given up.
    assert_eq!(
        placeholders(4, &[up("a")], 0),
        ["kube-node-placeholder://s/0", "kube-node-placeholder://s/1"]
    );
    assert!(placeholders(3, &[up("a"), up("b"), up("c")], 0).is_empty());
    assert_eq!(placeholder_group("kube-node-placeholder://s/1"), Some("s"));
    for id in ["hollow://s/1", "kube-node-placeholder://s", "kube-node-placeholder://s/x", ""] {
        assert_eq!(placeholder_group(id), None, "{id}");
    }
}

#[test]
fn the_target_counts_the_surge_that_is_there() {
    let old = |name| GroupNode { updated: false, ..up(name) };
    assert_eq!(target_size(&snapshot(3), &[old("a"), old("b"), old("c")], 0, ROLLING), 3, "not yet");
    let rolling = [old("a"), old("b"), old("c"), awaited("d", 9)];
    assert_eq!(target_size(&snapshot(3), &rolling, 0, ROLLING), 4);
    // A scale-up during a rollout leads to six machines, so the target is six.
    assert_eq!(target_size(&snapshot(5), &rolling, 0, ROLLING), 6);
    let leaving = GroupNode { leaving: true, ..old("c") };
    assert_eq!(target_size(&snapshot(3), &[old("a"), old("b"), leaving, up("d")], 0, ROLLING), 4);
    assert_eq!(target_size(&snapshot(3), &[up("a"), up("b"), up("c")], 0, ROLLING), 3, "all are new");
    let drained = GroupNode { autoscaler_drains: true, ..old("a") };
    assert_eq!(target_size(&snapshot(3), &[drained, up("b"), up("c")], 0, ROLLING), 3, "it is not replaced");
    assert_eq!(target_size(&snapshot(3), &rolling, 0, None), 4, "halted, with one too many");
    let kept = Some(Rolling { surge: 1, keep: 1 });
    assert_eq!(target_size(&snapshot(3), &[old("a"), up("b"), up("c")], 0, kept), 3, "it is to stay");
    assert_eq!(target_size(&snapshot(3), &[old("a"), old("b"), old("c")], 1, ROLLING), 4, "not shown yet");
    assert_eq!(target_size(&snapshot(3), &[], 0, None), 3);
    let named = SetSnapshot { victims: victims(&["a"]), ..snapshot(2) };
    assert_eq!(target_size(&named, &[up("a"), up("b"), up("c")], 0, None), 2);
}

#[test]
fn the_record_is_written_and_read() {
    let set = |annotation: &str| -> NodeSet {
        serde_json::from_value(json!({
            "apiVersion": "kube-node.io/v1alpha1", "kind": "NodeSet",
            "metadata": {"name": "s", "uid": "u", "generation": 4, "resourceVersion": "9",
                "annotations": {names::ANNOTATION_VICTIMS: annotation}},
            "spec": {"replicas": 2, "nodeClassName": "c", "autoscaling": {"minReplicas": 1, "maxReplicas": 5}},
        }))
        .unwrap()
    };
    let snapshot = SetSnapshot::of(&set("b,a")).unwrap();
    assert_eq!(snapshot.victims, victims(&["a", "b"]));
    assert_eq!((snapshot.bounds, snapshot.generation), (Bounds { min: 1, max: 5 }, 4));
    assert_eq!(record(&snapshot.victims).as_deref(), Some("a,b"));
    assert_eq!(SetSnapshot::of(&set("")).unwrap().victims, victims(&[]));
    assert_eq!(record(&victims(&[])), None);
    let mut leaving = set("");
    leaving.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    assert_eq!(SetSnapshot::of(&leaving), None);
    let mut alone = set("");
    alone.spec.autoscaling = None;
    assert_eq!(SetSnapshot::of(&alone), None);
}

fn class(value: serde_json::Value) -> NodeClassSpec {
    serde_json::from_value(value).unwrap()
}

fn template_of(
    spec: &NodeClassSpec,
    set: Option<&NodeTemplate>,
) -> Result<k8s_pb::api::core::v1::Node, ScaleRefusal> {
    let machine = revision::ResolvedMachine::resolve(spec, None);
    let template = DesiredTemplate::merge(spec.template.as_ref(), set);
    let blueprint = Blueprint {
        set: "workers",
        class: "medium",
        revision: "v1-0",
        machine: &machine,
        template: &template,
    };
    node(blueprint, at(7))
}

#[test]
fn a_template_is_a_node_that_takes_pods() {
    let spec = class(json!({
        "nodeController": "hollow", "machineType": "m.medium",
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "30", "nvidia.com/gpu": "2"}, "reserved": {"cpu": "100m"},
        "template": {"labels": {"topology.kubernetes.io/zone": "a"},
            "taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "cni", "effect": "NoExecute"}]},
    }));
    let set = NodeTemplate {
        labels: BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), "b".to_owned())]),
        taints: vec![Taint { key: "own".to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() }],
        ..NodeTemplate::default()
    };
    let node = template_of(&spec, Some(&set)).unwrap();
    let labels = node.metadata.unwrap().labels;
    for (key, value) in [
        ("topology.kubernetes.io/zone", "b"),
        ("node.kubernetes.io/instance-type", "m.medium"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", "workers-template"),
        (names::LABEL_NODESET, "workers"),
        (names::LABEL_NODECLASS, "medium"),
        (names::LABEL_NODE_CONTROLLER, "hollow"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let taints: Vec<_> = node.spec.unwrap().taints.into_iter().filter_map(|taint| taint.key).collect();
    assert_eq!(taints, ["dedicated", "own"]);
    let status = node.status.unwrap();
    let amount = |name: &str| status.allocatable[name].string.clone().unwrap();
    assert_eq!(
        [amount("cpu"), amount("memory"), amount("pods"), amount("nvidia.com/gpu")],
        ["3900m", "16Gi", "30", "2"]
    );
    assert_eq!(status.capacity["cpu"].string.as_deref(), Some("4"));
    assert_eq!(status.conditions[0].status.as_deref(), Some("True"));
}

#[test]
fn pods_are_counted_as_the_kubelet_counts_them() {
    let pods = |value| {
        let status = template_of(&class(value), None).unwrap().status.unwrap();
        status.allocatable["pods"].string.clone().unwrap()
    };
    for controller in ["hollow", "kubemark", "example.com/metal"] {
        assert_eq!(
            pods(json!({"nodeController": controller, "capacity": {"cpu": "4"}})),
            "110",
            "{controller}"
        );
        assert_eq!(pods(json!({"nodeController": controller, "capacity": {"cpu": "4", "pods": "9"}})), "9");
    }
    let nothing = template_of(&class(json!({"nodeController": "example.com/metal"})), None).unwrap_err();
    assert_eq!(nothing.code, Code::Unimplemented);
}

#[test]
fn a_pod_costs_the_cheapest_share_that_it_fills() {
    let amounts = |value| serde_json::from_value(value).unwrap();
    let (small, large) =
        (amounts(json!({"cpu": "2", "memory": "4Gi"})), amounts(json!({"cpu": "32", "memory": "64Gi"})));
    let prices =
        [ClassPrice { an_hour: 1.0, capacity: &small }, ClassPrice { an_hour: 8.0, capacity: &large }];
    let pod = |requests: &[(&str, &str)]| -> Pod {
        let mut container = k8s_pb::api::core::v1::Container::default();
        let mut resources = k8s_pb::api::core::v1::ResourceRequirements::default();
        for (name, amount) in requests {
            let quantity =
                k8s_pb::apimachinery::pkg::api::resource::Quantity { string: Some((*amount).to_owned()) };
            resources.requests.insert((*name).to_owned(), quantity);
        }
        container.resources = Some(resources);
        let spec = k8s_pb::api::core::v1::PodSpec { containers: vec![container], ..Default::default() };
        Pod { spec: Some(spec), ..Pod::default() }
    };
    let is = |cost: f64, expected: f64| (cost - expected).abs() < 1e-9;
    let cost = |requests: &[(&str, &str)]| least_pod_price(&pod(requests), &prices, 2.0);
    assert!(is(cost(&[("cpu", "1")]), 0.5), "a 32nd of the large one, for two hours");
    assert!(is(cost(&[("memory", "64Gi"), ("cpu", "1")]), 16.0));
    assert!(is(cost(&[]), 0.0));
    assert!(is(cost(&[("nvidia.com/gpu", "1")]), 0.0), "no class has any");
    assert_eq!(node_price("c", Some("0.25"), 4.0), Ok(1.0));
    assert_eq!(node_price("c", None, 4.0).unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(hours(Some(0.0), Some(5_400.0)), Ok(1.5));
    assert_eq!(hours(Some(2.0), Some(1.0)).unwrap_err().code, Code::InvalidArgument);
}

proptest! {
    /// After any sequence of requests, the bounds hold and no victim leaves the record.
    #[test]
    fn the_bounds_hold(
        min in 0..5_i32, span in 0..6_i32, begin in 0..12_i32,
        coming in 0..4_usize, requests in vec((0..3_u8, -3..4_i32, 0..8_usize), 0..12),
    ) {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let bounds = Bounds { min, max: min + span };
        let mut snapshot = SetSnapshot { bounds, ..snapshot(begin) };
        let machines: Vec<GroupNode<'_>> =
            names.iter().zip(0..).map(|(name, i)| if i % 2 == 0 { up(name) } else { awaited(name, i) }).collect();
        // Nodes above the replicas, which the NodeSetController deletes although no call named them.
        let surplus = |replicas: i32, victims: &BTreeSet<String>| {
            let staying = machines.iter().filter(|machine| !machine.goes(victims)).count();
            (staying + coming).saturating_sub(usize::try_from(replicas).unwrap())
        };
        for (kind, delta, which) in requests {
            let change = match kind {
                0 => increase(&snapshot, delta).ok(),
                1 => delete("s", &snapshot, 0, &[ours(names[which])]).ok().flatten(),
                _ => decrease(&snapshot, &machines, coming, false, delta).ok(),
            };
            let Some(change) = change else { continue };
            if kind == 2 {
                let before = surplus(snapshot.replicas, &snapshot.victims);
                prop_assert!(surplus(change.replicas, &change.victims) <= before);
            }
            if change.replicas >= snapshot.replicas {
                prop_assert!(change.replicas <= bounds.max.max(snapshot.replicas));
            } else {
                prop_assert!(change.replicas >= bounds.min);
                let named = change.victims.len() - snapshot.victims.len();
                prop_assert!(named <= usize::try_from(snapshot.replicas - change.replicas).unwrap());
            }
            prop_assert!(change.victims.is_superset(&snapshot.victims));
            snapshot = SetSnapshot { replicas: change.replicas, victims: change.victims, ..snapshot };
        }
    }
}
