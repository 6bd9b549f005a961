//! Another program that writes the status of a pod, as a second simulator of nodes in the cluster does.
//!
//! Inputs: a pod and a time. Outputs: another phase, right after each write of the pod's kubelet.
//! Invariant: it writes nothing once its time is over.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{objects::name, process::Cluster};

/// Its phase of the pod.
const PHASE: &str = "Pending";
/// Time after which it sees a change.
const SEES: Duration = Duration::from_millis(20);

/// Writes over the status of this pod for a time.
pub async fn contest(cluster: Cluster, pod: String, time: Duration) {
    let until = Instant::now() + time;
    let path = format!("/api/v1/namespaces/default/pods/{pod}/status");
    while Instant::now() < until {
        let pods = cluster.server.objects("", "pods");
        let own = pods.iter().find(|own| name(own) == pod);
        if own.is_some_and(|own| own["status"]["phase"] != PHASE) {
            let status = json!({ "status": { "phase": PHASE } });
            cluster.server.write(Method::PATCH, &path, &status);
            cluster.checks.check(&cluster.server, None);
        }
        sleep(SEES).await;
    }
}
