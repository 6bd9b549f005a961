//! Deletes all objects of a test run in a feasible order. Objects that a broken controller does not release
//! are removed by force and named.

use std::{fmt::Debug, time::Duration};

use anyhow::bail;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Resource, ResourceExt, api::DeleteParams};
use kube_ext::{call::call, process::say};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use super::{objects, test_run::TestRun};

/// Interval of checks whether an object is gone.
const LOOK: Duration = Duration::from_millis(500);

/// Deletes everything. Fails if a NodeSet or NodeClass remains after the time limit.
pub(super) async fn clean_up(test_run: &TestRun) -> anyhow::Result<()> {
    let run = test_run.run.as_str();
    // Pods first: they need their machines to end.
    delete(&test_run.namespaces, run).await?;
    delete(&test_run.sets, run).await?;
    for node in left(test_run) {
        delete(&test_run.nodes, &node.name_any()).await?;
        if node
            .labels()
            .get(kube_node_api::names::LABEL_NODE_CONTROLLER)
            .is_some_and(|provider| provider == objects::NOBODY)
        {
            test_run.free(&node.name_any()).await?;
        }
    }
    let gone = test_run
        .seen
        .until(test_run.limit(), |all| all.values().all(|history| history.gone.is_some()).then_some(()));
    if gone.await.is_none() {
        let stuck = left(test_run);
        let names: Vec<String> = stuck.iter().map(ResourceExt::name_any).collect();
        for node in &stuck {
            test_run.free(&node.name_any()).await?;
        }
        say(format_args!(
            "Took the finalizer off {} by force: their machines may still exist.",
            names.join(", ")
        ));
    }
    let nobody = objects::of_nobody(run);
    delete(&test_run.classes, run).await?;
    delete(&test_run.classes, &nobody).await?;
    let begun = Instant::now();
    while exists(&test_run.sets, run).await?
        || exists(&test_run.classes, run).await?
        || exists(&test_run.classes, &nobody).await?
    {
        if begun.elapsed() > test_run.limit() {
            bail!("NodeSet or NodeClass {run} does not go: kubectl describe nodeset,nodeclass says why");
        }
        sleep(LOOK).await;
    }
    Ok(())
}

async fn exists<K>(api: &Api<K>, name: &str) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    Ok(call(format_args!("read {} {name}", K::kind(&())), api.get_metadata_opt(name)).await?.is_some())
}

/// Nodes of the test run that still exist.
fn left(test_run: &TestRun) -> Vec<Node> {
    let all = test_run.seen.all().into_values().filter(|history| history.gone.is_none());
    all.filter_map(|history| history.last().cloned()).collect()
}

/// Deletes an object. A missing object is no error.
async fn delete<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let params = DeleteParams::default();
    match call(format_args!("delete {} {name}", K::kind(&())), api.delete(name, &params)).await {
        Err(error) if !error.is(404) => Err(error.into()),
        _ => Ok(()),
    }
}
