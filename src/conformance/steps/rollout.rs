//! Step: the class changes. First a Node of the old revision is created, then the NodeSet rolls out the new
//! revision while the controller is restarted.

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::ResourceExt;
use kube_node_api::{NodeClass, names};
use serde_json::{Value, json};

use super::classes;
use crate::{
    checks::{self, is_ready},
    contract,
    objects::ROLLOUT_RESOURCE,
    test_run::TestRun,
    user_commands::{self, machines_of},
};

pub(super) async fn roll(test_run: &TestRun, before: &str) -> anyhow::Result<()> {
    let replicas = test_run.args.nodes;
    let settled = test_run
        .set_is(|status| status.replicas == replicas && status.available_replicas == replicas)
        .await?;
    if let Err(status) = settled {
        test_run.broken(
            &contract::ROLLS,
            format!("{} of {replicas} Nodes are available after two were drained", status.available_replicas),
        );
        return Ok(());
    }
    let change =
        test_run.args.change.clone().or_else(|| {
            test_run.given.capacity.is_some().then(|| json!({"capacity": {ROLLOUT_RESOURCE: "1"}}))
        });
    test_run.set_spec(json!({"paused": true})).await?;
    let revision = if let Some(change) = &change {
        Some(new_revision(test_run, change, before).await?)
    } else {
        test_run.unseen(&contract::FOLLOWS, "the class has no capacity to change: give --change");
        None
    };
    // Created while the rollout is paused, so of the current revision.
    test_run.set_spec(json!({"replicas": replicas + 1})).await?;
    let grown = test_run.set_is(|status| status.ready_replicas == replicas + 1).await?;
    if let Err(status) = grown {
        test_run.broken(
            &contract::ROLLS,
            format!("{} of {} Nodes are Ready after a scale-up", status.ready_replicas, replicas + 1),
        );
        return Ok(());
    }
    if revision.is_none() {
        let now = Timestamp::now().to_string();
        test_run
            .patch(
                &test_run.sets,
                &test_run.run,
                json!({"metadata": {"annotations": {names::ANNOTATION_RESTARTED_AT: now}}}),
            )
            .await?;
    }
    test_run.set_spec(json!({"paused": null})).await?;
    match &test_run.args.restart {
        Some(command) => drop(user_commands::run(command).await?),
        None => test_run.unseen(&contract::RESTART, "needs --restart"),
    }
    let old: Vec<Option<String>> = test_run.at_work().iter().map(ResourceExt::uid).collect();
    let rolled = test_run.set_is(|status| {
        let all = replicas + 1;
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        let is_new = revision.as_ref().is_none_or(|new| status.current_revision.as_ref() == Some(new));
        let has_ended = status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Progressing" && condition.reason == "Complete");
        counts == [all; 3] && is_new && has_ended
    });
    match rolled.await? {
        Ok(_) => {
            let what =
                revision.as_ref().map_or_else(|| "made anew".to_owned(), |new| format!("of revision {new}"));
            test_run.kept(&contract::ROLLS, format!("{} Nodes are {what}", replicas + 1));
            if test_run.args.restart.is_some() {
                restarted(test_run, &old).await?;
            }
        }
        Err(status) => {
            let clause = if test_run.args.restart.is_some() { &contract::RESTART } else { &contract::ROLLS };
            let (updated, available) = (status.updated_replicas, status.available_replicas);
            test_run.broken(
                clause,
                format!(
                    "{updated} of {} Nodes are new, {available} available: kube-node explain {}",
                    replicas + 1,
                    test_run.run
                ),
            );
        }
    }
    revisions(test_run, revision.as_deref());
    Ok(())
}

/// Changes the class and returns its new revision.
async fn new_revision(test_run: &TestRun, change: &Value, before: &str) -> anyhow::Result<String> {
    let class = test_run.patch(&test_run.classes, &test_run.run, json!({ "spec": change })).await?;
    let revision = test_run.revision(Some(before)).await?;
    let wanted = class.metadata.generation;
    let follows = test_run.class_is(|class| classes::generation(class) >= wanted).await?;
    let said = |class: &NodeClass| classes::generation(class).unwrap_or_default();
    test_run.judged(
        &contract::FOLLOWS,
        match &follows {
            Ok(class) => Ok(format!("it speaks of generation {}", said(class))),
            Err(class) => Err(format!(
                "it speaks of generation {}, and the class has {}",
                said(class),
                wanted.unwrap_or_default()
            )),
        },
    );
    let seen = test_run.set_is(|status| status.update_revision.as_ref() == Some(&revision)).await?;
    anyhow::ensure!(
        seen.is_ok(),
        "NodeSet {} does not follow its class: kube-node explain says why",
        test_run.run
    );
    Ok(revision)
}

/// Clause 6.2: after the restart no machine exists twice.
async fn restarted(test_run: &TestRun, old: &[Option<String>]) -> anyhow::Result<()> {
    let nodes = test_run.at_work();
    if let Some(lines) = test_run.machines().await? {
        if let Some(node) = nodes.iter().find(|node| machines_of(&lines, node).len() > 1) {
            test_run.broken(&contract::RESTART, format!("{} has two machines", node.name_any()));
            return Ok(());
        }
        let all = test_run.seen.all();
        let left = all.values().filter(|history| history.gone.is_some()).filter_map(|history| history.last());
        if let Some(node) = left.into_iter().find(|node| !machines_of(&lines, node).is_empty()) {
            test_run
                .broken(&contract::RESTART, format!("{} is gone, and its machine is there", node.name_any()));
            return Ok(());
        }
    }
    test_run.kept(&contract::RESTART, format!("{} Nodes went and {} came after it", old.len(), nodes.len()));
    Ok(())
}

/// Clause 3.2: the revisions that Nodes were made from.
fn revisions(test_run: &TestRun, revision: Option<&str>) {
    // The last Ready state of each Node.
    let nodes: Vec<Node> = test_run
        .seen
        .all()
        .values()
        .filter_map(|history| history.states().into_iter().rev().find(is_ready))
        .filter(|node| test_run.is_of_set(node))
        .collect();
    let resource = match &test_run.args.change {
        None => Some(ROLLOUT_RESOURCE.to_owned()),
        Some(change) => new_resource(change, test_run),
    };
    let judgement = revision
        .zip(resource)
        .and_then(|(revision, resource)| checks::from_revisions(&nodes, &resource, revision));
    match judgement {
        Some(judgement) => test_run.judged(&contract::REVISION, judgement),
        None => test_run.unseen(&contract::REVISION, "its Nodes do not report the resources of their class"),
    }
}

/// A resource that the class has only after the change.
fn new_resource(change: &Value, test_run: &TestRun) -> Option<String> {
    let had = |resource: &str| test_run.given.capacity.as_ref().is_some_and(|all| all.contains_key(resource));
    change.get("capacity")?.as_object()?.keys().find(|resource| !had(resource)).cloned()
}
