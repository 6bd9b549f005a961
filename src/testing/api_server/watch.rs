//! Watches of the in-memory API server: the state to begin with, then each change, bookmarks, and the end after
//! `timeoutSeconds`; an error event once changes are missing.

use std::{borrow::Cow, collections::VecDeque, pin::pin, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    ApiServer,
    kinds::KINDS,
    list::Filter,
    protobuf,
    refusal::Refusal,
    request::{ApiRequest, Form},
    response::{bytes_of, shown},
    store::{Change, Store},
};

/// Interval of bookmarks.
const BOOKMARKS: Duration = Duration::from_mins(1);
/// Lifetime of a watch that names none.
const LIFE: Duration = Duration::from_mins(30);
/// Annotation of the bookmark that ends the initial list.
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// A watch under way.
struct Watch {
    server: ApiServer,
    kind: usize,
    filter: Filter,
    form: Form,
    /// Revision up to which changes were sent.
    sent: u64,
    /// Frames to send before the next change.
    queued: VecDeque<Bytes>,
    bookmark: Option<Instant>,
    ends: Instant,
    is_over: bool,
}

/// Starts a watch. A version that is compacted is an error event, since the answer has begun.
pub fn start(
    server: &ApiServer,
    kind: usize,
    filter: Filter,
    request: &ApiRequest,
) -> Result<impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + use<>, Refusal> {
    let store = server.store();
    let with_bookmarks = request.has("allowWatchBookmarks");
    let lists = request.has("sendInitialEvents");
    if lists && request.text("resourceVersionMatch") != Some("NotOlderThan") {
        let why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(Refusal::invalid("ListOptions", "", "resourceVersionMatch", "FieldValueForbidden", why));
    }
    let since = match request.text("resourceVersion") {
        None | Some("0") => None,
        Some(version) => Some(version.parse::<u64>().map_err(|_| {
            let why = format!("Invalid value: \"{version}\"");
            Refusal::invalid("ListOptions", "", "resourceVersion", "FieldValueInvalid", &why)
        })?),
    };
    let life = request.text("timeoutSeconds").and_then(|text| text.parse().ok());
    let now = Instant::now();
    let mut watch = Watch {
        server: server.clone(),
        kind,
        filter,
        form: request.form,
        sent: since.filter(|_| !lists).unwrap_or_else(|| store.revision()),
        queued: VecDeque::new(),
        bookmark: with_bookmarks.then(|| now + BOOKMARKS),
        ends: now + life.map_or(LIFE, Duration::from_secs),
        is_over: false,
    };
    if since.is_none() || lists {
        for (_, object) in store.all(kind) {
            if watch.filter.matches(object) {
                watch.push_stored("ADDED", object);
            }
        }
    }
    if lists && with_bookmarks {
        let end = watch.bookmark(store.revision(), true);
        watch.push("BOOKMARK", &end);
    }
    if watch.sent < store.compacted() {
        watch.expire(store.compacted());
    }
    drop(store);
    Ok(stream::unfold(watch, async |mut watch| Some((Ok(watch.next().await?), watch))))
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        let changed = self.server.store().changed(self.kind);
        loop {
            if let Some(frame) = self.queued.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            let mut change = pin!(changed.notified());
            change.as_mut().enable();
            if self.advance() {
                continue;
            }
            let wake = self.bookmark.map_or(self.ends, |at| at.min(self.ends));
            tokio::select! {
                biased;
                () = change => {}
                () = sleep_until(wake) => {
                    if Instant::now() >= self.ends {
                        return None;
                    }
                    self.bookmark = Some(Instant::now() + BOOKMARKS);
                    if self.advance() {
                        continue;
                    }
                    let bookmark = self.bookmark(self.sent, false);
                    self.push("BOOKMARK", &bookmark);
                }
            }
        }
    }

    /// Queues the frames of the changes since the last ones. Returns true if there are any.
    fn advance(&mut self) -> bool {
        let server = self.server.clone();
        let store = server.store();
        if store.has_forgotten(self.kind, self.sent) {
            self.expire(store.compacted());
            return true;
        }
        self.queue_changes(&store);
        self.sent = store.revision();
        !self.queued.is_empty()
    }

    /// Ends the watch with an error event: changes are missing.
    fn expire(&mut self, compacted: u64) {
        let refusal = Refusal::expired(format!("too old resource version: {} ({compacted})", self.sent));
        self.push("ERROR", &refusal.status());
        self.is_over = true;
    }

    fn queue_changes(&mut self, store: &Store) {
        for Change { before, after, deleted, .. } in store.since(self.kind, self.sent) {
            let was = before.as_ref().is_some_and(|before| self.filter.matches(before));
            let is = !deleted && self.filter.matches(after);
            match (was, is) {
                (false, true) => self.push_stored("ADDED", after),
                (true, true) => self.push_stored("MODIFIED", after),
                (true, false) if *deleted => self.push_stored("DELETED", after),
                (true, false) => {
                    // An object that is selected no longer is shown as it was, with the version of the change.
                    let mut last = before.as_ref().map(|before| Value::clone(before)).unwrap_or_default();
                    last["metadata"]["resourceVersion"] = after["metadata"]["resourceVersion"].clone();
                    self.push("DELETED", &last);
                }
                (false, false) => {}
            }
        }
    }

    fn bookmark(&self, revision: u64, ends_list: bool) -> Value {
        let kind = &KINDS[self.kind];
        let mut bookmark = json!({
            "kind": kind.kind, "apiVersion": kind.api_version(),
            "metadata": { "resourceVersion": revision.to_string() },
        });
        if ends_list {
            bookmark["metadata"]["annotations"] = json!({ END_OF_LIST: "true" });
        }
        bookmark
    }

    /// Queues a frame with an object of the store.
    fn push_stored(&mut self, kind: &str, object: &Value) {
        let bytes = self.server.encoded(object, self.form);
        self.push_bytes(kind, &bytes);
    }

    fn push(&mut self, kind: &str, object: &Value) {
        let object = if kind == "ERROR" { Cow::Borrowed(object) } else { shown(object, self.form) };
        self.push_bytes(kind, &bytes_of(&object, self.form));
    }

    fn push_bytes(&mut self, kind: &str, object: &[u8]) {
        self.queued.push_back(if self.form.protobuf {
            protobuf::frame(kind, object).into()
        } else {
            [b"{\"type\":\"", kind.as_bytes(), b"\",\"object\":", object, b"}\n"].concat().into()
        });
    }
}
