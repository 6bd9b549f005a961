//! Authentication and authorization of kubelet clients.
//!
//! A client shows a certificate of the cluster's client CA, or a token that the API server knows
//! (`TokenReview`). For each request the API server decides whether the user is allowed
//! (`SubjectAccessReview`). Attributes and cache lifetimes are those of kubelet 1.36
//! (pkg/kubelet/server/auth.go).

mod decision_cache;
mod reviews;
mod user;

use std::{net::IpAddr, time::Duration};

use http::Method;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use kube_ext::error::chain;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};
use tracing::warn;

pub use self::user::{Shown, User};
use self::{
    decision_cache::DecisionCache,
    reviews::{Asker, Reviews},
};

/// Cache lifetime of a token's user, or of the fact that the token is invalid.
const TOKEN_KNOWN: Duration = Duration::from_mins(2);
/// Cache lifetime of a granted permission.
const ALLOWED_KNOWN: Duration = Duration::from_mins(5);
/// Cache lifetime of a denied permission.
const DENIED_KNOWN: Duration = Duration::from_secs(30);
/// Timeout of a review.
const LIMIT: Duration = Duration::from_secs(10);

/// Reason for which a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client is not authenticated.
    Unauthenticated,
    /// The user is not authorized; with a kubelet's message.
    Forbidden(String),
    /// Authorization failed with an error; with a kubelet's message. The log has the cause.
    Unknown(String),
}

/// Failure of a review.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error("the API server did not take a review")]
    Failed(#[source] kube::Error),
    #[error("the API server does not answer")]
    Late,
}

/// Access control, with the cached users of tokens and permissions of users.
pub struct Access {
    client: Client,
    tokens: DecisionCache<[u8; 32], Option<User>>,
    rights: DecisionCache<[u8; 32], bool>,
    reviews: Reviews,
}

impl Access {
    /// Creates access control with empty caches.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            tokens: DecisionCache::default(),
            rights: DecisionCache::default(),
            reviews: Reviews::default(),
        }
    }

    /// Checks whether a request from `address` to the kubelet of `node` is allowed.
    pub async fn check(
        &self,
        node: &str,
        (method, subresources): (&Method, &[&str]),
        shown: (Option<&User>, Option<&str>),
        address: IpAddr,
    ) -> Result<(), Refusal> {
        let with_token = Asker::Token(address);
        let (user, by) = match shown {
            (Some(user), _) => (user.clone(), Asker::Certificate),
            (None, Some(token)) => match self.user_of(token, with_token).await {
                Ok(user) => (user.ok_or(Refusal::Unauthenticated)?, with_token),
                Err(error) => {
                    warn!(node, error = chain(&error), "a kubelet could not find out whose a token is");
                    return Err(Refusal::Unauthenticated);
                }
            },
            (None, None) => return Err(Refusal::Unauthenticated),
        };
        let verb = verb(method);
        for subresource in subresources {
            match self.may((&user, by), verb, node, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    warn!(
                        node,
                        user = user.name,
                        error = chain(&error),
                        "a kubelet could not find out who may ask"
                    );
                    return Err(Refusal::Unknown(format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    )));
                }
            }
        }
        let subresources = subresources.join(" ");
        Err(Refusal::Forbidden(format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n",
            user.name
        )))
    }

    /// User of a token.
    async fn user_of(&self, token: &str, by: Asker) -> Result<Option<User>, ReviewError> {
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(user) = self.tokens.recall(&key, Instant::now()) {
            return Ok(user);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = self.review(review, by).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(User::from);
        self.tokens.keep(key, user.clone(), Instant::now() + TOKEN_KNOWN);
        Ok(user)
    }

    async fn may(
        &self,
        (user, by): (&User, Asker),
        verb: &str,
        node: &str,
        subresource: &str,
    ) -> Result<bool, ReviewError> {
        let key = user.digest(&[verb, node, subresource]);
        if let Some(may) = self.rights.recall(&key, Instant::now()) {
            return Ok(may);
        }
        let User { name, uid, groups, extra } = user.clone();
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(node.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            user: Some(name),
            uid: Some(uid).filter(|uid| !uid.is_empty()),
            groups: Some(groups),
            extra: Some(extra).filter(|extra| !extra.is_empty()),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let may = self.review(review, by).await?.status.is_some_and(|status| status.allowed);
        let known = if may { ALLOWED_KNOWN } else { DENIED_KNOWN };
        self.rights.keep(key, may, Instant::now() + known);
        Ok(may)
    }

    /// Sends a review to the API server.
    async fn review<K>(&self, review: K, by: Asker) -> Result<K, ReviewError>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let asked = timeout(LIMIT, async {
            let _turn = self.reviews.turn(by).await;
            api.create(&PostParams::default(), &review).await
        });
        match asked.await {
            Ok(Ok(review)) => Ok(review),
            Ok(Err(error)) => Err(ReviewError::Failed(error)),
            Err(_) => Err(ReviewError::Late),
        }
    }
}

/// API verb of an HTTP method; empty for other methods.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_a_verb() {
        assert_eq!([&Method::POST, &Method::GET, &Method::HEAD].map(verb), ["create", "get", ""]);
    }
}
