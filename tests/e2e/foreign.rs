//! What belongs to somebody else stays as it is.

use std::time::Duration;

use kube::api::{Patch, PatchParams, PropagationPolicy};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, always, class_spec, create, delete, eventually};

#[tokio::test]
async fn nodes_of_another_node_controller_are_not_touched() {
    let mut class = class_spec();
    class["nodeController"] = json!("nodes.example.com");
    let own = Fixture::without_set(&CLUSTER, "foreign", class).await;
    // Their controller accepts the class; from then on NodeSets make Nodes for it to provision.
    let accepted = json!({"status": {"conditions": [{"type": "Accepted", "status": "True", "reason": "Served",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    own.classes.patch_status("foreign", &PatchParams::default(), &Patch::Merge(accepted)).await.unwrap();
    own.create_set(2, json!({})).await;
    let nodes = eventually("the Nodes are made", LONG, async || {
        let nodes = own.my_nodes().await;
        (nodes.len() == 2).then_some(nodes)
    })
    .await;
    assert_eq!(
        nodes[0].metadata.labels.as_ref().unwrap()["kube-node.io/node-controller"],
        "nodes.example.com"
    );
    assert!(nodes[0].spec.as_ref().unwrap().provider_id.is_none(), "theirs to set");
    let without_times = |node: &k8s_openapi::api::core::v1::Node| {
        let spec = node.spec.clone().unwrap();
        let status = node.status.clone().unwrap();
        (spec.unschedulable, status.capacity, status.node_info.map(|info| info.kubelet_version))
    };
    let before: Vec<_> = nodes.iter().map(without_times).collect();
    always("nobody provisions them", Duration::from_secs(5), async || {
        own.my_nodes().await.iter().map(without_times).collect::<Vec<_>>() == before
    })
    .await;
    // They leave only when their own controller lets them go.
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    eventually("they are asked to leave", LONG, async || {
        own.my_nodes().await.iter().all(|node| node.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;
    always("they wait for their controller", Duration::from_secs(3), async || {
        own.my_nodes().await.len() == 2
    })
    .await;
    let freed = json!({"metadata": {"finalizers": null}});
    for node in own.my_nodes().await {
        own.nodes
            .patch(&kube_node_testing::name(&node), &PatchParams::default(), &Patch::Merge(&freed))
            .await
            .unwrap();
    }
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_of_nobody_is_not_touched() {
    let own = Fixture::nothing(&CLUSTER, "nobody").await;
    create(&own.nodes, json!({"metadata": {"name": "nobody-1"}})).await.unwrap();
    always("it stays as it is", Duration::from_secs(3), async || {
        let node = own.nodes.get("nobody-1").await.unwrap();
        node.metadata.finalizers.is_none()
            && node.metadata.labels.is_none()
            && node.metadata.owner_references.is_none()
    })
    .await;
    delete(&own.nodes, "nobody-1", PropagationPolicy::Background).await;
}
