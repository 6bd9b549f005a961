//! Back-off between the machines of one Node: one that ends soon after it was made, again and again, is not made again at
//! once. As a kubelet does with containers (`CrashLoopBackOff`): the first is made again at once, later ones after 10 s,
//! doubled up to 5 minutes; ten minutes of life end the back-off.
//!
//! Invariant: kept in memory only, by the UID of the Node. After a restart the count begins anew, which costs two machines.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::node::until;

/// The wait after the second end in a row.
const FIRST: Duration = Duration::from_secs(10);
/// The longest wait.
const LONGEST: Duration = Duration::from_mins(5);
/// A machine that lived for so long did not end soon.
const LIFE: Duration = Duration::from_mins(10);

/// How the machines of Nodes ended, by the UID of the Node.
#[derive(Clone, Debug, Default)]
pub struct BackOffs(HashMap<Arc<str>, Ends>);

#[derive(Clone, Debug, Default)]
struct Ends {
    /// When the last machine was made; None where that was before this process.
    made: Option<Timestamp>,
    /// When it ended; None while it lives.
    ended: Option<Timestamp>,
    /// How many ended in a row, each soon.
    count: u32,
    /// How the last one ended.
    how: String,
}

/// A wait before the next machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// What is left of it.
    pub left: Duration,
    /// For people; the same for as long as the wait lasts.
    pub message: String,
}

impl BackOffs {
    /// A machine was made for the Node.
    pub fn made(&mut self, uid: &Arc<str>, now: Timestamp) {
        let ends = self.0.entry(Arc::clone(uid)).or_default();
        (ends.made, ends.ended) = (Some(now), None);
    }

    /// The Node's machine has ended; seen as often as it is looked at.
    pub fn ended(&mut self, uid: &Arc<str>, how: &str, now: Timestamp) {
        let ends = self.0.entry(Arc::clone(uid)).or_default();
        if ends.ended.is_some() {
            return;
        }
        let lived = ends.made.is_some_and(|made| until(made, LIFE, now).is_zero());
        ends.count = if lived { 1 } else { ends.count.saturating_add(1) };
        ends.ended = Some(now);
        how.clone_into(&mut ends.how);
    }

    /// What has to pass before the Node gets another machine.
    #[must_use]
    pub fn wait(&self, uid: &str, now: Timestamp) -> Option<BackOff> {
        let Ends { ended, count, how, .. } = self.0.get(uid)?;
        let doubled = 2_u32.saturating_pow(count.checked_sub(2)?);
        let wait = FIRST.saturating_mul(doubled).min(LONGEST);
        let left = until((*ended)?, wait, now);
        let message = || {
            format!(
                "{count} machines in a row ended soon, the next is made after {} s: {how}",
                wait.as_secs()
            )
        };
        (!left.is_zero()).then(|| BackOff { left, message: message() })
    }

    /// The Node is gone.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn machines_that_end_at_once_are_made_ever_more_rarely() {
        let (mut all, uid) = (BackOffs::default(), Arc::from("uid"));
        let mut now = 0;
        let waits = [(); 8].map(|()| {
            all.made(&uid, at(now));
            assert_eq!(all.wait(&uid, at(now)), None, "it lives");
            // Each is looked at more than once after its end.
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
        let (mut all, uid) = (BackOffs::default(), Arc::from("uid"));
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
