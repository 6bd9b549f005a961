//! Provider's side of the identity: a token that may request the certificate of one machine, and its
//! kubeconfig.
//!
//! The token is bound to the Node by name and UID. The API server adds both to the token's user
//! (`authentication.kubernetes.io/node-name`, `node-uid`), and refuses the token once that Node is gone.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::ServiceAccount,
    },
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use kube_ext::call::{ApiError, call};
use kube_node_api::machine_identity::Account;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

/// Shortest lifetime of a token that the API server grants.
pub const LIFETIME_MIN: Duration = Duration::from_mins(10);

/// A token. Its text does not appear in logs.
#[derive(Clone, Debug)]
pub struct Token {
    /// Text of the token.
    pub secret: SecretString,
    /// Expiry.
    pub expires: Timestamp,
}

/// Requests a token of `account`, one of `accounts`, for the machine of a Node. Its lifetime is at least
/// [`LIFETIME_MIN`].
pub async fn request(
    accounts: &Api<ServiceAccount>,
    account: Account,
    node: &str,
    uid: &str,
    lifetime: Duration,
) -> Result<Token, ApiError> {
    let account = account.name();
    let seconds = i64::try_from(lifetime.max(LIFETIME_MIN).as_secs()).unwrap_or(i64::MAX);
    let request = TokenRequest {
        metadata: ObjectMeta::default(),
        spec: Some(TokenRequestSpec {
            // Empty for the API server's own audience.
            audiences: Some(Vec::new()),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                uid: Some(uid.to_owned()),
            }),
            expiration_seconds: Some(seconds),
        }),
        status: None,
    };
    let action = || format!("request a token of {account} for Node {node}");
    let params = PostParams::default();
    let granted: TokenRequest =
        call(action(), accounts.create_subresource("token", account, &params, &request)).await?;
    let status = granted.status.unwrap_or_default();
    let (Some(secret), Some(expires)) = (status.token, status.expiration_timestamp) else {
        return Err(ApiError::Failed { action: action(), source: "the API server granted none".into() });
    };
    Ok(Token { secret: secret.into(), expires: expires.0 })
}

/// Bootstrap kubeconfig of a machine. `server` is the URL at which the machine reaches the API server, `ca`
/// the certificate authority of the API server (PEM).
pub fn bootstrap_kubeconfig(server: &str, ca: &str, token: &Token) -> String {
    let ca = ByteString(ca.as_bytes().to_vec());
    // JSON is YAML.
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "kube-node", "cluster": { "server": server, "certificate-authority-data": ca } }],
        "users": [{ "name": "machine", "user": { "token": token.secret.expose_secret() } }],
        "contexts": [{ "name": "kube-node", "context": { "cluster": "kube-node", "user": "machine" } }],
        "current-context": "kube-node",
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_is_one_and_the_token_is_shown_in_no_log() {
        let token = Token { secret: "s3cret".to_owned().into(), expires: Timestamp::UNIX_EPOCH };
        let text = bootstrap_kubeconfig("https://10.0.0.1:6443", "CA", &token);
        let read = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://10.0.0.1:6443"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("Q0E="));
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.token.as_ref().unwrap().expose_secret(), "s3cret");
        assert!(!format!("{token:?}").contains("s3cret"));
    }
}
