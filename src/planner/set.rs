//! Status of a NodeSet: counts, conditions and waits, with their messages.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_node_api::{NodeSetStatus, WaitStatus};

use super::{
    conditions::{self, ConditionUpdate},
    node_state::{DeletionStage, NodeState},
    rollout,
    set_planner::SetPlan,
    set_wait::{GRAVE, STOPPED, SetWait, nodes},
};

/// Conditions of a set after its first reconciliation.
pub const CONDITIONS: [&str; 4] = ["Available", "Progressing", "Degraded", "Ready"];
/// Maximum number of names in a message.
const NAMES_MAX: usize = 3;

/// State of a set after a reconciliation.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// `spec.replicas`.
    pub replicas: usize,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Generation of the class.
    pub class_generation: Option<i64>,
    /// Time of the last restart that is due.
    pub restarted_at: Option<Timestamp>,
    /// Revision of new Nodes, if known.
    pub update_revision: Option<&'a str>,
    /// Label selector of the Nodes.
    pub selector: String,
    /// True if somebody paused the rollout.
    pub paused: bool,
    /// Pending creations that the watch has not shown yet.
    pub creating: usize,
    /// Nodes of the set.
    pub members: &'a [NodeState<'a>],
    /// Plan of the reconciliation.
    pub plan: &'a SetPlan<'a>,
    /// Revision of Nodes given up in this reconciliation because they failed to start; their deletion was sent.
    pub given_up: Option<&'a str>,
    /// Problems, the most important first.
    pub problems: &'a [SetWait],
    /// Previous status.
    pub old: &'a NodeSetStatus,
}

/// The status to write.
pub fn status(report: &Report<'_>, now: Timestamp) -> NodeSetStatus {
    let counts = report.plan.counts;
    let waits = waits(report, now);
    let (progress, health) = (progress(report, &waits), health(report, &waits, now));
    let ready = readiness(&progress, &health);
    let updates = vec![availability(report), progress, health, ready];
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let old = report.old;
    NodeSetStatus {
        observed_generation: report.generation,
        observed_class_generation: report.class_generation.or(old.observed_class_generation),
        replicas: count(counts.staying),
        ready_replicas: count(counts.ready),
        available_replicas: count(counts.available),
        updated_replicas: count(counts.updated),
        unavailable_replicas: count(report.replicas.saturating_sub(counts.available)),
        terminating_replicas: count(counts.leaving),
        selector: Some(report.selector.clone()),
        current_revision: current_revision(report),
        update_revision: report.update_revision.map(str::to_owned).or_else(|| old.update_revision.clone()),
        restart_time: report.restarted_at.map(Time),
        rollout: report.plan.rollout.clone(),
        start_failures: rollout::account(report.plan.start_failures.clone(), report.given_up, now),
        waits,
        conditions: conditions::set(&old.conditions, updates, report.generation, now),
    }
}

fn availability(report: &Report<'_>) -> ConditionUpdate {
    let (available, replicas) = (report.plan.counts.available, report.replicas);
    let counts = format!("{available} of {replicas} nodes are available");
    if available >= replicas {
        return ConditionUpdate::new("Available", true, "NodesAvailable", counts);
    }
    let staying = || report.members.iter().filter(|member| member.stage == DeletionStage::Staying);
    let drained = staying().filter(|member| member.autoscaler_drains && member.is_ready()).count();
    // The message changes with the counts only, so that a watch of the set prints no line twice: a Node without a kubelet and
    // one that keeps its startup taints are not Ready here, as they are not among those counted as Ready. What a Node waits
    // for is its own condition.
    let unready: Vec<&str> =
        staying().filter(|member| !member.is_ready()).map(|member| member.name).collect();
    let causes = [
        (drained > 0).then(|| format!("{drained} are being emptied by cluster-autoscaler")),
        (!unready.is_empty()).then(|| format!("{} are not Ready ({})", unready.len(), first_names(unready))),
    ];
    let causes: Vec<String> = causes.into_iter().flatten().collect();
    let causes = if causes.is_empty() { String::new() } else { format!(": {}", causes.join(", ")) };
    ConditionUpdate::new("Available", false, "NodesUnavailable", counts + &causes)
}

/// The first names in alphabetical order.
fn first_names(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    let more = if names.len() > NAMES_MAX { ", …" } else { "" };
    names.truncate(NAMES_MAX);
    format!("{}{more}", names.join(", "))
}

fn progress(report: &Report<'_>, waits: &[WaitStatus]) -> ConditionUpdate {
    let Report { replicas, creating, plan, .. } = *report;
    let counts = plan.counts;
    let there = counts.staying + creating;
    // The most important wait, if any; problems come first.
    let because = waits.first().map(|wait| &wait.message);
    let because = because.map(|message| format!(": {message}")).unwrap_or_default();
    let rolled = || {
        let revision = report.update_revision.unwrap_or("the newest");
        let (updated, outdated) = (counts.updated, counts.outdated);
        format!("{updated} of {replicas} nodes have revision {revision}, {outdated} are outdated{because}")
    };
    // Outdated Nodes that stay on purpose.
    let keeps = |wait: &WaitStatus| matches!(wait.reason.as_str(), "Partition" | "OnDelete" | "Paused");
    let missing = replicas.saturating_sub(counts.available);
    let rollout = plan.rollout.as_ref().filter(|_| !plan.waits.iter().any(|wait| wait.reason == "OnDelete"));
    let (status, reason, message) = if rollout.is_some_and(|rollout| rollout.halt_time.is_some()) {
        (false, "ProgressDeadlineExceeded", rolled())
    } else if report.paused && counts.outdated > 0 {
        (false, "Paused", rolled())
    } else if rollout.is_some() {
        (true, "RollingOut", rolled())
    } else if there < replicas || creating > 0 {
        (true, "ScalingUp", format!("{} of {replicas} nodes are created{because}", counts.staying))
    } else if counts.to_replace > 0 && !waits.iter().any(keeps) {
        (true, "Replacing", format!("{} to be replaced{because}", nodes(counts.to_replace, "is", "are")))
    } else if there > replicas {
        (true, "ScalingDown", format!("{} to leave", nodes(there - replicas, "is", "are")))
    } else if counts.leaving > 0 {
        // The wait `Draining` has the same words.
        let is_draining = waits.first().is_some_and(|wait| wait.reason == "Draining");
        let because = if is_draining { "" } else { &because };
        let leaving = nodes(counts.leaving, "is", "are");
        (true, "ScalingDown", format!("{leaving} being drained and deleted{because}"))
    } else if counts.ready < replicas {
        (true, "Provisioning", format!("{} of {replicas} nodes are Ready", counts.ready))
    } else if missing > 0 {
        (true, "Settling", format!("{} Ready for less than minReadyTime", nodes(missing, "is", "are")))
    } else if !report.problems.is_empty() {
        (true, "Retrying", format!("{}{because}", all_available(replicas)))
    } else {
        let older = match counts.outdated {
            0 => String::new(),
            1 => ", 1 of them keeps an older revision".to_owned(),
            outdated => format!(", {outdated} of them keep an older revision"),
        };
        (false, "Complete", format!("{}{older}", all_available(replicas)))
    };
    ConditionUpdate::new("Progressing", status, reason, message)
}

fn all_available(replicas: usize) -> String {
    match replicas {
        0 => "no nodes are wanted".to_owned(),
        1 => "1 node is available".to_owned(),
        several => format!("all {several} nodes are available"),
    }
}

/// `Ready` by kstatus's rules for custom resources: True once the Nodes match the spec, False while they
/// change or are blocked. `observedGeneration` tells a reader which spec the status refers to.
fn readiness(progress: &ConditionUpdate, health: &ConditionUpdate) -> ConditionUpdate {
    let decisive = if health.status { health } else { progress };
    let status = !health.status && progress.reason == "Complete";
    ConditionUpdate::new("Ready", status, decisive.reason, decisive.message.clone())
}

/// `Degraded`: the set's own problem, then grave waits, then the most common trouble of its Nodes.
fn health(report: &Report<'_>, waits: &[WaitStatus], now: Timestamp) -> ConditionUpdate {
    let degraded = |reason, message| ConditionUpdate::new("Degraded", true, reason, message);
    if let Some(problem) = report.problems.first() {
        return degraded(problem.reason, problem.message.clone());
    }
    for reason in GRAVE {
        if let Some(wait) = waits.iter().find(|wait| wait.reason == reason) {
            return degraded(reason, wait.message.clone());
        }
    }
    let troubles = troubles(report.members.iter().filter(|member| member.degrades_in(now).is_zero()));
    match troubles.values().max_by_key(|of| of.len()) {
        Some(of) => degraded("NodesInTrouble", in_trouble(of, true)),
        None => ConditionUpdate::new("Degraded", false, "AsExpected", "nothing stands in the way"),
    }
}

/// Nodes in trouble by reason.
fn troubles<'m, 'a: 'm>(
    members: impl Iterator<Item = &'m NodeState<'a>>,
) -> BTreeMap<&'a str, Vec<&'m NodeState<'a>>> {
    let mut troubles: BTreeMap<&str, Vec<&NodeState<'_>>> = BTreeMap::new();
    for member in members {
        // Waiting for the set's budget or for the drains of other Nodes, and draining, are normal.
        let normal = |reason: &str| matches!(reason, "WaitingForBudget" | "WaitingForSlot" | "Draining");
        if let Some((reason, _)) = member.trouble.filter(|(reason, _)| !normal(reason)) {
            troubles.entry(reason).or_default().push(member);
        }
    }
    troubles
}

fn in_trouble(of: &[&NodeState<'_>], with_reason: bool) -> String {
    let Some(first) = of.iter().min_by_key(|member| member.name) else { return String::new() };
    let (reason, message) = first.trouble.unwrap_or_default();
    let reason = if with_reason { format!("{reason}: ") } else { String::new() };
    let others = if of.len() > 1 { format!(" ({} more)", of.len() - 1) } else { String::new() };
    format!("{}: {reason}{message}{others}", first.name)
}

/// Waits, the most important first: problems, what has stopped the set, trouble of its Nodes, its own budget.
fn waits(report: &Report<'_>, now: Timestamp) -> Vec<WaitStatus> {
    let problems = report.problems.iter().map(|problem| (0, problem));
    let planned = report.plan.waits.iter().map(|wait| (wait.rank(), wait));
    let status = |reason: &str, message: String, nodes: usize| {
        let old = report.old.waits.iter().find(|old| old.reason == reason);
        let since = old.map_or(Time(now), |old| old.since.clone());
        let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
        WaitStatus { since, reason: reason.to_owned(), message, nodes }
    };
    let own = problems.chain(planned);
    let own = own.map(|(rank, wait)| (rank, status(wait.reason, wait.message.clone(), wait.nodes)));
    let troubles = troubles(report.members.iter()).into_iter();
    let troubles = troubles.map(|(name, of)| (STOPPED, status(name, in_trouble(&of, false), of.len())));
    let mut waits: Vec<(usize, WaitStatus)> = own.chain(troubles).collect();
    waits.sort_by_key(|(rank, _)| *rank);
    waits.into_iter().map(|(_, wait)| wait).collect()
}

/// As for a `StatefulSet`: the revision before an update, until every Node has the new one.
fn current_revision(report: &Report<'_>) -> Option<String> {
    let (update, old) = (report.update_revision, report.old.current_revision.as_deref());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let staying = report.members.iter().filter(|member| member.stage == DeletionStage::Staying);
    for member in staying.filter(|member| Some(member.revision) != update) {
        *counts.entry(member.revision).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(_, count)| **count).map(|(revision, _)| *revision);
    let current = match most {
        None => update.or(old),
        Some(_) => old.filter(|current| counts.contains_key(current)).or(most),
    };
    current.map(str::to_owned)
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
