//! How every client of ours connects: with limits, and without what kube does by itself.

use std::{net::IpAddr, time::Duration};

use kube::Config;

/// A list that takes longer than this is given up; a watch that says nothing for longer is made anew.
const READ_TIMEOUT: Duration = Duration::from_secs(295);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration with our limits.
#[must_use]
pub fn limited(mut config: Config) -> Config {
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

/// Whether a URL's host is this machine.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
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
