//! A Node written by hand with the label of a class is provisioned like any other.

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Node};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams, PropagationPolicy},
};
use kube_node_api::names::OPERATOR_NAMESPACE;
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, is_ready, name, taints};

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

#[tokio::test]
async fn a_revision_of_a_newer_release_makes_a_machine_and_its_node_names_the_unknown_fields() {
    let own = Fixture::without_set(&CLUSTER, "hand-newer", class_spec()).await;
    let class = own.classes.get("hand-newer").await.unwrap();
    let revisions: Api<ControllerRevision> = Api::namespaced(own.client.clone(), OPERATOR_NAMESPACE);
    let revision = async |name: &str, data: Value| {
        let metadata = json!({
            "name": format!("hand-newer-{name}"),
            "labels": {"kube-node.io/nodeclass": "hand-newer"},
            "ownerReferences": [class.controller_owner_ref(&())],
        });
        create(&revisions, json!({"metadata": metadata, "revision": 1, "data": data})).await.unwrap();
    };
    revision("v1-00000000aa", json!({"nodeController": "hollow", "capacity": {"cpu": "3"}, "firmware": "x"}))
        .await;
    revision("v1-00000000bb", json!({"nodeController": 7})).await;
    let node = async |name: &str, revision: &str| {
        let labels = json!({"kube-node.io/nodeclass": "hand-newer", "kube-node.io/revision": revision,
            "kube-node.io/node-controller": "hollow"});
        let metadata = json!({"name": name, "labels": labels, "finalizers": ["kube-node.io/machine"]});
        create(&own.nodes, json!({"metadata": metadata})).await.unwrap();
    };
    let says = async |node: &str, reason: &str, text: &str| {
        eventually(&format!("{node}: {reason}"), LONG, async || {
            let conditions = own.nodes.get(node).await.unwrap().status?.conditions?;
            let machine = conditions.into_iter().find(|own| own.type_ == "kube-node.io/Machine")?;
            let is_it = machine.reason.as_deref() == Some(reason) && machine.message?.contains(text);
            is_it.then_some(())
        })
        .await;
    };
    node("hand-newer-1", "v1-00000000aa").await;
    node("hand-newer-2", "v1-00000000bb").await;
    says("hand-newer-1", "RevisionNotHonoured", "(firmware)").await;
    says("hand-newer-2", "RevisionNotRead", "run the release that wrote it").await;
    eventually("its machine has what the operator knows", LONG, async || {
        let capacity = own.nodes.get("hand-newer-1").await.unwrap().status?.capacity?;
        (capacity.get("cpu")?.0 == "3").then_some(())
    })
    .await;
    for name in ["hand-newer-1", "hand-newer-2"] {
        delete(&own.nodes, name, PropagationPolicy::Background).await;
        eventually("it goes", LONG, async || own.nodes.get_opt(name).await.unwrap().is_none().then_some(()))
            .await;
    }
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_whose_finalizer_was_removed_keeps_the_revision_of_its_machine() {
    let own = Fixture::without_set(&CLUSTER, "hand-stripped", class_spec()).await;
    own.create_set(1, json!({"paused": true})).await;
    let node = own.settled(1).await.remove(0);
    let revision = |node: &Node| node.labels()["kube-node.io/revision"].clone();
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
    own.set_says("Progressing", "False", "Paused").await;
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    own.nodes.patch(&name(&node), &PatchParams::default(), &patch).await.unwrap();
    let after = eventually("the finalizer is back", LONG, async || {
        let node = own.nodes.get(&name(&node)).await.unwrap();
        (node.finalizers() == ["kube-node.io/machine"]).then_some(node)
    })
    .await;
    assert_eq!(
        (revision(&after), after.metadata.uid.as_ref()),
        (revision(&node), node.metadata.uid.as_ref())
    );
    own.patch_set(json!({"spec": {"paused": false}})).await;
    let rolled = own.rolled(1).await;
    assert_ne!(rolled[0].metadata.uid, node.metadata.uid, "it is outdated");
    own.clean_up().await;
}
