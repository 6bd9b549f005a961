//! Deletes all objects of a test run in a feasible order. Objects that a broken controller does not release
//! are removed by force and named.

use std::fmt::Debug;

use anyhow::bail;
use kube::{Api, Resource, ResourceExt};
use kube_ext::{call::call, objects::delete, process::say};
use kube_node_api::names::LABEL_NODE_CONTROLLER;
use serde::de::DeserializeOwned;

use super::{manifests, test_run::TestRun};

/// Deletes everything. Fails if a NodeSet or NodeClass remains after the time limit.
pub(super) async fn clean_up(run: &TestRun) -> anyhow::Result<()> {
    let name = run.name.as_str();
    // Pods first: they need their machines to end.
    delete(&run.namespaces, name).await?;
    delete(&run.sets, name).await?;
    for node in run.seen.existing() {
        delete(&run.nodes, &node.name_any()).await?;
        if node.labels().get(LABEL_NODE_CONTROLLER).is_some_and(|controller| controller == manifests::NOBODY)
        {
            run.free(&node.name_any()).await?;
        }
    }
    let all_gone = run
        .seen
        .shared
        .until(run.limit(), |all| all.values().all(|history| history.gone.is_some()).then_some(()));
    if all_gone.await.is_none() {
        let names: Vec<String> = run.seen.existing().iter().map(ResourceExt::name_any).collect();
        for node in &names {
            run.free(node).await?;
        }
        say(format_args!(
            "Took the finalizer off {} by force: their machines may still exist.",
            names.join(", ")
        ));
    }
    let nobody = manifests::of_nobody(name);
    delete(&run.classes, name).await?;
    delete(&run.classes, &nobody).await?;
    let exists = async || {
        Ok(exists(&run.sets, name).await?
            || exists(&run.classes, name).await?
            || exists(&run.classes, &nobody).await?)
    };
    if run.until(exists, |exists| !exists).await?.is_err() {
        bail!("NodeSet or NodeClass {name} does not go: kubectl describe nodeset,nodeclass says why");
    }
    Ok(())
}

async fn exists<K>(api: &Api<K>, name: &str) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    Ok(call(format_args!("read {} {name}", K::kind(&())), api.get_metadata_opt(name)).await?.is_some())
}
