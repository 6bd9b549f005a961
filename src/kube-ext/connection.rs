//! Clients of API servers, with time limits and without kube's own retries.
//!
//! Invariant: a connection whose packets are dropped silently is detected within 45 s, idle or not. The
//! kernel probes by TCP keepalive and drops a connection with unanswered data after `TCP_USER_TIMEOUT`;
//! HTTP/2 connections also send pings. A peer that acknowledges on behalf of a dead API server (a load
//! balancer) is detected by the silence of watches: see [`crate::watch`].

use std::{
    net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use http::Request;
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
};
use rustls::{client::Resumption, pki_types::ServerName};
use tower::{BoxError, ServiceBuilder, filter::AsyncFilterLayer, util::MapResponse};

use super::{
    leader::{Fence, FencedStream},
    proxy::{self, Connector},
    rate::{Rate, RateLimited},
};

/// Connection as hyper's connector makes it.
type TcpStream = TokioIo<tokio::net::TcpStream>;

/// Read timeout: a list that takes longer is given up, a watch that is silent for longer is reopened.
const READ_TIMEOUT: Duration = Duration::from_secs(295);
/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the kernel sends a keepalive probe. Go's servers and clients use the same value.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
/// Time between two keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// `TCP_USER_TIMEOUT`: time that data or probes may stay unanswered before the kernel drops the connection.
/// The kernel checks this at the next probe, so an idle connection ends 35 s after the last packet; data sent
/// just before the first probe extends this to up to 45 s.
const UNANSWERED_LIMIT: Duration = Duration::from_secs(30);
/// Silence on an HTTP/2 connection before a ping is sent, as in client-go.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Time limit for the reply to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Sets our limits.
fn limited(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Retries are up to each caller: not every write may be repeated.
    config.default_retry = false;
    config
}

/// TCP connector whose dead connections are detected, with the fence before the kernel, through a proxy if there is one.
fn tcp(config: &Config, fence: &Fence) -> kube::Result<Connector<FencedStream<TcpStream>>> {
    let proxy = proxy::of(config, |name| std::env::var(name).ok())?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_TIME));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_tcp_user_timeout(Some(UNANSWERED_LIMIT));
    let fence = fence.clone();
    let fenced = MapResponse::new(tcp, move |stream| FencedStream::new(fence.clone(), stream));
    Ok(proxy::connector(proxy, fenced))
}

/// A client without fencing.
pub fn client(config: Config) -> kube::Result<Client> {
    fenced(config, &Fence::open())
}

/// A client that writes only while `fence` is open. kube's own client makes its connections itself, where a
/// request that passed the fence in time may wait. So this client is assembled from kube's parts, with the fence
/// at both ends of that wait.
pub fn fenced(config: Config, fence: &Fence) -> kube::Result<Client> {
    let config = limited(config);
    let connector = config.rustls_https_connector_with_connector(tcp(&config, fence)?)?;
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let connections: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .layer(fence)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// A client that connects as a kubelet does: one HTTP/2 connection, shared with nobody, with its own
/// identity, limited by `rate` unless the request has passed that limit before ([`RateLimited`]). It writes only
/// while `fence` is open.
pub fn like_a_kubelet(config: Config, fence: &Fence, rate: &Arc<Rate>) -> kube::Result<Client> {
    let config = limited(config);
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    // A kubelet resumes no TLS sessions either, and their cache takes more memory than the rest of a
    // connection.
    tls.resumption = Resumption::disabled();
    let name = config.tls_server_name.clone().and_then(|name| ServerName::try_from(name).ok());
    let resolver: Arc<dyn ResolveServerName + Send + Sync> = match name {
        Some(name) => Arc::new(FixedServerNameResolver::new(name)),
        None => Arc::new(DefaultServerNameResolver::default()),
    };
    let connector = HttpsConnector::new(tcp(&config, fence)?, tls, false, resolver);
    let connections: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_only(true)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .pool_idle_timeout(None)
        .build(connector);
    let rate = Arc::clone(rate);
    let limit = AsyncFilterLayer::new(move |request: Request<Body>| {
        let rate = Arc::clone(&rate);
        async move {
            if request.extensions().get::<RateLimited>().is_none() {
                rate.acquire(request.uri().path()).await;
            }
            Ok::<_, BoxError>(request)
        }
    });
    let service = ServiceBuilder::new()
        .layer(limit)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .layer(fence)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// The address to use of a list as `status.podIPs` gives it, separated by commas: the first IPv4 address, else the
/// first one. A cluster with both families may give every pod its IPv6 address first.
pub fn preferred_address(addresses: &str) -> Result<IpAddr, AddrParseError> {
    let all: Vec<IpAddr> = addresses.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?;
    // The list has at least one part, which is an address.
    all.iter().find(|one| one.is_ipv4()).or(all.first()).copied().map_or_else(|| addresses.parse(), Ok)
}

/// The address at which a server is reached by every family that this system has.
pub fn any_address() -> IpAddr {
    let has_ipv6 = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if has_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The address at which others reach this machine: the source address of an outgoing datagram. Sends nothing.
/// None without a route.
pub fn own_address() -> Option<Ipv4Addr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address reserved for documentation, which belongs to nobody.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let IpAddr::V4(address) = socket.local_addr().ok()?.ip() else { return None };
    Some(address).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_preferred_wherever_it_stands() {
        let preferred = |text| preferred_address(text).map(|address| address.to_string());
        for (text, address) in [
            ("10.0.0.7", "10.0.0.7"),
            ("10.0.0.7,fd00::7", "10.0.0.7"),
            ("fd00::7,10.0.0.7", "10.0.0.7"),
            ("fd00::7", "fd00::7"),
        ] {
            assert_eq!(preferred(text).as_deref(), Ok(address), "{text}");
        }
        assert!(preferred("").is_err() && preferred("10.0.0.7,").is_err());
    }

    /// A kubelet probes the first address of a pod, of whatever family.
    #[test]
    fn a_server_at_any_address_is_reached_by_each_family() {
        let server = std::net::TcpListener::bind((any_address(), 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let has_family = std::net::UdpSocket::bind((address, 0)).is_ok();
            assert!(!has_family || std::net::TcpStream::connect((address, port)).is_ok(), "{address}");
        }
    }
}
