//! How a schedule that fails is made smaller: by actions, then by kinds of faults, operators, single faults, and time.

use std::ops::Range;

use crate::{run::RunResult, schedule::Schedule};

impl Schedule {
    /// The schedule without some of its actions and faults: what is left still fails.
    pub fn shrunk(mut self, run: impl Fn(&Self) -> RunResult) -> Self {
        let fails = |schedule: &Self| run(schedule).violation.is_some();
        let mut at = 0;
        while at < self.actions.len() {
            let mut fewer = self.clone();
            fewer.actions.remove(at);
            if fails(&fewer) { self = fewer } else { at += 1 }
        }
        for fault in self.faults.clone() {
            let mut fewer = self.clone();
            fewer.faults.remove(&fault);
            if fails(&fewer) {
                self = fewer;
            }
        }
        if self.operators > 1 {
            let alone = Self { operators: 1, ..self.clone() };
            if fails(&alone) {
                self = alone;
            }
        }
        let happened = run(&self).happened;
        self.spare(0..happened, &fails);
        let instant = Self { is_instant: true, ..self.clone() };
        if fails(&instant) { instant } else { self }
    }

    /// Spares those of these random faults without which it still fails: all at once, or each half by itself.
    fn spare(&mut self, faults: Range<u64>, fails: &impl Fn(&Self) -> bool) {
        if faults.is_empty() {
            return;
        }
        let mut fewer = self.clone();
        fewer.spared.extend(faults.clone());
        if fails(&fewer) {
            *self = fewer;
        } else if faults.end - faults.start > 1 {
            let middle = u64::midpoint(faults.start, faults.end);
            self.spare(faults.start..middle, fails);
            self.spare(middle..faults.end, fails);
        }
    }
}
