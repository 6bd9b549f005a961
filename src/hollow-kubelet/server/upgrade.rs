//! Upgrade of a request's connection to SPDY streams.

use std::{io, sync::Arc};

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderName, StatusCode,
    header::{CONNECTION, UPGRADE},
};
use hyper_util::rt::TokioIo;
use kube_ext::environment;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{connection_slots::ConnectionSlot, spdy, stream_shares::StreamPermit};

/// SPDY in the header `Upgrade`.
const SPDY: &str = "SPDY/3.1";
/// Header with the protocol of the streams.
const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Header with the supported protocol, when none of the client's is.
const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// Answers a request for streams of `protocol`, and serves them by `serve` in a task of its own, until
/// `shutdown`. The task holds the slot and the permit that the request carries.
pub fn spdy<F>(
    shutdown: &CancellationToken,
    mut request: Request,
    protocol: &'static str,
    serve: impl FnOnce(mpsc::Receiver<spdy::Stream>) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    if !requests_upgrade(request.headers(), SPDY) {
        let why = "unable to upgrade: missing upgrade headers in request: write Connection: Upgrade and Upgrade: SPDY/3.1";
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    // No header means the oldest protocol, which is not supported.
    if !tokens(request.headers(), PROTOCOL).any(|token| token == protocol) {
        let why = "unable to upgrade: none of the protocols is known\n";
        return (StatusCode::FORBIDDEN, [(ACCEPTED, protocol)], why).into_response();
    }
    let extensions = request.extensions_mut();
    let held = (extensions.remove::<Arc<ConnectionSlot>>(), extensions.remove::<Arc<StreamPermit>>());
    let upgraded = hyper::upgrade::on(&mut request);
    environment::spawn(shutdown.clone().run_until_cancelled_owned(async move {
        let served = async {
            let io = upgraded.await.map_err(io::Error::other)?;
            spdy::serve_streams(TokioIo::new(io), serve).await
        };
        if let Err(error) = served.await {
            debug!(%error, "a client's streams ended");
        }
        drop(held);
    }));
    let headers = [(CONNECTION, "Upgrade"), (UPGRADE, SPDY), (PROTOCOL, protocol)];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Returns true if a request is for an upgrade to `protocol`.
fn requests_upgrade(headers: &HeaderMap, protocol: &str) -> bool {
    let has = |name, token: &str| tokens(headers, name).any(|other| other.eq_ignore_ascii_case(token));
    has(CONNECTION, "upgrade") && has(UPGRADE, protocol)
}

/// Comma-separated tokens of a header.
fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use std::future;

    use axum::{Router, body::Body, routing::get};
    use http::HeaderValue;
    use hyper::{body::Incoming, server::conn::http1, service::service_fn};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_carries_streams_after_its_upgrade() {
        let upgrading = async |request: Request| {
            spdy(&CancellationToken::new(), request, "v4.channel.k8s.io", |_| future::pending())
        };
        let router = Router::new().route("/", get(upgrading));
        let (mut client, server) = tokio::io::duplex(1 << 12);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            router.clone().oneshot(request.map(Body::new))
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        tokio::spawn(connection.with_upgrades());
        let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
            X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: spdy/3.1"), "{head}");
        let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 7];
        client.write_all(&ping).await.unwrap();
        let mut echoed = [0; 12];
        client.read_exact(&mut echoed).await.unwrap();
        assert_eq!(echoed, ping);
    }

    #[tokio::test]
    async fn streams_are_served_in_their_own_protocol_only() {
        let answer = |versions: &[&'static str]| {
            let mut request = Request::new(Body::empty());
            let headers = request.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
            for version in versions {
                headers.append(PROTOCOL, HeaderValue::from_static(version));
            }
            let response = spdy(&CancellationToken::new(), request, "v4.channel.k8s.io", async |_| {});
            response.status().as_u16()
        };
        assert_eq!(answer(&["v5.channel.k8s.io", "v4.channel.k8s.io"]), 101);
        assert_eq!(answer(&["v3.channel.k8s.io, v4.channel.k8s.io"]), 101);
        assert_eq!((answer(&["v9"]), answer(&[])), (403, 403));
    }

    #[test]
    fn an_upgrade_is_requested_in_two_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("spdy/3.1"));
        assert!(!requests_upgrade(&headers, SPDY));
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert!(requests_upgrade(&headers, SPDY) && !requests_upgrade(&headers, "websocket"));
    }
}
