//! `kube-node chart uninstall`: runs before the operator is removed.
//!
//! NodeSets, NodeClasses and Nodes carry finalizers that only the operator removes, and only the operator
//! drains Nodes and deletes machines. They must therefore go first; deleting them is the decision of the
//! user, who knows their workloads.

use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::PatchParams, core::PartialObjectMeta};
use kube_ext::{
    call::ApiError,
    objects::{self, Typed},
};
use kube_node_api::{GoDuration, NodeClass, NodeSet, names::LABEL_NODECLASS};
use local_cluster::release_secrets;
use tokio::time::{Instant, sleep};

use crate::{access::object_names, print_line, text};

/// Poll interval for objects that are being deleted.
const POLL: Duration = Duration::from_millis(500);
/// Pause before a request is sent again.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of names per kind in a message.
const NAMES_MAX: usize = 5;

/// Arguments of `chart uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// Namespace of the operator
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Delete the remaining NodeSets, Nodes and NodeClasses instead of refusing
    #[arg(long)]
    delete_nodes: bool,
    /// Time limit of the deletion
    #[arg(long, value_name = "DURATION", default_value = "4m")]
    timeout: GoDuration,
}

impl Uninstall {
    /// Returns when no object needs the operator.
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<()> {
        let sets = Api::<PartialObjectMeta<NodeSet>>::all(client.clone());
        let nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
        let classes = Api::<PartialObjectMeta<NodeClass>>::all(client.clone());
        let deadline = Instant::now() + self.timeout.0;
        let left = [
            summary("NodeSet", &names(&sets, "", deadline).await?),
            summary("Node", &names(&nodes, LABEL_NODECLASS, deadline).await?),
            summary("NodeClass", &names(&classes, "", deadline).await?),
        ];
        let left = left.into_iter().flatten().collect::<Vec<_>>().join(", ");
        if left.is_empty() {
            print_line("No node of kube-node is left.");
        } else if self.delete_nodes {
            print_line(format_args!("Deleting {left}"));
            delete_all(&sets, "", deadline).await?;
            delete_all(&nodes, LABEL_NODECLASS, deadline).await?;
            delete_all(&classes, "", deadline).await?;
            print_line("All nodes are gone.");
        } else {
            bail!(
                "there are {left}, which need the operator to be drained and deleted: delete them first (kubectl delete nodesets,nodeclasses --all), or let this job do it (helm rollback, then helm upgrade with --reset-then-reuse-values --set uninstall.deleteNodes=true); then uninstall again"
            );
        }
        release_secrets(client, &self.namespace, &PatchParams::default()).await
    }
}

/// Sends a request until it is answered for good: the job has one attempt, and the API server may restart beside it.
async fn until_answered<T>(
    deadline: Instant,
    request: impl AsyncFn() -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    loop {
        match request().await {
            Err(error) if !error.is_final() && Instant::now() < deadline => {
                print_line(format_args!("{}; trying again", error.chain()));
                sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}

async fn names<K: Typed>(api: &Api<K>, selector: &str, deadline: Instant) -> Result<Vec<String>, ApiError> {
    until_answered(deadline, || object_names(api, selector)).await
}

/// Deletes the present objects of a kind and waits until none is left. All are asked to go, whichever may not.
async fn delete_all<K: Typed>(api: &Api<K>, selector: &str, deadline: Instant) -> anyhow::Result<()> {
    let mut refused = None;
    for name in names(api, selector, deadline).await? {
        match until_answered(deadline, || objects::delete(api, &name)).await {
            Err(error) if error.is_final() => drop(refused.get_or_insert(error)),
            answer => drop(answer?),
        }
    }
    if let Some(error) = refused {
        return Err(error.into());
    }
    let mut count = usize::MAX;
    loop {
        let left = names(api, selector, deadline).await?;
        let Some(summary) = summary(&K::kind(&()), &left) else { return Ok(()) };
        ensure!(
            Instant::now() < deadline,
            "still there: {summary}; kubectl describe says what holds them, and without a running operator nothing lets them go"
        );
        if left.len() != count {
            count = left.len();
            print_line(format_args!("Waiting for {summary}"));
        }
        sleep(POLL).await;
    }
}

/// Text such as `12 Nodes (a, b, c, d, e, …)`.
fn summary(kind: &str, names: &[String]) -> Option<String> {
    let plural = match (kind, names.len()) {
        (_, 0) => return None,
        (kind, 1) => kind.to_owned(),
        ("NodeClass", _) => "NodeClasses".to_owned(),
        (kind, _) => format!("{kind}s"),
    };
    Some(format!("{} {plural} ({})", names.len(), text::names(names, NAMES_MAX)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn away() -> ApiError {
        ApiError::TimedOut { action: "list NodeSets".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_away_is_asked_again_until_the_deadline() {
        let asked = Cell::new(0);
        let deadline = Instant::now() + Duration::from_secs(10);
        let answered = until_answered(deadline, async || {
            asked.set(asked.get() + 1);
            if asked.get() < 4 { Err(away()) } else { Ok("all") }
        });
        assert_eq!((answered.await.unwrap(), asked.get()), ("all", 4));
        asked.set(0);
        let given_up = until_answered(deadline, async || {
            asked.set(asked.get() + 1);
            Err::<(), _>(away())
        });
        assert!(given_up.await.is_err() && Instant::now() >= deadline);
        assert_eq!(asked.get(), 8, "once a second, and three seconds had passed");
    }

    #[test]
    fn what_is_there_is_named() {
        let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
        assert_eq!(summary("Node", &names(0)), None);
        assert_eq!(summary("NodeSet", &names(1)).unwrap(), "1 NodeSet (n0)");
        assert_eq!(summary("NodeClass", &names(2)).unwrap(), "2 NodeClasses (n0, n1)");
        assert_eq!(summary("Node", &names(7)).unwrap(), "7 Nodes (n0, n1, n2, n3, n4, …)");
    }
}
