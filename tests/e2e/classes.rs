//! Classes that are missing, refused, or still needed.

use kube::api::PropagationPolicy;
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually};

#[tokio::test]
async fn a_set_without_a_class_says_so_and_heals() {
    let own = Fixture::nothing(&CLUSTER, "class-missing").await;
    own.create_set(2, json!({})).await;
    let message = own.set_says("Degraded", "True", "ClassNotFound").await;
    assert!(message.contains("class-missing") && message.contains("create it"), "{message}");
    assert!(own.my_nodes().await.is_empty());
    create(&own.classes, json!({"metadata": {"name": "class-missing"}, "spec": class_spec()})).await.unwrap();
    own.settled(2).await;
    own.set_says("Degraded", "False", "AsExpected").await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_class_in_use_stays_and_names_who_needs_it() {
    let own = Fixture::new(&CLUSTER, "class-used", 2, class_spec()).await;
    own.settled(2).await;
    delete(&own.classes, "class-used", PropagationPolicy::Background).await;
    let message = eventually("the class says who needs it", LONG, async || {
        let conditions = own.classes.get("class-used").await.unwrap().status?.conditions;
        conditions.into_iter().find(|c| c.type_ == "Deleting" && c.reason == "InUse").map(|c| c.message)
    })
    .await;
    assert!(message.contains("NodeSets class-used") && message.contains("2 nodes"), "{message}");
    // It still serves: a Node deleted meanwhile is replaced.
    own.patch_set(json!({"spec": {"replicas": 3}})).await;
    own.settled(3).await;
    delete(&own.sets, "class-used", PropagationPolicy::Background).await;
    eventually("the class goes after its last Node", LONG, async || {
        own.classes.get_opt("class-used").await.unwrap().is_none().then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_class_says_how_it_stands() {
    let own = Fixture::new(&CLUSTER, "class-status", 2, class_spec()).await;
    own.settled(2).await;
    let status = eventually("the class counts its Nodes", LONG, async || {
        own.classes.get("class-status").await.unwrap().status.filter(|status| status.nodes == Some(2))
    })
    .await;
    let accepted = status.conditions.iter().find(|c| c.type_ == "Accepted").unwrap();
    assert_eq!(accepted.status, "True");
    let node = own.my_nodes().await.remove(0);
    assert_eq!(status.revision.as_ref(), node.metadata.labels.unwrap().get("kube-node.io/revision"));
    let listed = CLUSTER.kubectl(&["get", "nclass", "class-status"]);
    assert!(listed.contains("True"), "{listed}");
    own.clean_up().await;
}

#[tokio::test]
async fn a_controller_nobody_runs_is_named() {
    let mut class = class_spec();
    class["nodeController"] = json!("holow");
    let own = Fixture::new(&CLUSTER, "class-unknown", 2, class).await;
    let message = own.set_says("Degraded", "True", "ClassNotAccepted").await;
    assert!(message.contains("\"holow\"") && message.contains("serves hollow"), "{message}");
    assert!(own.my_nodes().await.is_empty());
    own.clean_up().await;
}

#[tokio::test]
async fn overrides_that_do_not_fit_are_named() {
    let own = Fixture::without_set(&CLUSTER, "class-overrides", class_spec()).await;
    own.create_set(1, json!({"classOverrides": {"capacity": {"cpu": "50m"}}})).await;
    let message = own.set_says("Degraded", "True", "InvalidMachine").await;
    assert!(message.contains("reserved.cpu (100m)"), "{message}");
    own.patch_set(json!({"spec": {"classOverrides": {"capacity": {"cpu": "8"}}}})).await;
    let node = own.settled(1).await.remove(0);
    assert_eq!(node.status.unwrap().capacity.unwrap()["cpu"].0, "8");
    own.clean_up().await;
}
