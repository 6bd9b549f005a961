//! How a NodeSet stands: its counts, its conditions, and when time alone will change them.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{conditions, conditions::Says};
use crate::api::NodeSetStatus;

/// One Node of the set.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Whether its deletion was asked for.
    pub leaving: bool,
    /// Since when its Ready condition is True; None while it is not.
    pub ready_since: Option<Timestamp>,
    /// Whether the scheduler may use it: initialised, and no taint of ours left.
    pub initialized: bool,
    /// Whether a kubelet has posted a status.
    pub has_kubelet: bool,
    /// Its revision.
    pub revision: String,
    /// What stands in the way of its machine or its drain: reason and message.
    pub trouble: Option<(String, String)>,
}

/// What keeps the whole set from being worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Reason, for the condition.
    pub reason: &'static str,
    /// What to do about it.
    pub message: String,
}

/// What the set asks for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Replicas.
    pub replicas: usize,
    /// How long a Node must be Ready to count as available.
    pub min_ready: Duration,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Revision of new Nodes, where it is known.
    pub update_revision: Option<String>,
    /// Label selector of the Nodes.
    pub selector: String,
}

/// The status to write, and when it will change by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The status.
    pub status: NodeSetStatus,
    /// When a Node that is Ready becomes available.
    pub look_again: Option<Duration>,
}

/// Says how a set stands whose Nodes are `members`. `creating` are those asked for that the watch has not shown yet.
#[must_use]
pub fn stand(
    wanted: &Wanted,
    members: &[Member],
    creating: usize,
    problem: Option<&Problem>,
    old: &NodeSetStatus,
    now: Timestamp,
) -> Standing {
    let staying: Vec<&Member> = members.iter().filter(|member| !member.leaving).collect();
    let leaving = members.len() - staying.len();
    let ready = staying.iter().filter(|member| member.ready_since.is_some() && member.initialized).count();
    let mut look_again: Option<Duration> = None;
    let mut available = 0;
    for member in staying.iter().filter(|member| member.initialized) {
        let Some(since) = member.ready_since else { continue };
        let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        match wanted.min_ready.checked_sub(passed).filter(|left| !left.is_zero()) {
            None => available += 1,
            Some(left) => look_again = Some(look_again.map_or(left, |soonest| soonest.min(left))),
        }
    }
    let updated =
        staying.iter().filter(|member| Some(&member.revision) == wanted.update_revision.as_ref()).count();
    let missing = wanted.replicas.saturating_sub(available);

    let says = vec![
        availability(wanted.replicas, available, &staying),
        progress(wanted.replicas, &staying, creating, leaving, ready, missing),
        health(problem, members),
    ];
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let status = NodeSetStatus {
        observed_generation: wanted.generation,
        replicas: count(staying.len()),
        ready_replicas: count(ready),
        available_replicas: count(available),
        updated_replicas: count(updated),
        unavailable_replicas: count(missing),
        selector: Some(wanted.selector.clone()),
        current_revision: current_revision(wanted, &staying, old),
        update_revision: wanted.update_revision.clone().or_else(|| old.update_revision.clone()),
        conditions: conditions::set(&old.conditions, says, wanted.generation, now),
        ..NodeSetStatus::default()
    };
    Standing { status, look_again }
}

fn availability(replicas: usize, available: usize, staying: &[&Member]) -> Says {
    let status = available >= replicas;
    let (reason, message) = if status {
        ("NodesAvailable", format!("{available} of {replicas} nodes are available"))
    } else {
        let silent = staying.iter().filter(|member| !member.has_kubelet).count();
        let unready =
            staying.iter().filter(|member| member.has_kubelet && member.ready_since.is_none()).count();
        let mut why = Vec::new();
        if silent > 0 {
            why.push(format!("{silent} wait for their machine's first status"));
        }
        if unready > 0 {
            why.push(format!("{unready} are not Ready{}", examples(staying)));
        }
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(", ")) };
        ("NodesUnavailable", format!("{available} of {replicas} nodes are available{why}"))
    };
    Says { r#type: "Available", status, reason, message }
}

/// Up to three Nodes that have a kubelet and are not Ready, by name.
fn examples(staying: &[&Member]) -> String {
    let mut names: Vec<&str> = staying
        .iter()
        .filter(|member| member.has_kubelet && member.ready_since.is_none())
        .map(|member| member.name.as_str())
        .collect();
    names.sort_unstable();
    let more = if names.len() > 3 { ", …" } else { "" };
    names.truncate(3);
    format!(" ({}{more})", names.join(", "))
}

fn progress(
    replicas: usize,
    staying: &[&Member],
    creating: usize,
    leaving: usize,
    ready: usize,
    missing: usize,
) -> Says {
    let there = staying.len() + creating;
    let (status, reason, message) = if there < replicas || creating > 0 {
        (true, "ScalingUp", format!("{} of {replicas} nodes are created", staying.len()))
    } else if there > replicas {
        (true, "ScalingDown", format!("{} nodes are to leave", there - replicas))
    } else if leaving > 0 {
        (true, "ScalingDown", format!("{leaving} nodes are being drained and deleted"))
    } else if ready < replicas {
        (true, "Provisioning", format!("{ready} of {replicas} nodes are Ready"))
    } else if missing > 0 {
        (true, "Settling", format!("{missing} nodes are Ready for less than minReadySeconds"))
    } else {
        (false, "Complete", format!("all {replicas} nodes are available"))
    };
    Says { r#type: "Progressing", status, reason, message }
}

/// The set's own problem first, then the trouble most of its Nodes are in.
fn health(problem: Option<&Problem>, members: &[Member]) -> Says {
    let degraded = |reason, message| Says { r#type: "Degraded", status: true, reason, message };
    if let Some(problem) = problem {
        return degraded(problem.reason, problem.message.clone());
    }
    let mut troubles: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for member in members {
        if let Some((reason, _)) = &member.trouble {
            troubles.entry(reason).or_default().push(member);
        }
    }
    let worst = troubles.values().max_by_key(|of| of.len());
    match worst.and_then(|of| Some((of.len(), of.iter().min_by_key(|member| &member.name)?))) {
        Some((count, first)) => {
            let (reason, message) = first.trouble.clone().unwrap_or_default();
            let others = if count > 1 { format!(" ({} more)", count - 1) } else { String::new() };
            degraded("NodesInTrouble", format!("{}: {reason}: {message}{others}", first.name))
        }
        None => Says {
            r#type: "Degraded",
            status: false,
            reason: "AsExpected",
            message: "nothing stands in the way".to_owned(),
        },
    }
}

/// As a `StatefulSet` has it: the revision before an update until every Node has the new one.
fn current_revision(wanted: &Wanted, staying: &[&Member], old: &NodeSetStatus) -> Option<String> {
    let update = wanted.update_revision.as_ref();
    if staying.iter().all(|member| Some(&member.revision) == update) {
        return wanted.update_revision.clone().or_else(|| old.current_revision.clone());
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for member in staying.iter().filter(|member| Some(&member.revision) != update) {
        *counts.entry(&member.revision).or_default() += 1;
    }
    let kept = old.current_revision.as_deref().filter(|current| counts.contains_key(current));
    kept.or_else(|| counts.iter().max_by_key(|(_, count)| **count).map(|(revision, _)| *revision))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn member(name: &str, ready_since: Option<i64>) -> Member {
        Member {
            name: name.to_owned(),
            ready_since: ready_since.map(at),
            initialized: true,
            has_kubelet: true,
            revision: "v1-new".to_owned(),
            ..Member::default()
        }
    }

    fn wanted(replicas: usize) -> Wanted {
        Wanted { replicas, update_revision: Some("v1-new".to_owned()), ..Wanted::default() }
    }

    fn standing(wanted: &Wanted, members: &[Member]) -> Standing {
        stand(wanted, members, 0, None, &NodeSetStatus::default(), at(100))
    }

    fn condition<'a>(standing: &'a Standing, r#type: &str) -> (&'a str, &'a str, &'a str) {
        let condition = standing.status.conditions.iter().find(|c| c.type_ == r#type).unwrap();
        (&condition.status, &condition.reason, &condition.message)
    }

    #[test]
    fn a_complete_set_says_so() {
        let standing = standing(&wanted(2), &[member("a", Some(0)), member("b", Some(0))]);
        assert_eq!(condition(&standing, "Progressing"), ("False", "Complete", "all 2 nodes are available"));
        assert_eq!(condition(&standing, "Available").0, "True");
        assert_eq!(condition(&standing, "Degraded").0, "False");
        assert_eq!(standing.look_again, None);
    }

    #[test]
    fn a_node_is_available_after_min_ready_seconds() {
        let wanted = Wanted { min_ready: Duration::from_secs(10), ..wanted(1) };
        let standing = standing(&wanted, &[member("a", Some(95))]);
        assert_eq!(standing.status.ready_replicas, 1);
        assert_eq!(standing.status.available_replicas, 0);
        assert_eq!(standing.look_again, Some(Duration::from_secs(5)));
        assert_eq!(condition(&standing, "Progressing").1, "Settling");
    }

    #[test]
    fn nodes_that_are_not_ready_are_named() {
        let silent = Member { has_kubelet: false, ..member("c", None) };
        let standing = standing(&wanted(3), &[member("a", Some(0)), member("b", None), silent]);
        assert_eq!(
            condition(&standing, "Available").2,
            "1 of 3 nodes are available: 1 wait for their machine's first status, 1 are not Ready (b)"
        );
    }

    #[test]
    fn trouble_of_nodes_degrades_the_set() {
        let trouble = |name: &str| Member {
            trouble: Some(("OutOfResources".to_owned(), "no room".to_owned())),
            ..member(name, None)
        };
        let standing = standing(&wanted(3), &[member("a", Some(0)), trouble("c"), trouble("b")]);
        assert_eq!(
            condition(&standing, "Degraded"),
            ("True", "NodesInTrouble", "b: OutOfResources: no room (1 more)")
        );
    }

    #[test]
    fn leaving_nodes_count_for_nothing_but_progress() {
        let leaving = Member { leaving: true, ..member("b", Some(0)) };
        let standing = standing(&wanted(1), &[member("a", Some(0)), leaving]);
        assert_eq!(standing.status.replicas, 1);
        assert_eq!(condition(&standing, "Progressing").1, "ScalingDown");
    }

    #[test]
    fn the_current_revision_stays_until_the_last_old_node_is_gone() {
        let old_node = |name: &str| Member { revision: "v1-old".to_owned(), ..member(name, Some(0)) };
        let mixed = standing(&wanted(2), &[member("a", Some(0)), old_node("b")]);
        assert_eq!(mixed.status.current_revision.as_deref(), Some("v1-old"));
        assert_eq!(mixed.status.updated_replicas, 1);
        let done = stand(&wanted(1), &[member("a", Some(0))], 0, None, &mixed.status, at(101));
        assert_eq!(done.status.current_revision.as_deref(), Some("v1-new"));
    }
}
