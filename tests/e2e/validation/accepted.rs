//! What the schema accepts is served: by hand-picked objects whose Nodes come, and by generated ones that the API server
//! takes onto Nodes and pods.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ListParams, PropagationPolicy},
};
use kube_node_api::{NodeClass, NodeClassSpec, NodeSet};
use kube_node_planner::revision::ResolvedMachine;
use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::TestRunner,
};
use serde_json::{Map, Value, json};

use super::verdict;
use crate::CLUSTER;
use kube_node_testing::{
    LONG, class_spec, create, delete, eventually, is_ready, summary, taints as taints_of,
};

/// Objects at the edge of what is allowed: names of class and set, changes of their specs, and what the Node must show.
fn odd_objects() -> Vec<(String, String, Value, Value, Value)> {
    let plain = |name: &str| (name.to_owned(), name.to_owned());
    let row = |(class, set), class_spec, set_spec, node| (class, set, class_spec, set_spec, node);
    let long = "x".repeat(63);
    let key =
        format!("{}/{long}", ["p".repeat(63), "q".repeat(63), "r".repeat(63), "s".repeat(61)].join("."));
    vec![
        row(
            ("c".repeat(63), "s".repeat(56)),
            json!({"machineType": long}),
            json!({}),
            json!({"metadata": {"labels": {"node.kubernetes.io/instance-type": long}}}),
        ),
        row(
            plain("odd-template"),
            json!({"template": {
                "labels": {"A": "", key.clone(): long, "a_b.c-D": "0"},
                "annotations": {"Example.COM/Owner": "any text: ä\n", "empty": ""},
                "taints": [{"key": key.clone(), "value": "", "effect": "NoExecute"}, {"key": key.clone(), "effect": "NoSchedule"}],
                "startupTaints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}],
            }}),
            json!({"template": {"taints": [{"key": "a", "value": "b", "effect": "PreferNoSchedule"}]}}),
            json!({"metadata": {"labels": {"A": "", key.clone(): long}, "annotations": {"Example.COM/Owner": "any text: ä\n", "empty": ""}}}),
        ),
        row(
            plain("odd-size"),
            json!({"template": {"annotations": many_annotations("class")}}),
            json!({"template": {"annotations": many_annotations("set"), "labels": many_labels()}}),
            json!({"metadata": {"labels": many_labels()}}),
        ),
        row(
            plain("odd-amounts"),
            json!({"machineType": "", "capacity": {"cpu": "+1.5", "memory": "1e9", "pods": "3000m", "hugepages-2Mi": "0", "a.b/C": "1e3", "foo": ".5"},
                "reserved": {"cpu": "0.000000001", "a.b/C": 1000}}),
            json!({"classOverrides": {"capacity": {"memory": "7.9999999999999999Ei"}}}),
            json!({"status": {"capacity": {"pods": "3"}}}),
        ),
        row(
            plain("odd-rest"),
            json!({"deletionTimeout": "99999999999h", "failures": {"unhealthyDuration": "2562047h47m16.854775807s", "turnUnhealthyAfter": true}}),
            json!({"strategy": {"rollingUpdate": {"maxSurge": 2_147_483_647, "maxUnavailable": "100%"}},
                "remediation": {"maxUnhealthy": "00%", "maxInFlight": 2_147_483_647, "nodeStartupTimeout": "0",
                    "unhealthyConditions": [{"type": "example.com/Disk_0", "status": "Unknown", "for": "9999999h"}]},
                "drain": {"timeout": "0"}, "expireAfter": "9999999h"}),
            json!({}),
        ),
    ]
}

/// As many bytes as one template may have.
fn many_annotations(prefix: &str) -> Value {
    (0..15).map(|at| (format!("{prefix}-{at}"), "x".repeat(4096).into())).collect::<Map<_, _>>().into()
}

fn many_labels() -> Value {
    (0..64).map(|at| (format!("{at:0>63}"), "x".repeat(63).into())).collect::<Map<_, _>>().into()
}

/// Whether all that `part` says is in `whole`.
fn contains(whole: &Value, part: &Value) -> bool {
    match part {
        Value::Object(fields) => fields.iter().all(|(key, part)| contains(&whole[key], part)),
        part => whole == part,
    }
}

/// Number of taints of each effect that a Node of `odd-template` keeps.
const ODD_TAINTS: [(&str, usize); 3] = [("NoExecute", 1), ("NoSchedule", 2), ("PreferNoSchedule", 1)];

/// Returns true if the Node has the taints that it keeps, and no other one. Those of its start, and kube-controller-manager's
/// `not-ready`, stay for some seconds after it is Ready.
fn has_its_taints(set: &str, node: &Node) -> bool {
    let all = taints_of(node);
    let count = |effect: &str| all.iter().filter(|(_, own)| own == effect).count();
    match set {
        "odd-template" => {
            all.len() == 4 && ODD_TAINTS.iter().all(|(effect, number)| count(effect) == *number)
        }
        _ => all.is_empty(),
    }
}

#[tokio::test]
async fn what_is_odd_but_valid_becomes_a_node() {
    let client = CLUSTER.client().await;
    let (classes, sets) = (Api::<NodeClass>::all(client.clone()), Api::<NodeSet>::all(client.clone()));
    let nodes = Api::<Node>::all(client);
    for (class, set, class_change, set_change, _) in odd_objects() {
        let mut spec = class_spec();
        spec.as_object_mut().unwrap().extend(class_change.as_object().unwrap().clone());
        create(&classes, json!({"metadata": {"name": class}, "spec": spec})).await.unwrap();
        let mut spec = json!({"replicas": 1, "nodeClassName": class});
        spec.as_object_mut().unwrap().extend(set_change.as_object().unwrap().clone());
        create(&sets, json!({"metadata": {"name": set}, "spec": spec})).await.unwrap();
    }
    for (_, set, .., shown) in odd_objects() {
        let selector = ListParams::default().labels(&format!("kube-node.io/nodeset={set}"));
        eventually(&format!("a node of {set} that shows all"), LONG, async || {
            let node = nodes.list(&selector).await.unwrap().items.pop().ok_or("no node")?;
            let shows = contains(&serde_json::to_value(&node).unwrap(), &shown);
            let is_done = is_ready(&node) && has_its_taints(&set, &node) && shows;
            if is_done { Ok(()) } else { Err(format!("{}, shows all: {shows}", summary(&node))) }
        })
        .await;
    }
    for (class, set, ..) in odd_objects() {
        delete(&sets, &set, PropagationPolicy::Background).await;
        delete(&classes, &class, PropagationPolicy::Background).await;
    }
}

/// Texts that are names, nearly names, and anything.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[A-Za-z0-9]([-A-Za-z0-9_.]{0,4}[A-Za-z0-9])?",
        2 => "[a-z0-9]{1,3}([.][a-z0-9-]{1,3}){0,2}/[A-Za-z0-9]([-A-Za-z0-9_.]{0,4}[A-Za-z0-9])?",
        1 => "[-A-Za-z0-9_./ ]{0,6}",
        1 => "[a-zA-Z]{62,65}",
        1 => "\\PC{0,3}",
    ]
}

fn map() -> impl Strategy<Value = Value> {
    btree_map(text(), text(), 0..3).prop_map(|map| json!(map))
}

fn taints() -> impl Strategy<Value = Value> {
    let effect = select(vec!["NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule", "NoScedule", ""]);
    vec((text(), text(), effect), 0..3).prop_map(|taints| {
        taints
            .iter()
            .map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
            .collect()
    })
}

fn amounts() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        4 => select(vec!["cpu", "memory", "pods", "services", "example.com/gpu", "hugepages-2Mi", "a.kubernetes.io/b"]).prop_map(str::to_owned),
        1 => text(),
    ];
    let amount = prop_oneof![
        2 => "[0-9]{1,3}",
        2 => "[-+]?[0-9]{0,3}[.]?[0-9]{0,3}(m|k|Ki|Mi|G|E|Ei|n|e[0-9]|E-?[0-9]|)",
        1 => "[0-9]{0,20}[.][0-9]{0,10}([KMGTPE]i?|m|u|n|e[0-9]{1,2})?",
        1 => "[0-9.eEimk+-]{0,5}",
    ];
    btree_map(name, amount, 1..3).prop_map(|map| json!(map))
}

fn tolerations() -> impl Strategy<Value = Value> {
    let text = || prop_oneof![1 => Just(String::new()), 2 => text()];
    let operator = select(vec!["", "Equal", "Exists", "Exists", "In"]);
    let effect = select(vec!["", "NoSchedule", "NoExecute", "NoScedule"]);
    let seconds = prop_oneof![3 => Just(None), 1 => Just(Some(5))];
    vec((text(), operator, text(), effect, seconds), 0..2).prop_map(|all| {
        let one = |(key, operator, value, effect, seconds): &(String, &str, String, &str, Option<i32>)| {
            let mut toleration = json!({"key": key, "operator": operator, "value": value, "effect": effect});
            if let Some(seconds) = seconds {
                toleration["tolerationSeconds"] = json!(seconds);
            }
            toleration
        };
        all.iter().map(one).collect()
    })
}

fn affinity() -> impl Strategy<Value = Value> {
    let operator = select(vec!["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Equal"]);
    (text(), operator, vec(text(), 0..3), any::<bool>()).prop_map(|(key, operator, values, of_nodes)| {
        let requirement = json!({"key": key, "operator": operator, "values": values});
        if of_nodes {
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}})
        } else {
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": key, "labelSelector": {"matchExpressions": [requirement]}}]}})
        }
    })
}

/// What the API server says of a class with this, and of the Node or pod that it would make.
async fn both(field: &'static str, value: &Value) -> (String, String) {
    let client = CLUSTER.client().await;
    let mut spec = class_spec();
    let pod_field = field.strip_prefix("kubemark/");
    if let Some(field) = pod_field {
        spec = json!({"nodeController": "kubemark", "capacity": {"cpu": "1"}, "kubemark": {field: value}});
    } else if let Some(field) = field.strip_prefix("template/") {
        spec["template"] = json!({field: value});
    } else {
        spec["reserved"].take();
        spec[field] = value.clone();
    }
    let class = json!({"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass", "metadata": {"name": "generated"}, "spec": spec});
    let of_class = verdict(&Api::<NodeClass>::all(client.clone()), class, &("", "", json!(null), "")).await;
    if of_class.is_empty() {
        let read: NodeClassSpec = serde_json::from_value(spec).expect("what is accepted is read");
        let machine = ResolvedMachine::resolve(&read, None);
        machine.check().expect("a machine");
        machine.revision().expect("a revision");
        machine.amounts().expect("amounts");
    }
    let of_other = if let Some(field) = pod_field {
        let mut container = json!({"name": "a", "image": "a"});
        let mut pod = json!({"containers": [container]});
        if field == "resources" {
            container["resources"] = value.clone();
            pod["containers"] = json!([container]);
        } else {
            pod[field] = value.clone();
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "generated"}, "spec": pod});
        verdict(&Api::<Pod>::default_namespaced(client), pod, &("", "", json!(null), "")).await
    } else {
        let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "generated"}});
        match field {
            "template/labels" => node["metadata"]["labels"] = value.clone(),
            "template/annotations" => node["metadata"]["annotations"] = value.clone(),
            "template/taints" => node["spec"]["taints"] = value.clone(),
            _ => node["status"]["capacity"] = value.clone(),
        }
        verdict(&Api::<Node>::all(client), node, &("", "", json!(null), "")).await
    };
    (of_class, of_other)
}

/// Checks as many generated values of a field; where `exactly`, the schema refuses nothing that the API server takes.
async fn generated(field: &'static str, strategy: impl Strategy<Value = Value>, cases: usize, exactly: bool) {
    let mut runner = TestRunner::deterministic();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..cases {
        let value = strategy.new_tree(&mut runner).unwrap().current();
        let (of_class, of_other) = both(field, &value).await;
        if of_class.is_empty() {
            accepted += 1;
            assert_eq!(of_other, "", "{field}: the schema accepts {value}");
        } else {
            refused += 1;
            assert!(
                !exactly || !of_other.is_empty(),
                "{field}: {value} would be taken, and the schema says {of_class}"
            );
        }
    }
    println!("{field}: {accepted} accepted, {refused} refused");
    assert!(accepted > cases / 10 && refused > cases / 10, "{field}: {accepted} accepted, {refused} refused");
}

#[tokio::test]
async fn what_the_schema_accepts_is_taken_by_the_api_server() {
    generated("template/labels", map(), 150, true).await;
    generated("template/annotations", map(), 150, true).await;
    generated("template/taints", taints(), 150, true).await;
    // The API server takes amounts without a number, beyond what it computes, and under any name.
    generated("capacity", amounts(), 300, false).await;
    generated("kubemark/nodeSelector", map(), 100, true).await;
    generated("kubemark/tolerations", tolerations(), 150, true).await;
    generated("kubemark/affinity", affinity(), 150, true).await;
    let resources = (amounts(), amounts(), any::<bool>()).prop_map(|(requests, limits, same)| {
        json!({"requests": requests, "limits": if same { requests.clone() } else { limits }})
    });
    generated("kubemark/resources", resources, 200, false).await;
}
