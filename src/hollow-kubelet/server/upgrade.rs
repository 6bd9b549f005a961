//! Upgrade of a request's connection to streams.

use std::sync::Arc;

use axum::body::Body;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{CONNECTION, UPGRADE},
};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tracing::debug;

use super::{Server, answers::text, connection::Caller};

/// SPDY in the header `Upgrade`.
const SPDY: &str = "SPDY/3.1";
/// Header with the protocol of the streams.
const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Header with the supported protocols, when none of the client's is.
const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// Answers a request for SPDY streams with one of `protocols`, and serves the streams in a task of its own.
pub fn spdy<F>(
    server: &Arc<Server>,
    caller: &Caller,
    mut request: Request<Incoming>,
    protocols: &[&'static str],
    serve: impl FnOnce(TokioIo<Upgraded>, &'static str) -> F + Send + 'static,
) -> Response<Body>
where
    F: Future<Output = ()> + Send + 'static,
{
    if !asks_for(request.headers(), SPDY) {
        let why = "unable to upgrade: missing upgrade headers in request: write Connection: Upgrade and Upgrade: SPDY/3.1";
        return text(StatusCode::BAD_REQUEST, why);
    }
    let Some(protocol) = chosen(request.headers(), protocols) else {
        let mut answer = text(StatusCode::FORBIDDEN, "unable to upgrade: none of the protocols is known\n");
        for protocol in protocols {
            answer.headers_mut().append(ACCEPTED, HeaderValue::from_static(protocol));
        }
        return answer;
    };
    let (upgraded, caller) = (hyper::upgrade::on(&mut request), caller.clone());
    tokio::spawn(server.shutdown.clone().run_until_cancelled_owned(async move {
        match upgraded.await {
            Ok(io) => serve(TokioIo::new(io), protocol).await,
            Err(error) => debug!(%error, "a client went before its streams began"),
        }
        drop(caller);
    }));
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(PROTOCOL, HeaderValue::from_static(protocol));
    answer
}

/// Returns true if a request asks for an upgrade to `protocol`.
fn asks_for(headers: &HeaderMap, protocol: &str) -> bool {
    let has = |name, wanted: &str| words(headers, name).any(|word| word.eq_ignore_ascii_case(wanted));
    has(CONNECTION, "upgrade") && has(UPGRADE, protocol)
}

/// First supported protocol of the client. No header means the oldest protocol, which is not supported.
fn chosen(headers: &HeaderMap, protocols: &[&'static str]) -> Option<&'static str> {
    words(headers, PROTOCOL).find_map(|word| protocols.iter().copied().find(|own| *own == word))
}

fn words(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_first_choice_is_taken() {
        let ours = ["v4.channel.k8s.io", "v3.channel.k8s.io"];
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(PROTOCOL, HeaderValue::from_static(value));
            }
            chosen(&headers, &ours)
        };
        assert_eq!(of(&["v5.channel.k8s.io", "v4.channel.k8s.io"]), Some("v4.channel.k8s.io"));
        assert_eq!(of(&["v3.channel.k8s.io, v4.channel.k8s.io"]), Some("v3.channel.k8s.io"));
        assert_eq!((of(&["v9"]), of(&[])), (None, None));
    }

    #[test]
    fn an_upgrade_is_asked_for_in_two_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("spdy/3.1"));
        assert!(!asks_for(&headers, SPDY));
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert!(asks_for(&headers, SPDY) && !asks_for(&headers, "websocket"));
    }
}
