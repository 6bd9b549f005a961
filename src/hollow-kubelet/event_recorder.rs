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
use kube_ext::{
    log_once::LogOnce,
    transport::{Body, TransportError, envelope},
};
use kube_node_api::PodEvents;
use kube_node_cache::PodView;
use serde_json::json;
use tokio::time::Instant;
use tracing::warn;
use uuid::Uuid;

use super::{
    clock::{Clock, to_seconds},
    pod::{
        events::{PendingEvent, of_pod},
        patch::digest,
    },
    request::Request,
    schedule::{Priority, Schedule},
};

/// Minimum interval between two events of this process.
const INTERVAL: Duration = Duration::from_millis(40);
/// Pause after the API server was overloaded.
const OVERLOAD_PAUSE: Duration = Duration::from_secs(5);
/// Maximum length of each queue.
const MAX_QUEUE: usize = 500;
/// Source component of the events.
const COMPONENT: &str = "kubelet";
/// Event reason for a machine that has rebooted.
const REBOOTED: &str = "Rebooted";
/// Maximum length of the object's name in an event's name, in bytes, so that the hash fits into a valid name.
const NAME_BYTES: usize = 230;

/// Event recorder with its queues.
#[derive(Default)]
pub struct EventRecorder {
    warnings: VecDeque<QueuedEvent>,
    normal: VecDeque<QueuedEvent>,
    under_way: Option<QueuedEvent>,
    /// Earliest time of the next event.
    paused_until: Option<Instant>,
    /// Events dropped for lack of room since the last `take_dropped`.
    dropped: u64,
    /// Refusals that were logged, by their kind: one namespace that refuses events must not fill the log.
    failure: LogOnce,
}

/// An event in a queue.
struct QueuedEvent {
    /// Boxed, since the queues keep their capacity.
    event: Box<Event>,
    at: Timestamp,
    /// True if the event is known not to exist.
    is_new: bool,
}

impl EventRecorder {
    /// Records events about a pod, as the event setting of its class allows.
    pub fn record(
        &mut self,
        pod: &PodView,
        events: Vec<PendingEvent>,
        setting: PodEvents,
        schedule: &mut Schedule,
        now: Clock,
    ) {
        for event in events {
            if setting == PodEvents::All || (setting == PodEvents::Warnings && event.warns) {
                let about = || ObjectReference {
                    namespace: Some(pod.namespace.to_string()),
                    resource_version: Some(pod.resource_version.clone()),
                    field_path: event.container.as_ref().map(|(name, is_init)| {
                        let list = if *is_init { "initContainers" } else { "containers" };
                        format!("spec.{list}{{{name}}}")
                    }),
                    ..reference("Pod", &pod.name, &pod.uid)
                };
                self.push(&pod.node, about, &event, now.wall);
            }
        }
        self.enqueue(schedule, now);
    }

    /// Records the reboot of a machine.
    pub fn record_reboot(&mut self, node: &str, boot: Uuid, schedule: &mut Schedule, now: Clock) {
        let message = format!("Node {node} has been rebooted, boot id: {boot}");
        // The UID is the name, as kubelets write it and `kubectl describe node` searches for it.
        self.push(node, || reference("Node", node, node), &of_pod(true, REBOOTED, message), now.wall);
        self.enqueue(schedule, now);
    }

    /// Request of the next event, which is under way from now on. Drops events of Nodes that are silent.
    pub fn prepare(&mut self, is_silent: impl Fn(&str) -> bool) -> Option<Request> {
        loop {
            let next = self.warnings.pop_front().or_else(|| self.normal.pop_front())?;
            if !is_silent(next.node()) {
                return Some(self.under_way.insert(next).request());
            }
        }
    }

    /// Applies the answer to the event under way and queues the next one.
    pub fn conclude(&mut self, answer: Result<&str, &TransportError>, schedule: &mut Schedule, now: Clock) {
        let sent = self.under_way.take();
        let pause = if answer.is_err_and(TransportError::is_overload) { OVERLOAD_PAUSE } else { INTERVAL };
        self.paused_until = Some(now.at + pause);
        if let (Err(error), Some(sent)) = (answer, &sent) {
            self.log(error, sent);
        }
        // The event to count up does not exist: it was dropped, or it has expired.
        if answer.is_err_and(|error| error.code() == Some(404))
            && let Some(sent) = sent.filter(|sent| !sent.is_new)
        {
            self.warnings.push_front(QueuedEvent { is_new: true, ..sent });
        }
        self.enqueue(schedule, now);
    }

    /// Logs the refusal of an event. An event that exists already or no longer is counted up or made anew.
    fn log(&mut self, error: &TransportError, sent: &QueuedEvent) {
        if error.is_overload()
            || matches!(error.code(), Some(404 | 409))
            || !self.failure.is_new(error.label())
        {
            return;
        }
        let error = error as &dyn std::error::Error;
        warn!(node = sent.node(), namespace = sent.namespace(), error, "cannot write an event: it is lost");
    }

    /// Node whose kubelet reports the event under way.
    pub fn node_under_way(&self) -> Option<&str> {
        self.under_way.as_ref().map(QueuedEvent::node)
    }

    /// Number of events dropped for lack of room since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Queues an event of the kubelet of `node`.
    fn push(
        &mut self,
        node: &str,
        about: impl FnOnce() -> ObjectReference,
        event: &PendingEvent,
        at: Timestamp,
    ) {
        let queue = if event.warns { &mut self.warnings } else { &mut self.normal };
        if queue.len() == MAX_QUEUE {
            self.dropped += 1;
            return;
        }
        let at = to_seconds(at);
        let is_new = event.count <= 1;
        queue.push_back(QueuedEvent { event: Box::new(to_event(node, about(), event, at)), at, is_new });
    }

    fn enqueue(&self, schedule: &mut Schedule, now: Clock) {
        if !(self.warnings.is_empty() && self.normal.is_empty()) {
            let at = self.paused_until.map_or(now.at, |until| until.max(now.at));
            schedule.enqueue(Priority::Event, &Arc::default(), at);
        }
    }
}

impl QueuedEvent {
    /// Node whose kubelet reports the event.
    fn node(&self) -> &str {
        self.event.reporting_instance.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        let metadata = self.event.metadata.as_ref();
        metadata.and_then(|metadata| metadata.namespace.as_deref()).unwrap_or_default()
    }

    fn request(&self) -> Request {
        let (metadata, namespace) = (self.event.metadata.as_ref(), self.namespace());
        let path = format!("/api/v1/namespaces/{namespace}/events");
        if self.is_new {
            let event = envelope("v1", "Event", &self.event);
            return Request { method: Method::POST, path, body: Body::Object(event) };
        }
        let name = metadata.and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
        let again = json!({ "count": self.event.count, "lastTimestamp": self.at });
        Request {
            method: Method::PATCH,
            path: format!("{path}/{name}"),
            body: Body::MergePatch(again.to_string().into_bytes()),
        }
    }
}

/// Reference to the object that an event is about.
fn reference(kind: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// Event of the kubelet of `node` about an object.
fn to_event(node: &str, about: ObjectReference, event: &PendingEvent, at: Timestamp) -> Event {
    let time = Some(Time { seconds: Some(at.as_second()), nanos: Some(0) });
    let node = Some(node.to_owned());
    let metadata = ObjectMeta {
        name: Some(event_name(&about, event)),
        // Events about cluster-scoped objects are in the default namespace.
        namespace: Some(about.namespace.as_deref().unwrap_or("default").to_owned()),
        ..ObjectMeta::default()
    };
    Event {
        metadata: Some(metadata),
        involved_object: Some(about),
        reason: Some(event.reason.clone()),
        message: Some(event.message.clone()),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: node.clone() }),
        first_timestamp: time,
        last_timestamp: time,
        count: Some(event.count),
        r#type: Some(if event.warns { "Warning" } else { "Normal" }.to_owned()),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: node,
        ..Event::default()
    }
}

/// Name of an event, derived from its content.
fn event_name(ObjectReference { name, uid, .. }: &ObjectReference, event: &PendingEvent) -> String {
    let PendingEvent { reason, message, container, .. } = event;
    let (name, uid) = (name.as_deref().unwrap_or_default(), uid.as_deref().unwrap_or_default());
    let container = container.as_ref().map_or("", |(name, _)| name);
    let hash = digest(&format!("{uid}/{container}/{reason}/{message}"));
    let end = name.len().min(NAME_BYTES);
    // No part of a name may end in a dash.
    format!("{}.{}", name[..end].trim_end_matches(['-', '.']), &hash[..16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Pressure;

    fn pod() -> Arc<PodView> {
        Arc::new(PodView { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..PodView::default() })
    }

    /// An event recorder with a schedule of its own.
    struct World {
        recorder: EventRecorder,
        schedule: Schedule,
        start: Clock,
    }

    impl World {
        fn new() -> Self {
            let start = Clock::now();
            let schedule = Schedule::new(start.at, Duration::ZERO);
            Self { recorder: EventRecorder::default(), schedule, start }
        }

        fn record(&mut self, events: Vec<PendingEvent>, setting: PodEvents) {
            self.recorder.record(&pod(), events, setting, &mut self.schedule, self.start);
        }

        /// The request due after `wait`.
        fn next(&mut self, wait: Duration) -> Option<Request> {
            self.schedule.next(self.start.at + wait, Pressure::Light)?;
            self.recorder.prepare(|_| false)
        }

        fn answer(&mut self, answer: Result<&str, &TransportError>, wait: Duration) {
            let now = Clock { at: self.start.at + wait, ..self.start };
            self.recorder.conclude(answer, &mut self.schedule, now);
            self.schedule.done(Priority::Event, &Arc::default());
        }

        /// Sends the event due after `wait`; returns method and path of its request.
        fn sent(&mut self, wait: Duration, answer: Result<&str, &TransportError>) -> Option<String> {
            let request = self.next(wait)?;
            self.answer(answer, wait);
            Some(format!("{} {}", request.method, request.path))
        }
    }

    fn event(warns: bool, message: &str) -> PendingEvent {
        of_pod(warns, "Reason", message)
    }

    #[test]
    fn one_at_a_time_warnings_first_and_paced() {
        let mut world = World::new();
        world.record(vec![event(false, "a"), event(false, "b"), event(true, "c")], PodEvents::All);
        let request = world.next(Duration::ZERO).unwrap();
        let under_way = world.recorder.under_way.as_ref().unwrap();
        assert_eq!(under_way.event.r#type.as_deref(), Some("Warning"));
        assert_eq!(request.path, "/api/v1/namespaces/n/events");
        assert!(world.next(Duration::ZERO).is_none(), "one at a time");
        world.answer(Ok("1"), Duration::ZERO);
        assert!(world.next(Duration::ZERO).is_none(), "not before its time");
        assert!(world.next(INTERVAL).is_some());
    }

    #[test]
    fn a_class_selects_the_events() {
        for (setting, count) in [(PodEvents::All, 2), (PodEvents::Warnings, 1), (PodEvents::None, 0)] {
            let mut world = World::new();
            world.record(vec![event(false, "a"), event(true, "b")], setting);
            assert_eq!(world.recorder.warnings.len() + world.recorder.normal.len(), count, "{setting:?}");
        }
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let mut world = World::new();
        let events = (0..MAX_QUEUE + 7).map(|number| event(false, &number.to_string())).collect();
        world.record(events, PodEvents::All);
        assert_eq!((world.recorder.normal.len(), world.recorder.take_dropped()), (MAX_QUEUE, 7));
        assert_eq!(world.recorder.take_dropped(), 0);
    }

    #[test]
    fn what_comes_again_is_counted_up_or_made_where_it_is_gone() {
        let mut world = World::new();
        world.record(vec![PendingEvent { count: 3, ..event(false, "a") }], PodEvents::All);
        let gone = TransportError::Refused(kube::core::Status::default().with_code(404).boxed());
        let first = world.sent(Duration::ZERO, Err(&gone)).unwrap();
        assert!(first.starts_with("PATCH /api/v1/namespaces/n/events/p."), "{first}");
        assert_eq!(world.sent(INTERVAL, Ok("1")).unwrap(), "POST /api/v1/namespaces/n/events");
        assert!(world.recorder.warnings.is_empty() && world.recorder.normal.is_empty());
    }

    #[test]
    fn an_overloaded_server_is_left_alone() {
        let mut world = World::new();
        world.record(vec![event(true, "a"), event(true, "b")], PodEvents::All);
        world.sent(Duration::ZERO, Err(&TransportError::Late)).unwrap();
        assert!(world.next(INTERVAL).is_none());
        assert!(world.next(OVERLOAD_PAUSE).is_some());
    }

    #[test]
    fn the_same_has_the_same_name_and_a_valid_one() {
        let name_of =
            |name: &str, message: &str| event_name(&reference("Pod", name, "u"), &event(true, message));
        assert_eq!(name_of("p", "a"), name_of("p", "a"));
        assert_ne!(name_of("p", "a"), name_of("p", "b"));
        let long = name_of(&format!("{}-{}", "a".repeat(NAME_BYTES - 1), "b"), "a");
        assert!(long.len() < 253 && !long.contains("-."), "{long}");
    }
}
