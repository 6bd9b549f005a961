//! Bootstrap kubeconfig: the address of the API server, and a token that may request a certificate. The file
//! is written by [`crate::token`], as JSON: a machine has no YAML parser.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use kube_ext::{connection, environment};
use secrecy::ExposeSecret;
use serde::Deserialize;

use super::{IdentityError, store::Certificate};

/// The used claims of a token.
#[derive(Deserialize)]
struct TokenPayload {
    exp: i64,
}

/// Reads the file at `path`.
async fn read(path: &Path) -> Result<Config, IdentityError> {
    let config = async {
        let file: Kubeconfig = serde_json::from_slice(&fs::read(path)?)?;
        anyhow::Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
    };
    let config = config.await.with_context(|| {
        let path = path.display();
        format!("the bootstrap kubeconfig {path} cannot be used: it must be as the operator writes it")
    });
    config.map_err(IdentityError::NoToken)
}

/// A client that authenticates by the token of the file at `path`.
pub(super) async fn token_client(path: &Path) -> Result<TokenClient, IdentityError> {
    let config = read(path).await?;
    let Some(token) = &config.auth_info.token else {
        let path = path.display();
        let error = anyhow!("the bootstrap kubeconfig {path} has no token of a ServiceAccount");
        return Err(IdentityError::NoToken(error));
    };
    let stored = expiry(token.expose_secret()).map(|expires| (path.to_owned(), expires));
    Ok(TokenClient { client: client(config)?, stored })
}

/// A client for the API server of the file at `path` that authenticates by the certificate.
pub(super) async fn certificate_client(path: &Path, shown: &Certificate) -> Result<Client, IdentityError> {
    let mut config = read(path).await?;
    config.auth_info = showing(shown);
    client(config)
}

fn client(config: Config) -> Result<Client, IdentityError> {
    let url = config.cluster_url.to_string();
    Ok(connection::client(config).with_context(|| format!("cannot make a client for {url}"))?)
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
    pub(super) stored: Option<(PathBuf, Timestamp)>,
}

impl TokenClient {
    /// Reason why the API server refuses the token of `node`.
    pub(super) fn refused(self, node: &str) -> IdentityError {
        match self.stored.filter(|(_, expires)| *expires <= environment::now()) {
            Some((path, since)) => IdentityError::NoToken(anyhow!(
                "the token in {} expired at {since}: the operator replaces it while it runs; see its logs, or delete the pod",
                path.display()
            )),
            // The kubelet writes a new token to the folder up to a minute late.
            None => IdentityError::NodeGone { node: node.to_owned() },
        }
    }
}

/// Expiry that a token claims. Its signature is left to the API server.
fn expiry(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let TokenPayload { exp } = serde_json::from_slice(&claims).ok()?;
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
