//! Finds out whether an operator serves the cluster, wherever it runs: creates a NodeClass, waits for the
//! operator to accept or refuse it, and deletes the NodeClass. An operator outside the cluster has no pod or Lease to look for.

use std::time::Duration;

use kube::{Api, Client, api::PostParams, runtime::wait::await_condition};
use kube_ext::{call::call, objects};
use kube_node_api::NodeClass;
use serde_json::json;
use tokio::time::timeout;

use crate::{interrupt::TemporaryObject, manifest::object};

/// Beginning of a probe's name.
const PREFIX: &str = "kube-node-probe-";
/// Time limit of [`probe`].
const LIMIT: Duration = Duration::from_secs(10);

/// Returns true if an operator runs.
pub(super) async fn probe(client: &Client) -> anyhow::Result<bool> {
    serves(client, "hollow", LIMIT).await
}

/// Returns true if an operator accepts or refuses a NodeClass of this NodeController within the time limit.
pub(super) async fn serves(client: &Client, node_controller: &str, limit: Duration) -> anyhow::Result<bool> {
    let api = Api::<NodeClass>::all(client.clone());
    let name = format!("{PREFIX}{:08x}", rand::random::<u32>());
    let spec = json!({ "nodeController": node_controller, "capacity": { "cpu": "1" } });
    let class = serde_json::from_value(object("NodeClass", &name, spec))?;
    let temporary = TemporaryObject::new().await;
    let created = call("make a NodeClass to ask with", api.create(&PostParams::default(), &class)).await;
    if let Err(error) = created {
        // Without an answer, it may be there.
        if !error.is_final() {
            let _ = objects::delete(&api, &name).await;
        }
        return Err(error.into());
    }
    let is_accepted_or_refused = |class: Option<&NodeClass>| {
        let status = class.and_then(|class| class.status.as_ref());
        status.is_some_and(|status| status.conditions.iter().any(|own| own.type_ == "Accepted"))
    };
    let observed = tokio::select! {
        observed = timeout(limit, await_condition(api.clone(), &name, is_accepted_or_refused)) => observed,
        () = temporary.stop.cancelled() => Ok(Ok(None)),
    };
    // A class that no operator has seen has no finalizer and is deleted at once.
    objects::delete(&api, &name).await?;
    temporary.gone().await;
    Ok(observed.ok().transpose()?.flatten().is_some())
}

/// Deletes the probes among the NodeClasses of these names, which interrupted commands have left. Returns the others.
pub(super) async fn clear(client: &Client, classes: Vec<String>) -> anyhow::Result<Vec<String>> {
    let (probes, others): (Vec<_>, Vec<_>) = classes.into_iter().partition(|name| name.starts_with(PREFIX));
    let api = Api::<NodeClass>::all(client.clone());
    for probe in probes {
        objects::delete(&api, &probe).await?;
        // A running operator has to release it.
        let problem = format!("NodeClass {probe} is not gone: no operator has released it");
        let is_gone = |class: Option<&NodeClass>| class.is_none();
        objects::wait_for(api.clone(), &probe, is_gone, LIMIT, &problem).await?;
    }
    Ok(others)
}
