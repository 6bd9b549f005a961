//! Beside a rollout: cluster-autoscaler is kept off, its victims are honoured, and what was written for it goes again.

use std::time::Duration;

use serde_json::json;

use super::{CLUSTER, caller, caller::external, group, replicas};
use kube_node_testing::{LONG, class_spec, condition, eventually, name};

/// The mark.
const DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";

pub async fn beside_a_rollout() {
    let own = group("as-rollout", 4, 1, 8, class_spec()).await;
    let before = own.settled(4).await;
    let mut caller = caller().await;
    // Somebody's own mark, and one that cluster-autoscaler is emptying.
    let (marked, emptied) = (name(&before[0]), name(&before[1]));
    CLUSTER.kubectl(&["annotate", "node", &marked, &format!("{DISABLED}=true")]);
    CLUSTER.kubectl(&["cordon", &emptied]);
    CLUSTER.kubectl(&["taint", "node", &emptied, "ToBeDeletedByClusterAutoscaler=1:NoSchedule"]);
    let mark_of = |node: &k8s_openapi::api::core::v1::Node| {
        node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(DISABLED).cloned())
    };
    // A new revision whose Nodes wait for somebody, so that there is a middle that lasts.
    let waits = json!([{"key": "example.com/cni", "effect": "NoSchedule"}]);
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}, "template": {"startupTaints": waits}}})).await;
    eventually("the Nodes are kept from cluster-autoscaler, and the surge is counted", LONG, async || {
        let nodes = own.my_nodes().await;
        let all = nodes.iter().all(|node| mark_of(node).is_some());
        let target = caller.target("as-rollout").await.ok()?;
        (nodes.len() == 5 && all && target == 5).then_some(())
    })
    .await;
    // What cluster-autoscaler empties goes by its order alone, although it is of an old revision.
    own.patch_class(json!({"spec": {"template": {"startupTaints": []}}})).await;
    eventually("all others are rolled", LONG, async || {
        CLUSTER.try_kubectl(&["taint", "node", "-l", "kube-node.io/nodeset=as-rollout", "example.com/cni-"]);
        let status = own.sets.get("as-rollout").await.unwrap().status?;
        (status.updated_replicas >= 3 && own.my_nodes().await.len() == 4).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        own.nodes.get(&emptied).await.unwrap().metadata.deletion_timestamp.is_none(),
        "taken by the rollout"
    );
    let target = caller.target("as-rollout").await.unwrap();
    caller.delete("as-rollout", vec![external(&before[1])]).await.unwrap();
    let after = caller.target("as-rollout").await.unwrap();
    assert!(after <= target, "{target} before, {after} after");
    eventually("the victim is gone", LONG, async || {
        own.nodes.get_opt(&emptied).await.unwrap().is_none().then_some(())
    })
    .await;
    let wanted = replicas(&own).await;
    assert!((3..=4).contains(&wanted), "{wanted}");
    eventually("the rollout is over", LONG, async || {
        let set = own.sets.get("as-rollout").await.unwrap();
        let status = set.status?;
        (status.rollout.is_none() && status.updated_replicas == wanted && status.available_replicas == wanted)
            .then_some(())
    })
    .await;
    let nodes = own.settled(usize::try_from(wanted).unwrap()).await;
    eventually("no mark is left", LONG, async || {
        own.my_nodes().await.iter().all(|node| mark_of(node).is_none()).then_some(())
    })
    .await;
    assert!(nodes.iter().all(|node| condition(node, "Ready").is_some()));
    own.clean_up().await;

    // Somebody's own mark outlives ours.
    let own = group("as-marked", 2, 0, 4, class_spec()).await;
    let nodes = own.settled(2).await;
    let protected = name(&nodes[0]);
    CLUSTER.kubectl(&["annotate", "node", &protected, &format!("{DISABLED}=true")]);
    own.patch_set(
        json!({"spec": {"strategy": {"rollingUpdate": {"partition": 1}}, "scaleDown": {"order": "Newest"}}}),
    )
    .await;
    CLUSTER.kubectl(&["annotate", "node", &name(&nodes[1]), "kube-node.io/delete-first=true"]);
    own.patch_class(json!({"spec": {"capacity": {"cpu": "16"}}})).await;
    eventually("one is rolled, one is kept", LONG, async || {
        let status = own.sets.get("as-marked").await.unwrap().status?;
        (status.updated_replicas == 1 && status.available_replicas == 2 && status.rollout.is_none())
            .then_some(())
    })
    .await;
    eventually("ours is gone, and the other is not", LONG, async || {
        let nodes = own.my_nodes().await;
        nodes.iter().all(|node| mark_of(node).is_some() == (name(node) == protected)).then_some(())
    })
    .await;
    own.clean_up().await;
}
