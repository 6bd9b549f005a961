//! Step: the class changes. First a Node of the old revision is created, then the NodeSet rolls out the new
//! revision while the controller is restarted.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt;
use kube_ext::server_time::server_time;
use kube_node_api::{NodeSetStatus, names, time::after};
use serde_json::{Value, json};

use super::classes;
use crate::{
    checks::{self, Checked, is_ready},
    contract,
    manifests::ROLLOUT_RESOURCE,
    record::History,
    test_run::TestRun,
    user_commands::{self, machines_of},
};

pub(super) async fn roll(run: &TestRun, before: &str) -> anyhow::Result<()> {
    let replicas = run.args.nodes;
    let all = replicas + 1;
    let settled = run.set_is(|status| [status.replicas, status.available_replicas] == [replicas; 2]).await?;
    if let Err(NodeSetStatus { available_replicas: available, .. }) = settled {
        let why = format!("{available} of {replicas} Nodes are available after two were drained");
        run.fail(contract::ROLLS, why);
        return Ok(());
    }
    let usual = || run.given.capacity.is_some().then(|| json!({"capacity": {ROLLOUT_RESOURCE: "1"}}));
    let change = run.args.change.clone().or_else(usual);
    run.set_spec(json!({"paused": true})).await?;
    let revision = if let Some(change) = &change {
        Some(new_revision(run, change, before).await?)
    } else {
        run.skip(contract::FOLLOWS, "the class has no capacity to change: give --change");
        None
    };
    // Created while the rollout is paused, so of the current revision.
    run.set_spec(json!({"replicas": all})).await?;
    let grown = run.set_is(|status| status.ready_replicas == all).await?;
    if let Err(NodeSetStatus { ready_replicas: ready, .. }) = grown {
        run.fail(contract::ROLLS, format!("{ready} of {all} Nodes are Ready after a scale-up"));
        return Ok(());
    }
    if revision.is_none() {
        // The clock of the API server, by which Nodes have their creation time, has whole seconds.
        let at = after(server_time(&run.client).await?, Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = json!({names::ANNOTATION_RESTARTED_AT: at.to_string()});
        run.patch(&run.sets, &run.name, json!({"metadata": {"annotations": now}})).await?;
    }
    run.set_spec(json!({"paused": null})).await?;
    match &run.args.restart {
        Some(command) => drop(user_commands::run(command).await?),
        None => run.skip(contract::RESTART, "needs --restart"),
    }
    let old = run.at_work().len();
    let rolled = run.set_is(|status| {
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        let is_new = revision.as_ref().is_none_or(|new| status.current_revision.as_ref() == Some(new));
        let is_complete =
            |condition: &Condition| condition.type_ == "Progressing" && condition.reason == "Complete";
        counts == [all; 3] && is_new && status.conditions.iter().any(is_complete)
    });
    match rolled.await? {
        Ok(_) => {
            let what =
                revision.as_ref().map_or_else(|| "made anew".to_owned(), |new| format!("of revision {new}"));
            run.pass(contract::ROLLS, format!("{all} Nodes are {what}"));
            if run.args.restart.is_some() {
                run.checked(contract::RESTART, restarted(run, old).await?);
            }
        }
        Err(NodeSetStatus { updated_replicas: updated, available_replicas: available, .. }) => {
            let clause = if run.args.restart.is_some() { contract::RESTART } else { contract::ROLLS };
            let (name, counts) =
                (&run.name, format!("{updated} of {all} Nodes are new, {available} available"));
            run.fail(clause, format!("{counts}: kube-node explain {name}"));
        }
    }
    revisions(run, revision.as_deref());
    Ok(())
}

/// Changes the class and returns its new revision.
async fn new_revision(run: &TestRun, change: &Value, before: &str) -> anyhow::Result<String> {
    let class = run.patch(&run.classes, &run.name, json!({ "spec": change })).await?;
    let revision = run.revision(Some(before)).await?;
    let desired = class.metadata.generation;
    let follows = run.class_is(|class| classes::generation(class) >= desired).await?;
    let (Ok(class) | Err(class)) = &follows;
    let observed = classes::generation(class).unwrap_or_default();
    let observed = format!("it speaks of generation {observed}");
    let late = || format!("{observed}, and the class has {}", desired.unwrap_or_default());
    run.checked(contract::FOLLOWS, if follows.is_ok() { Ok(observed) } else { Err(late()) });
    let seen = run.set_is(|status| status.update_revision.as_ref() == Some(&revision)).await?;
    let name = &run.name;
    anyhow::ensure!(seen.is_ok(), "NodeSet {name} does not follow its class: kube-node explain says why");
    Ok(revision)
}

/// Clause 6.2: after the restart no machine exists twice.
async fn restarted(run: &TestRun, old: usize) -> anyhow::Result<Checked> {
    let nodes = run.at_work();
    if let Some(lines) = run.machines().await? {
        if let Some(node) = nodes.iter().find(|node| machines_of(&lines, node).len() > 1) {
            return Ok(Err(format!("{} has two machines", node.name_any())));
        }
        let all = run.seen.all();
        let mut gone = all.values().filter(|history| history.gone.is_some()).filter_map(History::last);
        if let Some(node) = gone.find(|node| !machines_of(&lines, node).is_empty()) {
            return Ok(Err(format!("{} is gone, and its machine is there", node.name_any())));
        }
    }
    Ok(Ok(format!("{old} Nodes went and {} came after it", nodes.len())))
}

/// Clause 3.2: the revisions that Nodes were made from.
fn revisions(run: &TestRun, revision: Option<&str>) {
    // The last Ready state of each Node.
    let all = run.seen.all();
    let last = all.values().filter_map(|history| history.states().into_iter().rev().find(is_ready));
    let nodes: Vec<Node> = last.filter(|node| run.is_of_set(node)).collect();
    let resource = match &run.args.change {
        None => Some(ROLLOUT_RESOURCE.to_owned()),
        Some(change) => new_resource(change, run),
    };
    let checked = revision
        .zip(resource)
        .and_then(|(revision, resource)| checks::from_revisions(&nodes, &resource, revision));
    match checked {
        Some(checked) => run.checked(contract::REVISION, checked),
        None => run.skip(contract::REVISION, "its Nodes do not report the resources of their class"),
    }
}

/// A resource that the class has only after the change.
fn new_resource(change: &Value, run: &TestRun) -> Option<String> {
    let had = |resource: &str| run.given.capacity.as_ref().is_some_and(|all| all.contains_key(resource));
    change.get("capacity")?.as_object()?.keys().find(|resource| !had(resource)).cloned()
}
