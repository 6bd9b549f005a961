//! Checks before the start: the API server answers, the rights are granted, and the installed CRDs have all fields.
//!
//! Each failed check names the remedy.

use std::{
    future::{pending, ready},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview},
        coordination::v1::Lease,
        core::v1::Namespace,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps,
    apimachinery::pkg::version::Info,
};
use kube::{Api, Client, api::PostParams};
use kube_ext::{call::call, environment};
use kube_node_api::{
    crds,
    names::{self, GROUP, OPERATOR_LEASE, OPERATOR_NAMESPACE},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::kubernetes_version;

/// Rights: verbs, API group, resource with its subresource, namespace (empty: all).
pub type Rights = (&'static str, &'static str, &'static str, &'static str);

/// Rights of the operator's own identity. The namespaces `.` and [`names::MACHINE_NAMESPACE`] stand for those of
/// this operator and its machines.
pub const OPERATOR: &[Rights] = &[
    ("watch create patch delete", "", "nodes", ""),
    ("patch", "", "nodes/status", ""),
    ("watch list delete", "", "pods", ""),
    ("create", "", "pods/eviction", ""),
    ("list", "storage.k8s.io", "volumeattachments", ""),
    ("get", "", "persistentvolumeclaims", ""),
    ("watch get patch", GROUP, "nodesets", ""),
    ("patch", GROUP, "nodesets/status", ""),
    ("watch patch", GROUP, "nodeclasses", ""),
    ("patch", GROUP, "nodeclasses/status", ""),
    ("get patch", "", "secrets", "."),
    ("get", "", "configmaps", "."),
    ("watch create", "", "pods", names::MACHINE_NAMESPACE),
    ("patch", "", "secrets", names::MACHINE_NAMESPACE),
    ("create", "apps", "controllerrevisions", "."),
    ("watch", "certificates.k8s.io", "certificatesigningrequests", ""),
    ("patch", "certificates.k8s.io", "certificatesigningrequests/approval", ""),
    ("create", "events.k8s.io", "events", ""),
    ("get", "coordination.k8s.io", "leases", "kube-node-lease"),
    ("watch", "coordination.k8s.io", "leases", "."),
];

/// Rights of a worker's identity, besides those of hollow kubelets.
pub const HOST: &[Rights] = &[
    ("watch", "", "nodes", ""),
    ("watch", "", "pods", ""),
    ("watch", GROUP, "nodesets", ""),
    ("watch", GROUP, "nodeclasses", ""),
    ("get", "apps", "controllerrevisions", "."),
    ("watch", "coordination.k8s.io", "leases", "."),
];

/// Rights of the hollow kubelets' identity.
pub const HOLLOW: &[Rights] = &[
    ("patch", "", "nodes/status", ""),
    ("patch", "", "pods/status", ""),
    ("delete", "", "pods", ""),
    ("create patch", "", "events", ""),
    ("list create update", "coordination.k8s.io", "leases", "kube-node-lease"),
];

/// Further rights of that identity where kubelet endpoints are served.
pub const ENDPOINTS: &[Rights] = &[
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
    /// The machines' namespace.
    pub machine_namespace: &'a str,
}

impl Preflight<'_> {
    fn unreachable(&self) -> String {
        format!("cannot reach the API server at {}: check the kubeconfig and that the server runs", self.url)
    }

    fn may_not(&self, missing: &str) -> String {
        let who = self.who;
        format!("{who} may not: {missing}; grant the rights of the chart's ClusterRole to this identity")
    }

    /// Checks that the API server answers and is not too old, and returns its version. Logs a warning if it is newer than any
    /// that is tested.
    pub async fn reach(&self) -> anyhow::Result<Info> {
        let version = call("ask the API server for its version", self.client.apiserver_version());
        let version = version.await.with_context(|| self.unreachable())?;
        if let Some(warning) = kubernetes_version::check(&version)? {
            warn!("{warning}");
        }
        Ok(version)
    }

    /// Checks that the identity has all `rights`.
    pub async fn rights(&self, rights: &[Rights]) -> anyhow::Result<()> {
        let missing = self.missing(rights).await?;
        ensure!(missing.is_empty(), self.may_not(&missing.join(", ")));
        Ok(())
    }

    /// The `rights` that the identity lacks, in words: verb, resource and namespace.
    pub async fn missing(&self, rights: &[Rights]) -> anyhow::Result<Vec<String>> {
        let rights = rights.iter().flat_map(|&(verbs, group, resource, namespace)| {
            verbs.split(' ').map(move |verb| (verb, group, resource, namespace))
        });
        stream::iter(rights.collect::<Vec<_>>())
            .map(|right| self.missing_right(right, ""))
            .buffered(REVIEWS_AT_ONCE)
            .try_filter_map(|missing| ready(Ok(missing)))
            .try_collect()
            .await
    }

    /// Returns `wished` if the identity has the rights to serve kubelet endpoints. Otherwise logs a warning
    /// and returns None: machines work without endpoints.
    pub async fn endpoints<T>(&self, wished: Option<T>) -> anyhow::Result<Option<T>> {
        let Some(wished) = wished else { return Ok(None) };
        let missing = self.missing(ENDPOINTS).await?;
        if missing.is_empty() {
            return Ok(Some(wished));
        }
        warn!(error = self.may_not(&missing.join(", ")), "kubelets are not served");
        Ok(None)
    }

    /// Checks that the identity may elect a leader by the Lease of this name.
    pub async fn election(&self, lease: &str) -> anyhow::Result<()> {
        let mut missing = Vec::new();
        // RBAC cannot limit `create` to a name.
        for (verb, name) in [("create", ""), ("get", lease), ("update", lease)] {
            missing.extend(self.missing_right((verb, "coordination.k8s.io", "leases", "."), name).await?);
        }
        let (who, all) = (self.who, missing.join(", "));
        ensure!(
            missing.is_empty(),
            "{who} may not {all}, so no leader can be elected: grant the rights of the chart's Role, or run one operator alone with --leader-elect=false"
        );
        Ok(())
    }

    /// Checks that no operator leads outside this operator's election. `election` is the namespace and the
    /// name of the Lease of that election. An identity that may not read the default Lease passes.
    pub async fn no_other_leader(&self, election: Option<(&str, &str)>) -> anyhow::Result<()> {
        if election == Some((OPERATOR_NAMESPACE, OPERATOR_LEASE)) {
            return Ok(());
        }
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), OPERATOR_NAMESPACE);
        let lease = match leases.get_opt(OPERATOR_LEASE).await {
            Err(kube::Error::Api(status)) if status.code == 403 => None,
            other => other.with_context(|| self.unreachable())?,
        };
        let Some(holder) = lease.and_then(|lease| leader(&lease, environment::now())) else { return Ok(()) };
        bail!(
            "another operator works on this cluster, {holder} by the Lease {OPERATOR_LEASE} in {OPERATOR_NAMESPACE}, and two would fight over its nodes: stop it, or take part in its election (--leader-elect, --namespace, --leader-elect-resource-name)"
        )
    }

    /// Identifies the cluster: the UID of its namespace kube-system.
    pub async fn cluster_id(&self) -> anyhow::Result<String> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        match namespaces.get_metadata("kube-system").await {
            Err(kube::Error::Api(status)) if status.code == 403 => {
                bail!(self.may_not("get namespaces kube-system"))
            }
            other => Ok(other.with_context(|| self.unreachable())?.metadata.uid.unwrap_or_default()),
        }
    }

    /// Returns None if the right is granted, else the right in words. `name` limits it to one object unless empty.
    async fn missing_right(
        &self,
        (verb, group, resource, namespace): Rights,
        name: &str,
    ) -> anyhow::Result<Option<String>> {
        let namespace = match namespace {
            "." => self.namespace,
            names::MACHINE_NAMESPACE => self.machine_namespace,
            namespace => namespace,
        };
        let (kind, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let mut review = SelfSubjectAccessReview::default();
        review.spec.resource_attributes = Some(ResourceAttributes {
            verb: some(verb),
            group: some(group),
            resource: some(kind),
            subresource: some(subresource),
            namespace: some(namespace),
            name: some(name),
            ..ResourceAttributes::default()
        });
        let review = match Api::all(self.client.clone()).create(&PostParams::default(), &review).await {
            Err(kube::Error::Api(status)) if status.code == 403 => bail!(
                "{} may not be used: grant the right to impersonate that ServiceAccount ({})",
                self.who,
                status.message
            ),
            other => other.with_context(|| self.unreachable())?,
        };
        if review.status.is_some_and(|status| status.allowed) {
            return Ok(None);
        }
        let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
        let which = if name.is_empty() { String::new() } else { format!(" {name}") };
        Ok(Some(format!("{verb} {resource}{which}{place}")))
    }

    /// Fails if the installed CRDs lack a field of ours, else never returns. The API server may publish the
    /// schema of a new CRD some seconds after it serves that CRD, so the start does not wait for this check.
    pub async fn definitions(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PUBLISHED_WITHIN;
        loop {
            match self.outdated_definition().await {
                Ok(None) => return pending().await,
                Ok(Some(problem)) if Instant::now() >= deadline => bail!(problem),
                Err(error) if Instant::now() >= deadline => return Err(error),
                _ => sleep(COMPARE_AGAIN).await,
            }
        }
    }

    /// Compares the installed CRDs with ours. Returns None if they have all fields of ours, else the remedy.
    pub async fn outdated_definition(&self) -> anyhow::Result<Option<String>> {
        let remedy = "with `kube-node crds | kubectl apply --server-side -f -`";
        let not_installed = || Some(format!("the API server has no kinds of {GROUP}: install them {remedy}"));
        let request = Request::get(format!("/openapi/v3/apis/{GROUP}/v1alpha1")).body(Vec::new())?;
        let document: Value = match self.client.request(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(not_installed()),
            other => other.with_context(|| self.unreachable())?,
        };
        let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
        for crd in crds() {
            let kind = &crd.spec.names.kind;
            let mut schemas = schemas.into_iter().flatten();
            let installed = schemas.find(|(name, _)| name.rsplit('.').next() == Some(kind));
            let Some((_, theirs)) = installed else { return Ok(not_installed()) };
            for version in &crd.spec.versions {
                let ours = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
                let mut fields = Vec::new();
                if let Some(ours) = ours {
                    missing_fields(ours, theirs, "", &mut fields);
                }
                if !fields.is_empty() {
                    fields.truncate(5);
                    let fields = fields.join(", ");
                    let message = format!("the installed definition of {kind} lacks {fields}");
                    return Ok(Some(format!("{message}: install this version's {remedy}")));
                }
            }
        }
        Ok(None)
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
fn missing_fields(ours: &JSONSchemaProps, theirs: &Value, path: &str, found: &mut Vec<String>) {
    for (name, property) in ours.properties.iter().flatten() {
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
        let schema: JSONSchemaProps = serde_json::from_value(ours.clone()).unwrap();
        let mut found = Vec::new();
        missing_fields(&schema, &theirs, "", &mut found);
        assert_eq!(found, ["spec.a", "spec.b.c"]);
        found.clear();
        missing_fields(&schema, &ours, "", &mut found);
        assert!(found.is_empty());
    }
}
