//! Objects that a cluster needs before the operator starts: the CRDs, and charts/kube-node/files (the
//! operator's identity and rights, admission policies). `up` and `setup` apply the same objects, server-side,
//! so a second time changes nothing.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::{
    api::core::v1::Secret, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::{conditions, wait::await_condition},
};
use kube_node_api::names;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Field manager of server-side apply.
pub(super) const FIELD_MANAGER: &str = "kube-node-up";
/// Files in the order in which they are applied: a namespace comes before the objects in it.
const FILES: [(&str, &str); 6] = [
    ("namespace.yaml", include_str!("../../charts/kube-node/files/namespace.yaml")),
    ("rbac.yaml", include_str!("../../charts/kube-node/files/rbac.yaml")),
    ("hosts.yaml", include_str!("../../charts/kube-node/files/hosts.yaml")),
    ("roles.yaml", include_str!("../../charts/kube-node/files/roles.yaml")),
    ("policies.yaml", include_str!("../../charts/kube-node/files/policies.yaml")),
    ("fairness.yaml", include_str!("../../charts/kube-node/files/fairness.yaml")),
];
/// Time limit for kube-apiserver to serve a new CRD.
const ESTABLISH_LIMIT: Duration = Duration::from_mins(1);
/// Time limit for deleted objects to be gone: namespaces go after all their objects.
const GONE_LIMIT: Duration = Duration::from_mins(3);
/// Interval of checks for deleted objects.
const GONE_POLL: Duration = Duration::from_millis(250);
/// Namespace of Kubernetes itself with the Leases of all nodes; never deleted.
const KEPT: &str = "kube-node-lease";

/// Reason why the CRDs or manifests could not be installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A manifest file is not a list of Kubernetes objects.
    #[error("{file} is not valid")]
    Invalid {
        /// The file.
        file: &'static str,
        /// Parse error.
        source: serde_norway::Error,
    },
    /// An object has no apiVersion and kind.
    #[error("{file} holds an object without apiVersion and kind")]
    NoType {
        /// The file.
        file: &'static str,
    },
    /// kube-apiserver refused an object.
    #[error("cannot apply {kind} {name}")]
    Apply {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Error of the API request.
        source: Box<kube::Error>,
    },
    /// An object cannot be read, so its existence is unknown.
    #[error("cannot read {kind} {name}")]
    Read {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Error of the API request.
        source: Box<kube::Error>,
    },
    /// kube-apiserver refused a deletion or is unreachable.
    #[error("cannot delete {kind} {name}")]
    Delete {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Error of the API request.
        source: Box<kube::Error>,
    },
    /// Our finalizer cannot be removed from a Secret.
    #[error(
        "cannot take the finalizer {} off Secret {name} in {}",
        names::FINALIZER_IN_USE,
        super::NAMESPACE
    )]
    Release {
        /// Name of the Secret; `*` if the Secrets cannot be listed.
        name: String,
        /// Error of the API request.
        source: Box<kube::Error>,
    },
    /// A deleted object still exists.
    #[error("{kind} {name} is not gone after {} s: kubectl describe tells what holds it", GONE_LIMIT.as_secs())]
    NotGone {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
    },
    /// A CRD was applied, but the wait for its condition Established failed.
    #[error("the definition {name} is not served")]
    Watch {
        /// Name of the CRD.
        name: String,
        /// Error of the watch.
        source: Box<kube::runtime::wait::Error>,
    },
    /// A CRD is not served within the limit.
    #[error("the definition {name} is not served after {} s", ESTABLISH_LIMIT.as_secs())]
    NotServed {
        /// Name of the CRD.
        name: String,
    },
}

/// Applies the CRDs and the files, and waits until the CRDs are served.
pub async fn install(client: &Client) -> Result<(), ManifestError> {
    tokio::try_join!(apply_crds(client), apply_files(client))?;
    Ok(())
}

/// Deletes everything that [`install`] applied, and waits until it is gone. The CRDs and their objects go
/// first: the operator needs its rights to release these objects. After them no Secret is in use, but one may
/// still carry our finalizer, as after a forced deletion of a NodeClass, and would block the deletion of its
/// namespace.
pub async fn uninstall(client: &Client) -> Result<(), ManifestError> {
    let crd = ApiResource::erase::<CustomResourceDefinition>(&());
    let crds = kube_node_api::crds().into_iter().map(|kind| (kind.name_any(), None, crd.clone()));
    remove(client, crds.collect()).await?;
    release_secrets(client).await?;
    let mut objects = Vec::new();
    for (file, text) in FILES {
        let parsed = parse(file, text)?.into_iter();
        objects.extend(parsed.map(|(object, resource)| (object.name_any(), object.namespace(), resource)));
    }
    objects.retain(|(name, ..)| name != KEPT);
    objects.reverse();
    remove(client, objects).await
}

/// Removes our finalizer from the Secrets of our namespace. Call this only when no NodeClass is left.
pub async fn release_secrets(client: &Client) -> Result<(), ManifestError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), super::NAMESPACE);
    let failed = |name: String| move |source| ManifestError::Release { name, source: Box::new(source) };
    let listed = api.list_metadata(&ListParams::default()).await.map_err(failed("*".to_owned()))?;
    for secret in listed {
        let kept: Vec<&String> =
            secret.finalizers().iter().filter(|own| *own != names::FINALIZER_IN_USE).collect();
        if kept.len() == secret.finalizers().len() {
            continue;
        }
        let name = secret.name_any();
        let change = json!({ "metadata": {
            "resourceVersion": secret.metadata.resource_version, "finalizers": kept,
        } });
        match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(change)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other.map_err(failed(name))?),
        }
    }
    Ok(())
}

/// Deletes objects (name, namespace, kind) and waits until all are gone.
async fn remove(
    client: &Client,
    objects: Vec<(String, Option<String>, ApiResource)>,
) -> Result<(), ManifestError> {
    let all: Vec<_> = objects
        .into_iter()
        .map(|(name, namespace, resource)| {
            (dynamic(client, namespace.as_deref(), &resource), resource.kind, name)
        })
        .collect();
    for (api, kind, name) in &all {
        delete(api, kind, name).await?;
    }
    for (api, kind, name) in &all {
        wait_gone(api, kind, name).await?;
    }
    Ok(())
}

/// Objects of the files that do not exist, as kind and name.
pub async fn absent(client: &Client) -> Result<Vec<String>, ManifestError> {
    let mut absent = Vec::new();
    for (file, text) in FILES {
        for (object, resource) in parse(file, text)? {
            let name = object.name_any();
            let api = dynamic(client, object.namespace().as_deref(), &resource);
            let there = api.get_metadata_opt(&name).await.map_err(|source| ManifestError::Read {
                kind: resource.kind.clone(),
                name: name.clone(),
                source: Box::new(source),
            })?;
            if there.is_none() {
                absent.push(format!("{} {name}", resource.kind));
            }
        }
    }
    Ok(absent)
}

async fn delete(api: &Api<DynamicObject>, kind: &str, name: &str) -> Result<(), ManifestError> {
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(source) => Err(not_deleted(kind, name, source)),
    }
}

async fn wait_gone(api: &Api<DynamicObject>, kind: &str, name: &str) -> Result<(), ManifestError> {
    let deadline = Instant::now() + GONE_LIMIT;
    while Instant::now() < deadline {
        match api.get_metadata_opt(name).await {
            Ok(None) => return Ok(()),
            // A deleted CRD takes its objects along: their API answers 404.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Ok(Some(_)) => sleep(GONE_POLL).await,
            Err(source) => return Err(not_deleted(kind, name, source)),
        }
    }
    Err(ManifestError::NotGone { kind: kind.to_owned(), name: name.to_owned() })
}

fn not_deleted(kind: &str, name: &str, source: kube::Error) -> ManifestError {
    ManifestError::Delete { kind: kind.to_owned(), name: name.to_owned(), source: Box::new(source) }
}

fn dynamic(client: &Client, namespace: Option<&str>, resource: &ApiResource) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

async fn apply_crds(client: &Client) -> Result<(), ManifestError> {
    let api = &Api::<CustomResourceDefinition>::all(client.clone());
    try_join_all(kube_node_api::crds().into_iter().map(|crd| async move {
        let name = crd.name_any();
        apply(api, "CustomResourceDefinition", &name, &crd).await?;
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        match tokio::time::timeout(ESTABLISH_LIMIT, established).await {
            Err(_) => Err(ManifestError::NotServed { name }),
            Ok(Err(source)) => Err(ManifestError::Watch { name, source: Box::new(source) }),
            Ok(Ok(_)) => Ok(()),
        }
    }))
    .await?;
    Ok(())
}

async fn apply_files(client: &Client) -> Result<(), ManifestError> {
    for (file, text) in FILES {
        let objects = parse(file, text)?;
        // Namespaces one by one, before the objects in them.
        if file == "namespace.yaml" {
            for (object, resource) in &objects {
                apply_dynamic(client, object, resource).await?;
            }
        } else {
            try_join_all(objects.iter().map(|(object, resource)| apply_dynamic(client, object, resource)))
                .await?;
        }
    }
    Ok(())
}

async fn apply_dynamic(
    client: &Client,
    object: &DynamicObject,
    resource: &ApiResource,
) -> Result<(), ManifestError> {
    let api = dynamic(client, object.namespace().as_deref(), resource);
    apply(&api, &resource.kind, &object.name_any(), object).await
}

/// Server-side apply with force: fields of ours that another manager has changed become ours again.
pub(super) async fn apply<K>(
    api: &Api<K>,
    kind: &str,
    name: &str,
    object: &(impl Serialize + std::fmt::Debug),
) -> Result<(), ManifestError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match api.patch(name, &params, &Patch::Apply(object)).await {
        Ok(_) => Ok(()),
        Err(source) => Err(ManifestError::Apply {
            kind: kind.to_owned(),
            name: name.to_owned(),
            source: Box::new(source),
        }),
    }
}

fn parse(file: &'static str, text: &str) -> Result<Vec<(DynamicObject, ApiResource)>, ManifestError> {
    serde_norway::Deserializer::from_str(text)
        .map(|document| {
            let object = DynamicObject::deserialize(document)
                .map_err(|source| ManifestError::Invalid { file, source })?;
            let types = object.types.as_ref().ok_or(ManifestError::NoType { file })?;
            let gvk = GroupVersionKind::try_from(types).map_err(|_| ManifestError::NoType { file })?;
            let resource = ApiResource::from_gvk(&gvk);
            Ok((object, resource))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NAMESPACE;
    use kube_node_planner::node_builder;

    fn all() -> Vec<(DynamicObject, ApiResource)> {
        FILES.into_iter().flat_map(|(file, text)| parse(file, text).unwrap()).collect()
    }

    #[test]
    fn every_binding_names_a_role_that_there_is() {
        let objects = all();
        let mut bindings = 0;
        for (object, resource) in &objects {
            let field = match resource.kind.as_str() {
                "ClusterRoleBinding" | "RoleBinding" => &object.data["roleRef"]["name"],
                "ValidatingAdmissionPolicyBinding" => &object.data["spec"]["policyName"],
                _ => continue,
            };
            bindings += 1;
            let kind = match resource.kind.as_str() {
                "ValidatingAdmissionPolicyBinding" => "ValidatingAdmissionPolicy",
                _ => object.data["roleRef"]["kind"].as_str().unwrap(),
            };
            assert!(
                objects.iter().any(|(other, other_resource)| other_resource.kind == kind
                    && other.namespace() == object.namespace()
                    && Some(other.name_any().as_str()) == field.as_str()),
                "{} of {}",
                resource.kind,
                object.name_any()
            );
        }
        assert_eq!(bindings, 27);
    }

    #[test]
    fn plurals_are_those_of_the_server() {
        let mut plurals: Vec<String> = all().into_iter().map(|(_, resource)| resource.plural).collect();
        plurals.sort();
        plurals.dedup();
        assert_eq!(
            plurals,
            [
                "clusterrolebindings",
                "clusterroles",
                "flowschemas",
                "namespaces",
                "prioritylevelconfigurations",
                "rolebindings",
                "roles",
                "serviceaccounts",
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings"
            ]
        );
    }

    #[test]
    fn the_policy_knows_the_names_that_sets_make() {
        let policy = include_str!("../../charts/kube-node/files/policies.yaml");
        let pattern = format!(
            "^.+-[{}]{{{}}}$",
            String::from_utf8_lossy(node_builder::ALPHABET),
            node_builder::SUFFIX_LENGTH
        );
        assert!(policy.contains(&format!(".matches('{pattern}')")), "{pattern}");
    }

    #[test]
    fn the_first_object_is_our_namespace() {
        assert_eq!(all()[0].0.name_any(), NAMESPACE);
    }
}
