//! Times by the clocks of others, such as a kubelet's or those of an operator before this one. A time that is later than now
//! counts from the moment at which it was first seen: otherwise it would count as «just now» until it has come, for years
//! perhaps.
//!
//! Invariant: the state is in memory only, by UID. After a restart a time in the future counts from then.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;

/// Times in the future, by UID of the object.
#[derive(Clone, Debug, Default)]
pub struct ForeignTimes(HashMap<Arc<str>, HashMap<Arc<str>, FirstSeen>>);

#[derive(Clone, Copy, Debug)]
struct FirstSeen {
    /// The time as the object has it.
    named: Timestamp,
    /// When it was first seen here.
    at: Timestamp,
}

impl ForeignTimes {
    /// The time that counts for the time `named` in the field `field` of an object; never later than now.
    pub fn counted(&mut self, uid: &Arc<str>, field: &str, named: Timestamp, now: Timestamp) -> Timestamp {
        let seen = self.0.get(uid).and_then(|fields| fields.get(field)).copied();
        // Also once the time has come: it would move otherwise.
        if let Some(FirstSeen { at, .. }) = seen.filter(|seen| seen.named == named) {
            return at;
        }
        if named > now {
            let fields = self.0.entry(Arc::clone(uid)).or_default();
            fields.insert(field.into(), FirstSeen { named, at: now });
            return now;
        }
        if seen.is_some() {
            self.0.entry(Arc::clone(uid)).or_default().remove(field);
        }
        named
    }

    /// Forgets an object that is gone.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixtures::at;

    #[test]
    fn a_time_in_the_future_counts_from_its_first_sight() {
        let (mut times, uid) = (ForeignTimes::default(), Arc::from("uid"));
        let mut counted = |named, now| times.counted(&uid, "Ready", at(named), at(now));
        assert_eq!(counted(90, 100), at(90), "it has come");
        assert_eq!([counted(400, 100), counted(400, 150)], [at(100); 2]);
        assert_eq!(counted(400, 500), at(100), "it does not move once it has come");
        assert_eq!(counted(900, 500), at(500), "another one counts anew");
        assert_eq!([counted(510, 520), counted(900, 530)], [at(510), at(530)]);
        assert_eq!(times.counted(&uid, "Disk", at(900), at(540)), at(540), "each field by itself");
        times.forget("uid");
        assert!(times.0.is_empty());
    }
}
