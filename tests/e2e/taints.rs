//! Our taints come and go; everybody else's stay.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PropagationPolicy},
};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, always, class_spec, create, delete, eventually, name, phase, taints};

fn pair(key: &str, effect: &str) -> (String, String) {
    (key.to_owned(), effect.to_owned())
}

#[tokio::test]
async fn a_start_up_taint_is_set_once_and_waited_for() {
    let mut class = class_spec();
    class["template"] = json!({"startupTaints": [{"key": "example.com/cni", "effect": "NoSchedule"}]});
    let own = Fixture::new(&CLUSTER, "taint-startup", 1, class).await;
    let node = eventually("ours leave, theirs stays", LONG, async || {
        let node = own.my_nodes().await.pop()?;
        (taints(&node) == [pair("example.com/cni", "NoSchedule")]).then_some(node)
    })
    .await;
    own.set_says("Progressing", "True", "Provisioning").await;
    CLUSTER.kubectl(&["taint", "node", &name(&node), "example.com/cni:NoSchedule-"]);
    own.settled(1).await;
    always("it is never set again", Duration::from_secs(2), async || {
        taints(&own.nodes.get(&name(&node)).await.unwrap()).is_empty()
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_startup_taint_that_comes_back_replaces_no_node() {
    let mut class = class_spec();
    class["template"] = json!({"startupTaints": [{"key": "example.com/cni", "effect": "NoSchedule"}]});
    let own = Fixture::without_set(&CLUSTER, "taint-back", class).await;
    own.create_set(1, json!({"remediation": {"nodeStartupTimeout": "30s"}})).await;
    let record = |node: &Node| node.annotations().get("kube-node.io/startup-taints").cloned();
    let node = eventually("the kubelet is there", LONG, async || {
        let node = own.my_nodes().await.pop()?;
        (taints(&node) == [pair("example.com/cni", "NoSchedule")]).then_some(node)
    })
    .await;
    assert_eq!(record(&node).as_deref(), Some("example.com/cni:NoSchedule"));
    CLUSTER.kubectl(&["taint", "node", &name(&node), "example.com/cni:NoSchedule-"]);
    let created = node.metadata.creation_timestamp.as_ref().unwrap().0;
    eventually("its start is recorded and its time is over", LONG, async || {
        let is_over = jiff::Timestamp::now().duration_since(created).as_secs() > 30;
        (is_over && record(&own.nodes.get(&name(&node)).await.unwrap()).is_none()).then_some(())
    })
    .await;
    CLUSTER.kubectl(&["taint", "node", &name(&node), "example.com/cni:NoSchedule"]);
    own.set_says("Available", "False", "NodesUnavailable").await;
    always("the Node stays", Duration::from_secs(3), async || {
        own.nodes.get(&name(&node)).await.unwrap().metadata.deletion_timestamp.is_none()
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_daemonset_runs_beside_taints_of_others() {
    let mut class = class_spec();
    class["template"] = json!({
        "labels": {"for": "taint-daemons"},
        "taints": [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}],
    });
    let own = Fixture::new(&CLUSTER, "taint-daemons", 2, class).await;
    let daemons: Api<DaemonSet> = Api::default_namespaced(own.client.clone());
    create(
        &daemons,
        json!({"metadata": {"name": "taint-daemons"}, "spec": {
        "selector": {"matchLabels": {"app": "taint-daemons"}},
        "template": {"metadata": {"labels": {"app": "taint-daemons"}}, "spec": {
            "nodeSelector": {"for": "taint-daemons"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "example.com/agent:1"}]}}}}),
    )
    .await
    .unwrap();
    let nodes = own.settled(2).await;
    eventually("a pod on each", LONG, async || {
        (daemons.get("taint-daemons").await.unwrap().status?.number_ready == 2).then_some(())
    })
    .await;
    let node = name(&nodes[0]);
    CLUSTER.kubectl(&["taint", "node", &node, "mine=1:NoSchedule"]);
    CLUSTER.kubectl(&["taint", "node", &node, "DeletionCandidateOfClusterAutoscaler=1:PreferNoSchedule"]);
    // A change of the template rewrites the list; the taints of others are in it as they were.
    own.patch_class(json!({"spec": {"template": {"taints": [{"key": "dedicated", "value": "web", "effect": "NoSchedule"}]}}}))
        .await;
    let now = eventually("the new value arrives", LONG, async || {
        let node = own.nodes.get(&node).await.unwrap();
        let all = node.spec.as_ref()?.taints.clone()?;
        all.iter()
            .any(|taint| taint.key == "dedicated" && taint.value.as_deref() == Some("web"))
            .then(|| taints(&node))
    })
    .await;
    // kubectl puts new ones first; what counts is that all are there.
    for taint in [
        pair("dedicated", "NoSchedule"),
        pair("mine", "NoSchedule"),
        pair("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
    ] {
        assert!(now.contains(&taint), "{taint:?} of {now:?}");
    }
    // A drain leaves the pods of DaemonSets where they are: the Node goes although one runs on it.
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    own.settled(0).await;
    delete(&daemons, "taint-daemons", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn no_pod_comes_before_the_machine() {
    // A class whose machines wait for a start-up taint: until it goes, a pod for these nodes stays Pending.
    let mut class = class_spec();
    class["template"] =
        json!({"labels": {"for": "taint-early"}, "startupTaints": [{"key": "wait", "effect": "NoSchedule"}]});
    let own = Fixture::new(&CLUSTER, "taint-early", 1, class).await;
    create(
        &own.pods,
        json!({"metadata": {"name": "taint-early"}, "spec": {
        "nodeSelector": {"for": "taint-early"}, "containers": [{"name": "main", "image": "x"}]}}),
    )
    .await
    .unwrap();
    always("the pod waits", Duration::from_secs(3), async || {
        own.pods.get("taint-early").await.unwrap().spec.unwrap().node_name.is_none()
    })
    .await;
    let node = name(&own.my_nodes().await[0]);
    CLUSTER.kubectl(&["taint", "node", &node, "wait:NoSchedule-"]);
    eventually("the pod runs", LONG, async || {
        (phase(&own.pods.get("taint-early").await.unwrap()) == "Running").then_some(())
    })
    .await;
    delete(&own.pods, "taint-early", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn fields_are_tracked_for_those_who_apply() {
    let with_taint = |value: &str| json!([{"key": "dedicated", "value": value, "effect": "NoSchedule"}]);
    let mut class = class_spec();
    class["template"] = json!({"taints": with_taint("batch")});
    let own = Fixture::new(&CLUSTER, "taint-applied", 2, class).await;
    let nodes = own.settled(2).await;
    let [applied, other] = [name(&nodes[0]), name(&nodes[1])];
    assert!(nodes.iter().all(|node| node.managed_fields().is_empty()), "nobody has use for it: {nodes:?}");
    let label =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": applied, "labels": {"mine": "1"}}});
    own.nodes.patch(&applied, &PatchParams::apply("mine"), &Patch::Apply(label)).await.unwrap();

    own.patch_class(json!({"spec": {"template": {"taints": with_taint("web")}}})).await;
    let tracked = async |node: &str| {
        let node = own.nodes.get(node).await.unwrap();
        let taints = node.spec.as_ref()?.taints.as_ref()?;
        let rewritten = taints.iter().any(|taint| taint.value.as_deref() == Some("web"));
        rewritten.then(|| node.managed_fields().iter().filter_map(|entry| entry.operation.clone()).collect())
    };
    let of_applied: Vec<String> =
        eventually("its taints are rewritten", LONG, async || tracked(&applied).await).await;
    assert!(of_applied.contains(&"Apply".to_owned()), "{of_applied:?}");
    let of_other: Vec<String> =
        eventually("the other one's, too", LONG, async || tracked(&other).await).await;
    assert!(of_other.is_empty(), "{of_other:?}");
    own.clean_up().await;
}
