//! Client for what is neither Kubernetes nor a registry's own protocol: published programs, and tokens of registries.

use anyhow::Context;
use kube_ext::proxy::is_loopback;
use reqwest::{Client, ClientBuilder};

/// Why no client can be built, and the remedy.
pub(super) const NO_TLS: &str = "cannot set up TLS: install the CAs of the system (ca-certificates), or name a file of CAs in SSL_CERT_FILE";

/// Builds a client for `host`. It trusts the CAs of the system and respects `HTTPS_PROXY` and `NO_PROXY`, which lead nowhere for
/// a host on this machine.
pub(super) fn build(
    host: &str,
    settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> anyhow::Result<Client> {
    install_cryptography();
    let builder = Client::builder().user_agent(concat!("kube-node/", env!("CARGO_PKG_VERSION")));
    let builder = if is_loopback(host) { builder.no_proxy() } else { builder };
    settings(builder).build().context(NO_TLS)
}

/// A variable of the environment that names proxies, by this name or in small letters.
pub(super) fn variable(name: &str) -> Option<String> {
    let names = [name.to_owned(), name.to_ascii_lowercase()];
    names.iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty())
}

/// Gives the process the cryptography from which such clients take theirs.
pub(super) fn install_cryptography() {
    // An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
