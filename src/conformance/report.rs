//! What was found out: a line for each clause as it is looked at.

use std::{collections::BTreeSet, fmt::Write as _};

use super::contract::{self, Clause};

/// How a look at a clause ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is kept: what was seen.
    Kept(String),
    /// It is not: what was seen instead.
    Broken(String),
    /// Nobody could see it: why.
    Unseen(String),
}

/// What was said so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    said: BTreeSet<&'static str>,
    broken: BTreeSet<&'static str>,
    unseen: BTreeSet<&'static str>,
}

impl Report {
    /// Takes a verdict down; the line that says it.
    pub(super) fn line(&mut self, clause: &Clause, verdict: &Verdict) -> String {
        self.said.insert(clause.number);
        let (word, seen) = match verdict {
            Verdict::Kept(seen) => ("ok", seen),
            Verdict::Broken(seen) => {
                self.broken.insert(clause.number);
                ("FAILED", seen)
            }
            Verdict::Unseen(why) => {
                self.unseen.insert(clause.number);
                ("unseen", why)
            }
        };
        let mut line = format!("{word:<8}{:<5}{seen}", clause.number);
        if matches!(verdict, Verdict::Broken(_)) {
            let _ = write!(line, "\n             the contract: {}", clause.text);
        }
        line
    }

    /// Clauses of which nothing was said.
    pub(super) fn missing(&self) -> impl Iterator<Item = &'static Clause> + use<> {
        let said = self.said.clone();
        contract::ALL.iter().filter(move |clause| !said.contains(clause.number))
    }

    /// Whether every clause that could be looked at is kept.
    pub(super) fn is_kept(&self) -> bool {
        self.broken.is_empty()
    }

    /// The last line. A clause that was looked at twice counts once, by the worse of its verdicts.
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
            report.line(&contract::ONE, &Verdict::Kept("3 machines".into())),
            "ok      3.4  3 machines"
        );
        let broken = report.line(&contract::ONE, &Verdict::Broken("4 machines".into()));
        assert!(
            broken.starts_with("FAILED  3.4  4 machines\n") && broken.ends_with(contract::ONE.text),
            "{broken}"
        );
        let _ = report.line(&contract::ORPHANS, &Verdict::Unseen("needs --machines".into()));
        assert_eq!(report.sum(), "0 clauses kept, 1 broken, 1 not seen");
        assert!(!report.is_kept());
        assert_eq!(report.missing().count(), contract::ALL.len() - 2);
    }
}
