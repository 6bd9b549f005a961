//! Failures on purpose, with the kubemark actuator's four fields, in both modes. What is asked of a machine is the same
//! whatever carries it: an entry of our own hollow kubelet, a process, or a pod, of our own program or of an upstream
//! kubemark.

use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

use crate::{Fixture, LONG, TestCluster, class_spec, condition, eventually, is_ready, name};

/// A machine of some kind that fails on purpose.
#[allow(async_fn_in_trait, reason = "tests run each on one thread: no future needs to be Send")]
pub trait FaultTarget {
    /// With these failures.
    async fn start(cluster: &TestCluster, name: &str, failures: &Value) -> Self;
    /// Other failures, or null for none, in place.
    async fn set_failures(&self, failures: Value);
    /// Which Node is its own.
    fn selector(&self) -> watcher::Config;
    /// All Nodes of its cluster.
    fn nodes(&self) -> &Api<Node>;
    /// Deletes the machine.
    async fn clean_up(self);

    /// Its Node, if it has one.
    async fn node(&self) -> Option<Node> {
        let watcher::Config { label_selector, field_selector, .. } = self.selector();
        let params = kube::api::ListParams { label_selector, field_selector, ..Default::default() };
        self.nodes().list(&params).await.unwrap().items.pop()
    }
}

impl FaultTarget for Fixture {
    async fn start(cluster: &TestCluster, name: &str, failures: &Value) -> Self {
        let mut class = class_spec();
        class["failures"] = failures.clone();
        Self::new(cluster, name, 1, class).await
    }

    async fn set_failures(&self, failures: Value) {
        self.patch_class(json!({"spec": {"failures": failures}})).await;
    }

    fn selector(&self) -> watcher::Config {
        watcher::Config::default().labels(&format!("kube-node.io/nodeset={}", self.name))
    }

    fn nodes(&self) -> &Api<Node> {
        &self.nodes
    }

    async fn clean_up(self) {
        self.clean_up().await;
    }
}

/// The statuses of Ready that the Node goes through, with the time that each began, until there are `count`.
pub async fn ready_transitions(subject: &impl FaultTarget, count: usize) -> Vec<(String, jiff::Timestamp)> {
    let events = watcher(subject.nodes().clone(), subject.selector()).default_backoff();
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
        // A kubelet that begins on a busy machine is not ready for a moment, by its own account.
        if ready.status == "False" && !is_disrupted(ready) {
            continue;
        }
        let began = ready.last_transition_time.as_ref().unwrap().0;
        if seen.last().is_none_or(|(status, _)| *status != ready.status) {
            seen.push((ready.status.clone(), began));
        }
    }
    seen
}

/// Whether it is the fault injection that speaks.
pub fn is_disrupted(ready: &NodeCondition) -> bool {
    ready.message.as_ref().is_some_and(|message| message.contains("fault injection"))
}

/// Unhealthy for 3 s, healthy for 5 s, and again.
pub async fn unhealthy_and_healthy_by_turns<S: FaultTarget>(cluster: &TestCluster, called: &str) {
    let failures =
        json!({"unhealthyDuration": "3s", "healthyDuration": "5s", "turnUnhealthyPeriodically": true});
    let subject = S::start(cluster, called, &failures).await;
    by_turns(&subject, 3, 5).await;
    subject.clean_up().await;
}

/// Checks four changes between unhealthy and healthy phases of these lengths in seconds. The first phase is unhealthy and
/// begins with the boot on record; on a busy machine it may be over before the Node is seen.
pub async fn by_turns(subject: &impl FaultTarget, unhealthy: i64, healthy: i64) {
    let seen = ready_transitions(subject, 5).await;
    let booted = booted(&subject.node().await.unwrap());
    for (status, began) in &seen[1..] {
        let healthy_since = if status == "True" { unhealthy } else { 0 };
        let late = (began.as_second() - booted - healthy_since).rem_euclid(unhealthy + healthy);
        println!("{status} after {} s", began.as_second() - booted);
        assert!((0..=2).contains(&late), "{status} is {late} s late, boot at {booted} s: {seen:?}");
    }
}

/// Time of the boot on record, in seconds since the epoch.
fn booted(node: &Node) -> i64 {
    let boot: uuid::Uuid = node.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id.parse().unwrap();
    let (booted, _) = boot.get_timestamp().unwrap().to_unix();
    i64::try_from(booted).unwrap()
}

/// Healthy for 12 s after the boot, then unhealthy; healthy again without failures.
pub async fn unhealthy_for_ever_after_a_while<S: FaultTarget>(cluster: &TestCluster, called: &str) {
    let failures = json!({"unhealthyDuration": "12s", "turnUnhealthyAfter": true});
    let subject = S::start(cluster, called, &failures).await;
    let node = unhealthy_after(&subject, 12).await;
    // In place: without failures the same machine is well again.
    subject.set_failures(Value::Null).await;
    eventually("it is well again", LONG, async || {
        is_ready(&subject.nodes().get(&name(&node)).await.unwrap()).then_some(())
    })
    .await;
    subject.clean_up().await;
}

/// Checks that a Node turns unhealthy so many seconds after the boot on record, and returns the Node.
pub async fn unhealthy_after(subject: &impl FaultTarget, seconds: i64) -> Node {
    let seen = ready_transitions(subject, 2).await;
    assert_eq!((seen[0].0.as_str(), seen[1].0.as_str()), ("True", "False"));
    let node = subject.node().await.unwrap();
    let ready = condition(&node, "Ready").unwrap();
    assert_eq!(ready.reason.as_deref(), Some("KubeletNotReady"));
    assert!(is_disrupted(ready), "{ready:?}");
    let late = seen[1].1.as_second() - booted(&node) - seconds;
    println!("unhealthy after {} s", seconds + late);
    assert!((0..=2).contains(&late), "{late} s late: {seen:?}");
    node
}

/// A silent machine stops to renew its Lease, until the failures are taken away.
pub async fn a_silent_node_becomes_unknown<S: FaultTarget>(cluster: &TestCluster, called: &str) {
    let anchor = Fixture::anchor(cluster, &format!("anchor-{called}")).await;
    let failures = json!({"unhealthyDuration": "5s", "turnUnhealthyAfter": true, "mode": "Silent"});
    let subject = S::start(cluster, called, &failures).await;
    let unknown = eventually("its Ready condition is Unknown", Duration::from_secs(150), async || {
        let node = subject.node().await?;
        condition(&node, "Ready").filter(|ready| ready.status == "Unknown")?;
        Some(node)
    })
    .await;
    let memory = condition(&unknown, "MemoryPressure").unwrap();
    assert_eq!(memory.status, "Unknown", "nobody contradicts the controller-manager");
    subject.set_failures(Value::Null).await;
    let healed = eventually("it speaks again", LONG, async || {
        Some(subject.nodes().get(&name(&unknown)).await.unwrap()).filter(is_ready)
    })
    .await;
    assert_eq!(condition(&healed, "MemoryPressure").unwrap().status, "False");
    subject.clean_up().await;
    anchor.clean_up().await;
}

/// The containers of its pods end with a machine that reboots, and start again in other sandboxes where they start again at all.
pub async fn a_reboot_takes_its_pods_along<S: FaultTarget>(cluster: &TestCluster, called: &str, mode: &str) {
    let subject =
        S::start(cluster, called, &json!({"unhealthyDuration": "24h", "turnUnhealthyAfter": true})).await;
    let node = eventually("the node is Ready", LONG, async || subject.node().await.filter(is_ready)).await;
    let node = name(&node);
    let boot_id = async || {
        let status = subject.nodes().get(&node).await.unwrap().status.unwrap();
        status.node_info.unwrap().boot_id.parse::<uuid::Uuid>().unwrap()
    };
    let own = Fixture::nothing(cluster, called).await;
    let inits = json!([{"name": "first", "image": "i"}]);
    let (runs, once) = (format!("{called}-runs"), format!("{called}-once"));
    own.pod_on(&node, &runs, json!({}), json!({"initContainers": inits})).await;
    let for_ever = json!({"hollow.kube-node.io/run-time": "24h"});
    own.pod_on(&node, &once, for_ever, json!({"restartPolicy": "Never"})).await;
    let ready = async |pod: &str, restarts: i32| {
        eventually(&format!("{pod} is ready with {restarts} restarts"), LONG, async || {
            let status = own.pods.get(pod).await.unwrap().status?;
            let main = status.container_statuses.as_ref()?.first()?;
            (main.ready && main.restart_count == restarts).then_some(status)
        })
        .await
    };
    let before = ready(&runs, 0).await;
    ready(&once, 0).await;
    let first = boot_id().await;

    // Once, at a moment to come: what has started by now is older.
    let (booted, _) = first.get_timestamp().unwrap().to_unix();
    let age = jiff::Timestamp::now().as_second() - i64::try_from(booted).unwrap();
    let unhealthy = format!("{}s", age + 15);
    subject
        .set_failures(
            json!({"unhealthyDuration": unhealthy, "healthyDuration": "24h", "mode": mode, "reboot": true,
            "turnUnhealthyAfter": null, "turnUnhealthyPeriodically": true}),
        )
        .await;
    let after = ready(&runs, 1).await;
    let second = boot_id().await;
    assert!(second != first && second.get_timestamp() == first.get_timestamp(), "{first} {second}");
    let said = eventually("people are told", LONG, async || own.event_of(&node, "Rebooted").await).await;
    assert_eq!(said, format!("Node {node} has been rebooted, boot id: {second}"));
    let lost = |status: &k8s_openapi::api::core::v1::ContainerStatus, last: bool| {
        let state = if last { &status.last_state } else { &status.state };
        let end = state.as_ref().and_then(|state| state.terminated.clone()).unwrap();
        (end.exit_code, end.reason.unwrap_or_default())
    };
    assert_eq!(lost(&after.container_statuses.as_ref().unwrap()[0], true), (255, "Unknown".to_owned()));
    assert_ne!(after.pod_ip, before.pod_ip);
    let init = &after.init_container_statuses.unwrap()[0];
    assert_eq!(
        (init.restart_count, lost(init, true).0, lost(init, false).0),
        (1, 0, 0),
        "it runs again, too"
    );
    eventually("its new sandbox is told", LONG, async || own.event_of(&runs, "SandboxChanged").await).await;
    let failed = eventually("what never starts again has failed", LONG, async || {
        own.pods.get(&once).await.unwrap().status.filter(|status| status.phase.as_deref() == Some("Failed"))
    })
    .await;
    assert_eq!(lost(&failed.container_statuses.unwrap()[0], false), (255, "Unknown".to_owned()));
    eventually("the node is Ready again", LONG, async || subject.node().await.filter(is_ready)).await;
    assert_eq!(boot_id().await, second, "it rebooted once");
    subject.clean_up().await;
}
