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

/// Number of errors in a row that count as a refusal: a webhook that is broken for one Node holds up no other for longer.
/// With the back-offs between them that is half a minute, and an election of etcd, say, is over by then.
const ERRORS: u32 = 6;

/// A kind of write, ordered by importance for the set; its name is the reason of conditions, events and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(suffix = "Failed")]
pub enum Write {
    /// Creation of a Node. A Node to create has no lasting name: the entry has the name of the Node's revision.
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
    /// Number of answers in a row with an error of the server.
    errors: u32,
    refused: bool,
}

/// What the API server answered to a failed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write had no effect, and a repetition would have none.
    Refusal,
    /// An error of the server, such as that of a broken webhook.
    Error,
    /// Nothing, or that it is busy: nobody knows what a repetition does.
    None,
}

/// A failed write.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The error with its causes, for people.
    pub message: String,
    /// What the API server answered.
    pub answer: Answer,
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

    /// Time until a write that was refused may be sent again; None if it was not, or if nobody knows.
    pub fn refused_for(&self, write: Write, node: &str, intent: u64, now: Timestamp) -> Option<Duration> {
        let refused = self.0.get(&(write, node.to_owned())).is_some_and(|failure| failure.refused);
        self.retry_in(write, node, intent, now).filter(|_| refused)
    }

    /// Records a failed write. A refusal holds until the write succeeds.
    pub fn failed(&mut self, write: Write, node: &str, intent: u64, failure: Failure, now: Timestamp) {
        let key = (write, node.to_owned());
        let before = self.0.get(&key).filter(|failure| failure.intent == intent);
        let (failures, errors, refused) =
            before.map_or((0, 0, false), |failure| (failure.failures, failure.errors, failure.refused));
        let (failures, message) = (failures.saturating_add(1), failure.message);
        let errors = if failure.answer == Answer::Error { errors.saturating_add(1) } else { 0 };
        let refused = refused || failure.answer == Answer::Refusal || errors == ERRORS;
        let retry_at = now + BACKOFF.after(failures);
        self.0.insert(key, FailedWrite { intent, failures, retry_at, message, errors, refused });
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

    /// Drops failures of this kind whose writes are no longer wanted; `wanted` gets the name of the Node, or of the revision.
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

    fn failure(message: &str, answer: Answer) -> Failure {
        Failure { message: message.to_owned(), answer }
    }

    fn refused(failed: &mut FailedWrites, node: &str, now: i64) {
        let failure = failure(&format!("cannot change {node}"), Answer::Refusal);
        failed.failed(Write::Update, node, 1, failure, at(now));
    }

    #[test]
    fn only_an_answer_is_a_refusal_and_it_holds_until_a_success() {
        let mut failed = FailedWrites::default();
        let write = |failed: &mut FailedWrites, answer| {
            failed.failed(Write::Delete, "a", 1, failure("cannot delete a", answer), at(100));
            failed.refused_for(Write::Delete, "a", 1, at(100)).map(|left| left.as_secs())
        };
        assert_eq!(write(&mut failed, Answer::None), None, "without an answer, the deletion is repeated");
        assert_eq!(failed.retry_in(Write::Delete, "a", 1, at(100)), Some(Duration::from_secs(1)));
        assert_eq!(write(&mut failed, Answer::Refusal), Some(2));
        assert_eq!(write(&mut failed, Answer::None), Some(4), "no answer takes nothing back");
        assert_eq!(failed.refused_for(Write::Delete, "a", 2, at(100)), None, "another Node of this name");
        failed.succeeded(Write::Delete, "a", at(101));
        assert_eq!(write(&mut failed, Answer::None), None);
        for _ in 0..5 {
            assert_eq!(write(&mut failed, Answer::Error), None);
        }
        assert_eq!(write(&mut failed, Answer::None), None, "they are not in a row");
        for _ in 0..5 {
            assert_eq!(write(&mut failed, Answer::Error), None);
        }
        assert_eq!(write(&mut failed, Answer::Error), Some(60), "a webhook is broken, and the others go on");
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
        failed.failed(Write::Update, "a", 2, failure("", Answer::Refusal), at(100));
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
        failed.failed(Write::Create, "", 7, failure("cannot create Node d", Answer::Refusal), at(0));
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
