//! Authentication and authorization of kubelet clients.
//!
//! A client shows a certificate of the cluster's client CA, or a token that the API server knows
//! (`TokenReview`). For each request the API server decides whether the user is allowed
//! (`SubjectAccessReview`). Attributes and cache lifetimes are those of kubelet 1.36
//! (pkg/kubelet/server/auth.go).

mod certificate_user;
mod decision_cache;
mod review_permits;

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::Context;
use http::{Method, StatusCode};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use kube_ext::error::chain;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};
use tracing::warn;

pub use self::certificate_user::CertificateUser;
use self::{
    decision_cache::DecisionCache,
    review_permits::{Credential, ReviewPermits},
};
use super::listeners::ListenerPool;

/// Cache lifetime of a token's user, or of the fact that the token is invalid.
const TOKEN_KNOWN: Duration = Duration::from_mins(2);
/// Cache lifetime of a granted permission.
const ALLOWED_KNOWN: Duration = Duration::from_mins(5);
/// Cache lifetime of a denied permission.
const DENIED_KNOWN: Duration = Duration::from_secs(30);
/// Maximum number of tokens in the cache, valid or not.
const TOKENS: usize = 4_096;
/// Cached permissions for each machine, since a review names its Node: several clients, such as metrics-server,
/// Prometheus and the API server, each with the subresources that it reads.
const PERMISSIONS_OF_MACHINE: usize = 8;
/// Cached permissions beside these.
const PERMISSIONS: usize = 4_096;
/// Timeout of a review.
const LIMIT: Duration = Duration::from_secs(10);

/// Response to a client that is refused: a kubelet's status and message. The log has the cause of an error.
pub type Refusal = (StatusCode, String);

/// Access control, with the cached users of tokens and permissions of users.
pub struct Access {
    client: Client,
    tokens: DecisionCache<Option<UserInfo>>,
    permissions: DecisionCache<bool>,
    permits: ReviewPermits,
    /// Listeners, one of each machine.
    listeners: Arc<ListenerPool>,
}

impl Access {
    /// Creates access control with empty caches.
    pub fn new(client: Client, listeners: Arc<ListenerPool>) -> Self {
        Self {
            client,
            tokens: DecisionCache::default(),
            permissions: DecisionCache::default(),
            permits: ReviewPermits::default(),
            listeners,
        }
    }

    /// Checks whether a request from `address` to the kubelet of `node` is allowed. Its client has shown a
    /// verified certificate, a token, or neither.
    pub async fn check(
        &self,
        node: &str,
        (method, subresources): (&Method, &[&str]),
        (certificate, token): (Option<&UserInfo>, Option<&str>),
        address: IpAddr,
    ) -> Result<(), Refusal> {
        let by = certificate.map_or(Credential::Token(address), |_| Credential::Certificate);
        let user = match (certificate, token) {
            (Some(user), _) => Some(user.clone()),
            (None, Some(token)) => self.user_of(token, by).await.unwrap_or_else(|error| {
                warn!(node, error = chain(error.as_ref()), "a kubelet cannot review a token");
                None
            }),
            (None, None) => None,
        };
        let Some(user) = user else { return Err((StatusCode::UNAUTHORIZED, "Unauthorized".to_owned())) };
        let name = user.username.as_deref().unwrap_or_default();
        let verb = verb(method);
        for subresource in subresources {
            match self.is_allowed((&user, by), verb, node, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    warn!(node, user = name, error = chain(error.as_ref()), "a kubelet cannot review access");
                    let message = format!(
                        "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
                    );
                    return Err((StatusCode::INTERNAL_SERVER_ERROR, message));
                }
            }
        }
        let subresources = subresources.join(" ");
        let message = format!(
            "Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n"
        );
        Err((StatusCode::FORBIDDEN, message))
    }

    /// User of a token; None for an invalid token.
    async fn user_of(&self, token: &str, by: Credential) -> anyhow::Result<Option<UserInfo>> {
        let key = Sha256::digest(token).into();
        if let Some(user) = self.tokens.get(&key, Instant::now()) {
            return Ok(user);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review = self.review(reviews.create(&PostParams::default(), &review), by).await?;
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        self.tokens.insert(key, user.clone(), Instant::now() + TOKEN_KNOWN, TOKENS);
        Ok(user)
    }

    async fn is_allowed(
        &self,
        (user, by): (&UserInfo, Credential),
        verb: &str,
        node: &str,
        subresource: &str,
    ) -> anyhow::Result<bool> {
        let spec = spec(user, verb, node, subresource);
        let key = digest(&spec)?;
        if let Some(allowed) = self.permissions.get(&key, Instant::now()) {
            return Ok(allowed);
        }
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = self.review(reviews.create(&PostParams::default(), &review), by).await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        let known = if allowed { ALLOWED_KNOWN } else { DENIED_KNOWN };
        let most = PERMISSIONS + self.listeners.len() * PERMISSIONS_OF_MACHINE;
        self.permissions.insert(key, allowed, Instant::now() + known, most);
        Ok(allowed)
    }

    /// Sends a review to the API server.
    async fn review<K>(
        &self,
        review: impl Future<Output = kube::Result<K>>,
        by: Credential,
    ) -> anyhow::Result<K> {
        let response = timeout(LIMIT, async {
            let _permit = self.permits.acquire(by).await;
            review.await
        });
        response
            .await
            .context("the API server does not answer")?
            .context("the API server did not take a review")
    }
}

/// Review of a user's permission.
fn spec(user: &UserInfo, verb: &str, node: &str, subresource: &str) -> SubjectAccessReviewSpec {
    let UserInfo { username, uid, groups, extra } = user.clone();
    let attributes = ResourceAttributes {
        verb: Some(verb.to_owned()),
        version: Some("v1".to_owned()),
        resource: Some("nodes".to_owned()),
        subresource: Some(subresource.to_owned()),
        name: Some(node.to_owned()),
        ..ResourceAttributes::default()
    };
    SubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        user: username,
        uid,
        groups,
        extra,
        ..SubjectAccessReviewSpec::default()
    }
}

/// Digest of a review, distinct from that of any other user or permission: JSON marks where each text ends.
fn digest(spec: &SubjectAccessReviewSpec) -> serde_json::Result<[u8; 32]> {
    Ok(Sha256::digest(serde_json::to_vec(spec)?).into())
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
    use std::{
        convert::Infallible,
        net::Ipv4Addr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::server::metrics::Metrics;

    /// Ports of the machines of a test, which none but it opens.
    const PORTS: &str = "10300-10339";

    #[tokio::test]
    async fn a_client_of_all_machines_needs_one_review_for_each() {
        let reviews = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reviews);
        let server = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let review = serde_json::json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {}, "status": {"allowed": true},
            });
            let body = kube::client::Body::from(review.to_string().into_bytes());
            async { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let pool = ListenerPool::new(Ipv4Addr::LOCALHOST, PORTS.parse().unwrap(), metrics).unwrap();
        let machines = std::iter::from_fn(|| pool.open(&Arc::from("u"), None)).count();
        let access = Access::new(Client::new(server, "default"), Arc::new(pool));
        let user = UserInfo { username: Some("metrics-server".to_owned()), ..UserInfo::default() };
        let nodes = PERMISSIONS + machines * PERMISSIONS_OF_MACHINE;
        assert!(machines > 0);
        // A second scrape finds the permissions of the first one.
        for _ in 0..2 {
            for node in 0..nodes {
                let (node, method) = (format!("node-{node}"), (&Method::GET, &["metrics"][..]));
                let address = Ipv4Addr::LOCALHOST.into();
                access.check(&node, method, (Some(&user), None), address).await.unwrap();
            }
        }
        assert_eq!(reviews.load(Ordering::Relaxed), nodes);
    }

    #[test]
    fn a_method_is_a_verb() {
        assert_eq!([&Method::POST, &Method::GET, &Method::HEAD].map(verb), ["create", "get", ""]);
    }

    #[test]
    fn reviews_of_different_users_or_permissions_have_different_digests() {
        let list = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
        let user = |name: &str, groups: &[&str], extra: &[(&str, &[&str])]| UserInfo {
            username: Some(name.to_owned()),
            groups: Some(list(groups)),
            extra: Some(extra.iter().map(|(key, values)| ((*key).to_owned(), list(values))).collect()),
            ..UserInfo::default()
        };
        let of = |user: &UserInfo, subresource| digest(&spec(user, "get", "node", subresource)).unwrap();
        let users = [
            user("a", &["b"], &[]),
            user("a", &[], &[]),
            user("ab", &[], &[]),
            user("a", &["b", ""], &[]),
            user("a", &["", "g"], &[("k", &["v"])]),
            user("a", &[], &[("k", &["v", "", "", "g"])]),
            user("a", &[], &[("k", &["", "l"])]),
            user("a", &[], &[("k", &[]), ("l", &[])]),
            user("a", &["k", ""], &[]),
            user("a", &[], &[("k", &[])]),
        ];
        let subresources = ["proxy", "stats"];
        let digests: std::collections::HashSet<_> =
            users.iter().flat_map(|user| subresources.map(|subresource| of(user, subresource))).collect();
        assert_eq!(digests.len(), users.len() * subresources.len());
        assert_eq!(of(&users[0], "proxy"), of(&user("a", &["b"], &[]), "proxy"));
    }
}
