//! The proxy that leads to an API server, chosen as kubectl chooses it.
//!
//! Input: the `proxy-url` of a kubeconfig, else `HTTPS_PROXY` and `NO_PROXY`. Output: a connector that opens a tunnel through
//! the proxy (HTTP CONNECT), or connects straight, as a pod does to the API server of its own cluster.
//!
//! Invariants: variables lead nowhere for a server on this machine. The proxy sees the name of the server and nothing of
//! what is said; its own credential stands in its URL and goes to it alone.

use std::net::IpAddr;

use http::Uri;
use hyper_util::client::{
    legacy::connect::proxy::Tunnel, proxy::matcher::Intercept, proxy::matcher::Matcher,
};
use kube::Config;
use tower::{BoxError, Service, ServiceExt, util::BoxCloneSyncService};

/// A connector, straight or through a proxy.
pub(super) type Connector<S> = BoxCloneSyncService<Uri, S, BoxError>;

/// The proxy for a configuration; `variable` reads a variable of the environment.
pub(super) fn of(
    config: &Config,
    variable: impl Fn(&str) -> Option<String>,
) -> kube::Result<Option<Intercept>> {
    let Some(url) = &config.proxy_url else { return Ok(None) };
    let server = &config.cluster_url;
    let either = |upper: &str, lower: &str| {
        [upper, lower].into_iter().filter_map(&variable).find(|value| !value.is_empty()).unwrap_or_default()
    };
    let https = either("HTTPS_PROXY", "https_proxy");
    // kube takes the variable where a kubeconfig names no proxy, and does not ask NO_PROXY for the server.
    let is_variable = https.parse::<Uri>().is_ok_and(|of_variable| of_variable == *url);
    let excluded = either("NO_PROXY", "no_proxy");
    let goes_straight =
        server.host().is_some_and(is_loopback) || excluded.split(',').any(|one| one.trim() == "*");
    if is_variable && goes_straight {
        return Ok(None);
    }
    // The matcher would take a scheme that it does not know for no proxy.
    if !is_variable && url.scheme_str().is_some_and(|scheme| scheme != "http") {
        return Err(unsupported(url));
    }
    let matcher = if is_variable {
        Matcher::builder().https(https).no(excluded_hosts(&excluded, server))
    } else {
        Matcher::builder().all(url.to_string())
    };
    let matcher = matcher.build();
    match matcher.intercept(server) {
        Some(proxy) if proxy.uri().scheme_str() != Some("http") => Err(unsupported(proxy.uri())),
        proxy => Ok(proxy),
    }
}

/// The error about a proxy that does not speak http, without its credential.
fn unsupported(proxy: &Uri) -> kube::Error {
    let mut parts = proxy.clone().into_parts();
    let authority =
        parts.authority.as_ref().and_then(|authority| authority.as_str().rsplit('@').next()?.parse().ok());
    parts.authority = authority;
    let proxy_url = Uri::from_parts(parts).unwrap_or_default();
    kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy_url) }
}

/// Entries of `NO_PROXY` in the forms that the matcher knows: it has neither `*.domain` nor `host:port`
/// (golang.org/x/net/http/httpproxy has both).
fn excluded_hosts(excluded: &str, server: &Uri) -> String {
    let port = server.port_u16().unwrap_or(443);
    let host = |entry: &str| {
        let entry = entry.trim();
        let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
        match entry.rsplit_once(':') {
            // More colons are those of an IPv6 address, with a port behind its bracket.
            Some((host, of_entry)) if !host.contains(':') || host.ends_with(']') => {
                (of_entry.parse() == Ok(port)).then(|| host.trim_matches(['[', ']']).to_owned())
            }
            _ => Some(entry.to_owned()),
        }
    };
    excluded.split(',').filter_map(host).collect::<Vec<_>>().join(",")
}

/// Leads a connector through a proxy, if there is one.
pub(super) fn connector<C>(proxy: Option<Intercept>, straight: C) -> Connector<C::Response>
where
    C: Service<Uri, Future: Send, Error: Into<BoxError>> + Clone + Send + Sync + 'static,
    C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let Some(proxy) = proxy else { return BoxCloneSyncService::new(straight.map_err(Into::into)) };
    let mut tunnel = Tunnel::new(proxy.uri().clone(), straight);
    if let Some(credential) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(credential.clone());
    }
    BoxCloneSyncService::new(tunnel.map_err(Into::into))
}

/// Returns true if a URL's host is this machine.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::Request;
    use kube::client::Body;
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::connection;

    #[test]
    fn hosts_of_this_machine() {
        for host in ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["10.96.0.1", "localhost.example.org", "[2001:db8::1]", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    fn config(server: &str, proxy: Option<&str>) -> Config {
        let mut config = Config::new(server.parse().unwrap());
        config.proxy_url = proxy.map(|url| url.parse().unwrap());
        config
    }

    /// The proxy of a server, by the variables.
    fn chosen(server: &str, proxy_url: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let proxy = of(&config(server, proxy_url), variable).unwrap();
        proxy.map(|proxy| proxy.uri().to_string())
    }

    #[test]
    fn a_proxy_is_that_of_the_kubeconfig_or_else_of_the_environment() {
        let server = "https://k.example.com:6443";
        let variables = [("HTTPS_PROXY", "http://env:3128"), ("NO_PROXY", "10.0.0.0/8,.internal")];
        let from_variables = Some("http://env:3128");
        assert_eq!(chosen(server, None, &variables), None, "a pod in its own cluster");
        assert_eq!(chosen(server, from_variables, &variables), Some("http://env:3128/".to_owned()));
        for near in ["https://10.1.2.3", "https://k.internal", "https://127.0.0.1:6443", "https://localhost"]
        {
            assert_eq!(chosen(near, from_variables, &variables), None, "{near}");
        }
        let named = Some("http://bastion:8080");
        for server in [server, "https://10.1.2.3", "https://127.0.0.1:6443"] {
            assert_eq!(
                chosen(server, named, &variables),
                Some("http://bastion:8080/".to_owned()),
                "{server}"
            );
        }
        assert_eq!(chosen("http://k", from_variables, &variables), None, "HTTPS_PROXY is for https");
    }

    #[test]
    fn no_proxy_has_the_forms_that_kubectl_knows() {
        let is_straight = |excluded: &str, server: &str| {
            let variables = [("HTTPS_PROXY", "http://env:3128"), ("NO_PROXY", excluded)];
            chosen(server, Some("http://env:3128"), &variables).is_none()
        };
        for (excluded, server) in [
            ("*", "https://10.1.2.3:6443"),
            ("a.example, *", "https://k.example.com"),
            ("10.1.2.3:6443", "https://10.1.2.3:6443"),
            ("k.example.com:443", "https://k.example.com"),
            ("*.corp.example", "https://k.corp.example:6443"),
            ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443"),
            ("2001:db8::1", "https://[2001:db8::1]:6443"),
        ] {
            assert!(is_straight(excluded, server), "{excluded}: {server}");
        }
        for (excluded, server) in [
            ("", "https://10.1.2.3:6443"),
            ("10.1.2.3:443", "https://10.1.2.3:6443"),
            ("*.corp.example", "https://k.example.com"),
        ] {
            assert!(!is_straight(excluded, server), "{excluded}: {server}");
        }
    }

    #[test]
    fn a_proxy_speaks_http() {
        for url in [
            "socks5://user:word@p:1080",
            "https://user:word@p:3128",
            "socks://user:word@p",
            "ftp://user:word@p",
        ] {
            let error = of(&config("https://k", Some(url)), |_| None).unwrap_err();
            assert!(!error.to_string().contains("word"), "{error}");
            assert!(matches!(error, kube::Error::ProxyProtocolUnsupported { .. }), "{url}: {error}");
        }
    }

    /// A server that answers once, and a proxy that leads to it. Returns their addresses, and the request to the proxy.
    async fn server_and_proxy() -> (String, String, tokio::task::JoinHandle<Vec<String>>) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = (server.local_addr().unwrap(), proxy.local_addr().unwrap());
        tokio::spawn(async move {
            let (stream, _) = server.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        });
        let target = addresses.0;
        let asked = tokio::spawn(async move {
            let (stream, _) = proxy.accept().await.unwrap();
            let (mut stream, mut lines) = (BufReader::new(stream), Vec::new());
            while lines.last().is_none_or(|line: &String| !line.is_empty()) {
                let mut line = String::new();
                stream.read_line(&mut line).await.unwrap();
                lines.push(line.trim_end().to_owned());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut onward = TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut stream, &mut onward).await });
            lines
        });
        (addresses.0.to_string(), addresses.1.to_string(), asked)
    }

    #[tokio::test]
    async fn requests_go_through_the_tunnel() {
        let (server, proxy, asked) = server_and_proxy().await;
        let config = config(&format!("http://{server}"), Some(&format!("http://user:word@{proxy}")));
        let client = connection::client(config).unwrap();
        let response = client.send(Request::get("/version").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        let asked = asked.await.unwrap();
        assert_eq!(asked[0], format!("CONNECT {server} HTTP/1.1"));
        let credential = "Proxy-Authorization: Basic dXNlcjp3b3Jk";
        assert!(asked.iter().any(|line| line.eq_ignore_ascii_case(credential)), "{asked:?}");
    }
}
