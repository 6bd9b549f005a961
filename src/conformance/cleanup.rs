//! Deletes all objects of a test run in a feasible order. Objects that a broken controller does not release
//! are removed by force and named.

use anyhow::bail;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube_ext::{objects, process::print_line};
use kube_node_api::names::LABEL_NODE_CONTROLLER;

use super::{manifests, record::Histories, test_run::TestRun};

/// Deletes everything. Fails if a NodeSet or NodeClass remains after the time limit.
pub(super) async fn clean_up(run: &TestRun) -> anyhow::Result<()> {
    let name = run.name.as_str();
    // Pods first: they need their machines to end.
    objects::delete(&run.namespaces, name).await?;
    objects::delete(&run.sets, name).await?;
    for node in run.seen.existing() {
        objects::delete(&run.nodes, &node.name_any()).await?;
        if node.labels().get(LABEL_NODE_CONTROLLER).is_some_and(|controller| controller == manifests::NOBODY)
        {
            run.free(&node.name_any()).await?;
        }
    }
    let are_gone = |all: &Histories<Node>| all.values().all(|history| history.gone.is_some()).then_some(());
    if run.seen.until(run.limit(), are_gone).await.is_none() {
        let names: Vec<String> = run.seen.existing().iter().map(ResourceExt::name_any).collect();
        for node in &names {
            run.free(node).await?;
        }
        let names = names.join(", ");
        print_line(format_args!("Took the finalizer off {names} by force: their machines may still exist."));
    }
    let nobody = manifests::of_nobody(name);
    objects::delete(&run.classes, name).await?;
    objects::delete(&run.classes, &nobody).await?;
    let are_gone = async || {
        Ok(objects::read(&run.sets, name).await?.is_none()
            && objects::read(&run.classes, name).await?.is_none()
            && objects::read(&run.classes, &nobody).await?.is_none())
    };
    if run.until(are_gone, |gone| *gone).await?.is_err() {
        bail!("NodeSet or NodeClass {name} does not go: kubectl describe nodeset,nodeclass says why");
    }
    Ok(())
}
