//! A connection: who it is, and its requests, within limits.

use std::{
    io,
    net::{IpAddr, TcpStream},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode, header::CONNECTION};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use socket2::{SockRef, TcpKeepalive};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::{
    Server,
    access::{Shown, User},
    answers,
    connection_slots::ConnectionSlot,
};

/// How long a client may take to show who it is.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to ask, and stay without asking.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// How long one may stay that was not let in; as long again while it is told so.
const STRANGER_LIMIT: Duration = Duration::from_secs(30);
/// How old a connection becomes: who comes again shows anew who it is.
const OLDEST: Duration = Duration::from_mins(10);
/// How often a client on which nothing moves is asked whether it is still there, as servers in Go do.
const ALIVE: Duration = Duration::from_secs(15);
/// Largest head of a request, in bytes.
const LARGEST_HEAD: usize = 64 << 10;

/// Who asks.
#[derive(Clone)]
pub struct Caller {
    /// UID of the machine at whose door it came.
    pub machine: Arc<str>,
    /// The user that its certificate names, for as long as that holds.
    pub shown: Option<Shown>,
    /// Where it came from.
    pub address: IpAddr,
    /// When it came.
    pub since: Instant,
    /// Its place among the connections, held until nobody needs it.
    pub place: Arc<ConnectionSlot>,
}

impl Caller {
    /// The user that its certificate names at this moment; none where that has run out.
    #[must_use]
    pub fn user(&self, now: Timestamp) -> Option<&User> {
        self.shown.as_ref().filter(|shown| now <= shown.until).map(|shown| &shown.user)
    }
}

/// Serves a connection in a task of its own.
pub fn begin(server: &Arc<Server>, client: (TcpStream, IpAddr), machine: Arc<str>, place: ConnectionSlot) {
    let (server, place) = (Arc::clone(server), Arc::new(place));
    let shutdown = server.shutdown.clone();
    tokio::spawn(shutdown.run_until_cancelled_owned(async move {
        tokio::select! {
            ended = serve(&server, client, machine, Arc::clone(&place)) => if let Err(error) = ended {
                debug!(%error, "a client of a kubelet is gone");
            },
            () = place.is_lost() => debug!("a client of a kubelet has lost its place to others"),
        }
    }));
}

async fn serve(
    server: &Arc<Server>,
    (stream, address): (TcpStream, IpAddr),
    machine: Arc<str>,
    place: Arc<ConnectionSlot>,
) -> io::Result<()> {
    // A machine that is silent takes no connection; neither does one that has nothing to show.
    let (Some(_), Some(certificates)) = (server.seen(&machine), server.certificates()) else { return Ok(()) };
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let alive = TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&alive)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let handshake = timeout(HANDSHAKE_LIMIT, TlsAcceptor::from(certificates.config()).accept(stream));
    let stream = handshake.await??;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let shown = shown.and_then(|shown| Shown::of_certificate(shown));
    if shown.is_some() {
        place.authenticate();
    }
    let caller = Caller { machine, shown, address, since: Instant::now(), place: Arc::clone(&place) };
    let service = service_fn(|request: Request<Incoming>| {
        let (server, caller) = (Arc::clone(server), caller.clone());
        async move { respond(server, caller, request).await }
    });
    let requests = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut requests = pin!(requests);
    for is_told in [false, true] {
        tokio::select! {
            ended = &mut requests => return ended.map_err(io::Error::other),
            () = sleep(STRANGER_LIMIT) => {}
        }
        if place.is_guests() {
            break;
        }
        if is_told {
            return Ok(());
        }
        // What it has asked just now is answered yet.
        requests.as_mut().graceful_shutdown();
    }
    requests.await.map_err(io::Error::other)
}

async fn respond(
    server: Arc<Server>,
    caller: Caller,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let Some(seen) = server.seen(&caller.machine) else {
        return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the machine is silent"));
    };
    let since = caller.since;
    let mut answer = answers::answer(Arc::clone(&server), caller, seen, request).await;
    let status = answer.status();
    let is_last = status == StatusCode::UNAUTHORIZED
        || (status != StatusCode::SWITCHING_PROTOCOLS
            && (server.places.are_scarce() || since.elapsed() >= OLDEST));
    if is_last {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}
