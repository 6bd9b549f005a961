//! Checks of recorded Node states written by hand.

use serde_json::{Value, json};

use super::{super::manifests::ROLLOUT_RESOURCE, *};

/// A new Node of a NodeSet, with `change` merged into it.
fn node(change: &[(&str, Value)]) -> Node {
    let mut node = json!({
        "metadata": {
            "name": "n", "uid": "u", "finalizers": ["kube-node.io/machine"],
            "labels": {"kube-node.io/nodeset": "s", "kube-node.io/revision": "old", KEY: "s"},
            "annotations": {KEY: "s"},
        },
        "spec": {"taints": taints(&["NoSchedule", "NoExecute"])},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    });
    for (pointer, value) in change {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        node.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    serde_json::from_value(node).unwrap()
}

fn taints(effects: &[&str]) -> Value {
    let own = effects.iter().map(|effect| json!({"key": "kube-node.io/uninitialized", "effect": effect}));
    let startup = json!({"key": STARTUP_TAINT, "effect": "NoSchedule"});
    own.chain([startup]).collect()
}

fn posted() -> Value {
    json!({"architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
        "kubeletVersion": "v1.36.0", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""})
}

fn ready() -> Value {
    json!([{"type": "Ready", "status": "True"}])
}

/// States of a Node from its creation to Ready, as the contract requires.
fn good() -> Vec<Node> {
    vec![
        node(&[]),
        node(&[("/spec/providerID", json!("p://n"))]),
        node(&[("/spec/providerID", json!("p://n")), ("/status/nodeInfo", posted())]),
        node(&[
            ("/spec/providerID", json!("p://n")),
            ("/status/nodeInfo", posted()),
            ("/status/conditions", ready()),
            ("/spec/taints", taints(&["NoSchedule"])),
        ]),
        node(&[
            ("/spec/providerID", json!("p://n")),
            ("/status/nodeInfo", posted()),
            ("/status/conditions", ready()),
            ("/spec/taints", taints(&[])),
        ]),
    ]
}

#[test]
fn a_good_life_breaks_nothing() {
    let states = good();
    for check in [rest_stays, finalizer_first, no_execute, no_schedule] {
        check(&states).unwrap();
    }
    provider_ids(std::slice::from_ref(&states)).unwrap();
    assert!(untouched(&states).is_err(), "of somebody else it would be too much");
    untouched(&states[..1]).unwrap();
}

#[test]
fn taints_that_go_too_early_or_not_at_all() {
    let early = [node(&[]), node(&[("/spec/taints", taints(&["NoSchedule"]))])];
    assert!(no_execute(&early).unwrap_err().contains("before a kubelet"));
    assert!(no_execute(&early[..1]).unwrap_err().contains("kept"));
    let mut states = good();
    states.truncate(3);
    assert!(no_schedule(&states).unwrap_err().contains("kept"));
    states.push(node(&[("/status/nodeInfo", posted()), ("/spec/taints", taints(&[]))]));
    assert!(no_schedule(&states).unwrap_err().contains("before it was Ready"));
}

#[test]
fn what_others_wrote_is_missed() {
    let marked = |more: Value| {
        let mut all = taints(&["NoSchedule", "NoExecute"]).as_array().unwrap().clone();
        all.extend(more.as_array().unwrap().clone());
        node(&[("/spec/taints", json!(all))])
    };
    let mark = json!([{"key": MARK_TAINT, "effect": "PreferNoSchedule"}]);
    assert!(
        rest_stays(&[marked(json!([])), marked(mark), marked(json!([]))]).unwrap_err().contains(MARK_TAINT)
    );
    for (change, said) in [
        (("/metadata/labels", json!({KEY: "s"})), "kube-node.io/nodeset=s"),
        (("/metadata/annotations", json!({})), "annotation"),
        (
            (
                "/metadata/ownerReferences",
                json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x"}]),
            ),
            "owner",
        ),
        (
            ("/spec/taints", json!([{"key": "kube-node.io/uninitialized", "effect": "NoSchedule"}])),
            STARTUP_TAINT,
        ),
    ] {
        let error = rest_stays(&[node(&[]), node(&[change])]).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_machine_before_the_finalizer() {
    let bare = |change: &[(&str, Value)]| node(&[&[("/metadata/finalizers", json!([]))], change].concat());
    assert!(finalizer_first(&[bare(&[]), bare(&[("/status/nodeInfo", posted())])]).is_err());
    assert!(finalizer_first(&[bare(&[])]).is_err());
    finalizer_first(&[&[bare(&[])], &good()[..]].concat()).unwrap();
}

#[test]
fn provider_ids_are_there_in_time_and_differ() {
    let open = |id: Option<&str>| {
        vec![node(&[
            ("/spec/providerID", json!(id)),
            ("/status/conditions", ready()),
            ("/spec/taints", taints(&[])),
        ])]
    };
    provider_ids(&[open(Some("a")), open(Some("b"))]).unwrap();
    assert!(provider_ids(&[open(Some("a")), open(Some("a"))]).unwrap_err().contains("two Nodes"));
    assert!(provider_ids(&[open(None)]).unwrap_err().contains("has none"));
    assert!(provider_ids(&[vec![node(&[])]]).is_err());
}

#[test]
fn the_cordon_comes_after_the_deletion_and_before_the_end() {
    let closed = ("/spec/unschedulable", json!(true));
    let deleted = ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    cordoned_first(&[
        node(&[]),
        node(std::slice::from_ref(&deleted)),
        node(&[deleted.clone(), closed.clone()]),
    ])
    .unwrap();
    assert!(cordoned_first(&[node(&[closed]), node(std::slice::from_ref(&deleted))]).is_err());
    assert!(cordoned_first(&[node(&[]), node(&[deleted])]).unwrap_err().contains("never"));
}

#[test]
fn machines_of_two_revisions_are_told_apart() {
    let made = |revision: &str, reports: bool| {
        let capacity = if reports { json!({ROLLOUT_RESOURCE: "1"}) } else { json!({}) };
        node(&[
            ("/metadata/labels", json!({"kube-node.io/revision": revision})),
            ("/status/conditions", ready()),
            ("/status/capacity", capacity),
        ])
    };
    let check = |nodes: &[Node]| from_revisions(nodes, ROLLOUT_RESOURCE, "new");
    check(&[made("old", false), made("new", true)]).unwrap().unwrap();
    check(&[made("old", true), made("new", true)]).unwrap().unwrap_err();
    check(&[made("new", false), made("new", true)]).unwrap().unwrap_err();
    assert_eq!(check(&[made("old", false), made("new", false)]), None, "these machines do not show it");
}
