//! `CSINode`s of hollow Nodes: created with the first `CSIDriver`, or in any case where a class asks for them.

use k8s_openapi::api::{
    core::v1::Node,
    storage::v1::{CSIDriver, CSINode},
};
use kube::{Api, api::PropagationPolicy};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, name};

/// Waits for the `CSINode` of a Node.
async fn csi_node_of(own: &Fixture, node: &Node) -> CSINode {
    let csi_nodes: Api<CSINode> = Api::all(own.client.clone());
    eventually("the CSINode is created", LONG, async || csi_nodes.get_opt(&name(node)).await.unwrap()).await
}

#[tokio::test]
async fn a_class_that_asks_for_csi_nodes_gets_them_without_a_csi_driver() {
    let mut class = class_spec();
    class["hollow"] = json!({"csiNode": "Always"});
    let own = Fixture::new(&CLUSTER, "csi-always", 1, class).await;
    let node = own.settled(1).await.remove(0);
    let csi_node = csi_node_of(&own, &node).await;
    let owner = csi_node.metadata.owner_references.unwrap().remove(0);
    assert_eq!((&*owner.kind, Some(&*owner.uid)), ("Node", node.metadata.uid.as_deref()));
    assert!(csi_node.spec.drivers.is_empty(), "no driver registers with a hollow kubelet");
    let migrated = &csi_node.metadata.annotations.unwrap()["storage.alpha.kubernetes.io/migrated-plugins"];
    assert!(migrated.starts_with("kubernetes.io/aws-ebs,"), "{migrated}");
    own.clean_up().await;
    let csi_nodes: Api<CSINode> = Api::all(CLUSTER.client().await);
    eventually("the CSINode goes with its Node", LONG, async || {
        csi_nodes.get_opt(&name(&node)).await.unwrap().is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_first_csi_driver_brings_the_csi_nodes_of_all_hollow_nodes() {
    let own = Fixture::new(&CLUSTER, "csi-driver", 1, class_spec()).await;
    let before = own.settled(1).await.remove(0);
    let drivers: Api<CSIDriver> = Api::all(own.client.clone());
    let driver = json!({"metadata": {"name": "csi.example.com"}, "spec": {"attachRequired": false}});
    create(&drivers, driver).await.unwrap();
    csi_node_of(&own, &before).await;
    own.patch_set(json!({"spec": {"replicas": 2}})).await;
    for node in own.settled(2).await {
        csi_node_of(&own, &node).await;
    }
    delete(&drivers, "csi.example.com", PropagationPolicy::Background).await;
    own.clean_up().await;
}
