//! Clients of API servers: with time limits, and without what kube does by itself.
//!
//! Invariant: a connection whose packets are dropped silently is noticed within 45 s, idle or not. The kernel asks by TCP
//! keepalive and gives unanswered data up after `TCP_USER_TIMEOUT`; HTTP/2 connections are asked by pings, too. A peer that
//! acknowledges on behalf of a dead API server (a load balancer) is noticed by the silence of watches: see [`crate::watch`].

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use http::Request;
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
};
use rustls::{client::Resumption, pki_types::ServerName};
use tower::{BoxError, ServiceBuilder, filter::AsyncFilterLayer};

use super::{
    leader::{Fence, Passing},
    rate::{HadTurn, Rate},
};

/// A list that takes longer than this is given up; a watch that says nothing for longer is made anew.
const READ_TIMEOUT: Duration = Duration::from_secs(295);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the kernel asks the peer whether it is there. Go's servers and clients have the same.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
/// Time between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// `TCP_USER_TIMEOUT`: how long data or keepalives stay unanswered before the kernel gives the connection up. It decides at the
/// next question, so an idle connection ends 35 s after the last packet; data sent just before the first question adds up to
/// 45 s.
const UNANSWERED_LIMIT: Duration = Duration::from_secs(30);
/// An HTTP/2 connection on which nothing comes for so long is tried, as client-go does it.
const PING_AFTER: Duration = Duration::from_secs(30);
/// One that does not answer for so long is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// The configuration with our limits.
fn limited(mut config: Config) -> Config {
    // kube takes it from HTTPS_PROXY, whatever NO_PROXY says; a proxy is no way to this machine.
    if config.cluster_url.host().is_some_and(is_loopback) {
        config.proxy_url = None;
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Whether a write may be repeated depends on the write: each caller decides.
    config.default_retry = false;
    config
}

/// Connections over TCP that are noticed to be dead.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_TIME));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_tcp_user_timeout(Some(UNANSWERED_LIMIT));
    tcp
}

/// A client that writes whenever it is asked to.
pub fn client(config: Config) -> kube::Result<Client> {
    fenced(config, &Fence::open())
}

/// A client that writes only while `fence` is open. kube's own makes its connections behind a door that is closed to us, and
/// what was asked for in time may wait there; so this is made of kube's parts, with the door next to the connections.
pub fn fenced(config: Config, fence: &Fence) -> kube::Result<Client> {
    let config = limited(config);
    if let Some(url) = config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(url) });
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let connections: legacy::Client<_, Passing> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .layer(fence)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// A client that connects as a kubelet does, with nobody else: once, by HTTP/2, with its own identity, as fast as `rate` lets it,
/// which a request may have asked for before. It writes only while `fence` is open.
pub fn like_a_kubelet(config: Config, fence: &Fence, rate: &Arc<Rate>) -> kube::Result<Client> {
    let config = limited(config);
    if let Some(url) = config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(url) });
    }
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    // A kubelet resumes none either, and the room for them is more than all the rest of a connection.
    tls.resumption = Resumption::disabled();
    let name = config.tls_server_name.clone().and_then(|name| ServerName::try_from(name).ok());
    let resolver: Arc<dyn ResolveServerName + Send + Sync> = match name {
        Some(name) => Arc::new(FixedServerNameResolver::new(name)),
        None => Arc::new(DefaultServerNameResolver::default()),
    };
    let connector = HttpsConnector::new(tcp(), tls, false, resolver);
    let connections: legacy::Client<_, Passing> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_only(true)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .pool_idle_timeout(None)
        .build(connector);
    let rate = Arc::clone(rate);
    let turn = AsyncFilterLayer::new(move |request: Request<Body>| {
        let rate = Arc::clone(&rate);
        async move {
            if request.extensions().get::<HadTurn>().is_none() {
                rate.turn(request.uri().path()).await;
            }
            Ok::<_, BoxError>(request)
        }
    });
    let service = ServiceBuilder::new()
        .layer(turn)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .layer(fence)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Whether a URL's host is this machine.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The address of this machine that others reach: the one from which a datagram would go out. Nothing is sent. None where
/// there is no way out.
#[must_use]
pub fn own_address() -> Option<Ipv4Addr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address for documents, which is nobody's.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(address) if !address.is_loopback() && !address.is_unspecified() => Some(address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine() {
        for host in ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["10.96.0.1", "localhost.example.org", "[2001:db8::1]", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
