//! Order and times of starts: a work queue without its clock and its tasks.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

use super::Action;
use crate::backoff::Backoff;

/// Backoff of a key that fails.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_mins(1));
/// Longest wait of any kind: `Instant` cannot represent every time.
pub const LONGEST: Duration = Duration::from_hours(24 * 365);

/// Position among the waiting keys: due time and arrival number.
type Position = (Instant, u64);

/// Keys of a queue. Each operation costs at most the logarithm of the number of waiting keys.
#[derive(Debug)]
pub struct Schedule<K> {
    /// Waiting keys, the first to start first. A running key is never among them.
    waiting: BTreeMap<Position, K>,
    keys: HashMap<K, KeyState>,
    /// Keys within their interval, by its end; they are remembered until then.
    started: VecDeque<(Instant, K)>,
    /// Next arrival number.
    arrivals: u64,
}

/// State of a key that waits, runs, has failed, or started within its interval.
#[derive(Debug, Default)]
struct KeyState {
    /// Position of the key; while the key runs, its position afterwards.
    position: Option<Position>,
    is_running: bool,
    /// End of the interval.
    not_before: Option<Instant>,
    /// Consecutive failures.
    failures: u32,
}

impl<K> Default for Schedule<K> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), keys: HashMap::new(), started: VecDeque::new(), arrivals: 0 }
    }
}

impl<K: Eq + Hash + Clone> Schedule<K> {
    /// Requests a start of `key` at `due` at the latest. Returns true if the key became the first to start.
    pub fn add(&mut self, key: K, due: Instant) -> bool {
        let position = self.position_at(due);
        let state = self.keys.entry(key.clone()).or_default();
        let position = state.allowed(position);
        if state.position.is_some_and(|present| present <= position) {
            return false;
        }
        let former = state.position.replace(position);
        if state.is_running {
            return false;
        }
        if let Some(former) = former {
            self.waiting.remove(&former);
        }
        self.waiting.insert(position, key);
        self.first() == Some(position)
    }

    /// Takes the first due key. The key does not start again before [`Self::finish`], nor before
    /// `min_interval` has passed from now.
    pub fn start(&mut self, now: Instant, min_interval: Duration) -> Option<K> {
        self.forget(now);
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        let key = first.remove();
        // Every waiting key has a state.
        let state = self.keys.entry(key.clone()).or_default();
        state.position = None;
        state.is_running = true;
        if !min_interval.is_zero() {
            let not_before = now + min_interval;
            state.not_before = Some(not_before);
            self.started.push_back((not_before, key.clone()));
        }
        Some(key)
    }

    /// Ends a run that [`Self::start`] began.
    pub fn finish(&mut self, key: K, action: Action, now: Instant) {
        let Some(state) = self.keys.get_mut(&key) else { return };
        state.is_running = false;
        state.failures = if action == Action::Failed { state.failures.saturating_add(1) } else { 0 };
        let delay = match action {
            Action::AwaitChange => None,
            Action::RequeueAfter(delay) => Some(delay),
            Action::Failed => Some(BACKOFF.after(state.failures)),
        };
        let again = delay.map(|delay| {
            self.arrivals += 1;
            state.allowed((now + delay.min(LONGEST), self.arrivals))
        });
        state.position = state.position.into_iter().chain(again).min();
        if let Some(position) = state.position {
            self.waiting.insert(position, key);
        } else if state.is_forgettable(now) {
            self.keys.remove(&key);
        }
    }

    /// Due time of the first waiting key.
    pub fn next_due(&self) -> Option<Instant> {
        self.first().map(|(due, _)| due)
    }

    fn first(&self) -> Option<Position> {
        self.waiting.first_key_value().map(|(position, _)| *position)
    }

    fn position_at(&mut self, due: Instant) -> Position {
        self.arrivals += 1;
        (due, self.arrivals)
    }

    /// Forgets idle keys whose interval has ended.
    fn forget(&mut self, now: Instant) {
        while let Some((_, key)) = self.started.pop_front_if(|(end, _)| *end <= now) {
            if let Entry::Occupied(entry) = self.keys.entry(key)
                && entry.get().is_forgettable(now)
            {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
impl<K> Schedule<K> {
    /// Number of waiting keys, without running ones.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of remembered keys.
    pub fn remembered(&self) -> usize {
        self.keys.len()
    }
}

impl KeyState {
    /// The position, moved to the end of the interval.
    fn allowed(&self, (due, arrival): Position) -> Position {
        (self.not_before.map_or(due, |not_before| due.max(not_before)), arrival)
    }

    /// Returns true if a new state would be the same. A failed key waits, so its failures are kept.
    fn is_forgettable(&self, now: Instant) -> bool {
        self.position.is_none()
            && !self.is_running
            && self.not_before.is_none_or(|not_before| not_before <= now)
    }
}
