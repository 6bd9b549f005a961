//! Who may ask a kubelet what: a client shows a certificate of the cluster's client authority, or a token that the API server
//! knows (`TokenReview`); and for each request the API server says whether that user may (`SubjectAccessReview`). What is
//! asked, and how long an answer holds, is as kubelet 1.36 has it (pkg/kubelet/server/auth.go).

mod memory;
mod user;

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use sha2::{Digest, Sha256};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use self::memory::Memory;
pub use self::user::{Shown, User};

/// How long it is known whose a token is, or that it is nobody's.
const TOKEN_KNOWN: Duration = Duration::from_mins(2);
/// How long a right is known.
const ALLOWED_KNOWN: Duration = Duration::from_mins(5);
/// How long it is known that there is none.
const DENIED_KNOWN: Duration = Duration::from_secs(30);
/// Reviews under way at once.
const AT_ONCE: usize = 16;
/// How long a review may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody knows who asks.
    Unauthenticated,
    /// It may not; in a kubelet's words.
    Forbidden(String),
    /// That could not be found out.
    Unknown(String),
}

/// What is known of clients and their rights.
pub struct Access {
    client: Client,
    tokens: Memory<[u8; 32], Option<User>>,
    rights: Memory<[u8; 32], bool>,
    reviews: Semaphore,
}

impl Access {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            tokens: Memory::default(),
            rights: Memory::default(),
            reviews: Semaphore::new(AT_ONCE),
        }
    }

    /// Whether a request to the kubelet of `node` is to be answered, and whose it is.
    pub async fn check(
        &self,
        node: &str,
        (method, path): (&Method, &str),
        shown: (Option<&User>, Option<&str>),
    ) -> Result<(), Refusal> {
        let user = match shown {
            (Some(user), _) => user.clone(),
            (None, Some(token)) => self.user_of(token).await?.ok_or(Refusal::Unauthenticated)?,
            (None, None) => return Err(Refusal::Unauthenticated),
        };
        let (verb, subresources) = (verb(method), subresources(path));
        for subresource in subresources {
            if self.may(&user, verb, node, subresource).await? {
                return Ok(());
            }
        }
        let subresources = subresources.join(" ");
        Err(Refusal::Forbidden(format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n",
            user.name
        )))
    }

    /// Whose a token is.
    async fn user_of(&self, token: &str) -> Result<Option<User>, Refusal> {
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(user) = self.tokens.recall(&key, Instant::now()) {
            return Ok(user);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = self.review(review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(User::from);
        self.tokens.keep(key, user.clone(), Instant::now() + TOKEN_KNOWN);
        Ok(user)
    }

    async fn may(&self, user: &User, verb: &str, node: &str, subresource: &str) -> Result<bool, Refusal> {
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
        let may = self.review(review).await?.status.is_some_and(|status| status.allowed);
        let known = if may { ALLOWED_KNOWN } else { DENIED_KNOWN };
        self.rights.keep(key, may, Instant::now() + known);
        Ok(may)
    }

    /// Asks the API server.
    async fn review<K>(&self, review: K) -> Result<K, Refusal>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let asked = timeout(LIMIT, async {
            // It is never closed.
            let _place = self.reviews.acquire().await;
            api.create(&PostParams::default(), &review).await
        });
        match asked.await {
            Ok(Ok(review)) => Ok(review),
            Ok(Err(error)) => Err(Refusal::Unknown(crate::error::chain(&error))),
            Err(_) => Err(Refusal::Unknown("the API server did not say in time who may ask".to_owned())),
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

/// Subresources of the Node, one of which must be granted for a path.
fn subresources(path: &str) -> &'static [&'static str] {
    let is_below =
        |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let all: [(&str, &[&str]); 10] = [
        ("/pods", &["pods", "proxy"]),
        ("/runningpods", &["pods", "proxy"]),
        ("/healthz", &["healthz", "proxy"]),
        ("/configz", &["configz", "proxy"]),
        ("/stats", &["stats"]),
        ("/metrics", &["metrics"]),
        ("/logs", &["log"]),
        ("/checkpoint", &["checkpoint"]),
        ("/statusz", &["statusz"]),
        ("/flagz", &["configz"]),
    ];
    all.into_iter().find(|(root, _)| is_below(root)).map_or(&["proxy"], |(_, subresources)| subresources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_what_a_kubelet_asks() {
        for (path, asked) in [
            ("/pods", &["pods", "proxy"][..]),
            ("/pods/", &["pods", "proxy"]),
            ("/podsandmore", &["proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/syncloop", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/metrics", &["metrics"]),
            ("/metrics/resource", &["metrics"]),
            ("/stats/summary", &["stats"]),
            ("/logs/", &["log"]),
            ("/containerLogs/default/a/b", &["proxy"]),
            ("/exec/default/a/b", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
        ] {
            assert_eq!(subresources(path), asked, "{path}");
        }
        assert_eq!([&Method::POST, &Method::GET, &Method::HEAD].map(verb), ["create", "get", ""]);
    }
}
