//! One watch, with the semantics of client-go's reflector: it starts with an initial list, resumes at its
//! resource version after a timeout or a lost connection, lists again after any other end, and backs off
//! after failures.

use std::{future::poll_fn, pin::Pin};

use http::{
    Request, Response, StatusCode,
    header::{ACCEPT, RETRY_AFTER, USER_AGENT},
};
use http_body::Body as _;
use k8s_pb::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{Client, client::Body, runtime::utils::Backoff};
use prost::Message;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::{
    InitialList, Meter, Newest, WatchRequest,
    frames::{Frame, Frames},
};
use crate::{
    environment,
    transport::{self, AGENT, TransportError, unreachable},
};

/// Accepted encodings: frames for a watch, plain protobuf for other responses.
const ACCEPTED: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/vnd.kubernetes.protobuf";
/// A watch without events that ends sooner has failed.
const SHORT: Duration = Duration::from_secs(1);
/// Longest silence of a watch that has brought a bookmark. kube-apiserver sends one about every minute
/// (`cacher`: `bookmarkFrequency`), so two in a row are missing.
const SILENCE: Duration = Duration::from_mins(2);
/// Longest wait that the API server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Start of the message of a 504 for a resource version that is not reached yet (apiserver: `storage/errors.go`).
const TOO_LARGE: &str = "Too large resource version";
/// Silence allowed beyond the requested lifetime of a watch.
const LATE: Duration = Duration::from_secs(5);

/// Watch event, as passed to the caller.
#[derive(Debug)]
pub enum WatchEvent<'a> {
    /// An initial list is about to be requested; its objects follow up to `Complete`, or to another
    /// `InitialList`.
    InitialList,
    /// An added, changed or deleted object.
    Object {
        /// The object, as its encoded message.
        raw: &'a [u8],
        /// True if the object was deleted.
        deleted: bool,
    },
    /// The initial list is complete: an object that has not come since `InitialList` does not exist.
    Complete,
}

/// Early end of a watch.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The API server no longer has the resource version.
    #[error("the version is too old")]
    Expired,
    /// The API server does not support `sendInitialEvents`.
    #[error("the API server streams no lists")]
    NoLists,
    /// The watch ended at once.
    #[error("the watch ended at once")]
    AtOnce,
    /// The connection is open, but nothing comes any more.
    #[error("the watch has been silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// The API server asks to send the request again after this time.
    #[error("the API server asks to come again after {} s", .after.as_secs())]
    Later {
        /// Time to wait.
        after: Duration,
        /// Refusal.
        source: TransportError,
    },
    /// The API server cannot be reached, refused the watch, or sent what cannot be decoded.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl WatchError {
    /// HTTP status of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Later { source: error, .. } | Self::Transport(error) => error.code(),
            _ => None,
        }
    }

    /// Returns true if the next watch can resume at the same resource version. Otherwise the next one lists
    /// again, since it might be refused for ever.
    fn keeps_place(&self) -> bool {
        matches!(self, Self::Transport(TransportError::Unreachable(_)) | Self::Silent(_) | Self::Later { .. })
            || self.code() == Some(429)
    }

    /// Returns true if the API server does not have the requested resource version: it is compacted, or, as after a
    /// restore of etcd, not reached yet, which is refused with 504.
    fn lacks_version(&self) -> bool {
        match self {
            Self::Expired => true,
            Self::Transport(error) => is_too_large(error),
            _ => false,
        }
    }

    /// Time that the API server asks to wait.
    fn retry_after(&self) -> Duration {
        let Self::Later { after, .. } = self else { return Duration::ZERO };
        *after
    }
}

/// Returns true for the refusal of a resource version that the API server has not reached yet.
fn is_too_large(error: &TransportError) -> bool {
    let TransportError::Refused(status) = error else { return false };
    status.code == 504 && status.message.starts_with(TOO_LARGE)
}

/// Runs a watch for as long as it is polled and passes its events to `on_event`. Continues after every failure
/// that `failed` accepts, after a wait.
///
/// The first list is one of the latest state. A later one shows at least what the watch has shown and what is noted in
/// `newest`, so that the API server can take it from its watch cache: after a failure on a huge cluster, lists of the
/// latest state by all clients at once would be full reads of etcd.
pub async fn follow<E>(
    client: &Client,
    watch: &WatchRequest,
    mut backoff: impl Backoff,
    meter: &impl Meter,
    newest: &Newest,
    mut on_event: impl FnMut(WatchEvent<'_>),
    mut failed: impl FnMut(WatchError) -> Result<(), E>,
) -> E {
    let (mut since, mut is_first) = (None, true);
    loop {
        let mut ended = match (&since, watch.initial_list) {
            (None, InitialList::List) => Err(WatchError::NoLists),
            _ => watch_once(client, watch, meter, &mut since, &mut on_event).await,
        };
        if let Err(WatchError::NoLists) = ended {
            ended = list(client, watch, meter, (newest, is_first), &mut on_event).await.map(|version| {
                (since, is_first) = (Some(version), false);
            });
        }
        let Err(error) = ended else { continue };
        if !error.keeps_place()
            && let Some(version) = since.take()
        {
            newest.note(&version);
        }
        if error.lacks_version() {
            newest.forget();
        }
        let asked = error.retry_after();
        if let Err(enough) = failed(error) {
            return enough;
        }
        sleep(backoff.next().unwrap_or_default().max(asked)).await;
    }
}

/// Runs one watch to its end; `since` is its resource version at the start and, updated, that of the next
/// watch.
async fn watch_once(
    client: &Client,
    watch: &WatchRequest,
    meter: &impl Meter,
    since: &mut Option<Box<str>>,
    on_event: &mut impl FnMut(WatchEvent<'_>),
) -> Result<(), WatchError> {
    let began = Instant::now();
    let life = watch.min_timeout.mul_f64(environment::random_range(1.0..2.0));
    if since.is_none() {
        on_event(WatchEvent::InitialList);
    }
    let answer = get(client, &watch.request(since.as_deref(), life)).await?;
    match answer.status().as_u16() {
        200 => {}
        410 => return Err(WatchError::Expired),
        400 | 422 if since.is_none() => return Err(WatchError::NoLists),
        _ => return Err(refused(answer).await),
    }
    let mut body = answer.into_body();
    let _open = meter.open();
    let (mut frames, mut is_empty) = (Frames::default(), true);
    // A server without a watch cache sends no bookmarks, though every watch requests them.
    let mut limit = life + LATE;
    loop {
        let next = timeout(limit, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await;
        let Some(part) = next.map_err(|_| WatchError::Silent(limit))? else { break };
        let part = part.map_err(unreachable)?;
        let Ok(bytes) = part.into_data() else { continue };
        meter.bytes(bytes.len());
        frames.push(&bytes);
        drop(bytes);
        while let Some(frame) = frames.next() {
            meter.event();
            is_empty = false;
            match frame {
                Ok(Frame::Object { version, deleted, raw }) => {
                    on_event(WatchEvent::Object { raw: &raw, deleted });
                    // A watch cannot resume within an incomplete initial list.
                    if let Some(since) = since {
                        *since = version.into();
                    }
                }
                Ok(Frame::Bookmark { version, ends_list }) => {
                    // The bookmark that ends the initial list does not imply the periodic ones of a watch
                    // cache.
                    if !ends_list {
                        limit = SILENCE;
                    }
                    if since.is_none() && ends_list {
                        on_event(WatchEvent::Complete);
                    }
                    if since.is_some() || ends_list {
                        *since = Some(version.into());
                    }
                }
                Err(error) if error.code() == Some(410) => return Err(WatchError::Expired),
                Err(error) => return Err(error.into()),
            }
        }
    }
    if is_empty && began.elapsed() < SHORT { Err(WatchError::AtOnce) } else { Ok(()) }
}

/// Lists all objects page by page, with `is_latest` of the latest state; returns the resource version of the list.
async fn list(
    client: &Client,
    watch: &WatchRequest,
    meter: &impl Meter,
    (newest, is_latest): (&Newest, bool),
    on_event: &mut impl FnMut(WatchEvent<'_>),
) -> Result<Box<str>, WatchError> {
    on_event(WatchEvent::InitialList);
    // Writes whose answers came before the list began are noted by now.
    let oldest = newest.oldest();
    let not_older = oldest.version.filter(|_| !is_latest);
    let mut token: Option<String> = None;
    loop {
        let page = page(client, &watch.list(not_older, token.as_deref()), meter).await?;
        for raw in &page.items {
            meter.event();
            on_event(WatchEvent::Object { raw, deleted: false });
        }
        let ListMeta { resource_version, r#continue, .. } = page.metadata.unwrap_or_default();
        token = r#continue.filter(|token| !token.is_empty());
        if token.is_none() {
            on_event(WatchEvent::Complete);
            newest.listed(oldest);
            return Ok(resource_version.unwrap_or_default().into());
        }
    }
}

/// A list of any kind, with its items undecoded.
#[derive(Clone, PartialEq, Message)]
struct AnyList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    items: Vec<Vec<u8>>,
}

async fn page(client: &Client, uri: &str, meter: &impl Meter) -> Result<AnyList, WatchError> {
    let answer = get(client, uri).await?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::GONE => return Err(WatchError::Expired),
        _ => return Err(refused(answer).await),
    }
    let bytes = answer.into_body().collect_bytes().await.map_err(unreachable)?;
    meter.bytes(bytes.len());
    let raw = transport::unwrap(&bytes)?;
    drop(bytes);
    Ok(AnyList::decode(raw.as_slice()).map_err(TransportError::Decode)?)
}

async fn refused(answer: Response<Body>) -> WatchError {
    let (head, body) = answer.into_parts();
    let source = match body.collect_bytes().await {
        Ok(bytes) => transport::refusal(head.status, &bytes),
        Err(error) => return unreachable(error).into(),
    };
    // As client-go does, which sends such a request again itself.
    let is_temporary = head.status == StatusCode::TOO_MANY_REQUESTS || head.status.is_server_error();
    let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    match seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE)) {
        Some(after) if is_temporary && !is_too_large(&source) => WatchError::Later { after, source },
        _ => source.into(),
    }
}

async fn get(client: &Client, uri: &str) -> Result<Response<Body>, WatchError> {
    let request = Request::get(uri).header(ACCEPT, ACCEPTED).header(USER_AGENT, AGENT).body(Body::empty());
    let request = request.map_err(TransportError::Request)?;
    Ok(client.send(request).await.map_err(unreachable)?)
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
