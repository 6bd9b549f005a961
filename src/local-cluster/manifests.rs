//! Objects that a cluster needs before the operator starts: the CRDs, and charts/kube-node/files (the
//! operator's identity and rights, admission policies). `up` and `setup` apply the same objects, server-side,
//! so a second time changes nothing.

use std::{collections::HashSet, time::Duration};

use anyhow::Context;
use futures::future::try_join_all;
use k8s_openapi::{
    api::{core::v1::Secret, rbac::v1::ClusterRole},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::conditions,
};
use kube_ext::{
    call::{ApiError, call},
    objects::wait_for,
};
use kube_node_api::names::{
    ANNOTATION_CREATED, FINALIZER_IN_USE, MACHINE_NAMESPACE, OPERATOR_SERVICE_ACCOUNT,
};
use serde::Deserialize;
use serde_json::json;

use super::NAMESPACE;

/// Annotation by which helm marks what belongs to a release.
const HELM_RELEASE: &str = "meta.helm.sh/release-name";
/// The same for the release's namespace.
const HELM_NAMESPACE: &str = "meta.helm.sh/release-namespace";
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
/// What hollow kubelets may read in a cluster of `up` alone.
const REFERENCES: (&str, &str) =
    ("references.yaml", include_str!("../../charts/kube-node/files/references.yaml"));
/// Time limit for kube-apiserver to serve a new CRD.
const ESTABLISH_LIMIT: Duration = Duration::from_mins(1);
/// Time limit for deleted objects to be gone: namespaces go after all their objects.
const GONE_LIMIT: Duration = Duration::from_mins(3);
/// Namespace of Kubernetes itself with the Leases of all nodes; never deleted.
pub(super) const LEASES_NAMESPACE: &str = "kube-node-lease";

/// An object of a file, with its kind.
pub(super) type Manifest = (DynamicObject, ApiResource);

/// Applies the CRDs and the files, and waits until the CRDs are served.
pub async fn install(client: &Client) -> anyhow::Result<()> {
    // The future is large, and every caller would hold it.
    tokio::try_join!(apply_crds(client), Box::pin(apply_files(client))).map(drop)
}

/// Gives hollow kubelets the right to see whether the objects exist that pods refer to, and to read them.
pub(super) async fn allow_references(client: &Client) -> anyhow::Result<()> {
    let objects = references()?;
    try_join_all(objects.iter().map(|manifest| apply_manifest(client, manifest))).await.map(drop)
}

/// Removes our finalizer from the Secrets of the operator's namespace. Unless `params` ask for a dry run, call this only
/// when no NodeClass is left.
pub async fn release_secrets(client: &Client, namespace: &str, params: &PatchParams) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let action =
        |name: &str| format!("take the finalizer {FINALIZER_IN_USE} off Secret {name} in {namespace}");
    for secret in call(action("*"), api.list_metadata(&ListParams::default())).await? {
        let mut finalizers = secret.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER_IN_USE);
        if finalizers == secret.finalizers() {
            continue;
        }
        let name = secret.name_any();
        let change = json!({ "metadata": {
            "resourceVersion": secret.metadata.resource_version, "finalizers": finalizers,
        } });
        unless_gone(call(action(&name), api.patch_metadata(&name, params, &Patch::Merge(change))).await)?;
    }
    Ok(())
}

/// Deletes objects and waits until all are gone.
pub(super) async fn remove(client: &Client, objects: Vec<Manifest>) -> anyhow::Result<()> {
    for manifest in &objects {
        let (api, name) = (api(client, manifest), manifest.0.name_any());
        let action = format_args!("delete {}", title(manifest));
        unless_gone(call(action, api.delete(&name, &DeleteParams::default())).await)?;
    }
    for manifest in &objects {
        let is_gone = |object: Option<&DynamicObject>| object.is_none();
        let problem = format!("{} is not gone: kubectl describe tells what holds it", title(manifest));
        wait_for(api(client, manifest), &manifest.0.name_any(), is_gone, GONE_LIMIT, &problem).await?;
    }
    Ok(())
}

/// Objects of the files that do not exist, as kind and name, in an installation with these namespaces of operator
/// and machines. A release of helm may lack a part that its values leave out.
pub async fn absent(client: &Client, operator: &str, machines: &str) -> anyhow::Result<Vec<String>> {
    let chosen = |name: &mut String| match name.as_str() {
        NAMESPACE => operator.clone_into(name),
        MACHINE_NAMESPACE => machines.clone_into(name),
        _ => {}
    };
    let (mut absent, mut present) = (Vec::new(), HashSet::new());
    for (file, text) in FILES {
        for mut manifest in parse(file, text)? {
            let part = optional_part(file, &manifest);
            let metadata = &mut manifest.0.metadata;
            if let Some(namespace) = &mut metadata.namespace {
                chosen(namespace);
            }
            if let Some(name) = metadata.name.as_mut().filter(|_| manifest.1.kind == "Namespace") {
                chosen(name);
            }
            let title = title(&manifest);
            let (api, name) = (api(client, &manifest), manifest.0.name_any());
            if call(format_args!("read {title}"), api.get_metadata_opt(&name)).await?.is_none() {
                absent.push((part, title));
            } else {
                present.insert(part);
            }
        }
    }
    let has_release = helm_release(client).await?.is_some();
    absent.retain(|(part, _)| part.is_none() || !has_release || present.contains(part));
    Ok(absent.into_iter().map(|(_, title)| title).collect())
}

/// Part of the chart that an object belongs to, if values leave the whole of it out: hollow hosts, fairness, admission policies,
/// the policy for protected labels.
fn optional_part(file: &'static str, (object, resource): &Manifest) -> Option<(&'static str, bool, bool)> {
    let is_policy = resource.kind.starts_with("ValidatingAdmission");
    let is_of_labels = is_policy && object.name_any() == "kube-node-protected-labels";
    (is_policy || ["hosts.yaml", "fairness.yaml"].contains(&file)).then_some((file, is_policy, is_of_labels))
}

/// Name and namespace of the release of helm that kube-node is; None if it was installed in another way, or not at all.
pub async fn helm_release(client: &Client) -> anyhow::Result<Option<(String, String)>> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let action = format_args!("read ClusterRole {OPERATOR_SERVICE_ACCOUNT}");
    let role = call(action, roles.get_metadata_opt(OPERATOR_SERVICE_ACCOUNT)).await?;
    let annotation = |key| role.as_ref().and_then(|role| role.annotations().get(key)).cloned();
    Ok(annotation(HELM_RELEASE).zip(annotation(HELM_NAMESPACE)))
}

/// An answer of kube-apiserver; `None` if the object does not exist.
pub(super) fn unless_gone<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(error) if error.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

pub(super) fn title((object, resource): &Manifest) -> String {
    format!("{} {}", resource.kind, object.name_any())
}

pub(super) fn api(client: &Client, (object, resource): &Manifest) -> Api<DynamicObject> {
    match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

async fn apply_crds(client: &Client) -> anyhow::Result<()> {
    try_join_all(crds()?.iter().map(|crd| async move {
        apply_manifest(client, crd).await?;
        let (api, name) = (Api::all(client.clone()), crd.0.name_any());
        let problem = format!("the definition {name} is not served");
        wait_for(api, &name, conditions::is_crd_established(), ESTABLISH_LIMIT, &problem).await
    }))
    .await?;
    Ok(())
}

async fn apply_files(client: &Client) -> anyhow::Result<()> {
    for (file, text) in FILES {
        let objects = parse(file, text)?;
        let applied = objects.iter().map(|manifest| apply_manifest(client, manifest));
        // Namespaces one by one, before the objects in them.
        if file == "namespace.yaml" {
            for namespace in applied {
                namespace.await?;
            }
        } else {
            try_join_all(applied).await?;
        }
    }
    Ok(())
}

/// Server-side apply with force: fields of ours that another manager has changed become ours again.
pub(super) async fn apply_manifest(client: &Client, manifest: &Manifest) -> anyhow::Result<()> {
    let (api, name) = (api(client, manifest), manifest.0.name_any());
    let mut object = manifest.0.clone();
    if is_removable_namespace(manifest) && namespace_is_ours(client, manifest).await? != Some(false) {
        object.annotations_mut().insert(ANNOTATION_CREATED.to_owned(), "true".to_owned());
    }
    let action = format_args!("apply {}", title(manifest));
    call(action, api.patch(&name, &apply_params(), &Patch::Apply(&object))).await?;
    Ok(())
}

/// Returns true if the object is a namespace of the files that is no namespace of Kubernetes itself.
pub(super) fn is_removable_namespace((object, resource): &Manifest) -> bool {
    resource.kind == "Namespace" && object.name_any() != LEASES_NAMESPACE
}

/// Returns true if an installation has created a namespace, and false if it was there before; none if it is not there.
pub(super) async fn namespace_is_ours(client: &Client, manifest: &Manifest) -> anyhow::Result<Option<bool>> {
    let (api, name) = (api(client, manifest), manifest.0.name_any());
    let there = call(format_args!("read {}", title(manifest)), api.get_metadata_opt(&name)).await?;
    Ok(there.map(|namespace| namespace.annotations().contains_key(ANNOTATION_CREATED)))
}

/// Gives up the fields of an object that were applied; the rest of it stays.
pub(super) async fn give_up_fields(
    client: &Client,
    manifest: &Manifest,
    params: &PatchParams,
) -> anyhow::Result<()> {
    let name = manifest.0.name_any();
    let nothing = DynamicObject::new(&name, &manifest.1);
    let (api, action) = (api(client, manifest), format_args!("give up {}", title(manifest)));
    call(action, api.patch(&name, params, &Patch::Apply(&nothing))).await?;
    Ok(())
}

pub(super) fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// The CRDs.
pub(super) fn crds() -> anyhow::Result<Vec<Manifest>> {
    let resource = ApiResource::erase::<CustomResourceDefinition>(&());
    let object = |crd| Ok((serde_json::from_value(serde_json::to_value(crd)?)?, resource.clone()));
    kube_node_api::crds().iter().map(object).collect()
}

/// Everything that [`install`] applies, in its order.
pub(super) fn everything() -> anyhow::Result<Vec<Manifest>> {
    Ok([crds()?, all()?].concat())
}

/// What [`allow_references`] applies.
pub(super) fn references() -> anyhow::Result<Vec<Manifest>> {
    parse(REFERENCES.0, REFERENCES.1)
}

/// The objects of all files.
pub(super) fn all() -> anyhow::Result<Vec<Manifest>> {
    let files = FILES.into_iter().map(|(file, text)| parse(file, text));
    Ok(files.collect::<Result<Vec<_>, _>>()?.concat())
}

pub(super) fn parse(file: &str, text: &str) -> anyhow::Result<Vec<Manifest>> {
    let manifest = |document: serde_norway::Deserializer<'_>| {
        let object = DynamicObject::deserialize(document).with_context(|| format!("{file} is not valid"))?;
        let gvk = object.types.as_ref().and_then(|types| GroupVersionKind::try_from(types).ok());
        let gvk = gvk.with_context(|| format!("{file} holds an object without apiVersion and kind"))?;
        Ok((object, ApiResource::from_gvk(&gvk)))
    };
    serde_norway::Deserializer::from_str(text).map(manifest).collect()
}

#[cfg(test)]
mod tests {
    use kube_node_api::generated_name;

    use super::*;

    #[test]
    fn every_binding_names_a_role_that_there_is() {
        let objects = all().unwrap();
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
        assert_eq!(bindings, 30);
    }

    #[test]
    fn plurals_are_those_of_the_server() {
        let mut plurals: Vec<String> =
            all().unwrap().into_iter().map(|(_, resource)| resource.plural).collect();
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
            String::from_utf8_lossy(generated_name::ALPHABET),
            generated_name::LENGTH
        );
        assert!(policy.contains(&format!(".matches('{pattern}')")), "{pattern}");
    }

    #[test]
    fn the_first_object_is_our_namespace() {
        assert_eq!(all().unwrap()[0].0.name_any(), NAMESPACE);
    }
}
