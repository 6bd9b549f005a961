//! One watch, held as client-go's reflector holds it: it begins with all that there is, goes on where it was when its life is
//! over or the API server is away, begins anew after any other end, and backs off when it fails.

use std::{convert::Infallible, future::poll_fn, pin::Pin, time::Duration};

use http::{Request, StatusCode, header::ACCEPT, header::USER_AGENT};
use http_body::Body as _;
use kube::{Client, client::Body};
use prost::Message;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::{
    Meter,
    frames::{Frame, FrameError, Frames},
    watches::Watch,
};
use crate::{
    error::chain,
    wire::{self, AGENT, WireError},
};

/// What an answer is asked for: a watch in frames, and other answers whole.
const ACCEPTED: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/vnd.kubernetes.protobuf";
/// First wait after a failure; it doubles, and each is lengthened by chance, to twice itself at most.
const FIRST_WAIT: Duration = Duration::from_millis(800);
/// Longest wait before that.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// After such a time without a failure the next one is the first.
const CALM: Duration = Duration::from_mins(2);
/// A watch that ends sooner, and brought nothing, failed.
const SHORT: Duration = Duration::from_secs(1);

/// What a watch tells.
#[derive(Debug)]
pub enum Told<'a> {
    /// All that there is comes now, up to `Complete`.
    Begins,
    /// An object.
    Object {
        /// It, in its own message.
        raw: &'a [u8],
        /// Whether it is gone.
        deleted: bool,
    },
    /// What did not come since `Begins` is not there.
    Complete,
}

/// Why a watch ended before its time.
#[derive(Debug, thiserror::Error)]
enum Ended {
    /// The API server does not remember the version.
    #[error("the version is too old")]
    Expired,
    /// It does not have watches that begin with a list.
    #[error("the API server streams no lists")]
    NoLists,
    /// It ended at once.
    #[error("the watch ended at once")]
    AtOnce,
    /// It refuses, or ended the watch so.
    #[error("the API server answers {0}")]
    Refused(u16),
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
    /// Whether the next watch can go on where this one was. Else it begins anew, or might be refused the same way for ever: a
    /// version that the API server has not come to yet, as after a restore of etcd, it refuses with 504.
    fn keeps_place(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Refused(429))
    }
}

/// Holds a watch for as long as it is polled, and tells what comes.
pub async fn follow(
    client: &Client,
    watch: &Watch,
    meter: &Meter,
    mut tell: impl FnMut(Told<'_>),
) -> Infallible {
    let mut since = None;
    let mut patience = Patience::default();
    loop {
        let ended = once(client, watch, meter, &mut since, &mut tell).await;
        let error = match ended {
            Ok(()) => continue,
            Err(Ended::NoLists) => match list(client, watch, meter, &mut tell).await {
                Ok(version) => {
                    since = Some(version);
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        debug!(path = watch.path, error = chain(&error), "a watch ended");
        if !error.keeps_place() {
            since = None;
        }
        sleep(patience.next(Instant::now())).await;
    }
}

/// One watch to its end; `since` is where it begins, and where the next one can.
async fn once(
    client: &Client,
    watch: &Watch,
    meter: &Meter,
    since: &mut Option<Box<str>>,
    tell: &mut impl FnMut(Told<'_>),
) -> Result<(), Ended> {
    let began = Instant::now();
    let life = watch.least_life.mul_f64(rand::random_range(1.0..2.0));
    let (status, mut body) = get(client, &watch.request(since.as_deref(), life)).await?;
    match status.as_u16() {
        200 => {}
        410 => return Err(Ended::Expired),
        400 | 422 if since.is_none() => return Err(Ended::NoLists),
        code => return Err(Ended::Refused(code)),
    }
    let _open = meter.open();
    if since.is_none() {
        tell(Told::Begins);
    }
    let (mut frames, mut is_empty) = (Frames::default(), true);
    while let Some(part) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let part = part.map_err(|error| Ended::Unreachable(Box::new(error)))?;
        let Ok(bytes) = part.into_data() else { continue };
        meter.bytes.inc_by(u64::try_from(bytes.len()).unwrap_or_default());
        frames.push(&bytes);
        drop(bytes);
        while let Some(frame) = frames.next() {
            meter.events.inc();
            is_empty = false;
            match frame? {
                Frame::Object { version, deleted, raw } => {
                    tell(Told::Object { raw: &raw, deleted });
                    // What came of a list that is not complete is no place to go on from.
                    if let Some(since) = since {
                        *since = version.into();
                    }
                }
                Frame::Bookmark { version, ends_list } => {
                    if since.is_none() && ends_list {
                        tell(Told::Complete);
                        *since = Some(version.into());
                    } else if let Some(since) = since {
                        *since = version.into();
                    }
                }
                Frame::Error(410) => return Err(Ended::Expired),
                Frame::Error(code) => return Err(Ended::Refused(u16::try_from(code).unwrap_or_default())),
            }
        }
    }
    if is_empty && began.elapsed() < SHORT { Err(Ended::AtOnce) } else { Ok(()) }
}

/// A list; its version.
async fn list(
    client: &Client,
    watch: &Watch,
    meter: &Meter,
    tell: &mut impl FnMut(Told<'_>),
) -> Result<Box<str>, Ended> {
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
        #[prost(string, optional, tag = "2")]
        resource_version: Option<String>,
    }
    let (status, body) = get(client, &watch.list()).await?;
    if status != StatusCode::OK {
        return Err(Ended::Refused(status.as_u16()));
    }
    let bytes = body.collect_bytes().await.map_err(|error| Ended::Unreachable(Box::new(error)))?;
    meter.bytes.inc_by(u64::try_from(bytes.len()).unwrap_or_default());
    let raw = wire::unwrap(&bytes)?;
    let AnyList { metadata, items } = AnyList::decode(raw.as_slice()).map_err(WireError::Decode)?;
    tell(Told::Begins);
    for raw in &items {
        meter.events.inc();
        tell(Told::Object { raw, deleted: false });
    }
    tell(Told::Complete);
    Ok(metadata.and_then(|metadata| metadata.resource_version).unwrap_or_default().into())
}

async fn get(client: &Client, uri: &str) -> Result<(StatusCode, Body), Ended> {
    let request = Request::get(uri).header(ACCEPT, ACCEPTED).header(USER_AGENT, AGENT).body(Body::empty());
    let request = request.map_err(WireError::Request)?;
    let answer = client.send(request).await.map_err(|error| Ended::Unreachable(Box::new(error)))?;
    Ok((answer.status(), answer.into_body()))
}

/// How long to wait after a failure.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
    last: Option<Instant>,
}

impl Patience {
    fn next(&mut self, now: Instant) -> Duration {
        if self.last.is_some_and(|last| now.duration_since(last) > CALM) {
            self.failures = 0;
        }
        let wait = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        let wait = wait.mul_f64(rand::random_range(1.0..2.0));
        self.last = Some(now + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_goes_on_only_where_nothing_was_said_against_it() {
        let unreachable = Ended::Unreachable(Box::new(kube::Error::LinesCodecMaxLineLengthExceeded));
        assert!(unreachable.keeps_place() && Ended::Refused(429).keeps_place());
        let over = [Ended::Expired, Ended::AtOnce, Ended::NoLists, Ended::Refused(403), Ended::Refused(500)];
        for ended in over.into_iter().chain([Ended::Refused(504), Ended::List(WireError::NoEnvelope)]) {
            assert!(!ended.keeps_place(), "{ended}");
        }
    }

    #[test]
    fn waits_are_those_of_a_reflector() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let first = patience.next(now);
        assert!((FIRST_WAIT..FIRST_WAIT * 2).contains(&first), "{first:?}");
        let longest = (0..9).map(|_| patience.next(now)).last().unwrap();
        assert!((LONGEST_WAIT..LONGEST_WAIT * 2).contains(&longest), "{longest:?}");
        let rested = patience.next(now + CALM * 2);
        assert!(rested < FIRST_WAIT * 2, "{rested:?}");
    }
}
