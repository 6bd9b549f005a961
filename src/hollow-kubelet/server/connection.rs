//! A client's connection: TLS handshake, client certificate, and requests, within limits.

use std::{
    io,
    net::{IpAddr, TcpStream},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube_ext::environment;
use socket2::{SockRef, TcpKeepalive};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tracing::debug;

use super::{
    Server,
    access::CertificateUser,
    connection_slots::ConnectionSlot,
    router::{self, METHOD_NOT_ALLOWED},
};
use crate::served_machine::ServedMachine;

/// Timeout of the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Timeout of a request's head, and of an idle connection.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// Maximum age of a connection that is not admitted, and then of its graceful shutdown.
const UNADMITTED_LIMIT: Duration = Duration::from_secs(30);
/// Maximum age of a connection: a client that comes again authenticates again.
const OLDEST: Duration = Duration::from_mins(10);
/// TCP keepalive interval, as in Go servers.
const ALIVE: Duration = Duration::from_secs(15);
/// Maximum size of a request's head, in bytes.
const LARGEST_HEAD: usize = 64 << 10;

/// A connection of a client.
struct Connection {
    server: Arc<Server>,
    router: Router,
    /// UID of the listener's machine.
    machine: Arc<str>,
    /// User of the client certificate, once that is verified.
    user: Option<CertificateUser>,
    /// Address of the client.
    address: IpAddr,
    /// Start of the connection, its handshake excluded.
    since: Instant,
    /// Slot of the connection, held while any part of it is in use.
    slot: Arc<ConnectionSlot>,
}

/// Serves a connection in a task of its own.
pub fn spawn(
    server: &Arc<Server>,
    router: &Router,
    (stream, address): (TcpStream, IpAddr),
    machine: Arc<str>,
    slot: ConnectionSlot,
) {
    let (server, router, slot) = (Arc::clone(server), router.clone(), Arc::new(slot));
    let (shutdown, evicted) = (server.shutdown.clone(), slot.evicted.clone());
    let connection = Connection { server, router, machine, user: None, address, since: Instant::now(), slot };
    environment::spawn(shutdown.run_until_cancelled_owned(async move {
        match evicted.run_until_cancelled(connection.serve(stream)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => debug!(%error, "a client of a kubelet is gone"),
            None => debug!("a client of a kubelet has lost its slot to others"),
        }
    }));
}

impl Connection {
    /// Serves the connection to its end.
    async fn serve(mut self, stream: TcpStream) -> io::Result<()> {
        // A silent machine accepts no connection, nor does a process without a certificate.
        let Server { machines, certificates, .. } = &*self.server;
        let (Some(_), Some(certificates)) = (machines.get(&self.machine), certificates.get()) else {
            return Ok(());
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let alive = TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&alive)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let (stream, certificate) = certificates.accept(stream, HANDSHAKE_LIMIT).await?;
        self.since = Instant::now();
        self.user = certificate.and_then(|certificate| CertificateUser::of(&certificate));
        if self.user.is_some() {
            self.slot.authenticate();
        }
        let requests = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_LIMIT)
            .max_buf_size(LARGEST_HEAD)
            .serve_connection(TokioIo::new(stream), service_fn(|request| self.respond(request)))
            .with_upgrades();
        let mut requests = pin!(requests);
        for is_shutting_down in [false, true] {
            tokio::select! {
                ended = &mut requests => return ended.map_err(io::Error::other),
                () = sleep(UNADMITTED_LIMIT) => {}
            }
            if self.slot.is_admitted() {
                break;
            }
            if is_shutting_down {
                return Ok(());
            }
            // The request under way is still answered.
            requests.as_mut().graceful_shutdown();
        }
        requests.await.map_err(io::Error::other)
    }

    async fn respond(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let Some(machine) = self.server.machines.get(&self.machine) else {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the machine is silent"));
        };
        let (endpoint, subresources) = router::endpoint(request.uri().path());
        let mut response = self.answer(machine, subresources, request.map(Body::new)).await;
        let status = response.status();
        self.server.metrics.answered(endpoint, status.as_u16());
        let headers = response.headers_mut();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            // The router sets one for any body that is empty.
            headers.remove(CONTENT_LENGTH);
        } else if status == StatusCode::UNAUTHORIZED
            || self.server.slots.are_scarce()
            || self.since.elapsed() >= OLDEST
        {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    /// Routes a request of an authorized client. The first one admits the client.
    async fn answer(
        &self,
        machine: ServedMachine,
        subresources: &[&str],
        mut request: Request<Body>,
    ) -> Response<Body> {
        let now = environment::now();
        let user = self.user.as_ref().filter(|user| now <= user.until).map(|user| &user.user);
        let credentials = (user, bearer(request.headers()));
        let permission = (request.method(), subresources);
        let checked = self.server.access.check(&machine.node, permission, credentials, self.address).await;
        if let Err(refusal) = checked {
            return refusal.into_response();
        }
        if !self.slot.admit().await {
            let why = "too many clients of hollow kubelets: try again later";
            return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
        }
        // The router would serve it as GET.
        if request.method() == Method::HEAD {
            return METHOD_NOT_ALLOWED.into_response();
        }
        request.extensions_mut().insert(Arc::new(machine));
        request.extensions_mut().insert(Arc::clone(&self.slot));
        self.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
    }
}

/// Bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_follows_bearer() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc ").as_deref(), Some("abc"));
        for none in ["Basic abc", "Bearer ", "Bearer", ""] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
