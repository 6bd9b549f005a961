//! What an identity may not do although its role lets it write the kind.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams, PropagationPolicy},
};
use kube_node_api::{NodeClass, NodeSet};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, name};

const HOLLOW: &str = "system:serviceaccount:kube-node-system:kube-node-hollow";

async fn refused(nodes: &Api<Node>, node: &str, change: Value) -> String {
    let change = Patch::Strategic(change);
    match nodes.patch_status(node, &PatchParams::default(), &change).await {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_hollow_identity_serves_hollow_nodes_only() {
    let own = Fixture::new(&CLUSTER, "policy-hollow", 1, class_spec()).await;
    let mine = name(&own.settled(1).await[0]);
    create(&own.nodes, json!({"metadata": {"name": "policy-foreign"}})).await.unwrap();
    let nodes: Api<Node> = Api::all(CLUSTER.client_as(HOLLOW, &[]).await);

    let condition = json!({"status": {"conditions": [{"type": "example.com/Tried", "status": "True"}]}});
    nodes.patch_status(&mine, &PatchParams::default(), &Patch::Strategic(&condition)).await.unwrap();
    let only_hollow = "serves only Nodes with the label kube-node.io/node-controller=hollow";
    let said = refused(&nodes, "policy-foreign", condition).await;
    assert!(said.contains(only_hollow), "{said}");
    let adopted = json!({"metadata": {"labels": {"kube-node.io/node-controller": "hollow"}}});
    // Two policies refuse a label, and the API server names one of them.
    let said = refused(&nodes, "policy-foreign", adopted).await;
    assert!(said.contains("the hollow kubelet"), "{said}");
    let given_away = json!({"metadata": {"labels": {"kube-node.io/node-controller": "example.com"}}});
    let said = refused(&nodes, &mine, given_away).await;
    assert!(said.contains("the hollow kubelet"), "{said}");
    let created = create(&nodes, json!({"metadata": {"name": "policy-new"}})).await.unwrap_err();
    assert!(matches!(created, kube::Error::Api(status) if status.code == 403));

    delete(&own.nodes, "policy-foreign", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_kubelet_writes_nothing_that_the_operator_decides_by() {
    let admin: Api<Node> = Api::all(CLUSTER.client().await);
    let nodes: Api<Node> = Api::all(
        CLUSTER.client_as("system:node:policy-kubelet", &["system:nodes", "system:authenticated"]).await,
    );

    let with_label =
        json!({"metadata": {"name": "policy-kubelet", "labels": {"kube-node.io/nodeclass": "hollow"}}});
    // An API server takes some seconds to put a new policy into effect.
    let said = eventually("registration with a label of ours is refused", LONG, async || {
        match create(&nodes, with_label.clone()).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Some(status.message.clone()),
            Err(error) => panic!("{error}"),
            Ok(_) => {
                delete(&admin, "policy-kubelet", PropagationPolicy::Background).await;
                None
            }
        }
    })
    .await;
    assert!(said.contains("take them out of its --node-labels"), "{said}");
    create(&nodes, json!({"metadata": {"name": "policy-kubelet", "labels": {"example.com/rack": "7"}}}))
        .await
        .unwrap();
    for part in ["labels", "annotations"] {
        let change = json!({"metadata": {part: {"kube-node.io/nodeset": "mine"}}});
        let said = refused(&nodes, "policy-kubelet", change).await;
        assert!(said.contains(&format!("{part} under kube-node.io/")), "{said}");
    }
    let condition = json!({"status": {"conditions": [{"type": "example.com/Tried", "status": "True"}]}});
    nodes
        .patch_status("policy-kubelet", &PatchParams::default(), &Patch::Strategic(&condition))
        .await
        .unwrap();

    delete(&admin, "policy-kubelet", PropagationPolicy::Background).await;
}

#[tokio::test]
async fn a_class_makes_no_pod_trust_its_nodes() {
    let own = Fixture::without_set(&CLUSTER, "policy-labels", class_spec()).await;
    own.create_set(0, json!({})).await;
    for (key, is_refused) in [
        ("node-role.kubernetes.io/control-plane", true),
        ("node-restriction.kubernetes.io/tier", true),
        ("team.node-restriction.kubernetes.io/tier", true),
        ("example.com/node-role.kubernetes.io", false),
        ("my-node-role.kubernetes.io/x", false),
        ("node.kubernetes.io/pool", false),
    ] {
        let change = Patch::Merge(json!({"spec": {"template": {"labels": {key: "a"}}}}));
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let (classes, sets): (Api<NodeClass>, Api<NodeSet>) = (own.classes.clone(), own.sets.clone());
        let answers = [
            classes.patch("policy-labels", &params, &change).await.map(drop),
            sets.patch("policy-labels", &params, &change).await.map(drop),
        ];
        for answer in answers {
            let Err(error) = answer else {
                assert!(!is_refused, "{key}");
                continue;
            };
            assert!(is_refused, "{key}: {error}");
            let wanted = format!("label {key} of spec.template makes pods trust a node");
            assert!(error.to_string().contains(&wanted), "{error}");
            let instead = format!("for example example.com/{}", key.split('/').nth(1).unwrap());
            assert!(error.to_string().contains(&instead), "{error}");
        }
    }
    own.clean_up().await;
}
