//! The admin port: `/healthz` (the process runs), `/readyz` (its watches are in sync), `/metrics` (Prometheus
//! text).
//!
//! Anyone who reaches the address may send requests, so a client gets little: one request per connection,
//! time limits, and a bounded number of connections, of which no address takes more than its share.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{Router, body::Body, extract::State, response::IntoResponse, routing::get};
use http::{Request, StatusCode, header::CONTENT_TYPE};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Registry, TextEncoder};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, info};

use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};

/// Maximum number of connections: probes, and a Prometheus or two.
const CONNECTIONS: usize = 64;
/// Time limit for the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// Largest head of a request, in bytes.
const LARGEST_HEAD: usize = 16 << 10;
/// Longest life of a connection, from its first packet to the end of its response.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// Time limit for responses under way at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
/// Pause after a system error on accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Names of the parts that are not ready yet; empty when all are.
pub type Readiness = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Listener of the admin port.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    more: Router,
}

impl Admin {
    /// Binds the address; `flag` is the command-line flag that chose it.
    pub async fn bind(address: SocketAddr, flag: &'static str) -> anyhow::Result<Self> {
        let bound = TcpListener::bind(address).await;
        let listener = bound.with_context(|| format!("cannot listen on {address}: choose another {flag}"))?;
        // With port 0 the system chooses the port, and this line is where a caller reads it.
        info!(address = %listener.local_addr()?, "listens for probes and scrapes");
        Ok(Self { listener, more: Router::new() })
    }

    /// Adds routes.
    pub fn with(self, more: Router) -> Self {
        Self { more: self.more.merge(more), ..self }
    }

    /// Serves until shutdown.
    pub async fn serve(self, registry: Registry, ready: Readiness, shutdown: CancellationToken) {
        let Self { listener, more } = self;
        let router = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/readyz", get(readyz))
            .with_state(ready)
            .merge(Router::new().route("/metrics", get(metrics)).with_state(registry))
            .merge(more);
        let limiter = ConnectionLimiter::new(CONNECTIONS);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        let permit = limiter.admit(Some(address.ip()));
                        connections.spawn(answer(stream, router.clone(), permit));
                    }
                    Err(error) => {
                        debug!(%error, "a connection to the admin port was lost");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
        drop(listener);
        let rest = async { while connections.join_next().await.is_some() {} };
        // A client that does not take its response must not delay the end of the process.
        let _ = timeout(SHUTDOWN_LIMIT, rest).await;
    }
}

/// Serves the one request of a connection.
async fn answer(stream: TcpStream, router: Router, permit: ConnectionPermit) {
    let service =
        service_fn(move |request: Request<Incoming>| router.clone().oneshot(request.map(Body::new)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(LARGEST_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        served = timeout(REQUEST_LIMIT, connection) => match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "a client of the admin port is gone"),
            Err(_) => debug!("a client of the admin port took too long"),
        },
        () = permit.evicted().cancelled() => debug!("a client of the admin port made way for another one"),
    }
}

async fn readyz(State(ready): State<Readiness>) -> impl IntoResponse {
    let missing = ready();
    if missing.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join(", ")))
    }
}

async fn metrics(State(registry): State<Registry>) -> impl IntoResponse {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        net::{IpAddr, Ipv4Addr},
        time::Instant,
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpSocket,
    };

    use super::*;

    const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";

    /// A connection from an address of this machine.
    async fn connect(to: SocketAddr, from: [u8; 4]) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((IpAddr::from(from), 0).into())?;
        socket.connect(to).await
    }

    /// Reads until the server closes the connection.
    async fn rest(stream: &mut TcpStream) -> io::Result<String> {
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    async fn served() -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let admin = Admin::bind((Ipv4Addr::LOCALHOST, 0).into(), "--admin-address").await.unwrap();
        let (address, stop) = (admin.listener.local_addr().unwrap(), CancellationToken::new());
        let task = tokio::spawn(admin.serve(Registry::new(), Arc::new(Vec::new), stop.clone()));
        (address, stop, task)
    }

    #[tokio::test]
    async fn connections_that_ask_nothing_are_closed_and_hold_up_no_probe() {
        let (address, stop, task) = served().await;
        let begin = Instant::now();
        // Ten times the limit: half a request each, and nothing more.
        let mut attack = Vec::new();
        for _ in 0..10 * CONNECTIONS {
            let mut stream = connect(address, [127, 0, 0, 2]).await.unwrap();
            // The connection may have been evicted before this write.
            let _ = stream.write_all(&REQUEST[..20]).await;
            attack.push(stream);
        }
        for _ in 0..20 {
            let mut probe = connect(address, [127, 0, 0, 1]).await.unwrap();
            probe.write_all(REQUEST).await.unwrap();
            let answer = timeout(Duration::from_secs(2), rest(&mut probe)).await.unwrap().unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
        }
        // The last connections were not evicted and end at their time limit.
        let last = attack.last_mut().unwrap();
        let ended = timeout(HEAD_LIMIT + Duration::from_secs(5), rest(last)).await;
        assert!(ended.is_ok() && begin.elapsed() >= HEAD_LIMIT, "{ended:?} after {:?}", begin.elapsed());
        stop.cancel();
        timeout(Duration::from_secs(5), task).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_request_in_pieces_has_a_limit_as_a_whole_and_does_not_delay_the_shutdown() {
        let (address, stop, task) = served().await;
        let mut slow = connect(address, [127, 0, 0, 1]).await.unwrap();
        let begin = Instant::now();
        let write = async {
            for byte in REQUEST {
                slow.write_all(&[*byte]).await?;
                sleep(Duration::from_millis(400)).await;
            }
            Ok::<_, io::Error>(())
        };
        let written = timeout(REQUEST_LIMIT, write).await;
        assert!(matches!(written, Ok(Err(_))), "{written:?} after {:?}", begin.elapsed());
        let mut open = connect(address, [127, 0, 0, 1]).await.unwrap();
        open.write_all(b"GET").await.unwrap();
        stop.cancel();
        timeout(SHUTDOWN_LIMIT + Duration::from_secs(2), task).await.unwrap().unwrap();
    }
}
