//! A Node written by hand with the label of a class is provisioned like any other.

use kube::api::PropagationPolicy;
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, is_ready, taints};

#[tokio::test]
async fn a_node_written_by_hand_gets_a_machine() {
    let mut class = class_spec();
    class["template"] = json!({"labels": {"tier": "gold"}});
    let own = Fixture::without_set(&CLUSTER, "hand", class).await;
    let labels = json!({"kube-node.io/nodeclass": "hand"});
    create(&own.nodes, json!({"metadata": {"name": "hand-1", "labels": labels}})).await.unwrap();
    let node = eventually("it becomes Ready", LONG, async || {
        let node = own.nodes.get("hand-1").await.unwrap();
        (is_ready(&node) && taints(&node).is_empty()).then_some(node)
    })
    .await;
    let labels = node.metadata.labels.unwrap();
    assert_eq!(labels["kube-node.io/node-controller"], "hollow");
    assert_eq!(labels["kubernetes.io/hostname"], "hand-1");
    assert_eq!(labels["tier"], "gold");
    assert!(labels.contains_key("kube-node.io/revision"));
    assert_eq!(node.metadata.finalizers.unwrap(), ["kube-node.io/machine"]);
    assert_eq!(node.spec.unwrap().provider_id.unwrap(), "hollow://hand-1");
    delete(&own.nodes, "hand-1", PropagationPolicy::Background).await;
    eventually("it goes", LONG, async || own.nodes.get_opt("hand-1").await.unwrap().is_none().then_some(()))
        .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_of_a_class_that_comes_later() {
    let own = Fixture::nothing(&CLUSTER, "hand-later").await;
    let labels = json!({"kube-node.io/nodeclass": "hand-later"});
    create(&own.nodes, json!({"metadata": {"name": "hand-later-1", "labels": labels}})).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let node = own.nodes.get("hand-later-1").await.unwrap();
    assert!(node.metadata.finalizers.unwrap_or_default().is_empty(), "nothing happens without a class");
    create(&own.classes, json!({"metadata": {"name": "hand-later"}, "spec": class_spec()})).await.unwrap();
    eventually("it becomes Ready", LONG, async || {
        is_ready(&own.nodes.get("hand-later-1").await.unwrap()).then_some(())
    })
    .await;
    delete(&own.nodes, "hand-later-1", PropagationPolicy::Background).await;
    own.clean_up().await;
}
