//! Failures on purpose, with the kubemark actuator's four fields, in both modes.

use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

use crate::bed::{LONG, Own, class_spec, condition, eventually, is_ready, name};

fn failing(failures: &Value) -> Value {
    let mut class = class_spec();
    class["failures"] = failures.clone();
    class
}

/// The statuses of Ready that one Node goes through, with the time that each began, until there are `count`.
async fn readiness(own: &Own, count: usize) -> Vec<(String, jiff::Timestamp)> {
    let selector = watcher::Config::default().labels(&format!("kube-node.io/nodeset={}", own.name));
    let events = watcher(own.nodes.clone(), selector).default_backoff();
    pin_mut!(events);
    let mut seen: Vec<(String, jiff::Timestamp)> = Vec::new();
    while seen.len() < count {
        let event = tokio::time::timeout(LONG, events.next()).await.expect("it changes").unwrap();
        let Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = event else { continue };
        // Until its kubelet has spoken it is Ready=False for want of a machine.
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        if info.is_none_or(|info| info.kubelet_version.is_empty()) {
            continue;
        }
        let Some(ready) = condition(&node, "Ready") else { continue };
        let began = ready.last_transition_time.as_ref().unwrap().0;
        if seen.last().is_none_or(|(status, _)| *status != ready.status) {
            seen.push((ready.status.clone(), began));
        }
    }
    seen
}

#[tokio::test]
async fn unhealthy_and_healthy_by_turns() {
    let failures =
        json!({"unhealthyDuration": "3s", "healthyDuration": "5s", "turnUnhealthyPeriodically": true});
    let own = Own::new("disrupt-turns", 1, failing(&failures)).await;
    let seen = readiness(&own, 5).await;
    let statuses: Vec<&str> = seen.iter().map(|(status, _)| status.as_str()).collect();
    assert_eq!(statuses, ["False", "True", "False", "True", "False"], "it begins with the unhealthy phase");
    for (turn, wanted) in [(1, 5), (2, 3), (3, 5)] {
        let lasted = seen[turn + 1].1.duration_since(seen[turn].1).as_secs();
        assert!((wanted - 1..=wanted + 2).contains(&lasted), "{seen:?}");
    }
    own.clean_up().await;
}

#[tokio::test]
async fn unhealthy_for_ever_after_a_while() {
    let failures = json!({"unhealthyDuration": "4s", "turnUnhealthyAfter": true});
    let own = Own::new("disrupt-after", 1, failing(&failures)).await;
    let seen = readiness(&own, 2).await;
    assert_eq!((seen[0].0.as_str(), seen[1].0.as_str()), ("True", "False"));
    let node = own.my_nodes().await.remove(0);
    let ready = condition(&node, "Ready").unwrap();
    assert!(ready.message.as_ref().unwrap().contains("disruptor"), "{ready:?}");
    let message = own.set_says("Available", "False", "NodesUnavailable").await;
    assert!(message.contains(&name(&node)), "{message}");
    // In place: without failures the same machine is well again.
    own.patch_class(json!({"spec": {"failures": null}})).await;
    let healed = own.settled(1).await.remove(0);
    assert_eq!(name(&healed), name(&node));
    own.clean_up().await;
}

#[tokio::test]
async fn a_silent_node_becomes_unknown() {
    let anchor = Own::anchor("anchor-silent").await;
    let failures = json!({"unhealthyDuration": "5s", "turnUnhealthyAfter": true, "mode": "Silent"});
    let own = Own::new("disrupt-silent", 1, failing(&failures)).await;
    let unknown = eventually("its Ready condition is Unknown", Duration::from_secs(150), async || {
        let node: Node = own.my_nodes().await.pop()?;
        condition(&node, "Ready").filter(|ready| ready.status == "Unknown")?;
        Some(node)
    })
    .await;
    own.patch_class(json!({"spec": {"failures": null}})).await;
    eventually("it speaks again", LONG, async || {
        is_ready(&own.nodes.get(&name(&unknown)).await.unwrap()).then_some(())
    })
    .await;
    own.clean_up().await;
    anchor.clean_up().await;
}
