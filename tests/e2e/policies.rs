//! What an identity may not do although its role lets it write the kind.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::bed::{Own, bed, class_spec, create, delete, name};

const HOLLOW: &str = "system:serviceaccount:kube-node-system:kube-node-hollow";

async fn refused(nodes: &Api<Node>, node: &str, change: Value) -> String {
    let change = Patch::Strategic(change);
    match nodes.patch_status(node, &PatchParams::default(), &change).await {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_hollow_identity_serves_its_own_nodes_and_changes_no_labels() {
    let own = Own::new("policy-hollow", 1, class_spec()).await;
    let mine = name(&own.settled(1).await[0]);
    create(&own.nodes, json!({"metadata": {"name": "policy-foreign"}})).await.unwrap();
    let nodes: Api<Node> = Api::all(bed().client_as(Some(HOLLOW)).await);

    let condition = json!({"status": {"conditions": [{"type": "example.com/Tried", "status": "True"}]}});
    nodes.patch_status(&mine, &PatchParams::default(), &Patch::Strategic(&condition)).await.unwrap();
    let said = refused(&nodes, "policy-foreign", condition).await;
    assert!(said.contains("serves only Nodes with the label kube-node.io/provider=hollow"), "{said}");
    let said =
        refused(&nodes, &mine, json!({"metadata": {"labels": {"kube-node.io/nodeset": "mine"}}})).await;
    assert!(said.contains("labels under kube-node.io/"), "{said}");
    let adopted = json!({"metadata": {"labels": {"kube-node.io/provider": "hollow"}}});
    refused(&nodes, "policy-foreign", adopted).await;
    let created = create(&nodes, json!({"metadata": {"name": "policy-new"}})).await.unwrap_err();
    assert!(matches!(created, kube::Error::Api(status) if status.code == 403));

    delete(&own.nodes, "policy-foreign", PropagationPolicy::Background).await;
    own.clean_up().await;
}
