//! Renewal of the token with which the operator comes to a hosting cluster: a token that lives for days does less harm where it leaks
//! than one that lives for a year.
//!
//! Input: the token of a kubeconfig. Output: when to ask for the next one, of which ServiceAccount, and for how long. A token that
//! names no ServiceAccount, or no times, is left as it is.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use kube_ext::call::{ApiError, call};
use secrecy::SecretString;
use serde::Deserialize;

/// Beginning of the subject of a ServiceAccount's token.
const SUBJECT: &str = "system:serviceaccount:";

/// Next token of a ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRenewal {
    /// When the token has half of its life behind it.
    at: Timestamp,
    namespace: String,
    account: String,
    /// Lifetime of the token, and of the next one, in seconds.
    seconds: i64,
}

/// What a token says of itself. The API server alone verifies it.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    iat: i64,
    exp: i64,
}

impl TokenRenewal {
    /// The renewal of this token; None if it is none of a ServiceAccount, or does not end.
    pub fn of(token: &str) -> Option<Self> {
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        let Claims { sub, iat, exp } = serde_json::from_slice(&claims).ok()?;
        let (namespace, account) = sub.strip_prefix(SUBJECT)?.split_once(':')?;
        let seconds = exp.checked_sub(iat).filter(|seconds| *seconds > 0)?;
        let at = Timestamp::from_second(iat.checked_add(seconds / 2)?).ok()?;
        Some(Self { at, namespace: namespace.to_owned(), account: account.to_owned(), seconds })
    }

    /// Returns true if the next token should be asked for.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.at
    }

    /// Asks the cluster for the next token, with the present one.
    pub async fn request(&self, client: &Client) -> Result<SecretString, ApiError> {
        let Self { namespace, account, seconds, .. } = self;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(*seconds), ..TokenRequestSpec::default() };
        let request = TokenRequest { metadata: ObjectMeta::default(), spec: Some(spec), status: None };
        let action =
            || format!("request another token of {account} in namespace {namespace} of the hosting cluster");
        let params = PostParams::default();
        let granted: TokenRequest =
            call(action(), accounts.create_subresource("token", account, &params, &request)).await?;
        let token = granted.status.and_then(|status| status.token);
        token.map(Into::into).ok_or_else(|| ApiError::Failed {
            action: action(),
            source: "the API server granted none".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &serde_json::Value) -> String {
        format!("header.{}.signature", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn a_token_of_an_account_is_renewed_after_half_of_its_life() {
        let claims = serde_json::json!({ "sub": "system:serviceaccount:kubemark:kube-node-hosting", "iat": 1_000, "exp": 1_600 });
        let renewal = TokenRenewal::of(&token(&claims)).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!((renewal.is_due(at(1_299)), renewal.is_due(at(1_300))), (false, true));
        assert_eq!(
            (&*renewal.namespace, &*renewal.account, renewal.seconds),
            ("kubemark", "kube-node-hosting", 600)
        );
    }

    #[test]
    fn a_token_of_no_account_or_without_times_is_not_renewed() {
        let account = "system:serviceaccount:kubemark:a";
        for claims in [
            serde_json::json!({ "sub": "jane", "iat": 1, "exp": 2 }),
            serde_json::json!({ "sub": account, "iat": 2, "exp": 2 }),
            serde_json::json!({ "sub": account, "iat": i64::MIN, "exp": i64::MAX }),
            serde_json::json!({ "sub": account, "iat": i64::MAX - 1, "exp": i64::MAX }),
            serde_json::json!({ "sub": account }),
            serde_json::json!("text"),
        ] {
            assert_eq!(TokenRenewal::of(&token(&claims)), None, "{claims}");
        }
        for token in ["", "a", "a.b", "a.!.c"] {
            assert_eq!(TokenRenewal::of(token), None, "{token}");
        }
    }
}
