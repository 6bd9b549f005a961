//! `kube-node rollout undo`: pins a NodeSet to a revision by `spec.revision`, or removes the pin. The class
//! stays unchanged, since other NodeSets may use it.

use anyhow::{Context, ensure};
use clap::Args;
use kube::{Api, Client, api::ListParams};
use kube_ext::objects::list;
use kube_node_api::{ClassOverrides, NodeSet};
use serde_json::{Value, json};

use super::{
    Namespace, Set,
    access::{Change, change_set, read_set},
    change::{change, is_paused},
    history::{Entry, History},
};
use crate::set_status::name;

/// Arguments of `rollout undo`.
#[derive(Debug, Args)]
pub(super) struct Undo {
    #[command(flatten)]
    set: Set,
    #[command(flatten)]
    namespace: Namespace,
    /// Name or number of the revision; the previous one when absent
    #[arg(long, value_name = "REVISION", conflicts_with = "to_latest")]
    to_revision: Option<String>,
    /// Follow the class again: remove the pin of an earlier undo
    #[arg(long)]
    to_latest: bool,
}

impl Undo {
    /// Writes the pin and returns the message.
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<String> {
        let Self { set: Set { name }, namespace, to_revision, to_latest } = self;
        if to_latest {
            return change_set(client, &name, |set| Ok(unpin(set))).await;
        }
        let set = read_set(client, &name).await?;
        let history = History::read(client, &set, &namespace.namespace).await?;
        let others = match to_revision {
            Some(_) => Vec::new(),
            None => list(&Api::all(client.clone()), "NodeSets", &ListParams::default()).await?,
        };
        change_set(client, &name, |set| {
            let entry = match &to_revision {
                Some(text) => history.find(text)?,
                None => previous(set, &history, &others)?,
            };
            Ok(pin(set, entry))
        })
        .await
    }
}

/// The previous revision. During a rollout, the revision that it started from; otherwise the newest other
/// revision, as in kubectl, so that a second undo reverts the first.
fn previous<'a>(set: &NodeSet, history: &'a History, sets: &[NodeSet]) -> anyhow::Result<&'a Entry> {
    let status = set.status.as_ref();
    let update = status.and_then(|status| status.update_revision.as_ref());
    let target = set.spec.revision.as_ref().or(update).with_context(|| {
        format!("NodeSet {} has no revision yet: there is nothing to go back from", name(set))
    })?;
    let current = status.and_then(|status| status.current_revision.as_ref());
    if let Some(current) = current.filter(|current| *current != target) {
        return history.find(current);
    }
    let newest = history.stored().rev().find(|entry| entry.name != *target);
    let newest =
        newest.with_context(|| format!("there is no revision to go back to: {}", history.there_are()))?;
    let others: Vec<&str> = sets.iter().filter(|other| mixes(set, other)).map(name).collect();
    ensure!(
        others.is_empty(),
        "the revision before may be another set's, since {} changes NodeClass {} by other overrides: choose one with --to-revision; {}",
        others.join(", "),
        history.class,
        history.there_are()
    );
    Ok(newest)
}

/// Returns true if `other` makes other machines from the same class, so that its revisions are among those of `set`.
fn mixes(set: &NodeSet, other: &NodeSet) -> bool {
    // Fault injection is applied to existing Nodes in place and makes no revision.
    let machine = |set: &NodeSet| ClassOverrides {
        failures: None,
        ..set.spec.class_overrides.clone().unwrap_or_default()
    };
    name(set) != name(other)
        && set.spec.node_class_name == other.spec.node_class_name
        && machine(set) != machine(other)
}

fn pin(set: &NodeSet, entry: &Entry) -> Change {
    if set.spec.revision.as_ref() == Some(&entry.name) {
        return change(set, &format!("skipped rollback (already pinned to revision {entry})"), None);
    }
    let resume = format!("; it is paused: its nodes follow after `kube-node rollout resume {}`", name(set));
    let note = if is_paused(set) { resume.as_str() } else { "" };
    let patch = json!({"spec": {"revision": entry.name}});
    change(set, &format!("rolled back to revision {entry}{note}"), Some(patch))
}

fn unpin(set: &NodeSet) -> Change {
    if set.spec.revision.is_none() {
        return change(set, "skipped (no revision is pinned)", None);
    }
    let done = format!("follows NodeClass {} again", set.spec.node_class_name);
    change(set, &done, Some(json!({"spec": {"revision": Value::Null}})))
}

#[cfg(test)]
mod tests {
    use super::super::{change::tests::set, history::tests::history};
    use super::*;

    const REVISIONS: &[(i64, &str)] = &[(1, "v1-aa"), (3, "v1-cc"), (2, "v1-bb")];

    /// Target of undo, or the error.
    fn undo(change: &Value, others: &[NodeSet]) -> Result<String, String> {
        let set = set(change);
        let history = history(&set, REVISIONS, &[]);
        previous(&set, &history, others).map(|entry| entry.name.clone()).map_err(|error| error.to_string())
    }

    fn goes_to(change: &Value) -> String {
        undo(change, &[]).unwrap()
    }

    #[test]
    fn a_finished_rollout_goes_back_to_the_newest_other() {
        let newest = json!({"currentRevision": "v1-cc", "updateRevision": "v1-cc"});
        assert_eq!(goes_to(&json!({"status": newest})), "v1-bb");
        // The class went back to an earlier machine.
        let older = json!({"currentRevision": "v1-aa", "updateRevision": "v1-aa"});
        assert_eq!(goes_to(&json!({"status": older})), "v1-cc");
    }

    #[test]
    fn a_rollout_under_way_goes_back_to_where_it_comes_from() {
        let under_way = json!({"currentRevision": "v1-aa", "updateRevision": "v1-cc"});
        assert_eq!(goes_to(&json!({"status": under_way})), "v1-aa");
    }

    #[test]
    fn an_undo_is_undone() {
        let under_way = json!({"currentRevision": "v1-cc", "updateRevision": "v1-cc"});
        assert_eq!(goes_to(&json!({"spec": {"revision": "v1-bb"}, "status": under_way})), "v1-cc");
        let done = json!({"currentRevision": "v1-bb", "updateRevision": "v1-bb"});
        assert_eq!(goes_to(&json!({"spec": {"revision": "v1-bb"}, "status": done})), "v1-cc");
    }

    #[test]
    fn what_cannot_be_undone_says_why() {
        let refused = |change: Value| undo(&change, &[]).unwrap_err();
        let first = set(&json!({"status": {"currentRevision": "v1-aa", "updateRevision": "v1-aa"}}));
        let alone = history(&first, &REVISIONS[..1], &[]);
        assert_eq!(
            previous(&first, &alone, &[]).unwrap_err().to_string(),
            "there is no revision to go back to: NodeClass medium has 1 (v1-aa)"
        );
        let from_gone = json!({"currentRevision": "v1-zz", "updateRevision": "v1-cc"});
        assert!(
            refused(json!({"status": from_gone}))
                .starts_with("there is no revision v1-zz: NodeClass medium has 3")
        );
        assert!(refused(json!({"status": null})).contains("has no revision yet"));
    }

    #[test]
    fn a_history_that_sets_share_is_not_guessed_in() {
        let other = |name: &str, overrides: Value| {
            set(&json!({"metadata": {"name": name}, "spec": {"classOverrides": overrides}}))
        };
        let bigger = other("bigger", json!({"capacity": {"cpu": "8"}}));
        let said = undo(&json!({}), std::slice::from_ref(&bigger)).unwrap_err();
        assert!(
            said.contains("since bigger changes NodeClass medium by other overrides: choose one"),
            "{said}"
        );
        let same = [
            other("workers", json!({"capacity": {"cpu": "8"}})),
            other("alike", json!(null)),
            other("sick", json!({"failures": {"unhealthyDuration": "5s", "turnUnhealthyAfter": true}})),
        ];
        assert_eq!(undo(&json!({}), &same).as_deref(), Ok("v1-cc"));
        // During a rollout the previous revision is certain.
        let under_way = json!({"status": {"currentRevision": "v1-aa", "updateRevision": "v1-cc"}});
        assert_eq!(undo(&under_way, &[bigger]).as_deref(), Ok("v1-aa"));
    }

    #[test]
    fn a_pin_is_set_once_and_taken_away_once() {
        let free = set(&json!({}));
        let history = history(&free, REVISIONS, &[]);
        let entry = history.find("2").unwrap();
        let change = pin(&free, entry);
        assert_eq!(change.patch, Some(json!({"spec": {"revision": "v1-bb"}})));
        assert_eq!(change.message, "nodeset.kube-node.io/workers rolled back to revision 2 (v1-bb)");
        let pinned = set(&json!({"spec": {"revision": "v1-bb"}}));
        assert_eq!(pin(&pinned, entry).patch, None);
        assert_eq!(unpin(&pinned).patch, Some(json!({"spec": {"revision": null}})));
        assert_eq!(unpin(&free).patch, None);
        let paused = pin(&set(&json!({"spec": {"paused": true}})), entry);
        assert!(
            paused.message.contains("its nodes follow after `kube-node rollout resume workers`"),
            "{}",
            paused.message
        );
    }
}
