//! Who may ask a kubelet what: a client shows a certificate of the cluster's client authority, or a token that the API server
//! knows (`TokenReview`); and for each request the API server says whether that user may (`SubjectAccessReview`). What is
//! asked, and how long an answer holds, is as kubelet 1.36 has it (pkg/kubelet/server/auth.go).

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

/// How long it is known whose a token is, or that it is nobody's.
const TOKEN_KNOWN: Duration = Duration::from_mins(2);
/// How long a right is known.
const ALLOWED_KNOWN: Duration = Duration::from_mins(5);
/// How long it is known that there is none.
const DENIED_KNOWN: Duration = Duration::from_secs(30);
/// How long a review may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody knows who asks.
    Unauthenticated,
    /// It may not; in a kubelet's words.
    Forbidden(String),
    /// Whether it may could not be found out; in a kubelet's words. Why stands in the log.
    Unknown(String),
}

/// Why the API server did not say it.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error("the API server did not take a review")]
    Failed(#[source] kube::Error),
    #[error("the API server does not answer")]
    Late,
}

/// What is known of clients and their rights.
pub struct Access {
    client: Client,
    tokens: DecisionCache<[u8; 32], Option<User>>,
    rights: DecisionCache<[u8; 32], bool>,
    reviews: Reviews,
}

impl Access {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            tokens: DecisionCache::default(),
            rights: DecisionCache::default(),
            reviews: Reviews::default(),
        }
    }

    /// Whether a request from `address` to the kubelet of `node` is to be answered.
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

    /// Whose a token is.
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

    /// Asks the API server.
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

/// What a method does, in the API's words; empty for others.
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
