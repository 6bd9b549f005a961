//! Sets and Nodes go: in all three cascades, and never a machine before its pods.

use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PropagationPolicy},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;

use crate::{CLUSTER, refusals::Policy};
use kube_node_testing::{
    Fixture, LONG, always, class_spec, condition, create, delete, eventually, is_ready, name, phase,
};

async fn set_is_gone(own: &Fixture) {
    eventually("the set is gone", LONG, async || {
        own.sets.get_opt(&own.name).await.unwrap().is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_set_takes_its_nodes_along() {
    for (set, cascade) in [
        ("delete-background", PropagationPolicy::Background),
        ("delete-foreground", PropagationPolicy::Foreground),
    ] {
        let own = Fixture::new(&CLUSTER, set, 3, class_spec()).await;
        own.settled(3).await;
        delete(&own.sets, set, cascade).await;
        set_is_gone(&own).await;
        assert!(own.my_nodes().await.is_empty(), "{set}: the set goes after its last Node");
        own.clean_up().await;
    }
}

#[tokio::test]
async fn orphans_stay_and_are_adopted_again() {
    let own = Fixture::new(&CLUSTER, "delete-orphan", 3, class_spec()).await;
    let mut before: Vec<String> = own.settled(3).await.iter().map(name).collect();
    delete(&own.sets, "delete-orphan", PropagationPolicy::Orphan).await;
    set_is_gone(&own).await;
    always("orphans stay Ready", Duration::from_secs(3), async || {
        let nodes = own.my_nodes().await;
        nodes.len() == 3 && nodes.iter().all(is_ready)
    })
    .await;
    own.create_set(3, json!({})).await;
    own.settled(3).await;
    let after = own.my_nodes().await;
    let uid = own.sets.get("delete-orphan").await.unwrap().metadata.uid.unwrap();
    for node in &after {
        assert_eq!(node.metadata.owner_references.as_ref().unwrap()[0].uid, uid);
    }
    let mut after: Vec<String> = after.iter().map(name).collect();
    before.sort();
    after.sort();
    assert_eq!(before, after, "nobody was replaced");
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_without_its_label_is_released() {
    let own = Fixture::new(&CLUSTER, "delete-release", 2, class_spec()).await;
    let released = name(&own.settled(2).await[0]);
    CLUSTER.kubectl(&["label", "node", &released, "kube-node.io/nodeset-"]);
    let others = own.settled(2).await;
    assert!(others.iter().all(|node| name(node) != released), "another one took its place");
    let node = own.nodes.get(&released).await.unwrap();
    assert!(is_ready(&node), "its machine goes on");
    assert!(node.metadata.owner_references.unwrap_or_default().is_empty());
    delete(&own.nodes, &released, PropagationPolicy::Background).await;
    eventually("its machine goes with it", LONG, async || {
        own.nodes.get_opt(&released).await.unwrap().is_none().then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_deleted_node_is_drained_and_replaced() {
    for (set, cascade) in [
        ("drain-background", PropagationPolicy::Background),
        ("drain-foreground", PropagationPolicy::Foreground),
        ("drain-orphan", PropagationPolicy::Orphan),
    ] {
        let own = Fixture::new(&CLUSTER, set, 1, class_spec()).await;
        let victim = name(&own.settled(1).await[0]);
        own.pod_on(&victim, set, json!({"hollow.kube-node.io/stop-time": "2s"}), json!({})).await;
        eventually("the pod runs", LONG, async || {
            (phase(&own.pods.get(set).await.unwrap()) == "Running").then_some(())
        })
        .await;

        // The pod has to be seen in a terminal phase, which its kubelet alone writes, and the Node then still exists.
        let config = watcher::Config::default().fields(&format!("metadata.name={set}"));
        let events = watcher(own.pods.clone(), config).default_backoff();
        pin_mut!(events);
        delete(&own.nodes, &victim, cascade).await;
        let last_phase = loop {
            let event =
                tokio::time::timeout(LONG, events.next()).await.expect("the pod leaves").unwrap().unwrap();
            match event {
                watcher::Event::Apply(pod) if phase(&pod) == "Running" => {
                    // The Node is read first: a pod that still runs then ran at that time, however late its event is.
                    let node = own.nodes.get_opt(&victim).await.unwrap();
                    let pod = own.pods.get_opt(set).await.unwrap();
                    let runs = pod.is_some_and(|pod| phase(&pod) == "Running");
                    let is_ready = node.is_some_and(|node| is_ready(&node));
                    assert!(!runs || is_ready, "{set}: the machine outlives the drain");
                }
                watcher::Event::Delete(pod) => break phase(&pod).to_owned(),
                _ => {}
            }
        };
        assert_eq!(last_phase, "Failed", "{set}");
        eventually("the Node goes after the pod", LONG, async || {
            own.nodes.get_opt(&victim).await.unwrap().is_none().then_some(())
        })
        .await;
        let replacement = own.settled(1).await;
        assert_ne!(name(&replacement[0]), victim);
        own.clean_up().await;
    }
}

#[tokio::test]
async fn a_disruption_budget_holds_the_drain_and_is_named() {
    let own = Fixture::new(&CLUSTER, "drain-budget", 1, class_spec()).await;
    let victim = name(&own.settled(1).await[0]);
    own.pod_on(&victim, "drain-budget", json!({}), json!({})).await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(own.client.clone());
    create(
        &budgets,
        json!({"metadata": {"name": "keep-it"}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": "drain-budget"}}}}),
    )
    .await
    .unwrap();
    eventually("the budget is counted", LONG, async || {
        (budgets.get("keep-it").await.unwrap().status?.expected_pods == Some(1)).then_some(())
    })
    .await;
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let said = eventually("the Node says what holds it up", LONG, async || {
        condition(&own.nodes.get(&victim).await.unwrap(), "kube-node.io/Drained").cloned()
    })
    .await;
    let message = said.message.unwrap();
    assert!(message.contains("default/drain-budget") && message.contains("keep-it"), "{message}");
    let message = own.set_says("Degraded", "True", "NodesInTrouble").await;
    assert!(message.contains(&victim) && message.contains("keep-it"), "{message}");
    always("nobody is forced", Duration::from_secs(7), async || {
        own.pods.get("drain-budget").await.unwrap().metadata.deletion_timestamp.is_none()
            && is_ready(&own.nodes.get(&victim).await.unwrap())
    })
    .await;
    delete(&budgets, "keep-it", PropagationPolicy::Background).await;
    own.settled(0).await;
    own.clean_up().await;
}

#[tokio::test]
async fn the_deletion_timeout_keeps_the_machine() {
    let mut class = class_spec();
    class["deletionTimeout"] = json!("4s");
    let own = Fixture::new(&CLUSTER, "drain-timeout", 1, class).await;
    let victim = name(&own.settled(1).await[0]);
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let deleted = eventually("the Node leaves", LONG, async || {
        own.nodes.get(&victim).await.unwrap().metadata.deletion_timestamp
    })
    .await;
    eventually("the Node goes", LONG, async || {
        own.nodes.get_opt(&victim).await.unwrap().is_none().then_some(())
    })
    .await;
    let took = jiff::Timestamp::now().duration_since(deleted.0);
    assert!(took >= jiff::SignedDuration::from_secs(4), "{took:?}");
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_whose_finalizer_is_taken_by_force_leaves_no_machine() {
    let own = Fixture::new(&CLUSTER, "delete-force", 1, class_spec()).await;
    let victim = name(&own.settled(1).await[0]);
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let _ = CLUSTER.try_kubectl(&[
        "patch",
        "node",
        &victim,
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ]);
    eventually("the Lease is renewed by nobody", LONG, async || {
        let output = CLUSTER.try_kubectl(&["get", "lease", "-n", "kube-node-lease", &victim]);
        (!output.status.success()).then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_of_a_deleted_set_stays_while_its_machine_finalizer_is_refused() {
    let own = Fixture::new(&CLUSTER, "delete-unprotected", 1, class_spec()).await;
    let node = name(&own.settled(1).await[0]);
    own.pod_on(&node, "delete-unprotected", json!({}), json!({})).await;
    eventually("the pod runs", LONG, async || {
        (phase(&own.pods.get("delete-unprotected").await.unwrap()) == "Running").then_some(())
    })
    .await;
    let has_it = "'kube-node.io/machine' in";
    let expression = format!(
        "object.metadata.name != '{node}' || !({has_it} object.metadata.?finalizers.orValue([])) || {has_it} oldObject.metadata.?finalizers.orValue([])"
    );
    let policy = Policy::refuse(&own, ("", "nodes"), &["UPDATE"], &expression).await;
    let strip = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    eventually("nobody gives the finalizer back", LONG, async || {
        own.nodes.patch(&node, &PatchParams::default(), &strip).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        own.nodes.get(&node).await.unwrap().finalizers().is_empty().then_some(())
    })
    .await;

    delete(&own.sets, &own.name, PropagationPolicy::Background).await;
    eventually("the set says what it waits for", LONG, async || {
        let waits = own.sets.get(&own.name).await.unwrap().status?.waits;
        waits.into_iter().find(|wait| wait.reason == "FinalizerMissing" && wait.nodes == 1)
    })
    .await;
    always("the Node stays under its pod", Duration::from_secs(3), async || {
        own.nodes.get(&node).await.unwrap().metadata.deletion_timestamp.is_none()
            && phase(&own.pods.get("delete-unprotected").await.unwrap()) == "Running"
    })
    .await;

    policy.lift().await;
    set_is_gone(&own).await;
    assert!(own.my_nodes().await.is_empty());
    own.clean_up().await;
}
