//! Slots for hollow machines in this process, and a queue of machines that wait for one.
//!
//! Invariants: the slots in use never exceed the maximum. A free slot is offered to the machine that has
//! waited longest. A machine that does not acquire it moves to the end of the queue, so that it blocks no other.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kube_ext::metrics::gauge;
use kube_node_cache::{Cache, EventHandler, NodeView};
use kube_node_controllers::provider::{MachineId, ProviderError, Watchers};
use parking_lot::Mutex;
use prometheus::{Error, IntGauge, Registry};

/// Slots for machines.
pub struct Slots {
    max: usize,
    state: Mutex<State>,
    waiting: IntGauge,
    /// Receivers of waiting machines that fit now.
    pub(super) watchers: Watchers,
}

#[derive(Default)]
struct State {
    /// Number of slots that each machine has, by UID.
    acquired: HashMap<Arc<str>, usize>,
    used: usize,
    /// Refused machines and the slots that they need, in order of arrival.
    waiting: BTreeMap<u64, (MachineId, usize)>,
    /// Keys of `waiting`, by UID: tens of thousands of machines may wait.
    arrivals: HashMap<Arc<str>, u64>,
    arrived: u64,
}

impl Slots {
    /// The given number of slots. `nodes` must be filled by a watch: a waiting machine is forgotten with its Node.
    pub fn register(slots: usize, nodes: &Cache<NodeView>, registry: &Registry) -> Result<Arc<Self>, Error> {
        let help = "Most hollow machines that this process carries";
        let limit = gauge(registry, ("kube_node_hollow_machines_max", help))?;
        limit.set(i64::try_from(slots).unwrap_or(i64::MAX));
        let help = "Hollow machines that wait for a place in this process";
        let waiting = gauge(registry, ("kube_node_hollow_machines_refused", help))?;
        let (state, watchers) = (Mutex::default(), Watchers::default());
        let slots = Arc::new(Self { max: slots, state, waiting, watchers });
        nodes.add_event_handler(slots.clone());
        Ok(slots)
    }

    /// Acquires slots for a machine unless it has them. A refused machine is reported once it fits.
    pub fn acquire(&self, id: &MachineId, slots: usize) -> Result<(), ProviderError> {
        let mut state = self.state.lock();
        if state.acquired.contains_key(&id.uid) {
            return Ok(());
        }
        if state.used + slots > self.max {
            if !state.arrivals.contains_key(&id.uid) {
                state.enqueue(id.clone(), slots);
            }
            self.show(&state);
            // One message for all waiting machines, without changing parts, so that it is written once.
            return Err(ProviderError::Full(format!(
                "this process carries {} hollow machines, the most that its memory is good for: raise its memory limit (or --max-machines), or have hollow hosts carry the machines (hollow.hosts of the class)",
                self.max
            )));
        }
        state.forget(&id.uid);
        state.used += slots;
        state.acquired.insert(Arc::clone(&id.uid), slots);
        self.show(&state);
        Ok(())
    }

    /// Releases the slots of a machine.
    pub fn release(&self, uid: &str) {
        let mut state = self.state.lock();
        if let Some(slots) = state.acquired.remove(uid) {
            state.used -= slots;
            state.offer(self.max, &self.watchers);
        }
    }

    /// Removes a machine from the queue. A slot may have been offered to it.
    pub fn forget(&self, uid: &str) {
        let mut state = self.state.lock();
        if state.forget(uid) {
            state.offer(self.max, &self.watchers);
            self.show(&state);
        }
    }

    /// Number of machines with slots.
    pub fn count(&self) -> usize {
        self.state.lock().acquired.len()
    }

    fn show(&self, state: &State) {
        self.waiting.set(i64::try_from(state.waiting.len()).unwrap_or(i64::MAX));
    }
}

impl State {
    /// Appends a machine to the queue.
    fn enqueue(&mut self, id: MachineId, slots: usize) {
        self.arrived += 1;
        self.arrivals.insert(Arc::clone(&id.uid), self.arrived);
        self.waiting.insert(self.arrived, (id, slots));
    }

    fn forget(&mut self, uid: &str) -> bool {
        self.arrivals.remove(uid).is_some_and(|arrival| self.waiting.remove(&arrival).is_some())
    }

    /// Reports the first machines of the queue that fit into the free slots. Until they acquire them, they are
    /// its last.
    fn offer(&mut self, max: usize, watchers: &Watchers) {
        let mut free = max.saturating_sub(self.used);
        for _ in 0..self.waiting.len() {
            let Some(first) = self.waiting.first_entry() else { return };
            let Some(left) = free.checked_sub(first.get().1) else { return };
            free = left;
            let (id, slots) = first.remove();
            watchers.notify(&id);
            self.enqueue(id, slots);
        }
    }
}

impl EventHandler<NodeView> for Slots {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        if let Some(gone) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.forget(&gone.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt, stream::BoxStream};

    use super::*;

    fn id(name: &str) -> MachineId {
        MachineId { uid: format!("uid-{name}").into(), node: name.into() }
    }

    fn slots(slots: usize) -> (Arc<Slots>, BoxStream<'static, MachineId>) {
        let slots = Slots::register(slots, &Cache::default(), &Registry::new()).unwrap();
        let notified = slots.watchers.watch();
        (slots, notified)
    }

    fn notified(notified: &mut BoxStream<'static, MachineId>) -> Vec<String> {
        std::iter::from_fn(|| notified.next().now_or_never().flatten())
            .map(|id| id.node.to_string())
            .collect()
    }

    #[test]
    fn who_finds_no_place_is_told_when_there_is_one_in_the_order_of_arrival() {
        let (slots, mut calls) = slots(2);
        for name in ["a", "b", "a"] {
            slots.acquire(&id(name), 1).unwrap();
        }
        for name in ["c", "d", "c"] {
            let refused = slots.acquire(&id(name), 1).unwrap_err();
            assert_eq!(refused.reason(), "OutOfResources");
            assert!(refused.to_string().starts_with("this process carries 2 hollow machines"), "{refused}");
        }
        assert_eq!((slots.count(), slots.waiting.get(), notified(&mut calls)), (2, 2, vec![]));
        slots.release("uid-a");
        slots.release("uid-a");
        assert_eq!(notified(&mut calls), ["c"]);
        slots.acquire(&id("c"), 1).unwrap();
        assert!(slots.acquire(&id("e"), 1).is_err());
        slots.release("uid-b");
        assert_eq!((notified(&mut calls), slots.waiting.get()), (vec!["d".to_owned()], 2));
    }

    #[test]
    fn a_place_meant_for_a_node_that_is_gone_goes_to_the_next() {
        let (slots, mut calls) = slots(1);
        slots.acquire(&id("a"), 1).unwrap();
        for name in ["b", "c"] {
            slots.acquire(&id(name), 1).unwrap_err();
        }
        slots.release("uid-a");
        assert_eq!(notified(&mut calls), ["b"]);
        let gone = NodeView { name: "b".into(), uid: "uid-b".into(), ..NodeView::default() };
        slots.on_change(Some(&Arc::new(gone)), None);
        assert_eq!((notified(&mut calls), slots.waiting.get()), (vec!["c".to_owned()], 1));
    }

    #[test]
    fn who_does_not_come_keeps_nobody_from_a_place() {
        let (slots, mut calls) = slots(2);
        for name in ["a", "b"] {
            slots.acquire(&id(name), 1).unwrap();
        }
        for name in ["c", "d"] {
            slots.acquire(&id(name), 1).unwrap_err();
        }
        slots.release("uid-a");
        assert_eq!(notified(&mut calls), ["c"]);
        slots.release("uid-b");
        assert_eq!(notified(&mut calls), ["d", "c"]);
        slots.forget("uid-c");
        slots.forget("uid-c");
        assert_eq!((notified(&mut calls), slots.waiting.get()), (vec!["d".to_owned()], 1));
    }

    #[test]
    fn a_machine_that_takes_more_waits_for_all_of_it() {
        let (slots, mut calls) = slots(10);
        slots.acquire(&id("small"), 1).unwrap();
        slots.acquire(&id("large"), 10).unwrap_err();
        slots.release("uid-small");
        assert_eq!(notified(&mut calls), ["large"]);
        slots.acquire(&id("large"), 10).unwrap();
        slots.acquire(&id("small"), 1).unwrap_err();
    }
}
