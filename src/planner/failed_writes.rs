//! Failed writes of a NodeSet, with their causes and retry times.
//!
//! Input: the outcome of each write. Output: permission to send a write now, and one [`SetWait`] for each
//! kind of write. Invariant: a failed write delays only itself. Writes of other Nodes, and other writes of
//! the same Node, go on at once.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use jiff::Timestamp;
use kube_node_api::time::passed;
use strum::IntoStaticStr;

use super::{backoff::Backoff, set_wait::SetWait};

/// Wait after each failure of a write: a corrected policy or permission takes effect within a minute.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// A kind of write, ordered by importance for the set; its name is the reason of conditions, events and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(suffix = "Failed")]
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

#[derive(Clone, Debug)]
struct FailedWrite {
    intent: u64,
    failures: u32,
    retry_at: Timestamp,
    message: String,
}

/// Failed writes of one set.
#[derive(Clone, Debug, Default)]
pub struct FailedWrites(BTreeMap<(Write, String), FailedWrite>);

/// Hash of a write's content: a changed write does not wait for the backoff of the previous one.
pub fn intent(content: &impl Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{content:?}").hash(&mut hasher);
    hasher.finish()
}

impl FailedWrites {
    /// Time until this write may be sent again; zero once its backoff is over, None if it has not failed.
    pub fn retry_in(&self, write: Write, node: &str, intent: u64, now: Timestamp) -> Option<Duration> {
        let failure = self.0.get(&(write, node.to_owned())).filter(|failure| failure.intent == intent)?;
        Some(passed(now, failure.retry_at))
    }

    /// Records a failed write.
    pub fn failed(&mut self, write: Write, node: &str, intent: u64, message: String, now: Timestamp) {
        let key = (write, node.to_owned());
        let before = self.0.get(&key).filter(|failure| failure.intent == intent);
        let failures = before.map_or(0, |failure| failure.failures).saturating_add(1);
        let failure = FailedWrite { intent, failures, retry_at: now + BACKOFF.after(failures), message };
        self.0.insert(key, failure);
    }

    /// Records a successful write. If the write had failed before, its obstacle may be gone for all writes of
    /// its kind: they are due at once.
    pub fn succeeded(&mut self, write: Write, node: &str, now: Timestamp) {
        if self.0.remove(&(write, node.to_owned())).is_some() {
            for (_, failure) in self.0.iter_mut().filter(|((kind, _), _)| *kind == write) {
                failure.retry_at = failure.retry_at.min(now);
            }
        }
    }

    /// Returns true if a write of this kind has failed.
    pub fn has(&self, write: Write) -> bool {
        self.0.keys().any(|(kind, _)| *kind == write)
    }

    /// Drops failures of this kind whose writes are no longer wanted.
    pub fn keep(&mut self, write: Write, wanted: impl Fn(&str) -> bool) {
        self.0.retain(|(kind, node), _| *kind != write || wanted(node));
    }

    /// One problem for each kind of write: names the first Node and counts the others.
    pub fn problems(&self) -> Vec<SetWait> {
        let mut problems: Vec<SetWait> = Vec::new();
        for ((write, _), failure) in &self.0 {
            match problems.last_mut().filter(|problem| problem.reason == <&str>::from(write)) {
                Some(problem) => problem.nodes += 1,
                None => problems.push(SetWait::new(write.into(), 1, failure.message.clone())),
            }
        }
        for problem in problems.iter_mut().filter(|problem| problem.nodes > 1) {
            problem.message = format!("{} (and {} more)", problem.message, problem.nodes - 1);
        }
        problems
    }

    /// Time until the next write may be sent again; None if none has failed.
    pub fn next_retry_in(&self, now: Timestamp) -> Option<Duration> {
        let next = self.0.values().map(|failure| failure.retry_at).min()?;
        Some(passed(now, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixtures::at;

    fn refused(failed: &mut FailedWrites, node: &str, now: i64) {
        failed.failed(Write::Update, node, 1, format!("cannot change {node}"), at(now));
    }

    #[test]
    fn a_failed_write_waits_longer_each_time_and_delays_no_other() {
        let mut failed = FailedWrites::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            refused(&mut failed, "a", 100);
            waits.push(failed.retry_in(Write::Update, "a", 1, at(100)).unwrap().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(failed.retry_in(Write::Update, "a", 1, at(160)), Some(Duration::ZERO));
        for (write, node, intent) in
            [(Write::Update, "b", 1), (Write::Delete, "a", 1), (Write::Update, "a", 2)]
        {
            assert_eq!(failed.retry_in(write, node, intent, at(100)), None);
        }
        failed.failed(Write::Update, "a", 2, String::new(), at(100));
        assert_eq!(failed.next_retry_in(at(100)), Some(Duration::from_secs(1)), "another write begins anew");
    }

    #[test]
    fn one_success_makes_the_others_of_its_kind_due() {
        let mut failed = FailedWrites::default();
        for _ in 0..5 {
            for node in ["a", "b"] {
                refused(&mut failed, node, 100);
            }
        }
        failed.succeeded(Write::Update, "never-failed", at(101));
        assert_eq!(failed.retry_in(Write::Update, "b", 1, at(101)), Some(Duration::from_secs(15)));
        failed.succeeded(Write::Update, "a", at(101));
        assert_eq!(failed.retry_in(Write::Update, "b", 1, at(101)), Some(Duration::ZERO));
    }

    #[test]
    fn problems_name_the_first_node_and_count_the_others() {
        let mut failed = FailedWrites::default();
        for node in ["c", "a", "b"] {
            refused(&mut failed, node, 0);
        }
        failed.failed(Write::Create, "", 7, "cannot create Node d".to_owned(), at(0));
        let problems = failed.problems();
        assert_eq!(
            problems.iter().map(|p| (p.reason, p.message.as_str(), p.nodes)).collect::<Vec<_>>(),
            [
                ("CreateFailed", "cannot create Node d", 1),
                ("UpdateFailed", "cannot change a (and 2 more)", 3)
            ]
        );
        failed.keep(Write::Update, |node| node == "b");
        assert_eq!(failed.problems()[1].message, "cannot change b");
    }
}
