//! Report of a test run: one line per checked clause.

use std::collections::BTreeMap;

use super::contract::{self, Clause};

/// Result of the check of one clause, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClauseResult {
    /// The clause is kept.
    Passed,
    /// The clause could not be checked.
    Skipped,
    /// The clause is broken.
    Failed,
}

/// Worst result of each clause reported so far, by number.
#[derive(Debug, Default)]
pub(super) struct Report(BTreeMap<&'static str, ClauseResult>);

impl Report {
    /// Adds a result and returns its line; `observation` is the reason for the result.
    pub(super) fn line(&mut self, clause: Clause, result: ClauseResult, observation: &str) -> String {
        let Clause { number, text } = clause;
        let worst = self.0.entry(number).or_insert(result);
        *worst = result.max(*worst);
        let line = format!("{number:<5}{observation}");
        match result {
            ClauseResult::Passed => format!("ok      {line}"),
            ClauseResult::Skipped => format!("unseen  {line}"),
            ClauseResult::Failed => format!("FAILED  {line}\n             the contract: {text}"),
        }
    }

    /// Clauses without a result.
    pub(super) fn missing(&self) -> Vec<Clause> {
        contract::ALL.iter().copied().filter(|clause| !self.0.contains_key(clause.number)).collect()
    }

    fn count(&self, result: ClauseResult) -> usize {
        self.0.values().filter(|own| **own == result).count()
    }

    /// Returns true if no checked clause is broken.
    pub(super) fn passed(&self) -> bool {
        self.count(ClauseResult::Failed) == 0
    }

    /// The summary line.
    pub(super) fn summary(&self) -> String {
        let [passed, failed, skipped] = [ClauseResult::Passed, ClauseResult::Failed, ClauseResult::Skipped]
            .map(|result| self.count(result));
        format!("{passed} clauses kept, {failed} broken, {skipped} not seen")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_clause_is_quoted_and_counted_once() {
        let mut report = Report::default();
        assert_eq!(report.line(contract::ONE, ClauseResult::Passed, "3 machines"), "ok      3.4  3 machines");
        let broken = report.line(contract::ONE, ClauseResult::Failed, "4 machines");
        assert!(
            broken.starts_with("FAILED  3.4  4 machines\n") && broken.ends_with(contract::ONE.text),
            "{broken}"
        );
        let _ = report.line(contract::ORPHANS, ClauseResult::Skipped, "needs --machines");
        assert_eq!(report.summary(), "0 clauses kept, 1 broken, 1 not seen");
        assert!(!report.passed());
        assert_eq!(report.missing().len(), contract::ALL.len() - 2);
    }
}
