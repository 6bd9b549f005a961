//! Sizes: from zero and back, deletions at once, sets that others write, scale-ups that are given up, and an operator
//! killed in between.

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::api::PropagationPolicy;
use kube_node_controllers::autoscaler::proto::instance_status::InstanceState;
use serde_json::{Value, json};
use tonic::Code;

use super::{
    CLUSTER, caller,
    caller::{external, fake, state},
    group, replicas,
};
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, name};

/// What cluster-autoscaler does to a Node before it asks for its deletion.
fn emptied(node: &str) {
    CLUSTER.kubectl(&["cordon", node]);
    CLUSTER.kubectl(&["taint", "node", node, "ToBeDeletedByClusterAutoscaler=1:NoSchedule"]);
}

async fn gone(own: &Fixture, node: &str) {
    eventually(&format!("{node} is gone"), LONG, async || {
        own.nodes.get_opt(node).await.unwrap().is_none().then_some(())
    })
    .await;
}

fn names(nodes: &[Node]) -> Vec<String> {
    let mut names: Vec<String> = nodes.iter().map(name).collect();
    names.sort();
    names
}

/// The limit of a class counts for all its sets: a group may grow to what the others leave.
pub async fn within_the_limit_of_the_class() {
    let mut class = class_spec();
    class["limits"] = json!({"nodes": 5});
    let own = group("as-limit", 0, 0, 10, class).await;
    let other = Fixture::of(own.client.clone(), "as-limit-other");
    let spec = json!({"replicas": 2, "nodeClassName": own.name});
    create(&other.sets, json!({"metadata": {"name": other.name}, "spec": spec})).await.unwrap();
    other.settled(2).await;
    let mut caller = caller().await;
    eventually("the group's greatest size is what is left", LONG, async || {
        (caller.group("as-limit").await?.max_size == 3).then_some(())
    })
    .await;
    assert_eq!(caller.increase("as-limit", 4).await.unwrap_err().code(), Code::OutOfRange);
    caller.increase("as-limit", 3).await.unwrap();
    own.settled(3).await;
    assert_eq!(caller.group("as-limit").await.unwrap().max_size, 3, "its own nodes do not count against it");
    delete(&other.sets, &other.name, PropagationPolicy::Background).await;
    own.clean_up().await;
}

pub async fn from_zero_to_some_and_back() {
    let own = group("as-zero", 0, 0, 4, class_spec()).await;
    let mut caller = caller().await;
    let described = caller.group("as-zero").await.unwrap();
    assert_eq!((described.min_size, described.max_size), (0, 4));
    assert!(described.debug.contains("NodeClass as-zero"), "{}", described.debug);
    assert!(caller.nodes("as-zero").await.unwrap().is_empty());
    assert!(!caller.template("as-zero").await.unwrap().1.is_empty());

    caller.increase("as-zero", 3).await.unwrap();
    // At once, whatever the watch shows: else the next loop would order the same again.
    assert_eq!(caller.target("as-zero").await.unwrap(), 3);
    assert_eq!(caller.increase("as-zero", 2).await.unwrap_err().code(), Code::OutOfRange);
    let nodes = own.settled(3).await;
    assert_eq!(caller.target("as-zero").await.unwrap(), 3);
    let mut ids: Vec<String> = nodes.iter().map(|node| external(node).provider_id).collect();
    ids.sort();
    let instances = caller.nodes("as-zero").await.unwrap();
    assert_eq!(instances.iter().map(|instance| instance.id.clone()).collect::<Vec<_>>(), ids);
    assert!(
        instances.iter().all(|instance| state(instance) == InstanceState::InstanceRunning),
        "{instances:?}"
    );
    for node in &nodes {
        assert_eq!(caller.group_of(external(node)).await.unwrap(), "as-zero");
        let unseen = fake(&external(node).provider_id);
        assert_eq!(caller.group_of(unseen).await.unwrap(), "as-zero", "by its providerID alone");
    }

    let victim = &nodes[1];
    emptied(&name(victim));
    caller.delete("as-zero", vec![external(victim)]).await.unwrap();
    assert_eq!(caller.target("as-zero").await.unwrap(), 2);
    let deleting = caller.nodes("as-zero").await.unwrap();
    let deleting = deleting.iter().find(|instance| instance.id == external(victim).provider_id);
    assert!(deleting.is_none_or(|instance| state(instance) == InstanceState::InstanceDeleting));
    // The answer was lost, and it asks again, at once and after the Node is gone.
    caller.delete("as-zero", vec![external(victim)]).await.unwrap();
    gone(&own, &name(victim)).await;
    caller.delete("as-zero", vec![fake(&external(victim).provider_id)]).await.unwrap();
    assert_eq!(replicas(&own).await, 2);
    let left = names(&own.settled(2).await);
    assert_eq!(left, names(&[nodes[0].clone(), nodes[2].clone()]));

    for node in [&nodes[0], &nodes[2]] {
        emptied(&name(node));
        caller.delete("as-zero", vec![external(node)]).await.unwrap();
    }
    own.settled(0).await;
    assert_eq!(caller.target("as-zero").await.unwrap(), 0);
    let record = own.sets.get("as-zero").await.unwrap().metadata.annotations.unwrap_or_default();
    assert!(!record.contains_key("kube-node.io/victims"), "{record:?}");
    own.clean_up().await;
}

pub async fn deletions_at_once() {
    let own = group("as-once", 6, 2, 9, class_spec()).await;
    let nodes = own.settled(6).await;
    let caller = caller().await;
    // Four at once and each twice, and then one that would be below the minimum.
    let victims = [&nodes[0], &nodes[2], &nodes[3], &nodes[5]];
    for node in victims {
        emptied(&name(node));
    }
    let calls = victims.iter().chain(&victims).map(|node| {
        let (mut caller, node) = (caller.clone(), external(node));
        async move { caller.delete("as-once", vec![node]).await }
    });
    for answer in join_all(calls).await {
        answer.unwrap();
    }
    assert_eq!(replicas(&own).await, 2);
    let refused = caller.clone().delete("as-once", vec![external(&nodes[1])]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("minReplicas (2)"), "{refused}");
    let left = names(&own.settled(2).await);
    assert_eq!(left, names(&[nodes[1].clone(), nodes[4].clone()]));
    own.clean_up().await;
}

/// Somebody else writes the set all the time: an order finds it in another state than it was decided on, reads it then, and
/// is carried out once, or not at all.
pub async fn while_others_write() {
    let own = group("as-contended", 0, 0, 1_000, unserved()).await;
    let others = async {
        for count in 0.. {
            own.patch_set(json!({"metadata": {"annotations": {"example.com/count": format!("{count}")}}}))
                .await;
        }
    };
    let orders = async {
        let mut caller = caller().await;
        let mut size = 0;
        loop {
            for _ in 0..10 {
                match caller.increase("as-contended", 1).await {
                    Ok(()) => size += 1,
                    Err(error) => assert!(error.message().contains("changed 6 times"), "{error}"),
                }
                assert_eq!(caller.target("as-contended").await.unwrap(), size);
            }
            if size > 0 && is_read("as-contended") {
                break size;
            }
        }
    };
    let size = tokio::select! {
        () = others => unreachable!("they write without end"),
        size = tokio::time::timeout(LONG, orders) => size.expect("an order that read the set"),
    };
    assert_eq!(replicas(&own).await, size);
    own.clean_up().await;
}

/// Whether the operator has read this set, and not only watched it.
fn is_read(set: &str) -> bool {
    let operator = "system:serviceaccount:kube-node-system:kube-node-operator";
    let path = format!("/apis/kube-node.io/v1alpha1/nodesets/{set}");
    CLUSTER.calls_of(operator).iter().any(|(verb, uri)| verb == "get" && *uri == path)
}

/// A class that nobody serves, so no Node is ever made.
fn unserved() -> Value {
    json!({"nodeController": "nobody.example.com", "capacity": {"cpu": "4"}})
}

pub async fn given_up() {
    let own = group("as-given-up", 0, 0, 5, unserved()).await;
    let mut caller = caller().await;
    caller.increase("as-given-up", 4).await.unwrap();
    assert_eq!((caller.target("as-given-up").await.unwrap(), replicas(&own).await), (4, 4));
    caller.decrease("as-given-up", -1).await.unwrap();
    assert_eq!(caller.target("as-given-up").await.unwrap(), 3);
    caller.decrease("as-given-up", -100).await.unwrap();
    assert_eq!((caller.target("as-given-up").await.unwrap(), replicas(&own).await), (0, 0));
    let nothing = caller.decrease("as-given-up", -1).await.unwrap_err();
    assert_eq!(nothing.code(), Code::FailedPrecondition);
    own.clean_up().await;

    // Every machine came: what is asked for too late takes none of them.
    let own = group("as-too-late", 0, 0, 5, class_spec()).await;
    caller.increase("as-too-late", 2).await.unwrap();
    own.settled(2).await;
    assert_eq!(caller.decrease("as-too-late", -2).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(replicas(&own).await, 2);
    own.clean_up().await;
}

pub async fn killed_between_two_calls() {
    let own = group("as-killed", 4, 0, 9, class_spec()).await;
    let nodes = own.settled(4).await;
    let mut before = caller().await;
    emptied(&name(&nodes[0]));
    before.delete("as-killed", vec![external(&nodes[0])]).await.unwrap();
    before.increase("as-killed", 2).await.unwrap();
    assert!(CLUSTER.kill("operator"));
    // It knows nothing of what it was told, and does nothing of it twice.
    let mut after = caller().await;
    after.delete("as-killed", vec![external(&nodes[0])]).await.unwrap();
    assert_eq!(after.target("as-killed").await.unwrap(), 5);
    let left = names(&own.settled(5).await);
    assert!(nodes[1..].iter().all(|node| left.contains(&name(node))) && !left.contains(&name(&nodes[0])));
    assert_eq!(replicas(&own).await, 5);
    own.clean_up().await;
}
