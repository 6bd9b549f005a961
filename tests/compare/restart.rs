//! The kubelet of each node is killed and started again: what its Node and its pods show afterwards, compared with what they
//! showed before.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{Api, Client};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{
    CLUSTER, NAMESPACE,
    facts::{Fact, staying},
    kwok::Kwok,
    scenario_run::pod_name,
    systems::{Nodes, System, Target},
};
use crate::kinds::{self, Kind};
use kube_node_testing::{LONG, eventually, real_node::daemons};

/// Pods that run until they are deleted.
const PODS: [&str; 6] = ["plain", "two", "host-network", "init", "probes", "gate"];
/// Limit until each Lease is renewed again. The process of a kubemark machine is started by the real kubelet, which is
/// started first.
const BACK: Duration = Duration::from_mins(5);
/// Age of a kubelet at which it has observed its pods and its Node more than once.
const SETTLED: SignedDuration = SignedDuration::from_secs(40);

/// A node and its pods before the restart.
pub struct Before {
    node: Value,
    pods: Vec<Value>,
}

/// What a node and its pods show.
pub async fn before(client: &Client, place: &Target) -> Before {
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut shown = Vec::new();
    for scenario in PODS {
        shown.push(json!(pods.get_opt(&pod_name(scenario, place.system)).await.unwrap()));
    }
    Before { node: json!(nodes.get(&place.node).await.unwrap()), pods: shown }
}

/// Kills and starts each kubelet, and waits until each has settled.
pub async fn restart(client: &Client, nodes: &mut Nodes, kwok: &Kwok) {
    let old = daemons(&CLUSTER)["kubelet"];
    kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
    eventually("the real kubelet runs again", LONG, async || {
        daemons(&CLUSTER).get("kubelet").filter(|&&pid| pid != old).copied()
    })
    .await;
    assert!(CLUSTER.kill("operator"), "the operator runs");
    nodes.restart_kwok(kwok);
    let of = |system| nodes.places.iter().find(|place: &&Target| place.system == system).unwrap();
    let machine = kinds::process(&Kind::Upstream.program(&of(System::Kubemark).node)).expect("its process");
    kill(Pid::from_raw(machine), Signal::SIGKILL).unwrap();
    let settled = Timestamp::now() + SETTLED;
    for place in &nodes.places {
        settle(client, place, settled).await;
    }
}

/// Waits until the Lease of a node is renewed at `time` or later.
async fn settle(client: &Client, place: &Target, time: Timestamp) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    eventually(&format!("{} renews its Lease after its restart", place.node), BACK, async || {
        let renewed = leases.get(&place.node).await.map_err(|error| error.to_string())?.spec;
        let renewed = renewed.and_then(|spec| spec.renew_time).ok_or("never")?.0;
        (renewed >= time).then_some(()).ok_or(format!("renewed at {renewed}, before {time}"))
    })
    .await;
}

impl Before {
    /// What has changed.
    pub async fn facts(&self, client: &Client, place: &Target) -> Vec<Fact> {
        let after = before(client, place).await;
        let mut lines = vec![
            format!("bootID: {}", change(&self.node, &after.node, "/status/nodeInfo/bootID")),
            format!("machineID: {}", change(&self.node, &after.node, "/status/nodeInfo/machineID")),
        ];
        lines.extend(conditions(&self.node, &after.node));
        for (scenario, (before, after)) in PODS.iter().zip(self.pods.iter().zip(&after.pods)) {
            lines.extend(of_pod(before, after).into_iter().map(|line| format!("{scenario}: {line}")));
        }
        staying(lines)
    }
}

fn of_pod(before: &Value, after: &Value) -> Vec<String> {
    let same = |place: &str| change(before, after, place);
    let mut lines = vec![
        format!("phase: {}", same("/status/phase")),
        format!("startTime: {}", same("/status/startTime")),
        format!("podIP: {}", same("/status/podIP")),
    ];
    lines.extend(conditions(before, after));
    let containers = after["status"]["containerStatuses"].as_array().map_or(0, Vec::len);
    for at in 0..containers {
        for field in ["containerID", "restartCount", "ready", "started", "state", "lastState"] {
            lines.push(format!(
                "container {at}, {field}: {}",
                same(&format!("/status/containerStatuses/{at}/{field}"))
            ));
        }
    }
    lines
}

/// Each condition's status now, and whether it has been that since before the restart.
fn conditions(before: &Value, after: &Value) -> Vec<String> {
    let list = |object: &Value| object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let old = list(before);
    // Conditions of others than kubelets have names with a domain.
    let own = list(after)
        .into_iter()
        .filter(|condition| !condition["type"].as_str().unwrap_or_default().contains('/'));
    let line = |condition: Value| {
        let earlier = old.iter().find(|earlier| earlier["type"] == condition["type"]);
        let is_same =
            earlier.is_some_and(|earlier| earlier["lastTransitionTime"] == condition["lastTransitionTime"]);
        let since = match condition["type"].as_str() {
            // A kubelet that starts may be not ready for a moment, and its pods with it.
            Some("Ready" | "ContainersReady") => "",
            _ if is_same => ", since before",
            _ => ", since the restart",
        };
        format!("{}: {}{since}", condition["type"], condition["status"]).replace('"', "")
    };
    own.map(line).collect()
}

fn change(before: &Value, after: &Value, place: &str) -> &'static str {
    match (before.pointer(place), after.pointer(place)) {
        (None, None) => "absent",
        (before, after) if before == after => "as before",
        _ => "changed",
    }
}
