//! Whether an operator runs, wherever it does: a NodeClass is made, looked at by the operator, and taken away again. An
//! operator beside the cluster leaves no pod or Lease to look for.

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

/// How long an operator may take to say whether it accepts a class.
const LIMIT: Duration = Duration::from_secs(10);
/// How often the class is looked at.
const POLL: Duration = Duration::from_millis(200);

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An operator looked at the class.
    Runs,
    /// Nobody did.
    Silent,
    /// It could not be asked.
    Unknown(String),
}

/// Asks.
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
    // A class that an operator has never seen has no finalizer, and goes at once.
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
