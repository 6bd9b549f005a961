//! Objects that an older definition let in: the rules of today neither trap them nor let them disturb others.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PropagationPolicy},
};
use kube_node_api::{NodeClass, NodeSet, crds, names::FINALIZER_IN_USE};
use serde_json::{Value, json};

use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, class_spec, create, delete, eventually, name, taints, test_target,
};

/// Replaces the versions of both kinds.
async fn define(client: &Client, versions: impl Fn(&CustomResourceDefinition) -> Value) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds() {
        let change = Patch::Merge(json!({"spec": {"versions": versions(crd)}}));
        api.patch(crd.metadata.name.as_deref().unwrap(), &PatchParams::default(), &change).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_stored_before_the_rules_is_served_and_goes() {
    let cluster = TemporaryCluster::start(test_target!(), "stored", &[]);
    let client = cluster.client().await;
    // Without the scale subresource, which reads replicas itself.
    let loose = json!([{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]);
    define(&client, |_| loose.clone()).await;
    let (classes, sets) = (Api::<NodeClass>::all(client.clone()), Api::<NodeSet>::all(client.clone()));
    let mut reserved = class_spec();
    reserved["template"] = json!({
        "taints": [{"key": "kube-node.io/uninitialized", "effect": "NoSchedule"}, {"key": "own", "value": "", "effect": "NoSchedule"}],
        "startupTaints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}],
    });
    let long = "n".repeat(70);
    let class = |name: &str, spec: &Value| json!({"metadata": {"name": name}, "spec": spec});
    eventually("the loose definition works", LONG, async || {
        create(&classes, class("reserved", &reserved)).await.ok()
    })
    .await;
    create(&classes, class(&long, &class_spec())).await.unwrap();
    create(&classes, class("used", &class_spec())).await.unwrap();
    let unreadable =
        json!({"metadata": {"name": "unreadable"}, "spec": {"nodeClassName": "used", "replicas": "many"}});
    // Stored, and unreadable for the test as for the operator.
    eventually("the loose definition of sets works", LONG, async || {
        (!matches!(create(&sets, unreadable.clone()).await, Err(kube::Error::Api(_)))).then_some(())
    })
    .await;
    define(&client, |crd| json!(crd.spec.versions)).await;

    // Its Nodes work, without the taints that others would take off; it says so.
    let own = Fixture::of(client.clone(), "reserved");
    eventually("the strict definition works", LONG, async || {
        create(&own.classes, class("bad", &reserved)).await.is_err().then_some(())
    })
    .await;
    own.create_set(1, json!({})).await;
    let nodes = own.settled(1).await;
    eventually("kube-controller-manager takes its taint off, and one stays", LONG, async || {
        let all = taints(&own.nodes.get(&name(&nodes[0])).await.unwrap());
        if all.iter().map(|(key, _)| key.as_str()).eq(["own"]) { Ok(()) } else { Err(all) }
    })
    .await;
    let says = async |name: &str, condition: &str| {
        let conditions = classes.get_opt(name).await.unwrap()?.status?.conditions;
        conditions.into_iter().find(|c| c.type_ == condition && c.status == "False").map(|c| c.message)
    };
    let message =
        eventually("the class is not accepted", LONG, async || says("reserved", "Accepted").await).await;
    assert!(message.contains("kube-node.io/uninitialized, node.kubernetes.io/unreachable"), "{message}");

    // A name that is refused by now does not keep the operator from writing finalizers.
    eventually("the long one is looked after", LONG, async || {
        let finalizers = classes.get(&long).await.unwrap().metadata.finalizers?;
        finalizers.contains(&FINALIZER_IN_USE.to_owned()).then_some(())
    })
    .await;
    delete(&classes, &long, PropagationPolicy::Background).await;
    eventually("the long one is gone", LONG, async || {
        classes.get_opt(&long).await.unwrap().is_none().then_some(())
    })
    .await;

    // A set that cannot be read needs its class all the same.
    delete(&classes, "used", PropagationPolicy::Background).await;
    let message =
        eventually("the class says who needs it", LONG, async || says("used", "Deleting").await).await;
    assert!(message.contains("NodeSets unreadable"), "{message}");
    cluster.kubectl(&["delete", "nodeset", "unreadable", "--wait=false"]);
    eventually("the class goes", LONG, async || {
        classes.get_opt("used").await.unwrap().is_none().then_some(())
    })
    .await;
}
