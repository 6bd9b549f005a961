//! Slots of slow calls: drains, and the calls of each provider, have limits beside that of reconciliations
//! ([why](../../../docs/decisions/0056-slow-calls-have-slots.md)).
//!
//! Input: keys of reconciliations that need a slot. Output: further reconciliations of these keys, each with its slot.
//!
//! Invariants: a reconciliation without a slot sends no eviction and no call of a provider outside of this process; a key
//! is reconciled at most once at a time, with or without a slot; keys that wait for a slot get theirs in order of arrival.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    fmt,
    time::Duration,
};

use kube_ext::work_queue::{Config, Consumer, WorkQueue, work_queue};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Key;
use crate::provider::Provider;

/// Concurrent reconciliations without a slot; each sends one write at a time.
const QUICK: usize = 32;
/// Drains with a slot. Each sends some evictions at once, which together leave most of its share of the API server to
/// the operator's other requests.
const DRAINS: usize = 8;
/// Concurrent calls of one provider.
const CALLS: usize = 8;
/// Time after which a wait for a slot is reported.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Calls that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// Evictions and deletions of pods.
    Drain,
    /// Calls of the provider of this name.
    Provider(&'static str),
}

impl Slot {
    /// The slot for calls of a provider; None if its machines live in this process, so that calls take no time.
    pub(super) fn of(provider: &dyn Provider) -> Option<Self> {
        (!provider.is_volatile()).then(|| Self::Provider(provider.name()))
    }
}

/// The calls, for people.
impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain => f.write_str("drains"),
            Self::Provider(name) => write!(f, "calls of the provider {name}"),
        }
    }
}

/// Work queues of the controller: that of reconciliations without a slot, and one for each slot.
pub(super) struct Queues {
    all: BTreeMap<Option<Slot>, WorkQueue<Key>>,
    keys: Mutex<HashMap<Key, KeyState>>,
}

/// Consumer ends of the queues.
pub struct Consumers(pub(super) Vec<(Option<Slot>, Consumer<Key>, Config)>);

/// State of a key that is reconciled or waits for a slot.
#[derive(Debug, Default)]
struct KeyState {
    is_running: bool,
    /// Queues that get the key once its reconciliation is over.
    next: Vec<Option<Slot>>,
    /// Slots that the key waits for.
    waits: Vec<(Slot, Instant)>,
}

impl Queues {
    /// Queues for the calls of these providers.
    pub(super) fn new<'a>(providers: impl Iterator<Item = &'a dyn Provider>) -> (Self, Consumers) {
        let slots = [None, Some(Slot::Drain)].into_iter().chain(providers.map(Slot::of));
        let (mut all, mut consumers) = (BTreeMap::new(), Vec::new());
        for slot in slots {
            let concurrency = match slot {
                None => QUICK,
                Some(Slot::Drain) => DRAINS,
                Some(Slot::Provider(_)) => CALLS,
            };
            // Providers in this process need no slot, and share the queue of reconciliations without one.
            if let Entry::Vacant(vacant) = all.entry(slot) {
                let (queue, consumer) = work_queue();
                vacant.insert(queue);
                consumers.push((slot, consumer, Config { concurrency, min_interval: Duration::ZERO }));
            }
        }
        (Self { all, keys: Mutex::default() }, Consumers(consumers))
    }

    /// Requests a reconciliation after `delay` at the latest.
    pub(super) fn add_after(&self, key: Key, delay: Duration) {
        if let Some(queue) = self.all.get(&None) {
            queue.add_after(key, delay);
        }
    }

    /// Requests a reconciliation at once.
    pub(super) fn add(&self, key: Key) {
        self.add_after(key, Duration::ZERO);
    }

    /// Begins a reconciliation. Returns false while another one of the key is under way: this one comes after it.
    pub(super) fn begin(&self, key: &Key, slot: Option<Slot>) -> bool {
        let mut keys = self.keys.lock();
        let state = keys.entry(key.clone()).or_default();
        if state.is_running {
            if !state.next.contains(&slot) {
                state.next.push(slot);
            }
            return false;
        }
        state.is_running = true;
        state.waits.retain(|(waits, _)| Some(*waits) != slot);
        true
    }

    /// Requests a reconciliation with this slot, after the one that is under way. Returns how long the key has waited.
    pub(super) fn ask(&self, key: &Key, slot: Slot) -> Duration {
        let mut keys = self.keys.lock();
        let state = keys.entry(key.clone()).or_default();
        if !state.next.contains(&Some(slot)) {
            state.next.push(Some(slot));
        }
        if let Some((_, since)) = state.waits.iter().find(|(waits, _)| *waits == slot) {
            return since.elapsed();
        }
        state.waits.push((slot, Instant::now()));
        Duration::ZERO
    }

    /// Returns true if the key waits for a slot.
    pub(super) fn waits_for_slot(&self, key: &Key) -> bool {
        self.keys.lock().get(key).is_some_and(|state| !state.waits.is_empty())
    }

    /// Ends a reconciliation.
    pub(super) fn end(&self, key: &Key) {
        let mut keys = self.keys.lock();
        let Some(state) = keys.get_mut(key) else { return };
        state.is_running = false;
        let next = std::mem::take(&mut state.next);
        // Without a request of this reconciliation, a wait from before is over.
        state.waits.retain(|(slot, _)| next.contains(&Some(*slot)));
        if state.waits.is_empty() {
            keys.remove(key);
        }
        drop(keys);
        for queue in next.iter().filter_map(|slot| self.all.get(slot)) {
            queue.add(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Slot = Slot::Drain;

    fn key() -> Key {
        Key::Node("a".into())
    }

    #[test]
    fn a_key_has_one_reconciliation_at_a_time_with_or_without_a_slot() {
        let (queues, _) = Queues::new(std::iter::empty());
        assert!(queues.begin(&key(), None));
        assert!(!queues.begin(&key(), Some(SLOT)) && !queues.begin(&key(), None));
        queues.end(&key());
        assert!(queues.begin(&key(), Some(SLOT)));
        assert!(!queues.begin(&key(), None));
        queues.end(&key());
        assert!(queues.keys.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_a_slot_lasts_until_the_reconciliation_with_the_slot() {
        let (queues, _) = Queues::new(std::iter::empty());
        let ask = || {
            assert!(queues.begin(&key(), None));
            let waited = queues.ask(&key(), SLOT);
            queues.end(&key());
            waited
        };
        assert_eq!(ask(), Duration::ZERO);
        tokio::time::advance(PATIENCE).await;
        assert_eq!(ask(), PATIENCE);
        assert!(queues.begin(&key(), Some(SLOT)));
        queues.end(&key());
        tokio::time::advance(PATIENCE).await;
        assert_eq!(ask(), Duration::ZERO, "a new wait");
        // A reconciliation that needs no slot ends the wait.
        assert!(queues.begin(&key(), None));
        queues.end(&key());
        assert!(queues.keys.lock().is_empty());
    }
}
