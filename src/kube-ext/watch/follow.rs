//! One watch, with the semantics of client-go's reflector: it starts with an initial list, resumes at its
//! resource version after a timeout or a lost connection, lists again after any other end, and backs off
//! after failures.

use std::{future::poll_fn, pin::Pin};

use http::{Request, StatusCode, header::ACCEPT, header::USER_AGENT};
use http_body::Body as _;
use k8s_pb::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{Client, client::Body, runtime::utils::Backoff};
use prost::Message;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::{
    InitialList, Meter, WatchRequest,
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
    /// The API server cannot be reached, refused the watch, or sent what cannot be decoded.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl WatchError {
    /// HTTP status of a refusal.
    pub fn code(&self) -> Option<u16> {
        let Self::Transport(error) = self else { return None };
        error.code()
    }

    /// Returns true if the next watch can resume at the same resource version. Otherwise the next one lists
    /// again, since it might be refused for ever: a resource version that the API server has not reached yet,
    /// as after a restore of etcd, is refused with 504.
    fn keeps_place(&self) -> bool {
        matches!(self, Self::Transport(TransportError::Unreachable(_)) | Self::Silent(_))
            || self.code() == Some(429)
    }
}

/// Runs a watch for as long as it is polled and passes its events to `on_event`. Continues after every failure
/// that `failed` accepts, after a wait.
pub async fn follow<E>(
    client: &Client,
    watch: &WatchRequest,
    mut backoff: impl Backoff,
    meter: &impl Meter,
    mut on_event: impl FnMut(WatchEvent<'_>),
    mut failed: impl FnMut(WatchError) -> Result<(), E>,
) -> E {
    let mut since = None;
    loop {
        let mut ended = match (&since, watch.initial_list) {
            (None, InitialList::List) => Err(WatchError::NoLists),
            _ => watch_once(client, watch, meter, &mut since, &mut on_event).await,
        };
        if let Err(WatchError::NoLists) = ended {
            ended = list(client, watch, meter, &mut on_event).await.map(|version| since = Some(version));
        }
        let Err(error) = ended else { continue };
        if !error.keeps_place() {
            since = None;
        }
        if let Err(enough) = failed(error) {
            return enough;
        }
        sleep(backoff.next().unwrap_or_default()).await;
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
    let (status, mut body) = get(client, &watch.request(since.as_deref(), life)).await?;
    match status.as_u16() {
        200 => {}
        410 => return Err(WatchError::Expired),
        400 | 422 if since.is_none() => return Err(WatchError::NoLists),
        _ => return Err(refused(status, body).await),
    }
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

/// Lists all objects page by page; returns the resource version of the list.
async fn list(
    client: &Client,
    watch: &WatchRequest,
    meter: &impl Meter,
    on_event: &mut impl FnMut(WatchEvent<'_>),
) -> Result<Box<str>, WatchError> {
    on_event(WatchEvent::InitialList);
    let mut token: Option<String> = None;
    loop {
        let page = page(client, &watch.list(token.as_deref()), meter).await?;
        for raw in &page.items {
            meter.event();
            on_event(WatchEvent::Object { raw, deleted: false });
        }
        let ListMeta { resource_version, r#continue, .. } = page.metadata.unwrap_or_default();
        token = r#continue.filter(|token| !token.is_empty());
        if token.is_none() {
            on_event(WatchEvent::Complete);
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
    let (status, body) = get(client, uri).await?;
    match status {
        StatusCode::OK => {}
        StatusCode::GONE => return Err(WatchError::Expired),
        _ => return Err(refused(status, body).await),
    }
    let bytes = body.collect_bytes().await.map_err(unreachable)?;
    meter.bytes(bytes.len());
    let raw = transport::unwrap(&bytes)?;
    drop(bytes);
    Ok(AnyList::decode(raw.as_slice()).map_err(TransportError::Decode)?)
}

async fn refused(status: StatusCode, body: Body) -> WatchError {
    match body.collect_bytes().await {
        Ok(bytes) => transport::refusal(status, &bytes).into(),
        Err(error) => unreachable(error).into(),
    }
}

async fn get(client: &Client, uri: &str) -> Result<(StatusCode, Body), WatchError> {
    let request = Request::get(uri).header(ACCEPT, ACCEPTED).header(USER_AGENT, AGENT).body(Body::empty());
    let request = request.map_err(TransportError::Request)?;
    let answer = client.send(request).await.map_err(unreachable)?;
    Ok((answer.status(), answer.into_body()))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use bytes::Bytes;
    use futures::{StreamExt, stream};
    use http::Response;
    use kube::core::Status;
    use parking_lot::Mutex;

    use super::{
        super::{frames::tests::bookmark, vital_backoff},
        *,
    };

    #[test]
    fn a_watch_goes_on_only_where_nothing_was_said_against_it() {
        let refused =
            |code| WatchError::Transport(TransportError::Refused(Status::default().with_code(code).boxed()));
        let away = WatchError::from(unreachable(kube::Error::LinesCodecMaxLineLengthExceeded));
        assert!(away.keeps_place() && refused(429).keeps_place());
        let over = [WatchError::Expired, WatchError::AtOnce, WatchError::NoLists, refused(403), refused(500)];
        for ended in over.into_iter().chain([refused(504), WatchError::Transport(TransportError::NoEnvelope)])
        {
            assert!(!ended.keeps_place(), "{ended}");
        }
    }

    /// Times and queries of the watch requests until the second failure. The server sends a bookmark that
    /// ends the initial list, then these bookmarks a minute apart, then nothing.
    async fn watches(bookmarks: &[&str]) -> Vec<(Duration, String)> {
        let frames: Vec<_> = bookmarks.iter().map(|version| Bytes::from(bookmark(version, false))).collect();
        let (begin, requests) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let into = Arc::clone(&requests);
        let server = tower::service_fn(move |request: Request<Body>| {
            into.lock().push((begin.elapsed(), request.uri().query().unwrap().to_owned()));
            let list = stream::iter([Bytes::from(bookmark("6", true))]);
            let later = stream::iter(frames.clone()).then(async |frame| {
                sleep(Duration::from_mins(1)).await;
                frame
            });
            let all = list.chain(later.boxed()).chain(stream::pending()).map(Ok::<_, Infallible>);
            let body = axum::body::Body::from_stream(all);
            async { Ok::<_, Infallible>(Response::new(body)) }
        });
        let watch = WatchRequest {
            path: "/api/v1/nodes".to_owned(),
            field_selector: None,
            label_selector: None,
            initial_list: InitialList::Stream,
            min_timeout: Duration::from_mins(5),
        };
        let mut failures = 0;
        let failed = |ended: WatchError| {
            assert!(matches!(ended, WatchError::Silent(_)), "{ended}");
            failures += 1;
            if failures == 2 { Err(()) } else { Ok(()) }
        };
        follow(&Client::new(server, "default"), &watch, vital_backoff(), &(), |_| {}, failed).await;
        let requests = requests.lock();
        requests.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_without_its_bookmarks_is_made_anew_where_it_was() {
        let [_, (at, query)] = &watches(&["7", "8"]).await[..] else { panic!("two watches") };
        // The bookmarks came after one and two minutes.
        assert!((240..245).contains(&at.as_secs()), "{at:?}");
        assert!(query.contains("resourceVersion=8&"), "{query}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_sends_no_bookmarks_may_be_silent_for_the_life_of_a_watch() {
        let [(_, first), (at, query)] = &watches(&[]).await[..] else { panic!("two watches") };
        let life = first.split('&').find_map(|part| part.strip_prefix("timeoutSeconds=")).unwrap();
        let life: u64 = life.parse().unwrap();
        assert!((300..600).contains(&life) && (life + 5..life + 8).contains(&at.as_secs()), "{life} {at:?}");
        assert!(query.contains("resourceVersion=6&"), "{query}");
    }
}
