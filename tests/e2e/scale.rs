//! How many nodes: by kubectl, by the scale subresource, by a user who may do nothing else.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kube_node_api::NodeSet;
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, name};

#[tokio::test]
async fn kubectl_scales_up_and_down() {
    let own = Fixture::new(&CLUSTER, "scale-kubectl", 0, class_spec()).await;
    own.settled(0).await;
    for replicas in [50, 3, 0] {
        CLUSTER.kubectl(&["scale", "nodeset", "scale-kubectl", &format!("--replicas={replicas}")]);
        own.settled(replicas).await;
        own.set_says("Progressing", "False", "Complete").await;
        own.set_says("Available", "True", "NodesAvailable").await;
    }
    let set = own.sets.get("scale-kubectl").await.unwrap();
    assert_eq!(set.status.unwrap().observed_generation, set.metadata.generation);
    own.clean_up().await;
}

#[tokio::test]
async fn what_a_node_carries() {
    let own = Fixture::new(&CLUSTER, "scale-node", 1, class_spec()).await;
    let node = own.settled(1).await.remove(0);
    let node_name = name(&node);
    let labels = node.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["kube-node.io/nodeclass"], "scale-node");
    assert_eq!(labels["kube-node.io/node-controller"], "hollow");
    assert_eq!(labels["node.kubernetes.io/instance-type"], "test");
    assert_eq!(labels["kubernetes.io/hostname"], node_name);
    assert_eq!(node.metadata.finalizers.as_deref(), Some(&["kube-node.io/machine".to_owned()][..]));
    let spec = node.spec.as_ref().unwrap();
    assert_eq!(spec.provider_id.as_deref(), Some(&*format!("hollow://{node_name}")));
    let status = node.status.as_ref().unwrap();
    let amount = |amounts: &Option<std::collections::BTreeMap<String, _>>, resource: &str| -> String {
        let quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity =
            &amounts.as_ref().unwrap()[resource];
        quantity.0.clone()
    };
    assert_eq!(amount(&status.capacity, "cpu"), "4");
    assert_eq!(amount(&status.allocatable, "cpu"), "3900m");
    assert_eq!(amount(&status.allocatable, "pods"), "110");
    // The revision is stored, and says what the machine is made from.
    let revision = format!("scale-node-{}", labels["kube-node.io/revision"]);
    let stored =
        CLUSTER.kubectl(&["get", "controllerrevision", "-n", "kube-node-system", &revision, "-o", "json"]);
    assert!(stored.contains("16Gi"), "{stored}");
    // The Lease is the kubelet's, and the Node owns it.
    let lease = CLUSTER.kubectl(&["get", "lease", "-n", "kube-node-lease", &node_name, "-o", "json"]);
    assert!(lease.contains(node.metadata.uid.as_deref().unwrap()), "{lease}");
    own.clean_up().await;
}

#[tokio::test]
async fn a_patch_of_the_scale_subresource_scales() {
    let own = Fixture::new(&CLUSTER, "scale-patch", 1, class_spec()).await;
    own.settled(1).await;
    let change = Patch::Merge(json!({"spec": {"replicas": 4}}));
    own.sets.patch_scale("scale-patch", &PatchParams::default(), &change).await.unwrap();
    own.settled(4).await;
    let scale = own.sets.get_scale("scale-patch").await.unwrap();
    let status = scale.status.unwrap();
    assert_eq!((status.replicas, status.selector.as_deref()), (4, Some("kube-node.io/nodeset=scale-patch")));
    own.clean_up().await;
}

#[tokio::test]
async fn the_right_to_scale_suffices() {
    let own = Fixture::new(&CLUSTER, "scale-rights", 1, class_spec()).await;
    let roles: Api<ClusterRole> = Api::all(own.client.clone());
    let bindings: Api<ClusterRoleBinding> = Api::all(own.client.clone());
    create(&roles, json!({"metadata": {"name": "only-scale"}, "rules": [
        {"apiGroups": ["kube-node.io"], "resources": ["nodesets/scale"], "verbs": ["get", "patch", "update"]}
    ]}))
    .await
    .unwrap();
    create(
        &bindings,
        json!({"metadata": {"name": "only-scale"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "only-scale"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "scaler"}]}),
    )
    .await
    .unwrap();
    let sets: Api<NodeSet> = Api::all(CLUSTER.client_as("scaler", &[]).await);
    let change = Patch::Merge(json!({"spec": {"replicas": 2}}));
    // The API server learns of a new role through a watch of its own.
    eventually("the role works", LONG, async || {
        sets.patch_scale("scale-rights", &PatchParams::default(), &change).await.ok()
    })
    .await;
    own.settled(2).await;
    let refused = sets.patch("scale-rights", &PatchParams::default(), &change).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));
    for negative in [json!(-1), json!("three")] {
        let change = Patch::Merge(json!({"spec": {"replicas": negative}}));
        assert!(sets.patch_scale("scale-rights", &PatchParams::default(), &change).await.is_err());
    }
    delete(&bindings, "only-scale", kube::api::PropagationPolicy::Background).await;
    delete(&roles, "only-scale", kube::api::PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn marked_nodes_go_first() {
    let own = Fixture::new(&CLUSTER, "scale-victims", 4, class_spec()).await;
    let nodes = own.settled(4).await;
    let marked: Vec<String> = nodes.iter().take(2).map(name).collect();
    let by_annotation = json!({"metadata": {"annotations": {"kube-node.io/delete-first": "true"}}});
    own.nodes.patch(&marked[0], &PatchParams::default(), &Patch::Merge(by_annotation)).await.unwrap();
    CLUSTER.kubectl(&["taint", "node", &marked[1], "ToBeDeletedByClusterAutoscaler=1:NoSchedule"]);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    own.patch_set(json!({"spec": {"replicas": 2}})).await;
    let left: Vec<String> = own.settled(2).await.iter().map(name).collect();
    assert!(!left.contains(&marked[0]) && !left.contains(&marked[1]), "{left:?} {marked:?}");
    own.clean_up().await;
}
