//! Backoff between the machines of one Node, as a kubelet's `CrashLoopBackOff`.
//!
//! The first machine that ends soon is replaced at once, later ones after 10 s, doubled up to 5 minutes. Ten
//! minutes of life reset the backoff.
//!
//! Invariant: the state is in memory only, by Node UID. After a restart the count starts again, which costs
//! two machines.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_node_api::time::left;

use super::backoff::Backoff;

/// Wait after the second early end in a row; none after the first.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(5));
/// Lifetime after which a machine's end is not early.
const LIFE: Duration = Duration::from_mins(10);

/// Ends of machines by Node UID.
#[derive(Clone, Debug, Default)]
pub struct MachineBackoffs(HashMap<Arc<str>, Ends>);

#[derive(Clone, Debug, Default)]
struct Ends {
    /// Creation of the last machine; None if it was created before this process started.
    made: Option<Timestamp>,
    /// End of the last machine; None while it lives.
    ended: Option<Timestamp>,
    /// Number of early ends in a row.
    count: u32,
    /// Cause of the last end.
    cause: String,
}

/// Backoff before the next machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineBackoff {
    /// Time left.
    pub left: Duration,
    /// Message for people; unchanged as long as the backoff lasts.
    pub message: String,
}

impl MachineBackoffs {
    /// Records the creation of a machine.
    pub fn made(&mut self, uid: &Arc<str>, now: Timestamp) {
        let ends = self.0.entry(Arc::clone(uid)).or_default();
        (ends.made, ends.ended) = (Some(now), None);
    }

    /// Records the end of the Node's machine; repeated calls for the same end change nothing.
    pub fn ended(&mut self, uid: &Arc<str>, cause: &str, now: Timestamp) {
        let ends = self.0.entry(Arc::clone(uid)).or_default();
        if ends.ended.is_some() {
            return;
        }
        let reset = ends.made.is_some_and(|made| left(made, LIFE, now).is_zero());
        ends.count = if reset { 1 } else { ends.count.saturating_add(1) };
        ends.ended = Some(now);
        cause.clone_into(&mut ends.cause);
    }

    /// Backoff before the Node gets another machine; None if it may get one now.
    pub fn wait(&self, uid: &str, now: Timestamp) -> Option<MachineBackoff> {
        let Ends { ended, count, cause, .. } = self.0.get(uid)?;
        let wait = BACKOFF.after(count.saturating_sub(1));
        let left = left((*ended)?, wait, now);
        let seconds = wait.as_secs();
        (!left.is_zero()).then(|| MachineBackoff {
            left,
            message: format!(
                "{count} machines in a row ended soon, the next is made after {seconds} s: {cause}"
            ),
        })
    }

    /// Forgets a Node that is gone.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixtures::at;

    #[test]
    fn machines_that_end_at_once_are_made_ever_more_rarely() {
        let (mut all, uid) = (MachineBackoffs::default(), Arc::from("uid"));
        let mut now = 0;
        let waits = [(); 8].map(|()| {
            all.made(&uid, at(now));
            assert_eq!(all.wait(&uid, at(now)), None, "it lives");
            // Each end is observed more than once.
            for later in 1..=2 {
                all.ended(&uid, "Evicted", at(now + later));
            }
            let wait = all.wait(&uid, at(now + 1)).map_or(0, |wait| wait.left.as_secs());
            now += 1 + i64::try_from(wait).unwrap();
            assert_eq!(all.wait(&uid, at(now)), None, "its time is over");
            wait
        });
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        all.made(&uid, at(now));
        all.ended(&uid, "Evicted", at(now + 600));
        assert_eq!(all.wait(&uid, at(now + 600)), None, "it lived for long");
        assert_eq!(all.wait("other", at(now)), None);
        all.forget(&uid);
        assert!(all.0.is_empty());
    }

    #[test]
    fn what_is_said_does_not_change_while_the_wait_lasts() {
        let (mut all, uid) = (MachineBackoffs::default(), Arc::from("uid"));
        for second in [0, 1] {
            all.made(&uid, at(second));
            all.ended(&uid, "Evicted: low on memory", at(second));
        }
        let message = |second| all.wait(&uid, at(second)).unwrap().message;
        assert_eq!(message(1), message(9));
        assert_eq!(
            message(1),
            "2 machines in a row ended soon, the next is made after 10 s: Evicted: low on memory"
        );
    }
}
