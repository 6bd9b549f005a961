//! A client's connection: handshake, client certificate, and requests, within limits.

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

/// Timeout of the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Timeout of a request's head, and of an idle connection.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// Maximum age of a connection that is not admitted, and then of its graceful shutdown.
const STRANGER_LIMIT: Duration = Duration::from_secs(30);
/// Maximum age of a connection: a client that comes again authenticates again.
const OLDEST: Duration = Duration::from_mins(10);
/// TCP keepalive interval, as in Go servers.
const ALIVE: Duration = Duration::from_secs(15);
/// Maximum size of a request's head, in bytes.
const LARGEST_HEAD: usize = 64 << 10;

/// Client of a request.
#[derive(Clone)]
pub struct Caller {
    /// UID of the listener's machine.
    pub machine: Arc<str>,
    /// User of the client certificate, while that is valid.
    pub shown: Option<Shown>,
    /// Address of the client.
    pub address: IpAddr,
    /// Start of the connection.
    pub since: Instant,
    /// Slot of the connection, held while any part of it is in use.
    pub place: Arc<ConnectionSlot>,
}

impl Caller {
    /// User of the client certificate at `now`; None if it has expired.
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
    // A silent machine accepts no connection, nor does a process without a certificate.
    let (Some(_), Some(certificates)) = (server.machines.get(&machine), server.certificates()) else {
        return Ok(());
    };
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
        // The request under way is still answered.
        requests.as_mut().graceful_shutdown();
    }
    requests.await.map_err(io::Error::other)
}

async fn respond(
    server: Arc<Server>,
    caller: Caller,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let Some(seen) = server.machines.get(&caller.machine) else {
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
