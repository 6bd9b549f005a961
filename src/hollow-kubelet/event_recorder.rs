//! Event recorder: queues events and sends them one at a time and few a second, so that they never delay node
//! or pod status.
//!
//! Invariants: an event that finds no room in its queue is dropped, as in a kubelet; warnings have a queue of
//! their own. An event's name is derived from its content, so an event recorded twice is one, and a recurring
//! event is counted up without any state per event.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use http::Method;
use jiff::Timestamp;
use k8s_pb::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube_ext::wire::{Body, WireError, envelope};
use kube_node_api::PodEvents;
use kube_node_cache::PodView;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    clock::{Clock, to_seconds},
    pod::{
        events::{PendingEvent, of_pod},
        patch::digest,
    },
    request::Request,
    schedule::Priority,
    state::State,
};

/// Minimum interval between two events of this process.
const PACE: Duration = Duration::from_millis(40);
/// Pause after the API server was overloaded.
const REST: Duration = Duration::from_secs(5);
/// Maximum length of each queue.
const MOST: usize = 500;
/// Source component of the events.
const COMPONENT: &str = "kubelet";
/// Event reason for a machine that has rebooted.
const REBOOTED: &str = "Rebooted";
/// Maximum length of the object's name in an event's name, in bytes, so that the hash fits into a valid name.
const NAME_BYTES: usize = 230;

/// Event recorder with its queues.
#[derive(Debug, Default)]
pub struct EventRecorder {
    warnings: VecDeque<QueuedEvent>,
    usual: VecDeque<QueuedEvent>,
    under_way: Option<QueuedEvent>,
    /// Earliest time of the next event.
    rests_until: Option<Instant>,
    /// Events dropped for lack of room since the last `take_dropped`.
    dropped: u64,
}

/// Object that an event is about.
#[derive(Debug)]
enum About {
    Pod(Arc<PodView>),
    /// Node name.
    Node(Arc<str>),
}

/// An event in a queue, with the object that it is about.
#[derive(Debug)]
struct QueuedEvent {
    about: About,
    note: PendingEvent,
    at: Timestamp,
    /// True if the event is known not to exist.
    is_new: bool,
}

impl EventRecorder {
    fn put(&mut self, about: About, note: PendingEvent, at: Timestamp) {
        let queue = if note.warns { &mut self.warnings } else { &mut self.usual };
        if queue.len() == MOST {
            self.dropped += 1;
            return;
        }
        let is_new = note.count <= 1;
        queue.push_back(QueuedEvent { about, note, at: to_seconds(at), is_new });
    }

    /// Node whose kubelet reports the event under way.
    pub fn teller(&self) -> Option<&str> {
        self.under_way.as_ref().map(QueuedEvent::teller)
    }

    fn pop(&mut self) -> Option<QueuedEvent> {
        self.warnings.pop_front().or_else(|| self.usual.pop_front())
    }

    /// Number of events dropped for lack of room since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    fn is_empty(&self) -> bool {
        self.warnings.is_empty() && self.usual.is_empty()
    }
}

impl State {
    /// Records events about a pod, as far as its class wants them.
    pub(super) fn tell_people(
        &mut self,
        pod: &Arc<PodView>,
        notes: Vec<PendingEvent>,
        wanted: PodEvents,
        now: Clock,
    ) {
        for note in notes {
            if wanted == PodEvents::All || (wanted == PodEvents::Warnings && note.warns) {
                self.outbox.put(About::Pod(Arc::clone(pod)), note, now.wall);
            }
        }
        self.ask_outbox(now);
    }

    /// Records the reboot of a machine.
    pub(super) fn tell_of_reboot(&mut self, node: &Arc<str>, boot: Uuid, now: Clock) {
        let message = format!("Node {node} has been rebooted, boot id: {boot}");
        self.outbox.put(About::Node(Arc::clone(node)), of_pod(true, REBOOTED, &message), now.wall);
        self.ask_outbox(now);
    }

    fn ask_outbox(&mut self, now: Clock) {
        if !self.outbox.is_empty() {
            let at = self.outbox.rests_until.map_or(now.at, |rest| rest.max(now.at));
            self.schedule.ask(Priority::Event, &Arc::default(), at);
        }
    }

    pub(super) fn prepare_event(&mut self, now: Clock) -> Option<Request> {
        loop {
            let letter = self.outbox.pop()?;
            // Events of a machine that has fallen silent are dropped.
            if !self.is_mute(letter.teller(), now) {
                return Some(self.outbox.under_way.insert(letter).request());
            }
        }
    }

    /// Returns true if the Node's machine is silent.
    fn is_mute(&self, node: &str, now: Clock) -> bool {
        let machine = self.machine_of(node).and_then(|uid| self.machines.get(uid));
        machine.is_some_and(|machine| machine.is_silent(machine.phase(now)))
    }

    pub(super) fn conclude_event(&mut self, answer: Result<&str, &WireError>, now: Clock) {
        let letter = self.outbox.under_way.take();
        let rest = if answer.is_err_and(WireError::is_overload) { REST } else { PACE };
        self.outbox.rests_until = Some(now.at + rest);
        // The event to count up does not exist: it was dropped, or it has expired.
        if answer.is_err_and(|error| error.code() == Some(404))
            && let Some(letter) = letter.filter(|letter| !letter.is_new)
        {
            self.outbox.warnings.push_front(QueuedEvent { is_new: true, ..letter });
        }
        self.ask_outbox(now);
    }
}

impl QueuedEvent {
    /// Node whose kubelet reports the event.
    fn teller(&self) -> &str {
        match &self.about {
            About::Pod(pod) => &pod.node,
            About::Node(node) => node,
        }
    }

    fn request(&self) -> Request {
        let all = format!("/api/v1/namespaces/{}/events", self.namespace());
        if self.is_new {
            let event = envelope("v1", "Event", &self.event());
            return Request { method: Method::POST, path: all, body: Body::Object(event) };
        }
        let again = json!({ "count": self.note.count, "lastTimestamp": self.at });
        Request {
            method: Method::PATCH,
            path: format!("{all}/{}", self.name()),
            body: Body::MergePatch(again.to_string().into_bytes()),
        }
    }

    fn namespace(&self) -> &str {
        match &self.about {
            About::Pod(pod) => &pod.namespace,
            // Namespace of events about cluster-scoped objects.
            About::Node(_) => "default",
        }
    }

    fn name(&self) -> String {
        let PendingEvent { reason, message, container, .. } = &self.note;
        let container = container.as_ref().map_or("", |(name, _)| name);
        let (name, uid): (&str, &str) = match &self.about {
            About::Pod(pod) => (&pod.name, &pod.uid),
            About::Node(node) => (node, node),
        };
        let hash = digest(&format!("{uid}/{container}/{reason}/{message}"));
        let end = name.len().min(NAME_BYTES);
        // No part of a name may end in a dash.
        format!("{}.{}", name[..end].trim_end_matches(['-', '.']), &hash[..16])
    }

    /// Reference to the object, and the reporting Node.
    fn reference(&self, field_path: Option<String>) -> (ObjectReference, &str) {
        let reference =
            ObjectReference { api_version: Some("v1".to_owned()), field_path, ..ObjectReference::default() };
        match &self.about {
            About::Pod(pod) => {
                let reference = ObjectReference {
                    kind: Some("Pod".to_owned()),
                    namespace: Some(pod.namespace.to_string()),
                    name: Some(pod.name.to_string()),
                    uid: Some(pod.uid.to_string()),
                    resource_version: Some(pod.resource_version.clone()),
                    ..reference
                };
                (reference, &pod.node)
            }
            About::Node(node) => {
                let reference = ObjectReference {
                    kind: Some("Node".to_owned()),
                    name: Some(node.to_string()),
                    // The name, as kubelets write it and `kubectl describe node` searches for it.
                    uid: Some(node.to_string()),
                    ..reference
                };
                (reference, node)
            }
        }
    }

    fn event(&self) -> Event {
        let Self { note, at, .. } = self;
        let time = Some(Time { seconds: Some(at.as_second()), nanos: Some(0) });
        let field = note.container.as_ref().map(|(name, is_init)| {
            let list = if *is_init { "initContainers" } else { "containers" };
            format!("spec.{list}{{{name}}}")
        });
        let (involved_object, node) = self.reference(field);
        Event {
            metadata: Some(ObjectMeta {
                name: Some(self.name()),
                namespace: Some(self.namespace().to_owned()),
                ..ObjectMeta::default()
            }),
            involved_object: Some(involved_object),
            reason: Some(note.reason.clone()),
            message: Some(note.message.clone()),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(node.to_owned()) }),
            first_timestamp: time,
            last_timestamp: time,
            count: Some(note.count),
            r#type: Some(if note.warns { "Warning" } else { "Normal" }.to_owned()),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(node.to_owned()),
            ..Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Pressure;
    use kube_node_cache::Cache;

    fn pod() -> Arc<PodView> {
        Arc::new(PodView { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..PodView::default() })
    }

    fn state() -> State {
        State::new(Cache::full([]), Cache::full([]), Duration::ZERO)
    }

    fn note(warns: bool, message: &str) -> PendingEvent {
        of_pod(warns, "Reason", message)
    }

    /// Sends the job due at `now`; returns method and path of its first request.
    fn sent(state: &mut State, now: Clock, answer: Result<&str, &WireError>) -> Option<String> {
        let (job, requests) = state.next(now, Pressure::Light)?;
        state.finish(&job, answer, now.wall, now);
        requests.first().map(|request| format!("{} {}", request.method, request.path))
    }

    #[test]
    fn one_at_a_time_warnings_first_and_paced() {
        let (mut state, start) = (state(), Clock::now());
        let notes = vec![note(false, "a"), note(false, "b"), note(true, "c")];
        state.tell_people(&pod(), notes, PodEvents::All, start);
        let (job, requests) = state.next(start, Pressure::Light).unwrap();
        assert!(state.outbox.under_way.as_ref().unwrap().note.warns);
        assert_eq!((requests.len(), requests[0].path.as_str()), (1, "/api/v1/namespaces/n/events"));
        assert!(state.next(start, Pressure::Light).is_none(), "one at a time");
        state.finish(&job, Ok("1"), start.wall, start);
        assert!(state.next(start, Pressure::Light).is_none(), "not before its time");
        let later = Clock { at: start.at + PACE, ..start };
        assert!(state.next(later, Pressure::Light).is_some());
    }

    #[test]
    fn a_class_says_which_are_wanted() {
        for (wanted, count) in [(PodEvents::All, 2), (PodEvents::Warnings, 1), (PodEvents::None, 0)] {
            let mut state = state();
            state.tell_people(&pod(), vec![note(false, "a"), note(true, "b")], wanted, Clock::now());
            assert_eq!(state.outbox.warnings.len() + state.outbox.usual.len(), count, "{wanted:?}");
        }
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let mut state = state();
        let notes = (0..MOST + 7).map(|number| note(false, &number.to_string())).collect();
        state.tell_people(&pod(), notes, PodEvents::All, Clock::now());
        assert_eq!((state.outbox.usual.len(), state.outbox.take_dropped()), (MOST, 7));
        assert_eq!(state.outbox.take_dropped(), 0);
    }

    #[test]
    fn what_comes_again_is_counted_up_or_made_where_it_is_gone() {
        let (mut state, start) = (state(), Clock::now());
        let again = PendingEvent { count: 3, ..note(false, "a") };
        state.tell_people(&pod(), vec![again], PodEvents::All, start);
        let gone = WireError::Refused { code: 404, reason: String::new(), message: String::new() };
        let first = sent(&mut state, start, Err(&gone)).unwrap();
        assert!(first.starts_with("PATCH /api/v1/namespaces/n/events/p."), "{first}");
        let later = Clock { at: start.at + PACE, ..start };
        assert_eq!(sent(&mut state, later, Ok("1")).unwrap(), "POST /api/v1/namespaces/n/events");
        assert!(state.outbox.is_empty());
    }

    #[test]
    fn an_overloaded_server_is_left_alone() {
        let (mut state, start) = (state(), Clock::now());
        state.tell_people(&pod(), vec![note(true, "a"), note(true, "b")], PodEvents::All, start);
        sent(&mut state, start, Err(&WireError::Late)).unwrap();
        assert!(state.next(Clock { at: start.at + PACE, ..start }, Pressure::Light).is_none());
        assert!(state.next(Clock { at: start.at + REST, ..start }, Pressure::Light).is_some());
    }

    #[test]
    fn the_same_has_the_same_name_and_a_valid_one() {
        let letter = |name: &str, message: &str| {
            let pod = Arc::new(PodView { name: name.into(), uid: "u".into(), ..PodView::default() });
            QueuedEvent {
                about: About::Pod(pod),
                note: note(true, message),
                at: Timestamp::UNIX_EPOCH,
                is_new: true,
            }
            .name()
        };
        assert_eq!(letter("p", "a"), letter("p", "a"));
        assert_ne!(letter("p", "a"), letter("p", "b"));
        let long = letter(&format!("{}-{}", "a".repeat(NAME_BYTES - 1), "b"), "a");
        assert!(long.len() < 253 && !long.contains("-."), "{long}");
    }
}
