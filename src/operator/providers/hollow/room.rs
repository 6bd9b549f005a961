//! Room for hollow machines in this process: a number of places, and a queue of machines that wait for one.
//!
//! Invariants: the places taken never exceed the maximum. A free place is offered to the machine that has
//! waited longest. A machine that does not take it moves to the end of the queue, so that it blocks no other.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kube_ext::metrics::gauge;
use kube_node_cache::{Cache, EventHandler, NodeView};
use parking_lot::Mutex;
use prometheus::{Error, IntGauge, Registry};

use crate::providers::{MachineId, ProviderError, Watchers};

/// Places for machines.
pub struct Room {
    places: usize,
    state: Mutex<State>,
    waiting: IntGauge,
    /// Receivers of waiting machines that have room now.
    pub(super) watchers: Watchers,
}

#[derive(Default)]
struct State {
    /// Number of places that each machine takes, by UID.
    taken: HashMap<Arc<str>, usize>,
    used: usize,
    /// Refused machines and the places that they need, in order of arrival.
    waiting: BTreeMap<u64, (MachineId, usize)>,
    /// Keys of `waiting`, by UID.
    arrivals: HashMap<Arc<str>, u64>,
    arrived: u64,
}

impl Room {
    /// Room with this many places. `nodes` must be filled by a watch: a waiting machine is forgotten with its Node.
    pub fn register(places: usize, nodes: &Cache<NodeView>, registry: &Registry) -> Result<Arc<Self>, Error> {
        let max = gauge(
            registry,
            ("kube_node_hollow_machines_max", "Most hollow machines that this process carries"),
        )?;
        max.set(i64::try_from(places).unwrap_or(i64::MAX));
        let waiting = gauge(
            registry,
            ("kube_node_hollow_machines_refused", "Hollow machines that wait for a place in this process"),
        )?;
        let (state, watchers) = (Mutex::default(), Watchers::default());
        let room = Arc::new(Self { places, state, waiting, watchers });
        nodes.add_event_handler(room.clone());
        Ok(room)
    }

    /// Takes places for a machine unless it has them. A refused machine is reported once there is room.
    pub fn take(&self, id: &MachineId, places: usize) -> Result<(), ProviderError> {
        let mut state = self.state.lock();
        if state.taken.contains_key(&id.uid) {
            return Ok(());
        }
        if state.used + places > self.places {
            if !state.arrivals.contains_key(&id.uid) {
                state.enqueue(id.clone(), places);
            }
            self.show(&state);
            return Err(ProviderError::Full(full(self.places)));
        }
        state.forget(&id.uid);
        state.used += places;
        state.taken.insert(Arc::clone(&id.uid), places);
        self.show(&state);
        Ok(())
    }

    /// Frees the places of a machine.
    pub fn give_back(&self, uid: &str) {
        let mut state = self.state.lock();
        if let Some(places) = state.taken.remove(uid) {
            state.used -= places;
            state.offer(self.places, &self.watchers);
        }
    }

    /// Removes a machine from the queue. A place may have been offered to it.
    pub fn forget(&self, uid: &str) {
        let mut state = self.state.lock();
        if state.forget(uid) {
            state.offer(self.places, &self.watchers);
            self.show(&state);
        }
    }

    /// Number of machines with places.
    pub fn count(&self) -> usize {
        self.state.lock().taken.len()
    }

    fn show(&self, state: &State) {
        self.waiting.set(i64::try_from(state.waiting.len()).unwrap_or(i64::MAX));
    }
}

impl State {
    /// Appends a machine to the queue.
    fn enqueue(&mut self, id: MachineId, places: usize) {
        self.arrived += 1;
        self.arrivals.insert(Arc::clone(&id.uid), self.arrived);
        self.waiting.insert(self.arrived, (id, places));
    }

    fn forget(&mut self, uid: &str) -> bool {
        let arrival = self.arrivals.remove(uid);
        arrival.is_some_and(|arrival| self.waiting.remove(&arrival).is_some())
    }

    /// Reports the first machines of the queue that fit into the free places. Until they take them, they are
    /// its last.
    fn offer(&mut self, max: usize, watchers: &Watchers) {
        let mut free = max.saturating_sub(self.used);
        for _ in 0..self.waiting.len() {
            let Some(first) = self.waiting.first_entry() else { return };
            let Some(left) = free.checked_sub(first.get().1) else { return };
            free = left;
            let (id, places) = first.remove();
            watchers.notify(&id);
            self.enqueue(id, places);
        }
    }
}

/// One message for all waiting machines, without changing parts, so that it is written once.
fn full(places: usize) -> String {
    format!(
        "this process carries {places} hollow machines, the most that its memory is good for: raise its memory limit (or \
         --max-machines), or have hollow hosts carry the machines (hollow.hosts of the class)"
    )
}

impl EventHandler<NodeView> for Room {
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

    fn room(places: usize) -> (Arc<Room>, BoxStream<'static, MachineId>) {
        let room = Room::register(places, &Cache::default(), &Registry::new()).unwrap();
        let told = room.watchers.watch();
        (room, told)
    }

    fn told(told: &mut BoxStream<'static, MachineId>) -> Vec<String> {
        std::iter::from_fn(|| told.next().now_or_never().flatten()).map(|id| id.node.to_string()).collect()
    }

    #[test]
    fn who_finds_no_place_is_told_when_there_is_one_in_the_order_of_arrival() {
        let (room, mut calls) = room(2);
        for name in ["a", "b", "a"] {
            room.take(&id(name), 1).unwrap();
        }
        for name in ["c", "d", "c"] {
            let refused = room.take(&id(name), 1).unwrap_err();
            assert_eq!(refused.reason(), "OutOfResources");
            assert!(refused.to_string().starts_with("this process carries 2 hollow machines"), "{refused}");
        }
        assert_eq!((room.count(), room.waiting.get(), told(&mut calls)), (2, 2, vec![]));
        room.give_back("uid-a");
        room.give_back("uid-a");
        assert_eq!(told(&mut calls), ["c"]);
        room.take(&id("c"), 1).unwrap();
        assert!(room.take(&id("e"), 1).is_err());
        room.give_back("uid-b");
        assert_eq!((told(&mut calls), room.waiting.get()), (vec!["d".to_owned()], 2));
    }

    #[test]
    fn a_place_meant_for_a_node_that_is_gone_goes_to_the_next() {
        let (room, mut calls) = room(1);
        room.take(&id("a"), 1).unwrap();
        for name in ["b", "c"] {
            room.take(&id(name), 1).unwrap_err();
        }
        room.give_back("uid-a");
        assert_eq!(told(&mut calls), ["b"]);
        let gone = NodeView { name: "b".into(), uid: "uid-b".into(), ..NodeView::default() };
        room.on_change(Some(&Arc::new(gone)), None);
        assert_eq!((told(&mut calls), room.waiting.get()), (vec!["c".to_owned()], 1));
    }

    #[test]
    fn who_does_not_come_keeps_nobody_from_a_place() {
        let (room, mut calls) = room(2);
        for name in ["a", "b"] {
            room.take(&id(name), 1).unwrap();
        }
        for name in ["c", "d"] {
            room.take(&id(name), 1).unwrap_err();
        }
        room.give_back("uid-a");
        assert_eq!(told(&mut calls), ["c"]);
        room.give_back("uid-b");
        assert_eq!(told(&mut calls), ["d", "c"]);
        room.forget("uid-c");
        room.forget("uid-c");
        assert_eq!((told(&mut calls), room.waiting.get()), (vec!["d".to_owned()], 1));
    }

    #[test]
    fn a_machine_that_takes_more_waits_for_all_of_it() {
        let (room, mut calls) = room(10);
        room.take(&id("small"), 1).unwrap();
        room.take(&id("large"), 10).unwrap_err();
        room.give_back("uid-small");
        assert_eq!(told(&mut calls), ["large"]);
        room.take(&id("large"), 10).unwrap();
        room.take(&id("small"), 1).unwrap_err();
    }
}
