//! Bootstrap kubeconfig: the address of the API server, and a token that may request a certificate. The file
//! is written by [`super::token`], as JSON: a machine has no YAML parser.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use kube_ext::connection;
use secrecy::ExposeSecret;
use serde::Deserialize;

use super::{IdentityError, store::Certificate};

/// The parsed file.
pub(super) struct Bootstrap {
    path: PathBuf,
    config: Config,
}

/// Claims of a token that are read here.
#[derive(Deserialize)]
struct Claims {
    exp: i64,
}

impl Bootstrap {
    pub(super) async fn read(path: &Path) -> Result<Self, IdentityError> {
        let failed = |source| IdentityError::Bootstrap { path: path.to_owned(), source };
        let text = fs::read(path).map_err(|error| failed(error.into()))?;
        let file: Kubeconfig = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let config = config.map_err(|error| failed(error.into()))?;
        Ok(Self { path: path.to_owned(), config })
    }

    /// A client that authenticates by the token.
    pub(super) fn token_client(self) -> Result<TokenClient, IdentityError> {
        let Some(token) = &self.config.auth_info.token else {
            return Err(IdentityError::NoToken { path: self.path });
        };
        let expires = expiry(token.expose_secret());
        let client = self.client_with(self.config.auth_info.clone())?;
        Ok(TokenClient { client, kept: expires.map(|expires| (self.path, expires)) })
    }

    /// A client that authenticates by the certificate.
    pub(super) fn certificate_client(&self, certificate: &Certificate) -> Result<Client, IdentityError> {
        self.client_with(showing(certificate))
    }

    fn client_with(&self, auth_info: AuthInfo) -> Result<Client, IdentityError> {
        let mut config = self.config.clone();
        config.auth_info = auth_info;
        let url = config.cluster_url.to_string();
        connection::client(config).map_err(|source| IdentityError::Client { url, source: Box::new(source) })
    }
}

/// Credentials of a certificate only.
pub(super) fn showing(certificate: &Certificate) -> AuthInfo {
    let encoded = |pem: &str| STANDARD.encode(pem);
    AuthInfo {
        client_certificate_data: Some(encoded(&certificate.pem)),
        client_key_data: Some(encoded(&certificate.key).into()),
        ..AuthInfo::default()
    }
}

/// Client for the first certificate of a machine.
pub struct TokenClient {
    /// Client that authenticates by the token.
    pub(super) client: Client,
    /// File that holds the token, and the expiry that the token claims; None if the token was just requested.
    pub(super) kept: Option<(PathBuf, Timestamp)>,
}

impl TokenClient {
    /// Reason why the API server refuses the token of `node`.
    pub(super) fn refused(self, node: &str, now: Timestamp) -> IdentityError {
        match self.kept.filter(|(_, expires)| *expires <= now) {
            Some((path, since)) => IdentityError::TokenExpired { path, since },
            // The kubelet writes a new token to the folder up to a minute late.
            None => IdentityError::NodeGone { node: node.to_owned() },
        }
    }
}

/// Expiry that a token claims. Its signature is left to the API server.
fn expiry(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(exp).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_when_it_ends() {
        let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(expiry(&token(r#"{"exp":60,"sub":"x"}"#)), Some(Timestamp::from_second(60).unwrap()));
        for none in ["", "opaque", "e30.!.c", &token(r#"{"sub":"x"}"#)] {
            assert_eq!(expiry(none), None, "{none}");
        }
    }
}
