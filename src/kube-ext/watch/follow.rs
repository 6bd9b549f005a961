//! One watch, held as client-go's reflector holds it: it begins with all that there is, goes on where it was when its life is
//! over or the API server is away, begins anew after any other end, and backs off when it fails.

use std::{future::poll_fn, pin::Pin};

use http::{Request, StatusCode, header::ACCEPT, header::USER_AGENT};
use http_body::Body as _;
use kube::{Client, client::Body};
use prost::Message;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::{
    Backoff, InitialList, Meter, WatchRequest,
    frames::{Frame, FrameError, Frames},
};
use crate::wire::{self, AGENT, WireError};

/// What an answer is asked for: a watch in frames, and other answers whole.
const ACCEPTED: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/vnd.kubernetes.protobuf";
/// A watch that ends sooner, and brought nothing, failed.
const SHORT: Duration = Duration::from_secs(1);
/// Longest silence of a watch that has brought a bookmark. kube-apiserver sends one about every minute (`cacher`:
/// `bookmarkFrequency`), so two in a row are missing.
const SILENCE: Duration = Duration::from_mins(2);
/// How long a watch may be silent beyond the life that it was asked for.
const LATE: Duration = Duration::from_secs(5);

/// What a watch tells.
#[derive(Debug)]
pub enum WatchEvent<'a> {
    /// All that there is is about to be asked for; it comes up to `Complete`, or to another `InitialList`.
    InitialList,
    /// An object.
    Object {
        /// It, in its own message.
        raw: &'a [u8],
        /// Whether it is gone.
        deleted: bool,
    },
    /// What did not come since `InitialList` is not there.
    Complete,
}

/// Why a watch ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The API server does not remember the version.
    #[error("the version is too old")]
    Expired,
    /// It does not have watches that begin with a list.
    #[error("the API server streams no lists")]
    NoLists,
    /// It ended at once.
    #[error("the watch ended at once")]
    AtOnce,
    /// Its connection is open, and brings nothing any more.
    #[error("the watch has been silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// It refuses, or ended the watch so.
    #[error("the watch is refused")]
    Refused(#[source] WireError),
    /// It cannot be reached, or no more.
    #[error("the API server cannot be reached")]
    Unreachable(#[source] Box<kube::Error>),
    /// What comes is not understood.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A list is not understood.
    #[error(transparent)]
    List(#[from] WireError),
}

impl Ended {
    /// HTTP status of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(error) => error.code(),
            _ => None,
        }
    }

    /// Whether the next watch can go on where this one was. Else it begins anew, or might be refused the same way for ever: a
    /// version that the API server has not come to yet, as after a restore of etcd, it refuses with 504.
    fn keeps_place(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent(_)) || self.code() == Some(429)
    }
}

/// Holds a watch for as long as it is polled, and tells what comes. It goes on after every failure that `failed` puts up with.
pub async fn follow<E>(
    client: &Client,
    watch: &WatchRequest,
    meter: &impl Meter,
    mut tell: impl FnMut(WatchEvent<'_>),
    mut failed: impl FnMut(Ended) -> Result<(), E>,
) -> E {
    let mut since = None;
    let mut backoff = Backoff::new(watch.backoff);
    loop {
        let ended = match (&since, watch.initial_list) {
            (None, InitialList::List) => Err(Ended::NoLists),
            _ => once(client, watch, meter, &mut since, &mut tell).await,
        };
        let error = match ended {
            Ok(()) => continue,
            Err(Ended::NoLists) => match fill(client, watch, meter, &mut tell).await {
                Ok(version) => {
                    since = Some(version);
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        if !error.keeps_place() {
            since = None;
        }
        let wait = backoff.wait(Instant::now());
        if let Err(enough) = failed(error) {
            return enough;
        }
        sleep(wait).await;
    }
}

/// One watch to its end; `since` is where it begins, and where the next one can.
async fn once(
    client: &Client,
    watch: &WatchRequest,
    meter: &impl Meter,
    since: &mut Option<Box<str>>,
    tell: &mut impl FnMut(WatchEvent<'_>),
) -> Result<(), Ended> {
    let began = Instant::now();
    let life = watch.min_timeout.mul_f64(rand::random_range(1.0..2.0));
    if since.is_none() {
        tell(WatchEvent::InitialList);
    }
    let (status, mut body) = get(client, &watch.request(since.as_deref(), life)).await?;
    match status.as_u16() {
        200 => {}
        410 => return Err(Ended::Expired),
        400 | 422 if since.is_none() => return Err(Ended::NoLists),
        _ => return Err(refused(status, body).await),
    }
    let _open = meter.open();
    let (mut frames, mut is_empty) = (Frames::default(), true);
    // Not every server sends bookmarks, though all are asked to: one without a watch cache sends none.
    let mut limit = life + LATE;
    loop {
        let next = timeout(limit, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await;
        let Some(part) = next.map_err(|_| Ended::Silent(limit))? else { break };
        let part = part.map_err(|error| Ended::Unreachable(Box::new(error)))?;
        let Ok(bytes) = part.into_data() else { continue };
        meter.bytes(bytes.len());
        frames.push(&bytes);
        drop(bytes);
        while let Some(frame) = frames.next() {
            meter.event();
            is_empty = false;
            match frame? {
                Frame::Object { version, deleted, raw } => {
                    tell(WatchEvent::Object { raw: &raw, deleted });
                    // What came of a list that is not complete is no place to go on from.
                    if let Some(since) = since {
                        *since = version.into();
                    }
                }
                Frame::Bookmark { version, ends_list } => {
                    // The one that ends the list comes without a watch cache's clock.
                    if !ends_list {
                        limit = SILENCE;
                    }
                    if since.is_none() && ends_list {
                        tell(WatchEvent::Complete);
                        *since = Some(version.into());
                    } else if let Some(since) = since {
                        *since = version.into();
                    }
                }
                Frame::Error(error) if error.code() == Some(410) => return Err(Ended::Expired),
                Frame::Error(error) => return Err(Ended::Refused(error)),
            }
        }
    }
    if is_empty && began.elapsed() < SHORT { Err(Ended::AtOnce) } else { Ok(()) }
}

/// All that there is, by a list; its version.
async fn fill(
    client: &Client,
    watch: &WatchRequest,
    meter: &impl Meter,
    tell: &mut impl FnMut(WatchEvent<'_>),
) -> Result<Box<str>, Ended> {
    tell(WatchEvent::InitialList);
    let mut token: Option<String> = None;
    loop {
        let page = page(client, &watch.list(token.as_deref()), meter).await?;
        for raw in &page.items {
            meter.event();
            tell(WatchEvent::Object { raw, deleted: false });
        }
        let Meta { resource_version, r#continue } = page.metadata.unwrap_or_default();
        if r#continue.is_empty() {
            tell(WatchEvent::Complete);
            return Ok(resource_version.into());
        }
        token = Some(r#continue);
    }
}

/// A list of anything, with its items as they are.
#[derive(Clone, PartialEq, Message)]
struct AnyList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Meta>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    items: Vec<Vec<u8>>,
}

/// Tags are those of meta/v1 `ListMeta`.
#[derive(Clone, PartialEq, Eq, Message)]
struct Meta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    r#continue: String,
}

async fn page(client: &Client, uri: &str, meter: &impl Meter) -> Result<AnyList, Ended> {
    let (status, body) = get(client, uri).await?;
    match status {
        StatusCode::OK => {}
        StatusCode::GONE => return Err(Ended::Expired),
        _ => return Err(refused(status, body).await),
    }
    let bytes = body.collect_bytes().await.map_err(|error| Ended::Unreachable(Box::new(error)))?;
    meter.bytes(bytes.len());
    let raw = wire::unwrap(&bytes)?;
    drop(bytes);
    Ok(AnyList::decode(raw.as_slice()).map_err(WireError::Decode)?)
}

async fn refused(status: StatusCode, body: Body) -> Ended {
    match body.collect_bytes().await {
        Ok(bytes) => Ended::Refused(wire::refusal(status, &bytes)),
        Err(error) => Ended::Unreachable(Box::new(error)),
    }
}

async fn get(client: &Client, uri: &str) -> Result<(StatusCode, Body), Ended> {
    let request = Request::get(uri).header(ACCEPT, ACCEPTED).header(USER_AGENT, AGENT).body(Body::empty());
    let request = request.map_err(WireError::Request)?;
    let answer = client.send(request).await.map_err(|error| Ended::Unreachable(Box::new(error)))?;
    Ok((answer.status(), answer.into_body()))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use bytes::Bytes;
    use futures::{StreamExt, stream};
    use http::Response;

    use super::{
        super::{BackoffConfig, frames::tests::bookmark},
        *,
    };

    #[test]
    fn a_watch_goes_on_only_where_nothing_was_said_against_it() {
        let refused =
            |code| Ended::Refused(WireError::Refused { code, reason: String::new(), message: String::new() });
        let unreachable = Ended::Unreachable(Box::new(kube::Error::LinesCodecMaxLineLengthExceeded));
        assert!(unreachable.keeps_place() && refused(429).keeps_place());
        let over = [Ended::Expired, Ended::AtOnce, Ended::NoLists, refused(403), refused(500)];
        for ended in over.into_iter().chain([refused(504), Ended::List(WireError::NoEnvelope)]) {
            assert!(!ended.keeps_place(), "{ended}");
        }
    }

    /// When watches were asked for, and where they began, until the first has failed and the next is open. The server sends
    /// a bookmark that ends the list, these ones a minute apart, and then nothing.
    async fn watches(bookmarks: &[&str]) -> Vec<(Duration, String)> {
        let frames: Vec<_> = bookmarks.iter().map(|version| Bytes::from(bookmark(version, false))).collect();
        let (begin, asked) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let into = Arc::clone(&asked);
        let server = tower::service_fn(move |request: Request<Body>| {
            into.lock().unwrap().push((begin.elapsed(), request.uri().query().unwrap().to_owned()));
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
            backoff: BackoffConfig::VITAL,
        };
        let mut failures = 0;
        let failed = |ended: Ended| {
            assert!(matches!(ended, Ended::Silent(_)), "{ended}");
            failures += 1;
            if failures == 2 { Err(()) } else { Ok(()) }
        };
        follow(&Client::new(server, "default"), &watch, &(), |_| {}, failed).await;
        let asked = asked.lock().unwrap();
        asked.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_without_its_bookmarks_is_made_anew_where_it_was() {
        let [_, (at, query)] = &watches(&["7", "8"]).await[..] else { panic!("two watches") };
        // Bookmarks came after one and two minutes.
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
