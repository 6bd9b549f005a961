//! Report of a test run: one line per checked clause.

use std::collections::BTreeSet;

use super::contract::{self, Clause};

/// Result of the check of one clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The clause is kept; with the observation.
    Kept(String),
    /// The clause is broken; with the observation.
    Broken(String),
    /// The clause could not be checked; with the reason.
    Unseen(String),
}

/// Clauses reported so far, by number.
#[derive(Debug, Default)]
pub(super) struct Report {
    said: BTreeSet<&'static str>,
    broken: BTreeSet<&'static str>,
    unseen: BTreeSet<&'static str>,
}

impl Report {
    /// Adds a outcome and returns its line.
    pub(super) fn line(&mut self, clause: Clause, outcome: &Outcome) -> String {
        self.said.insert(clause.number);
        match outcome {
            Outcome::Kept(seen) => format!("ok      {:<5}{seen}", clause.number),
            Outcome::Broken(seen) => {
                self.broken.insert(clause.number);
                format!("FAILED  {:<5}{seen}\n             the contract: {}", clause.number, clause.text)
            }
            Outcome::Unseen(why) => {
                self.unseen.insert(clause.number);
                format!("unseen  {:<5}{why}", clause.number)
            }
        }
    }

    /// Clauses without a outcome.
    pub(super) fn missing(&self) -> impl Iterator<Item = Clause> + use<> {
        let said = self.said.clone();
        contract::ALL.iter().copied().filter(move |clause| !said.contains(clause.number))
    }

    /// Returns true if no checked clause is broken.
    pub(super) fn is_kept(&self) -> bool {
        self.broken.is_empty()
    }

    /// The summary line. A clause that was checked twice counts once, with its worse outcome.
    pub(super) fn sum(&self) -> String {
        let unseen = self.unseen.difference(&self.broken).count();
        let kept = self.said.len() - self.broken.len() - unseen;
        format!("{kept} clauses kept, {} broken, {unseen} not seen", self.broken.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_clause_is_quoted_and_counted_once() {
        let mut report = Report::default();
        assert_eq!(
            report.line(contract::ONE, &Outcome::Kept("3 machines".into())),
            "ok      3.4  3 machines"
        );
        let broken = report.line(contract::ONE, &Outcome::Broken("4 machines".into()));
        assert!(
            broken.starts_with("FAILED  3.4  4 machines\n") && broken.ends_with(contract::ONE.text),
            "{broken}"
        );
        let _ = report.line(contract::ORPHANS, &Outcome::Unseen("needs --machines".into()));
        assert_eq!(report.sum(), "0 clauses kept, 1 broken, 1 not seen");
        assert!(!report.is_kept());
        assert_eq!(report.missing().count(), contract::ALL.len() - 2);
    }
}
