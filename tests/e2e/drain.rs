//! A Node that leaves is emptied: in the order of priorities, past nobody's will before the time is over, and whatever
//! its kubelet does.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim},
    events::v1::Event,
    policy::v1::PodDisruptionBudget,
    scheduling::v1::PriorityClass,
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{ListParams, PropagationPolicy, WatchEvent, WatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::CLUSTER;
use kube_node_testing::{
    Fixture, LONG, always, class_spec, condition, create, delete, eventually, is_ready, name, phase, taints,
};

const DRAINED: &str = "kube-node.io/Drained";

/// A set of one Node with these settings, and the Node's name.
async fn one(set: &str, class: Value, drain: Value) -> (Fixture, String) {
    let own = Fixture::without_set(&CLUSTER, set, class).await;
    own.create_set(1, json!({"drain": drain})).await;
    let node = name(&own.settled(1).await[0]);
    (own, node)
}

async fn run(own: &Fixture, pod: &str) {
    eventually(&format!("{pod} runs"), LONG, async || {
        (phase(&own.pods.get(pod).await.unwrap()) == "Running").then_some(())
    })
    .await;
}

/// The message of the Node's condition once it has this reason.
async fn wait_for_reason(own: &Fixture, node: &str, reason: &str) -> String {
    eventually(&format!("{node} says {reason}"), LONG, async || {
        let node = own.nodes.get(node).await.unwrap();
        let drained = condition(&node, DRAINED)?;
        (drained.status == "False" && drained.reason.as_deref() == Some(reason))
            .then(|| drained.message.clone().unwrap_or_default())
    })
    .await
}

async fn is_untouched(own: &Fixture, pod: &str) -> bool {
    own.pods.get(pod).await.is_ok_and(|pod| pod.metadata.deletion_timestamp.is_none())
}

/// When the drain began.
fn began(node: &Node) -> Option<jiff::Timestamp> {
    node.metadata.annotations.as_ref()?.get("kube-node.io/drain-started")?.parse().ok()
}

#[tokio::test]
async fn pods_leave_by_their_priority() {
    let (own, node) = one("drain-tiers", class_spec(), json!({})).await;
    let classes: Api<PriorityClass> = Api::all(own.client.clone());
    for (class, value) in [("drain-low", -10), ("drain-high", 1_000)] {
        create(&classes, json!({"metadata": {"name": class}, "value": value})).await.unwrap();
    }
    let stop = json!({"hollow.kube-node.io/stop-time": "2s"});
    let pods = [
        ("tier-low-1", json!({"priorityClassName": "drain-low"})),
        ("tier-low-2", json!({"priorityClassName": "drain-low"})),
        ("tier-middle", json!({})),
        ("tier-high", json!({"priorityClassName": "drain-high"})),
    ];
    for (pod, more) in &pods {
        own.pod_on(&node, pod, stop.clone(), more.clone()).await;
    }
    for (pod, _) in &pods {
        run(&own, pod).await;
    }

    // One watch shows the changes of all pods in their order, and asks nothing that may be gone by then.
    let events = watcher(own.pods.clone(), watcher::Config::default()).default_backoff();
    pin_mut!(events);
    let (mut leaving, mut ended, mut gone) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    while gone.len() < pods.len() {
        let event =
            tokio::time::timeout(LONG, events.next()).await.expect("the pods leave").unwrap().unwrap();
        let (pod, deleted) = match event {
            watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => (pod, false),
            watcher::Event::Delete(pod) => (pod, true),
            watcher::Event::Init | watcher::Event::InitDone => continue,
        };
        let name = pod.metadata.name.clone().unwrap();
        if !name.starts_with("tier-") {
            continue;
        }
        if pod.metadata.deletion_timestamp.is_some() && leaving.insert(name.clone()) {
            let before: &[&str] = match name.as_str() {
                "tier-middle" => &["tier-low-1", "tier-low-2"],
                "tier-high" => &["tier-low-1", "tier-low-2", "tier-middle"],
                _ => &[],
            };
            for before in before {
                assert!(ended.contains(*before), "{name} leaves before {before} has ended");
            }
        }
        if deleted || matches!(phase(&pod), "Succeeded" | "Failed") {
            ended.insert(name.clone());
        }
        if deleted {
            gone.insert(name);
        }
    }
    own.settled(0).await;
    for class in ["drain-low", "drain-high"] {
        delete(&classes, class, PropagationPolicy::Background).await;
    }
    own.clean_up().await;
}

#[tokio::test]
async fn who_does_not_want_to_leave_is_named_until_the_timeout() {
    let (own, node) = one("drain-opt-out", class_spec(), json!({"timeout": "10s"})).await;
    let annotations = json!({"kube-node.io/do-not-evict": "true"});
    own.pod_on(&node, "drain-opt-out", annotations, json!({})).await;
    own.pod_on(&node, "drain-opt-in", json!({"kube-node.io/do-not-evict": "false"}), json!({})).await;
    run(&own, "drain-opt-out").await;
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let message = wait_for_reason(&own, &node, "PodOptedOut").await;
    assert!(message.contains("default/drain-opt-out") && !message.contains("more"), "{message}");
    let began = began(&own.nodes.get(&node).await.unwrap()).expect("noted with the cordon");
    eventually("the other one leaves", LONG, async || {
        own.pods.get_opt("drain-opt-in").await.unwrap().is_none().then_some(())
    })
    .await;
    eventually("it is deleted in the end", LONG, async || {
        let pod = own.pods.get_opt("drain-opt-out").await.unwrap();
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;
    let took = jiff::Timestamp::now().duration_since(began);
    assert!(took >= jiff::SignedDuration::from_secs(10), "{took:?}");
    own.settled(0).await;
    own.clean_up().await;
}

#[tokio::test]
async fn the_set_keeps_data_and_pods_that_nobody_makes_again() {
    let drain = json!({"deleteEmptyDirData": false, "unmanagedPods": "Keep"});
    let (own, node) = one("drain-keep", class_spec(), drain).await;
    let owners: Api<ConfigMap> = Api::default_namespaced(own.client.clone());
    let owner = create(&owners, json!({"metadata": {"name": "drain-keep"}})).await.unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "drain-keep",
        "uid": owner.metadata.uid.unwrap(), "controller": true}]);
    create(
        &own.pods,
        json!({"metadata": {"name": "keep-data", "ownerReferences": owner}, "spec": {
            "nodeName": node, "containers": [{"name": "main", "image": "example.com/main:1"}],
            "volumes": [{"name": "tmp", "emptyDir": {}}]}}),
    )
    .await
    .unwrap();
    own.pod_on(&node, "keep-alone", json!({}), json!({})).await;
    run(&own, "keep-data").await;
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let message = wait_for_reason(&own, &node, "EmptyDirData").await;
    assert!(message.contains("default/keep-data") && message.contains("(1 more)"), "{message}");
    always("nobody is evicted", Duration::from_secs(6), async || {
        is_untouched(&own, "keep-data").await && is_untouched(&own, "keep-alone").await
    })
    .await;
    // Settings reach a drain that is under way.
    own.patch_set(json!({"spec": {"drain": {"deleteEmptyDirData": true}}})).await;
    let message = wait_for_reason(&own, &node, "UnmanagedPod").await;
    assert!(message.contains("default/keep-alone"), "{message}");
    eventually("the data goes", LONG, async || {
        own.pods.get_opt("keep-data").await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(is_untouched(&own, "keep-alone").await);
    own.patch_set(json!({"spec": {"drain": {"unmanagedPods": "Evict"}}})).await;
    own.settled(0).await;
    delete(&owners, "drain-keep", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_disruption_budget_has_one_event() {
    let (own, node) = one("drain-event", class_spec(), json!({})).await;
    for pod in ["drain-event-1", "drain-event-2"] {
        create(
            &own.pods,
            json!({"metadata": {"name": pod, "labels": {"app": "drain-event"}}, "spec": {
                "nodeName": node, "containers": [{"name": "main", "image": "example.com/main:1"}]}}),
        )
        .await
        .unwrap();
        run(&own, pod).await;
    }
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(own.client.clone());
    let budget = json!({"minAvailable": 2, "selector": {"matchLabels": {"app": "drain-event"}}});
    create(&budgets, json!({"metadata": {"name": "keep-both"}, "spec": budget})).await.unwrap();
    eventually("the budget is counted", LONG, async || {
        (budgets.get("keep-both").await.unwrap().status?.current_healthy == Some(2)).then_some(())
    })
    .await;
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let message = wait_for_reason(&own, &node, "PodDisruptionBudget").await;
    assert!(message.contains("default/drain-event-1") && message.contains("(1 more)"), "{message}");
    assert!(message.contains("keep-both needs 2 healthy pods and has 2 currently"), "{message}");
    let version = async || own.nodes.get(&node).await.unwrap().metadata.resource_version;
    let before = condition(&own.nodes.get(&node).await.unwrap(), DRAINED).cloned();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let after = condition(&own.nodes.get(&node).await.unwrap(), DRAINED).cloned();
    assert_eq!(before, after, "written once, until {:?}", version().await);
    let events: Api<Event> = Api::default_namespaced(own.client.clone());
    let said: Vec<Event> = events
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter(|event| event.regarding.as_ref().is_some_and(|on| on.name.as_deref() == Some(&node)))
        .filter(|event| event.reason.as_deref() == Some("DrainBlocked"))
        .collect();
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].series.is_none() && said[0].note.as_ref().unwrap().contains("keep-both"), "{said:#?}");
    let metrics = CLUSTER.metrics();
    assert!(metrics.contains(r#"kube_node_waiting_nodes{reason="PodDisruptionBudget"}"#), "{metrics}");
    delete(&budgets, "keep-both", PropagationPolicy::Background).await;
    own.settled(0).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_machine_goes_after_its_volumes() {
    let (own, node) = one("drain-volumes", class_spec(), json!({})).await;
    let attachments: Api<VolumeAttachment> = Api::all(own.client.clone());
    let spec = json!({"attacher": "csi.example.com", "nodeName": node,
        "source": {"persistentVolumeName": "drain-volume"}});
    create(&attachments, json!({"metadata": {"name": "drain-volumes"}, "spec": spec})).await.unwrap();
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let message = wait_for_reason(&own, &node, "VolumesAttached").await;
    assert!(message.contains("drain-volume"), "{message}");
    assert!(is_ready(&own.nodes.get(&node).await.unwrap()), "its machine is at work");
    delete(&attachments, "drain-volumes", PropagationPolicy::Background).await;
    own.settled(0).await;
    own.clean_up().await;
}

#[tokio::test]
async fn volumes_of_pods_that_stay_are_not_waited_for() {
    let (own, node) = one("drain-claims", class_spec(), json!({})).await;
    let metadata = json!({"name": "drain-claims"});
    let volumes: Api<PersistentVolume> = Api::all(own.client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(own.client.clone());
    let attachments: Api<VolumeAttachment> = Api::all(own.client.clone());
    let agents: Api<DaemonSet> = Api::default_namespaced(own.client.clone());
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/data"}, "claimRef": {"namespace": "default", "name": "drain-claims"}});
    create(&volumes, json!({"metadata": metadata, "spec": spec})).await.unwrap();
    let spec = json!({"volumeName": "drain-claims", "storageClassName": "", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}});
    create(&claims, json!({"metadata": metadata, "spec": spec})).await.unwrap();
    let labels = json!({"app": "drain-claims"});
    let pod = json!({"nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [{"name": "main", "image": "example.com/main:1"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "drain-claims"}}]});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    create(
        &agents,
        json!({"metadata": metadata, "spec": {"selector": {"matchLabels": labels}, "template": template}}),
    )
    .await
    .unwrap();
    eventually("the agent runs", LONG, async || {
        let of_agent = ListParams::default().labels("app=drain-claims");
        let pods = own.pods.list(&of_agent).await.unwrap().items;
        pods.iter().any(|pod| phase(pod) == "Running").then_some(())
    })
    .await;
    let spec = json!({"attacher": "csi.example.com", "nodeName": node,
        "source": {"persistentVolumeName": "drain-claims"}});
    create(&attachments, json!({"metadata": metadata, "spec": spec})).await.unwrap();
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    own.settled(0).await;
    assert!(attachments.get_opt("drain-claims").await.unwrap().is_some(), "its volume is attached");
    delete(&attachments, "drain-claims", PropagationPolicy::Background).await;
    delete(&agents, "drain-claims", PropagationPolicy::Background).await;
    delete(&claims, "drain-claims", PropagationPolicy::Background).await;
    delete(&volumes, "drain-claims", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_whose_kubelet_is_dead_leaves_with_its_pods() {
    let anchor = Fixture::anchor(&CLUSTER, "anchor-dead").await;
    let mut class = class_spec();
    class["failures"] = json!({"unhealthyDuration": "40s", "turnUnhealthyAfter": true, "mode": "Silent"});
    let (own, node) = one("drain-dead", class, json!({})).await;
    own.pod_on(&node, "drain-dead", json!({}), json!({"terminationGracePeriodSeconds": 3})).await;
    run(&own, "drain-dead").await;
    eventually("nobody hears from it", Duration::from_mins(4), async || {
        let node = own.nodes.get(&node).await.unwrap();
        (condition(&node, "Ready")?.status == "Unknown").then_some(())
    })
    .await;
    // The garbage collector of pods may come at once, and then the taint is there for an instant.
    let params = WatchParams::default().fields(&format!("metadata.name={node}"));
    let mut changes = own.nodes.watch(&params, "0").await.unwrap().boxed();
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    let out_of_service = ("node.kubernetes.io/out-of-service".to_owned(), "NoExecute".to_owned());
    let is_out_of_service = async {
        while let Some(change) = changes.try_next().await.unwrap() {
            if let WatchEvent::Modified(node) = change
                && taints(&node).contains(&out_of_service)
            {
                return;
            }
        }
        panic!("it was never out of service");
    };
    timeout(LONG, is_out_of_service).await.expect("it is out of service");
    let pod = own.pods.get_opt("drain-dead").await.unwrap();
    assert!(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()), "it was evicted before");
    own.pod_goes_before_node("drain-dead", &node).await;
    own.clean_up().await;
    anchor.clean_up().await;
}
