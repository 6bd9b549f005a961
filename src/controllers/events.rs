//! Events, for people: each said once, and again only when it has changed or an hour has passed.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::time::Instant;
use tracing::debug;

use crate::error::chain;

/// How long an event that was said is not said again.
const QUIET: Duration = Duration::from_hours(1);
/// Above this many remembered events, those whose time is over are forgotten.
const REMEMBERED: usize = 4_096;

/// Says events. What it has said is remembered by object and reason.
pub struct Events {
    recorder: Recorder,
    said: Mutex<HashMap<(String, String), Said>>,
}

/// A text, and when it was said.
type Said = (String, Instant);

impl Events {
    /// Events in the name of `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &str) -> Self {
        let reporter =
            Reporter { controller: controller.to_owned(), instance: std::env::var("POD_NAME").ok() };
        Self { recorder: Recorder::new(client, reporter), said: Mutex::default() }
    }

    /// Something went as it should.
    pub async fn normal(&self, on: &ObjectReference, reason: &str, action: &str, note: String) {
        self.say(on, EventType::Normal, reason, action, note).await;
    }

    /// Something stands in the way. False when that was said already.
    pub async fn warn(&self, on: &ObjectReference, reason: &str, action: &str, note: String) -> bool {
        self.say(on, EventType::Warning, reason, action, note).await
    }

    async fn say(
        &self,
        on: &ObjectReference,
        kind: EventType,
        reason: &str,
        action: &str,
        mut note: String,
    ) -> bool {
        if !self.is_new(on, reason, &note) {
            return false;
        }
        // The API takes 1,024 bytes.
        let end = (0..=1_000.min(note.len())).rev().find(|&at| note.is_char_boundary(at)).unwrap_or(0);
        note.truncate(end);
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        // An event that is lost is not worth a failed reconcile; the condition says the same.
        if let Err(error) = self.recorder.publish(&event, on).await {
            debug!(error = chain(&error), reason, "event not written");
        }
        true
    }

    fn is_new(&self, on: &ObjectReference, reason: &str, note: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() > REMEMBERED {
            said.retain(|_, (_, at)| at.elapsed() < QUIET);
        }
        let key = (on.uid.clone().unwrap_or_default(), reason.to_owned());
        if said.get(&key).is_some_and(|(last, at)| last == note && at.elapsed() < QUIET) {
            return false;
        }
        said.insert(key, (note.to_owned(), Instant::now()));
        true
    }
}
