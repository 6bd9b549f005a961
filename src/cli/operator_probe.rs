//! Finds out whether an operator serves the cluster, wherever it runs: creates a NodeClass, waits for the
//! operator to accept or refuse it, and deletes the NodeClass. An operator outside the cluster has no pod or Lease to look for.

use std::time::Duration;

use kube::{Api, Client, api::PostParams};
use kube_ext::{
    call::{ApiError, call},
    objects,
};
use kube_node_api::NodeClass;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::manifest::object;

/// Time limit for an operator to accept or refuse the class.
const LIMIT: Duration = Duration::from_secs(10);
/// Poll interval.
const POLL: Duration = Duration::from_millis(200);

/// Returns true if an operator accepts or refuses a NodeClass within the time limit.
pub(super) async fn probe(client: &Client) -> anyhow::Result<bool> {
    let api = Api::<NodeClass>::all(client.clone());
    let name = format!("kube-node-probe-{:08x}", rand::random::<u32>());
    let spec = json!({ "nodeController": "hollow", "capacity": { "cpu": "1" } });
    let class = serde_json::from_value(object("NodeClass", &name, &spec))?;
    call("make a NodeClass to ask with", api.create(&PostParams::default(), &class)).await?;
    let is_seen = wait(&api, &name).await;
    // A class that no operator has seen has no finalizer and is deleted at once.
    objects::delete(&api, &name).await?;
    Ok(is_seen?)
}

async fn wait(api: &Api<NodeClass>, name: &str) -> Result<bool, ApiError> {
    let is_accepted_or_refused = |class: NodeClass| {
        let mut conditions = class.status.into_iter().flat_map(|status| status.conditions);
        conditions.any(|condition| condition.type_ == "Accepted")
    };
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if objects::read(api, name).await?.is_some_and(is_accepted_or_refused) {
            return Ok(true);
        }
        sleep(POLL).await;
    }
    Ok(false)
}
