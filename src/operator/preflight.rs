//! Checks before the start: the API server answers, the rights are granted, and the installed CRDs have all fields.
//!
//! Each failed check names the remedy.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    coordination::v1::Lease,
    core::v1::Namespace,
};
use kube::{Api, Client, api::PostParams};
use kube_ext::error::chain;
use kube_node_api::{
    crds,
    names::{self, GROUP, OPERATOR_LEASE, OPERATOR_NAMESPACE},
};
use serde_json::Value;
use tracing::warn;

/// Failed check.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// There was no answer, or none of an API server.
    #[error("cannot reach the API server at {url}: check the kubeconfig and that the server runs")]
    Unreachable {
        /// URL of the API server.
        url: String,
        /// Cause.
        source: Box<kube::Error>,
    },
    /// Rights are missing.
    #[error("{who} may not: {}; grant the rights of the chart's ClusterRole to this identity", missing.join(", "))]
    Rights {
        /// The identity.
        who: String,
        /// Missing rights: verb, resource and namespace.
        missing: Vec<String>,
    },
    /// The identity may not be used at all.
    #[error("{who} may not be used: grant the right to impersonate that ServiceAccount ({message})")]
    Refused {
        /// The identity.
        who: String,
        /// Message of the API server.
        message: String,
    },
    /// Rights for leader election are missing.
    #[error("{who} may not {}, so no leader can be elected: grant the rights of the chart's Role, or run one operator alone with --leader-elect=false", missing.join(", "))]
    NoElection {
        /// The identity.
        who: String,
        /// Missing rights: verb, resource and namespace.
        missing: Vec<String>,
    },
    /// Another operator holds the default Lease, and this one takes no part in that election.
    #[error(
        "another operator works on this cluster, {holder} by the Lease {OPERATOR_LEASE} in {OPERATOR_NAMESPACE}, and two would fight over its nodes: stop it, or take part in its election (--leader-elect, --namespace, --leader-elect-resource-name)"
    )]
    Another {
        /// Holder of the Lease.
        holder: String,
    },
    /// The CRDs are not installed.
    #[error(
        "the API server has no kinds of {GROUP}: install them with `kube-node crds | kubectl apply --server-side -f -`"
    )]
    NotInstalled,
    /// The installed CRDs are of an older version.
    #[error("the installed definition of {kind} lacks {}: install this version's with `kube-node crds | kubectl apply --server-side -f -`", fields.join(", "))]
    Older {
        /// Kind of the CRD.
        kind: String,
        /// Paths of missing fields, at most 5.
        fields: Vec<String>,
    },
}

/// A right: verb, API group, resource with its subresource, namespace (empty: all).
pub type Right = (&'static str, &'static str, &'static str, &'static str);

/// Rights of the operator's own identity. The namespace `.` stands for the operator's namespace.
pub const OPERATOR: &[Right] = &[
    ("watch", "", "nodes", ""),
    ("create", "", "nodes", ""),
    ("patch", "", "nodes", ""),
    ("delete", "", "nodes", ""),
    ("patch", "", "nodes/status", ""),
    ("watch", "", "pods", ""),
    ("list", "", "pods", ""),
    ("create", "", "pods/eviction", ""),
    ("delete", "", "pods", ""),
    ("list", "storage.k8s.io", "volumeattachments", ""),
    ("get", "", "persistentvolumeclaims", ""),
    ("watch", GROUP, "nodesets", ""),
    ("get", GROUP, "nodesets", ""),
    ("patch", GROUP, "nodesets", ""),
    ("patch", GROUP, "nodesets/status", ""),
    ("watch", GROUP, "nodeclasses", ""),
    ("patch", GROUP, "nodeclasses", ""),
    ("patch", GROUP, "nodeclasses/status", ""),
    ("get", "", "secrets", "."),
    ("patch", "", "secrets", "."),
    ("get", "", "configmaps", "."),
    ("watch", "", "pods", names::MACHINE_NAMESPACE),
    ("create", "", "pods", names::MACHINE_NAMESPACE),
    ("patch", "", "secrets", names::MACHINE_NAMESPACE),
    ("create", "apps", "controllerrevisions", "."),
    ("watch", "certificates.k8s.io", "certificatesigningrequests", ""),
    ("patch", "certificates.k8s.io", "certificatesigningrequests/approval", ""),
    ("create", "events.k8s.io", "events", ""),
    ("get", "coordination.k8s.io", "leases", "kube-node-lease"),
    ("watch", "coordination.k8s.io", "leases", "."),
];

/// Rights of a worker's identity, besides those of hollow kubelets.
pub const HOST: &[Right] = &[
    ("watch", "", "nodes", ""),
    ("watch", "", "pods", ""),
    ("watch", GROUP, "nodesets", ""),
    ("watch", GROUP, "nodeclasses", ""),
    ("get", "apps", "controllerrevisions", "."),
    ("watch", "coordination.k8s.io", "leases", "."),
];

/// Rights of the hollow kubelets' identity.
pub const HOLLOW: &[Right] = &[
    ("patch", "", "nodes/status", ""),
    ("patch", "", "pods/status", ""),
    ("delete", "", "pods", ""),
    ("create", "", "events", ""),
    ("patch", "", "events", ""),
    ("list", "coordination.k8s.io", "leases", "kube-node-lease"),
    ("create", "coordination.k8s.io", "leases", "kube-node-lease"),
    ("update", "coordination.k8s.io", "leases", "kube-node-lease"),
];

/// Further rights of that identity where kubelet endpoints are served.
pub const ENDPOINTS: &[Right] = &[
    ("create", "authentication.k8s.io", "tokenreviews", ""),
    ("create", "authorization.k8s.io", "subjectaccessreviews", ""),
];

/// Time within which the API server publishes the schema of a newly installed CRD.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(30);
/// Interval between two reads of the schema until then.
const COMPARE_AGAIN: Duration = Duration::from_secs(1);
/// Access reviews in flight at once.
const REVIEWS_AT_ONCE: usize = 8;

/// Checks with one identity.
#[derive(Clone, Copy)]
pub struct Preflight<'a> {
    /// Client of the identity.
    pub client: &'a Client,
    /// The identity, for messages.
    pub who: &'a str,
    /// URL of the API server, for messages.
    pub url: &'a str,
    /// The operator's namespace.
    pub namespace: &'a str,
}

impl Preflight<'_> {
    fn unreachable(&self, source: kube::Error) -> PreflightError {
        PreflightError::Unreachable { url: self.url.to_owned(), source: Box::new(source) }
    }

    /// Checks that the API server answers.
    pub async fn reach(&self) -> Result<(), PreflightError> {
        self.client.apiserver_version().await.map(drop).map_err(|source| self.unreachable(source))
    }

    /// Checks that the identity has all `rights`.
    pub async fn rights(&self, rights: &[Right]) -> Result<(), PreflightError> {
        let failed = |source| match source {
            kube::Error::Api(status) if status.code == 403 => {
                PreflightError::Refused { who: self.who.to_owned(), message: status.message }
            }
            source => self.unreachable(source),
        };
        let missing: Vec<Option<String>> = stream::iter(rights)
            .map(|right| async { self.missing_right(*right, "").await.map_err(failed) })
            .buffered(REVIEWS_AT_ONCE)
            .try_collect()
            .await?;
        let missing: Vec<String> = missing.into_iter().flatten().collect();
        let who = self.who.to_owned();
        if missing.is_empty() { Ok(()) } else { Err(PreflightError::Rights { who, missing }) }
    }

    /// Returns `wished` if the identity has the rights to serve kubelet endpoints. Otherwise logs a warning
    /// and returns None: machines work without endpoints.
    pub async fn endpoints<T>(&self, wished: Option<T>) -> Result<Option<T>, PreflightError> {
        let Some(wished) = wished else { return Ok(None) };
        match self.rights(ENDPOINTS).await {
            Ok(()) => Ok(Some(wished)),
            Err(error @ PreflightError::Rights { .. }) => {
                warn!(error = chain(&error), "kubelets are not served");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks that the identity may elect a leader by the Lease of this name.
    pub async fn election(&self, lease: &str) -> Result<(), PreflightError> {
        let mut missing = Vec::new();
        // RBAC cannot limit `create` to a name.
        for (verb, name) in [("create", ""), ("get", lease), ("update", lease)] {
            let right = (verb, "coordination.k8s.io", "leases", ".");
            missing.extend(self.missing_right(right, name).await.map_err(|source| self.unreachable(source))?);
        }
        let who = self.who.to_owned();
        if missing.is_empty() { Ok(()) } else { Err(PreflightError::NoElection { who, missing }) }
    }

    /// Checks that no operator leads outside this operator's election. `election` is the namespace and the
    /// name of the Lease of that election. An identity that may not read the default Lease passes.
    pub async fn alone(&self, election: Option<(&str, &str)>) -> Result<(), PreflightError> {
        if election == Some((OPERATOR_NAMESPACE, OPERATOR_LEASE)) {
            return Ok(());
        }
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), OPERATOR_NAMESPACE);
        match leases.get_opt(OPERATOR_LEASE).await {
            Ok(lease) => match lease.and_then(|lease| leader(&lease, Timestamp::now())) {
                Some(holder) => Err(PreflightError::Another { holder }),
                None => Ok(()),
            },
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
            Err(source) => Err(self.unreachable(source)),
        }
    }

    /// Identifies the cluster: the UID of its namespace kube-system.
    pub async fn cluster_id(&self) -> Result<String, PreflightError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        match namespaces.get_metadata("kube-system").await {
            Ok(namespace) => Ok(namespace.metadata.uid.unwrap_or_default()),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let missing = vec!["get namespaces kube-system".to_owned()];
                Err(PreflightError::Rights { who: self.who.to_owned(), missing })
            }
            Err(source) => Err(self.unreachable(source)),
        }
    }

    /// Returns None if the right is granted, else the right in words. `name` limits it to one object unless empty.
    async fn missing_right(
        &self,
        (verb, group, resource, namespace): Right,
        name: &str,
    ) -> kube::Result<Option<String>> {
        let namespace = if namespace == "." { self.namespace } else { namespace };
        let (kind, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: some(verb),
                    group: some(group),
                    resource: some(kind),
                    subresource: some(subresource),
                    namespace: some(namespace),
                    name: some(name),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(None);
        }
        let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
        let which = if name.is_empty() { String::new() } else { format!(" {name}") };
        Ok(Some(format!("{verb} {resource}{which}{place}")))
    }

    /// Fails if the installed CRDs lack a field of ours, else never returns. The API server may publish the
    /// schema of a new CRD some seconds after it serves that CRD, so the start does not wait for this check.
    pub async fn definitions(&self) -> Result<(), PreflightError> {
        let deadline = Instant::now() + PUBLISHED_WITHIN;
        loop {
            match self.compare().await {
                Ok(()) => return std::future::pending().await,
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(COMPARE_AGAIN).await,
            }
        }
    }

    /// Checks that the installed CRDs have all fields of ours.
    pub async fn compare(&self) -> Result<(), PreflightError> {
        let request = Request::get(format!("/openapi/v3/apis/{GROUP}/v1alpha1")).body(Vec::new());
        let request = request.map_err(|error| self.unreachable(kube::Error::HttpError(error)))?;
        let document: Value = match self.client.request(request).await {
            Ok(document) => document,
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(PreflightError::NotInstalled),
            Err(error) => return Err(self.unreachable(error)),
        };
        let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
        for crd in crds() {
            let kind = crd.spec.names.kind;
            let mut schemas = schemas.into_iter().flatten();
            let installed = schemas.find(|(name, _)| name.rsplit('.').next() == Some(&kind));
            let Some((_, theirs)) = installed else { return Err(PreflightError::NotInstalled) };
            for version in crd.spec.versions {
                let ours = version.schema.and_then(|schema| schema.open_api_v3_schema);
                let ours = serde_json::to_value(ours).unwrap_or_default();
                let mut fields = Vec::new();
                missing_fields(&ours, theirs, "", &mut fields);
                if !fields.is_empty() {
                    fields.truncate(5);
                    return Err(PreflightError::Older { kind, fields });
                }
            }
        }
        Ok(())
    }
}

/// Holder of the Lease while the Lease is valid, as far as the clocks of two machines agree.
fn leader(lease: &Lease, now: Timestamp) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let lasts = SignedDuration::from_secs(spec.lease_duration_seconds?.into());
    let is_over = now.duration_since(spec.renew_time.as_ref()?.0) > lasts;
    spec.holder_identity.clone().filter(|holder| !is_over && !holder.is_empty())
}

/// Collects the paths of properties that `ours` has and `theirs` lacks.
fn missing_fields(ours: &Value, theirs: &Value, path: &str, found: &mut Vec<String>) {
    for (name, property) in ours.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match theirs.pointer(&format!("/properties/{name}")) {
            Some(theirs) => missing_fields(property, theirs, &path, found),
            // The API server describes metadata by reference.
            None if path == "metadata" || path == "kind" || path == "apiVersion" => {}
            None => found.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_leader_is_one_that_renews_its_lease() {
        let now: Timestamp = "2026-11-22T00:00:15Z".parse().unwrap();
        let lease = |holder: &str, renewed: &str| -> Lease {
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        assert_eq!(leader(&lease("a", "2026-11-22T00:00:01.000000Z"), now).as_deref(), Some("a"));
        // The holder's clock is ahead of ours.
        assert_eq!(leader(&lease("a", "2026-11-22T00:00:20.000000Z"), now).as_deref(), Some("a"));
        assert_eq!(leader(&lease("a", "2026-11-21T23:59:59.000000Z"), now), None);
        assert_eq!(leader(&lease("", "2026-11-22T00:00:14.000000Z"), now), None);
        assert_eq!(leader(&Lease::default(), now), None);
    }

    #[test]
    fn missing_fields_are_named_by_their_path() {
        let ours = json!({"properties": {"spec": {"properties": {"a": {}, "b": {"properties": {"c": {}}}}}, "metadata": {}}});
        let theirs = json!({"properties": {"spec": {"properties": {"b": {"properties": {}}}}}});
        let mut found = Vec::new();
        missing_fields(&ours, &theirs, "", &mut found);
        assert_eq!(found, ["spec.a", "spec.b.c"]);
        found.clear();
        missing_fields(&ours, &ours, "", &mut found);
        assert!(found.is_empty());
    }
}
