//! Event recorder. An occurrence, such as the start of a rollout, is written each time. A warning about a state that lasts is
//! written once, and again when its text has changed or an hour has passed.
//!
//! Input: events of reconciliations. Output: Event objects, written by a task of its own.
//!
//! Invariants: a reconciliation never waits for an Event. A full queue, or an API server that does not answer,
//! costs Events only; a condition says the same. No event appears under the text of another one.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use kube_ext::{environment, error::chain, metrics::counters};
use parking_lot::Mutex;
use prometheus::{Error, IntCounterVec, Registry};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{Instant, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tracing::debug;

/// Time for which an unchanged event is not repeated.
const QUIET: Duration = Duration::from_hours(1);
/// Time for which a warning with another text is not written: a text that changes all the time is an Event object each time.
const CHANGES: Duration = Duration::from_secs(30);
/// Maximum number of events remembered; beyond it all are forgotten, and may be repeated.
const REMEMBERED: usize = 65_536;
/// Maximum number of events in the queue.
const QUEUED: usize = 1_024;
/// Concurrent writes.
const AT_ONCE: usize = 4;
/// Time limit of one write.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Results in the metric: written, refused or unanswered, queue full.
const RESULTS: [&str; 3] = ["success", "error", "dropped"];

/// Event recorder. Events are remembered by object and reason.
pub struct Events {
    queue: Sender<PendingEvent>,
    recorded: Arc<Mutex<RecordedEvents>>,
    results: IntCounterVec,
}

/// A queued event, with the object that it is about and the key of a warning in [`RecordedEvents`].
type PendingEvent = (ObjectReference, Event, Option<u64>);

impl Events {
    /// A recorder that reports as `controller`. Its writer task ends when the recorder is dropped. Requires a
    /// Tokio runtime.
    pub fn register(client: Client, controller: &str, registry: &Registry) -> Result<Self, Error> {
        let reporter =
            Reporter { controller: controller.to_owned(), instance: std::env::var("POD_NAME").ok() };
        let name = ("kube_node_events_total", "Events about Nodes, NodeSets and NodeClasses, by result");
        let results = counters(registry, name, ["result"], RESULTS.map(|result| [result]))?;
        let (queue, pending) = channel(QUEUED);
        let recorded = Arc::default();
        environment::spawn(publish(client, reporter, pending, Arc::clone(&recorded), results.clone()));
        Ok(Self { queue, recorded, results })
    }

    /// Records a warning about a state that lasts. Returns false if the same one was recorded before.
    pub(super) fn warn(&self, on: &ObjectReference, reason: &str, action: &str, note: String) -> bool {
        let uid = on.uid.as_deref().unwrap_or_default();
        let recorded = self.recorded.lock().insert((uid, reason), &note, Instant::now());
        if let Recorded::New(key) = recorded {
            self.write(on, EventType::Warning, (reason, action), note, Some(key));
        }
        recorded != Recorded::Known
    }

    /// Records something that has happened once, whatever was recorded before.
    pub(super) fn occurred(
        &self,
        on: &ObjectReference,
        type_: EventType,
        reason: &str,
        action: &str,
        note: String,
    ) {
        self.write(on, type_, (reason, action), note, None);
    }

    fn write(
        &self,
        on: &ObjectReference,
        type_: EventType,
        (reason, action): (&str, &str),
        mut note: String,
        key: Option<u64>,
    ) {
        // The API server accepts at most 1,024 bytes.
        note.truncate(note.floor_char_boundary(1_000));
        let (reason, action) = (reason.to_owned(), action.to_owned());
        let event = Event { type_, reason, note: Some(note), action, secondary: None };
        if self.queue.try_send((on.clone(), event, key)).is_err() {
            self.recorded.lock().forget(key);
            self.results.with_label_values(&["dropped"]).inc();
        }
    }
}

/// Writes queued events until the sender is dropped.
async fn publish(
    client: Client,
    reporter: Reporter,
    pending: Receiver<PendingEvent>,
    recorded: Arc<Mutex<RecordedEvents>>,
    results: IntCounterVec,
) {
    let write = async |(on, event, key): PendingEvent| {
        // A recorder shows an event under the text of the last one of its object and reason, so each event has its own.
        let writer = Recorder::new(client.clone(), reporter.clone());
        let failure = match timeout(TIME_LIMIT, writer.publish(&event, &on)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(chain(&error)),
            Err(_) => Some("no answer in time".to_owned()),
        };
        if let Some(error) = &failure {
            debug!(error, reason = event.reason, "event not written");
            recorded.lock().forget(key);
        }
        results.with_label_values(&[if failure.is_some() { "error" } else { "success" }]).inc();
    };
    ReceiverStream::new(pending).for_each_concurrent(AT_ONCE, write).await;
}

/// Result of recording a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    /// It is to be written, and has this key.
    New(u64),
    /// Another one was written just now: this one is left out.
    Soon,
    /// The same one was written before.
    Known,
}

/// Recorded warnings, as hashes: a text may have a thousand bytes.
#[derive(Default)]
struct RecordedEvents {
    hasher: RandomState,
    /// Hash of the text and time of the record, by the hash of object and reason.
    last: HashMap<u64, (u64, Instant)>,
}

impl RecordedEvents {
    /// Records a warning, unless it is left out.
    fn insert(&mut self, of: (&str, &str), note: &str, now: Instant) -> Recorded {
        let (key, note) = (self.hasher.hash_one(of), self.hasher.hash_one(note));
        let is_recent = |at: Instant| now.duration_since(at) < QUIET;
        match self.last.get(&key) {
            Some((last, at)) if *last == note && is_recent(*at) => return Recorded::Known,
            Some((last, at)) if *last != note && now.duration_since(*at) < CHANGES => return Recorded::Soon,
            _ => {}
        }
        if self.last.len() >= REMEMBERED {
            self.last.retain(|_, (_, at)| is_recent(*at));
        }
        if self.last.len() >= REMEMBERED {
            self.last.clear();
        }
        self.last.insert(key, (note, now));
        Recorded::New(key)
    }

    /// Forgets a warning that was not written.
    fn forget(&mut self, key: Option<u64>) {
        if let Some(key) = key {
            self.last.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::sleep;
    use tower::service_fn;

    use super::*;

    fn node(uid: &str) -> ObjectReference {
        ObjectReference {
            name: Some(uid.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    /// A client whose server never answers, and the number of its requests.
    fn silent() -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let service = service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            pending::<Result<Response<Body>, std::convert::Infallible>>()
        });
        (Client::new(service, "default"), requests)
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_an_api_server_that_does_not_answer() {
        let (client, requests) = silent();
        let registry = Registry::new();
        let events = Events::register(client, "test", &registry).unwrap();
        let began = Instant::now();
        for number in 0..2 * QUEUED {
            assert!(events.warn(&node(&number.to_string()), "A", "Test", "text".to_owned()));
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        let count = |result| events.results.with_label_values(&[result]).get();
        assert_eq!(count("dropped"), u64::try_from(QUEUED).unwrap());
        assert!(!events.warn(&node("0"), "A", "Test", "text".to_owned()), "it waits to be written");
        let last = (2 * QUEUED - 1).to_string();
        assert!(events.warn(&node(&last), "A", "Test", "text".to_owned()), "a dropped one was not said");
        sleep(TIME_LIMIT.mul_f64(2.5)).await;
        assert_eq!(
            requests.load(Ordering::Relaxed),
            3 * AT_ONCE,
            "each has its time, and a few are under way"
        );
        assert_eq!(count("error"), u64::try_from(2 * AT_ONCE).unwrap());
        assert!(events.warn(&node("0"), "A", "Test", "text".to_owned()), "what was not written was not said");
    }

    #[tokio::test]
    async fn events_of_two_rollouts_are_two_events_with_their_texts() {
        let (sent, mut requests) = tokio::sync::mpsc::unbounded_channel();
        let server = service_fn(move |request: Request<Body>| {
            let sent = sent.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect_bytes().await.unwrap();
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
                sent.send((method, event["note"].as_str().unwrap_or_default().to_owned())).unwrap();
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(body.to_vec())))
            }
        });
        let client = Client::new(server, "default");
        let events = Events::register(client, "test", &Registry::new()).unwrap();
        let mut notes = Vec::new();
        for note in ["to revision one", "to revision two", "to revision two"] {
            events.occurred(&node("set"), EventType::Normal, "RolloutStarted", "Rollout", note.to_owned());
            let (method, note) = requests.recv().await.unwrap();
            assert_eq!(method, http::Method::POST, "{note}");
            notes.push(note);
        }
        assert_eq!(
            notes,
            ["to revision one", "to revision two", "to revision two"],
            "a restart is a rollout, too"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_repeated_when_its_text_has_changed_or_after_an_hour() {
        let mut recorded = RecordedEvents::default();
        let mut is_new = |reason, note, at: u64| {
            let recorded = recorded.insert(("uid", reason), note, begin() + Duration::from_secs(at));
            matches!(recorded, Recorded::New(_))
        };
        assert!(is_new("A", "one", 0) && is_new("B", "one", 0));
        assert!(!is_new("A", "two", 29), "a text that changes all the time is not an event each time");
        assert!(!is_new("A", "one", 3_599));
        assert!(is_new("A", "two", 3_599) && is_new("B", "one", 3_600));
        assert!(!is_new("A", "two", 3_601), "its hour began with the change");
        assert!(is_new("A", "two", 7_199));
    }

    /// Start of the test's paused clock.
    fn begin() -> Instant {
        Instant::now()
    }

    #[test]
    fn memory_is_bounded_however_many_events_are_recorded() {
        let (mut recorded, mut now) = (RecordedEvents::default(), Instant::now());
        for number in 0..3 * REMEMBERED {
            now += CHANGES;
            recorded.insert((&number.to_string(), "A"), "text", now);
            recorded.insert(("same", "A"), &number.to_string(), now);
        }
        assert!(recorded.last.len() <= REMEMBERED);
        let again = recorded.insert(("same", "A"), &(3 * REMEMBERED - 1).to_string(), now);
        assert_eq!(again, Recorded::Known);
    }
}
