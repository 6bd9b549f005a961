//! A connection: who it is, and its requests, within limits.

use std::{io, net::TcpStream, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::{Server, access::User, answers};

/// How long a client may take to show who it is.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to ask, and stay without asking.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// Largest head of a request, in bytes.
const LARGEST_HEAD: usize = 64 << 10;

/// Who asks.
#[derive(Clone)]
pub struct Caller {
    /// UID of the machine at whose door it came.
    pub machine: Arc<str>,
    /// The user that its certificate names.
    pub user: Option<User>,
    /// Its place among the connections, held until nobody needs it.
    pub _place: Arc<OwnedSemaphorePermit>,
}

/// Serves a connection in a task of its own.
pub fn begin(server: &Arc<Server>, stream: TcpStream, machine: Arc<str>, place: OwnedSemaphorePermit) {
    let server = Arc::clone(server);
    let shutdown = server.shutdown.clone();
    tokio::spawn(shutdown.run_until_cancelled_owned(async move {
        let place = Arc::new(place);
        if let Err(error) = serve(&server, stream, machine, place).await {
            debug!(%error, "a client of a kubelet is gone");
        }
    }));
}

async fn serve(
    server: &Arc<Server>,
    stream: TcpStream,
    machine: Arc<str>,
    place: Arc<OwnedSemaphorePermit>,
) -> io::Result<()> {
    // A machine that is silent takes no connection; neither does one that has nothing to show.
    let (Some(_), Some(certificates)) = (server.seen(&machine), server.certificates()) else { return Ok(()) };
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let handshake = timeout(HANDSHAKE_LIMIT, TlsAcceptor::from(certificates.config()).accept(stream));
    let stream = handshake.await??;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user = shown.and_then(|shown| User::of_certificate(shown));
    let caller = Caller { machine, user, _place: place };
    let service = service_fn(|request: Request<Incoming>| {
        let (server, caller) = (Arc::clone(server), caller.clone());
        async move { respond(server, caller, request).await }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
        .map_err(io::Error::other)
}

async fn respond(
    server: Arc<Server>,
    caller: Caller,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    match server.seen(&caller.machine) {
        Some(seen) => Ok(answers::answer(server, caller, seen, request).await),
        None => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the machine is silent")),
    }
}
