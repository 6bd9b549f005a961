//! Finds out whether an operator serves the cluster, wherever it runs: creates a NodeClass, waits for the
//! operator's verdict, and deletes the NodeClass. An operator outside the cluster has no pod or Lease to look for.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use kube_ext::call::call;
use kube_node_api::NodeClass;
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Time limit for an operator to accept or refuse the class.
const LIMIT: Duration = Duration::from_secs(10);
/// Poll interval.
const POLL: Duration = Duration::from_millis(200);

/// Result of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An operator has judged the class.
    Runs,
    /// No operator has judged the class.
    Silent,
    /// The probe failed.
    Unknown(String),
}

/// Probes for an operator.
pub(super) async fn ask(client: &Client) -> Answer {
    let api = Api::<NodeClass>::all(client.clone());
    let name = format!("kube-node-probe-{:08x}", rand::random::<u32>());
    let class = serde_json::from_value(json!({
        "apiVersion": "kube-node.io/v1alpha1",
        "kind": "NodeClass",
        "metadata": { "name": name },
        "spec": { "nodeController": "hollow", "capacity": { "cpu": "1" } },
    }));
    let class: NodeClass = match class {
        Ok(class) => class,
        Err(error) => return Answer::Unknown(error.to_string()),
    };
    let made = call("make a NodeClass to ask with", api.create(&PostParams::default(), &class)).await;
    if let Err(error) = made {
        return Answer::Unknown(error.to_string());
    }
    let answer = wait(&api, &name).await;
    // A class that no operator has seen has no finalizer and is deleted at once.
    let gone =
        call(format_args!("take NodeClass {name} away"), api.delete(&name, &DeleteParams::default())).await;
    match gone {
        Err(error) if !error.is(404) => Answer::Unknown(error.to_string()),
        _ => answer,
    }
}

async fn wait(api: &Api<NodeClass>, name: &str) -> Answer {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        match call(format_args!("read NodeClass {name}"), api.get(name)).await {
            Ok(class) if is_judged(&class) => return Answer::Runs,
            Ok(_) => sleep(POLL).await,
            Err(error) => return Answer::Unknown(error.to_string()),
        }
    }
    Answer::Silent
}

fn is_judged(class: &NodeClass) -> bool {
    let judges = |condition: &Condition| condition.type_ == "Accepted";
    class.status.as_ref().is_some_and(|status| status.conditions.iter().any(judges))
}
