//! Report of a test run: one line per checked clause.

use std::collections::BTreeMap;

use super::contract::{self, Clause};

/// Result of the check of one clause, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// The clause is kept.
    Passed,
    /// The clause could not be checked.
    Skipped,
    /// The clause is broken.
    Failed,
}

/// Worst outcome of each clause reported so far, by number.
#[derive(Debug, Default)]
pub(super) struct Report(BTreeMap<&'static str, Outcome>);

impl Report {
    /// Adds an outcome and returns its line; `observation` is the reason for the outcome.
    pub(super) fn line(&mut self, clause: Clause, outcome: Outcome, observation: &str) -> String {
        let Clause { number, text } = clause;
        let worst = self.0.entry(number).or_insert(outcome);
        *worst = outcome.max(*worst);
        let line = format!("{number:<5}{observation}");
        match outcome {
            Outcome::Passed => format!("ok      {line}"),
            Outcome::Skipped => format!("unseen  {line}"),
            Outcome::Failed => format!("FAILED  {line}\n             the contract: {text}"),
        }
    }

    /// Clauses without an outcome.
    pub(super) fn missing(&self) -> Vec<Clause> {
        contract::ALL.iter().copied().filter(|clause| !self.0.contains_key(clause.number)).collect()
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.0.values().filter(|own| **own == outcome).count()
    }

    /// Returns true if no checked clause is broken.
    pub(super) fn passed(&self) -> bool {
        self.count(Outcome::Failed) == 0
    }

    /// The summary line.
    pub(super) fn summary(&self) -> String {
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|outcome| self.count(outcome));
        format!("{passed} clauses kept, {failed} broken, {skipped} not seen")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_clause_is_quoted_and_counted_once() {
        let mut report = Report::default();
        assert_eq!(report.line(contract::ONE, Outcome::Passed, "3 machines"), "ok      3.4  3 machines");
        let broken = report.line(contract::ONE, Outcome::Failed, "4 machines");
        assert!(
            broken.starts_with("FAILED  3.4  4 machines\n") && broken.ends_with(contract::ONE.text),
            "{broken}"
        );
        let _ = report.line(contract::ORPHANS, Outcome::Skipped, "needs --machines");
        assert_eq!(report.summary(), "0 clauses kept, 1 broken, 1 not seen");
        assert!(!report.passed());
        assert_eq!(report.missing().len(), contract::ALL.len() - 2);
    }
}
