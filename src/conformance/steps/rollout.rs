//! The class changes: a Node that is made of the old revision all the same, then a rollout to the new one, with the controller
//! started anew in the middle of it.

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::ResourceExt;
use kube_node_api::{NodeClass, names};
use serde_json::{Value, json};

use super::classes;
use crate::{
    asked::{self, machines_of},
    contract,
    course::Course,
    judge::{self, is_ready},
    objects::ROLLOUT_RESOURCE,
};

pub(super) async fn roll(course: &Course, before: &str) -> anyhow::Result<()> {
    let replicas = course.args.nodes;
    let settled =
        course.set_is(|status| status.replicas == replicas && status.available_replicas == replicas).await?;
    if let Err(status) = settled {
        course.broken(
            &contract::ROLLS,
            format!("{} of {replicas} Nodes are available after two were drained", status.available_replicas),
        );
        return Ok(());
    }
    let change =
        course.args.change.clone().or_else(|| {
            course.given.capacity.is_some().then(|| json!({"capacity": {ROLLOUT_RESOURCE: "1"}}))
        });
    course.set_spec(json!({"paused": true})).await?;
    let revision = if let Some(change) = &change {
        Some(new_revision(course, change, before).await?)
    } else {
        course.unseen(&contract::FOLLOWS, "the class has no capacity to change: give --change");
        None
    };
    // Made while the rollout is paused, so of the revision that works.
    course.set_spec(json!({"replicas": replicas + 1})).await?;
    let grown = course.set_is(|status| status.ready_replicas == replicas + 1).await?;
    if let Err(status) = grown {
        course.broken(
            &contract::ROLLS,
            format!("{} of {} Nodes are Ready after a scale-up", status.ready_replicas, replicas + 1),
        );
        return Ok(());
    }
    if revision.is_none() {
        let now = Timestamp::now().to_string();
        course
            .patch(
                &course.sets,
                &course.run,
                json!({"metadata": {"annotations": {names::ANNOTATION_RESTARTED_AT: now}}}),
            )
            .await?;
    }
    course.set_spec(json!({"paused": null})).await?;
    match &course.args.restart {
        Some(command) => drop(asked::run(command).await?),
        None => course.unseen(&contract::RESTART, "needs --restart"),
    }
    let old: Vec<Option<String>> = course.at_work().iter().map(ResourceExt::uid).collect();
    let rolled = course.set_is(|status| {
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
            course.kept(&contract::ROLLS, format!("{} Nodes are {what}", replicas + 1));
            if course.args.restart.is_some() {
                restarted(course, &old).await?;
            }
        }
        Err(status) => {
            let clause = if course.args.restart.is_some() { &contract::RESTART } else { &contract::ROLLS };
            let (updated, available) = (status.updated_replicas, status.available_replicas);
            course.broken(
                clause,
                format!(
                    "{updated} of {} Nodes are new, {available} available: kube-node explain {}",
                    replicas + 1,
                    course.run
                ),
            );
        }
    }
    revisions(course, revision.as_deref());
    Ok(())
}

/// Changes the class; its new revision.
async fn new_revision(course: &Course, change: &Value, before: &str) -> anyhow::Result<String> {
    let class = course.patch(&course.classes, &course.run, json!({ "spec": change })).await?;
    let revision = course.revision(Some(before)).await?;
    let wanted = class.metadata.generation;
    let follows = course.class_is(|class| classes::generation(class) >= wanted).await?;
    let said = |class: &NodeClass| classes::generation(class).unwrap_or_default();
    course.judged(
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
    let seen = course.set_is(|status| status.update_revision.as_ref() == Some(&revision)).await?;
    anyhow::ensure!(
        seen.is_ok(),
        "NodeSet {} does not follow its class: kube-node explain says why",
        course.run
    );
    Ok(revision)
}

/// 6.2: the rollout has gone on; is there anything twice?
async fn restarted(course: &Course, old: &[Option<String>]) -> anyhow::Result<()> {
    let nodes = course.at_work();
    if let Some(lines) = course.machines().await? {
        if let Some(node) = nodes.iter().find(|node| machines_of(&lines, node).len() > 1) {
            course.broken(&contract::RESTART, format!("{} has two machines", node.name_any()));
            return Ok(());
        }
        let all = course.seen.all();
        let left = all.values().filter(|history| history.gone.is_some()).filter_map(|history| history.last());
        if let Some(node) = left.into_iter().find(|node| !machines_of(&lines, node).is_empty()) {
            course
                .broken(&contract::RESTART, format!("{} is gone, and its machine is there", node.name_any()));
            return Ok(());
        }
    }
    course.kept(&contract::RESTART, format!("{} Nodes went and {} came after it", old.len(), nodes.len()));
    Ok(())
}

/// 3.2: what Nodes were made from.
fn revisions(course: &Course, revision: Option<&str>) {
    // As each was when it was Ready last.
    let nodes: Vec<Node> = course
        .seen
        .all()
        .values()
        .filter_map(|history| history.states().into_iter().rev().find(is_ready))
        .filter(|node| course.is_of_set(node))
        .collect();
    let resource = match &course.args.change {
        None => Some(ROLLOUT_RESOURCE.to_owned()),
        Some(change) => new_resource(change, course),
    };
    let judgement = revision
        .zip(resource)
        .and_then(|(revision, resource)| judge::from_revisions(&nodes, &resource, revision));
    match judgement {
        Some(judgement) => course.judged(&contract::REVISION, judgement),
        None => course.unseen(&contract::REVISION, "its Nodes do not report the resources of their class"),
    }
}

/// A resource that the class has only since the change.
fn new_resource(change: &Value, course: &Course) -> Option<String> {
    let had = |resource: &str| course.given.capacity.as_ref().is_some_and(|all| all.contains_key(resource));
    change.get("capacity")?.as_object()?.keys().find(|resource| !had(resource)).cloned()
}
