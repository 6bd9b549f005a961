//! Failed writes of a NodeSet, with their causes and retry times.
//!
//! Input: the outcome of each write. Output: permission to send a write now, and one [`Problem`] for each
//! kind of write. Invariant: a failed write delays only itself. Writes of other Nodes, and other writes of
//! the same Node, go on at once.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use jiff::Timestamp;

use super::set::Problem;

/// Back-off after the first failure of a write, doubled after each further one.
const BACK_OFF_FIRST: Duration = Duration::from_secs(1);
/// Maximum back-off: a corrected policy or permission takes effect within a minute.
const BACK_OFF_LONGEST: Duration = Duration::from_mins(1);

/// A kind of write, ordered by importance for the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Write {
    /// Creation of a Node. A Node to create has no lasting name, so a set has at most one such entry.
    Create,
    /// Deletion of a Node.
    Delete,
    /// Change of a Node's owner references.
    Adopt,
    /// Write of the templates' labels, annotations and taints to a Node.
    Update,
}

impl Write {
    /// Reason for conditions, events and metric labels.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Create => "CreateFailed",
            Self::Delete => "DeleteFailed",
            Self::Adopt => "AdoptFailed",
            Self::Update => "UpdateFailed",
        }
    }
}

#[derive(Clone, Debug)]
struct Refusal {
    intent: u64,
    failures: u32,
    retry_at: Timestamp,
    message: String,
}

/// Failed writes of one set.
#[derive(Clone, Debug, Default)]
pub struct Refusals(BTreeMap<(Write, String), Refusal>);

/// Hash of a write's content: a changed write does not wait for the back-off of the previous one.
#[must_use]
pub fn intent(content: &impl Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{content:?}").hash(&mut hasher);
    hasher.finish()
}

impl Refusals {
    /// Time until this write may be sent again; zero once its back-off is over, None if it has not failed.
    #[must_use]
    pub fn retry_in(&self, write: Write, node: &str, intent: u64, now: Timestamp) -> Option<Duration> {
        let refusal = self.0.get(&(write, node.to_owned())).filter(|refusal| refusal.intent == intent)?;
        Some(Duration::try_from(refusal.retry_at.duration_since(now)).unwrap_or_default())
    }

    /// Records a failed write.
    pub fn failed(&mut self, write: Write, node: &str, intent: u64, message: String, now: Timestamp) {
        let entry = self.0.entry((write, node.to_owned()));
        let before = entry.or_insert(Refusal { intent, failures: 0, retry_at: now, message: String::new() });
        let failures = if before.intent == intent { before.failures.saturating_add(1) } else { 1 };
        let back_off =
            BACK_OFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACK_OFF_LONGEST);
        *before = Refusal { intent, failures, retry_at: now + back_off, message };
    }

    /// Records a successful write. If the write had failed before, its obstacle may be gone for all writes of
    /// its kind: they are due at once.
    pub fn succeeded(&mut self, write: Write, node: &str, now: Timestamp) {
        if self.0.remove(&(write, node.to_owned())).is_some() {
            for ((kind, _), refusal) in &mut self.0 {
                if *kind == write {
                    refusal.retry_at = refusal.retry_at.min(now);
                }
            }
        }
    }

    /// Returns true if a write of this kind has failed.
    #[must_use]
    pub fn has(&self, write: Write) -> bool {
        self.0.keys().any(|(kind, _)| *kind == write)
    }

    /// Drops failures of this kind whose writes are no longer wanted.
    pub fn keep(&mut self, write: Write, wanted: impl Fn(&str) -> bool) {
        self.0.retain(|(kind, node), _| *kind != write || wanted(node));
    }

    /// One problem for each kind of write: names the first Node and counts the others.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = Vec::new();
        for ((write, _), refusal) in &self.0 {
            if let Some(problem) = problems.last_mut().filter(|problem| problem.reason == write.reason()) {
                problem.nodes += 1;
            } else {
                let message = refusal.message.clone();
                problems.push(Problem { reason: write.reason(), message, nodes: 1 });
            }
        }
        for problem in problems.iter_mut().filter(|problem| problem.nodes > 1) {
            problem.message = format!("{} (and {} more)", problem.message, problem.nodes - 1);
        }
        problems
    }

    /// Time until the next write may be sent again; None if none has failed.
    #[must_use]
    pub fn next_retry_in(&self, now: Timestamp) -> Option<Duration> {
        let next = self.0.values().map(|refusal| refusal.retry_at).min()?;
        Some(Duration::try_from(next.duration_since(now)).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn refused(refusals: &mut Refusals, node: &str, now: i64) {
        refusals.failed(Write::Update, node, 1, format!("cannot change {node}"), at(now));
    }

    #[test]
    fn a_failed_write_waits_longer_each_time_and_delays_no_other() {
        let mut refusals = Refusals::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            refused(&mut refusals, "a", 100);
            waits.push(refusals.retry_in(Write::Update, "a", 1, at(100)).unwrap().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(refusals.retry_in(Write::Update, "a", 1, at(160)), Some(Duration::ZERO));
        for (write, node, intent) in
            [(Write::Update, "b", 1), (Write::Delete, "a", 1), (Write::Update, "a", 2)]
        {
            assert_eq!(refusals.retry_in(write, node, intent, at(100)), None);
        }
        refusals.failed(Write::Update, "a", 2, String::new(), at(100));
        assert_eq!(
            refusals.next_retry_in(at(100)),
            Some(Duration::from_secs(1)),
            "another write begins anew"
        );
    }

    #[test]
    fn one_success_makes_the_others_of_its_kind_due() {
        let mut refusals = Refusals::default();
        for _ in 0..5 {
            for node in ["a", "b"] {
                refused(&mut refusals, node, 100);
            }
        }
        refusals.succeeded(Write::Update, "never-failed", at(101));
        assert_eq!(refusals.retry_in(Write::Update, "b", 1, at(101)), Some(Duration::from_secs(15)));
        refusals.succeeded(Write::Update, "a", at(101));
        assert_eq!(refusals.retry_in(Write::Update, "b", 1, at(101)), Some(Duration::ZERO));
    }

    #[test]
    fn problems_name_the_first_node_and_count_the_others() {
        let mut refusals = Refusals::default();
        for node in ["c", "a", "b"] {
            refused(&mut refusals, node, 0);
        }
        refusals.failed(Write::Create, "", 7, "cannot create Node d".to_owned(), at(0));
        let problems = refusals.problems();
        assert_eq!(
            problems.iter().map(|p| (p.reason, p.message.as_str(), p.nodes)).collect::<Vec<_>>(),
            [
                ("CreateFailed", "cannot create Node d", 1),
                ("UpdateFailed", "cannot change a (and 2 more)", 3)
            ]
        );
        refusals.keep(Write::Update, |node| node == "b");
        assert_eq!(refusals.problems()[1].message, "cannot change b");
    }
}
