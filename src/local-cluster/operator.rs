//! The operator as pods of a cluster, without helm: what `setup --operator` applies and `cleanup --operator` deletes.
//!
//! Input: `operator.yaml`, which a test writes from the chart's rendering with its default values; the objects that `up`
//! applies come first ([`super::manifests`]). Invariant: nothing is changed before the API server has accepted all of it
//! in a dry run, so that missing rights are found first.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ContainerState, ContainerStatus, Node, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    runtime::wait::Condition,
};
use kube_ext::{call::call, objects::wait_for};
use kube_node_api::names::OPERATOR_SERVICE_ACCOUNT as NAME;
use serde_json::Value;

use super::{
    NAMESPACE, images,
    manifests::{
        self, LEASES_NAMESPACE, Manifest, api, apply_manifest, give_up_fields, helm_release, install,
        is_removable_namespace, namespace_is_ours, parse, release_secrets, remove, title, unless_gone,
    },
};

/// The operator's own objects. Written by `KUBE_NODE_WRITE=1 cargo test --test helm`.
const TEXT: &str = include_str!("operator.yaml");
/// Parts of the messages about a program for another architecture: the kernel's, and containerd's about an image for
/// several architectures without that of the node.
const FOREIGN: [&str; 2] = ["exec format error", "no match for platform in manifest"];
/// Label with the version of the program.
const VERSION: &str = "app.kubernetes.io/version";

/// Objects of the operator, which runs `image`.
fn objects(image: &str) -> anyhow::Result<Vec<Manifest>> {
    let mut objects = parse("operator.yaml", TEXT)?;
    for (object, _) in &mut objects {
        replace(&mut object.data, images::KUBE_NODE, image);
    }
    Ok(objects)
}

/// Replaces a text in all strings of a value. In the file itself, a text with signs of YAML would be more than a string.
fn replace(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) => *text = text.replace(from, to),
        Value::Array(all) => all.iter_mut().for_each(|one| replace(one, from, to)),
        Value::Object(all) => all.values_mut().for_each(|one| replace(one, from, to)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Everything that [`setup`] applies, in its order; without the image of an operator what [`install`] does.
pub fn everything(image: Option<&str>) -> anyhow::Result<Vec<DynamicObject>> {
    let mut all = manifests::everything()?;
    if let Some(image) = image {
        all.extend(objects(image)?);
    }
    Ok(all.into_iter().map(|(object, _)| object).collect())
}

/// Refuses where helm has installed kube-node, which would undo what others change.
pub async fn refuse_release(client: &Client) -> anyhow::Result<()> {
    if let Some((release, namespace)) = helm_release(client).await? {
        bail!(
            "the release {release} of helm in namespace {namespace} is kube-node already: change it with helm upgrade, or remove it with helm uninstall first"
        );
    }
    Ok(())
}

/// An operator that [`setup`] has installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Version of kube-node, by the label of the Deployment.
    pub version: String,
    /// Image that the operator runs.
    pub image: String,
}

impl Installed {
    /// Reads it from the Deployment; None if there is none.
    pub async fn read(client: &Client) -> anyhow::Result<Option<Self>> {
        let action = format_args!("read Deployment {NAME} in {NAMESPACE}");
        let there = call(action, deployments(client).get_opt(NAME)).await?;
        Ok(there.and_then(|own| {
            let version = own.labels().get(VERSION)?.clone();
            let containers = own.spec?.template.spec?.containers;
            Some(Self { version, image: containers.into_iter().next()?.image? })
        }))
    }

    /// Returns true if it is of another version than this program.
    pub fn is_other(&self) -> bool {
        self.version != env!("CARGO_PKG_VERSION")
    }

    /// Image of this version, where none is named: that which runs, if it is of this version.
    ///
    /// # Errors
    ///
    /// An image of another version that is not one of ours: its name does not tell that of this version.
    pub fn next_image(&self) -> anyhow::Result<&str> {
        let repository = |image: &str| image.rsplit_once(':').map(|(name, _)| name.to_owned());
        if !self.is_other() {
            return Ok(&self.image);
        }
        ensure!(
            repository(&self.image) == repository(images::KUBE_NODE),
            "the operator of version {} runs {}: name the image of {} with --image",
            self.version,
            self.image,
            env!("CARGO_PKG_VERSION")
        );
        Ok(images::KUBE_NODE)
    }
}

/// Installs kube-node, with an operator if its `image` is named, or changes what another call has installed.
pub async fn setup(client: &Client, image: Option<&str>) -> anyhow::Result<()> {
    let objects = image.map(objects).transpose()?.unwrap_or_default();
    try_out(client, manifests::everything()?.iter().chain(&objects)).await?;
    install(client).await?;
    for object in &objects {
        apply_manifest(client, object).await?;
    }
    Ok(())
}

/// Deletes everything that [`install`] applied, and what [`setup`] did, and waits until it is gone. The CRDs and their
/// objects go first: the operator needs its rights to release these objects. After them no Secret is in use, but one may
/// still carry our finalizer, as after a forced deletion of a NodeClass, and would block the deletion of its namespace.
///
/// Returns the namespaces that stay, since [`setup`] did not create them.
pub async fn uninstall(client: &Client) -> anyhow::Result<Vec<String>> {
    let removal = Removal::of(client).await?;
    removal.try_out(client).await?;
    remove(client, removal.crds).await?;
    release_secrets(client, NAMESPACE, &PatchParams::default()).await?;
    for namespace in &removal.namespaces_of_others {
        give_up_fields(client, namespace, &manifests::apply_params()).await?;
    }
    remove(client, removal.others).await?;
    Ok(removal.namespaces_of_others.iter().map(|(namespace, _)| namespace.name_any()).collect())
}

/// Has the API server try what [`uninstall`] does, and change nothing.
pub async fn try_uninstall(client: &Client) -> anyhow::Result<()> {
    Removal::of(client).await?.try_out(client).await
}

/// Objects of an installation, by what an uninstallation does with them.
struct Removal {
    /// The CRDs, which are deleted first.
    crds: Vec<Manifest>,
    /// All other objects that are deleted, in the order of their deletion.
    others: Vec<Manifest>,
    /// Namespaces that [`setup`] did not create, and that stay.
    namespaces_of_others: Vec<Manifest>,
}

impl Removal {
    async fn of(client: &Client) -> anyhow::Result<Self> {
        let (mut others, mut namespaces_of_others) = (Vec::new(), Vec::new());
        for manifest in [manifests::all()?, manifests::references()?, objects(images::KUBE_NODE)?].concat() {
            if manifest.0.name_any() == LEASES_NAMESPACE {
                continue;
            }
            let is_ours = !is_removable_namespace(&manifest)
                || namespace_is_ours(client, &manifest).await? != Some(false);
            if is_ours { others.push(manifest) } else { namespaces_of_others.push(manifest) }
        }
        others.reverse();
        Ok(Self { crds: manifests::crds()?, others, namespaces_of_others })
    }

    async fn try_out(&self, client: &Client) -> anyhow::Result<()> {
        let dry_run = DeleteParams::default().dry_run();
        for manifest in self.crds.iter().chain(&self.others) {
            let (api, name) = (api(client, manifest), manifest.0.name_any());
            let tried = call(format_args!("delete {}", title(manifest)), api.delete(&name, &dry_run)).await;
            unless_gone(tried).with_context(|| {
                format!("nothing was deleted, since the deletion of {} would be refused", title(manifest))
            })?;
        }
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        release_secrets(client, NAMESPACE, &params).await.context("nothing was deleted")?;
        let params = PatchParams { dry_run: true, ..manifests::apply_params() };
        for namespace in &self.namespaces_of_others {
            give_up_fields(client, namespace, &params).await.context("nothing was deleted")?;
        }
        Ok(())
    }
}

/// Has the API server validate all objects and change nothing.
async fn try_out(client: &Client, objects: impl Iterator<Item = &Manifest>) -> anyhow::Result<()> {
    let mut params = manifests::apply_params();
    params.dry_run = true;
    for manifest in objects {
        let (api, name) = (api(client, manifest), manifest.0.name_any());
        let action = format_args!("apply {}", title(manifest));
        match call(action, api.patch(&name, &params, &Patch::Apply(&manifest.0))).await {
            // Its namespace is among the objects, and not there yet. A kind that the cluster lacks is 404 too.
            Err(error) if error.is_not_found() && error.server_message().contains("namespaces") => {}
            tried => {
                tried.with_context(|| {
                    format!("nothing was changed, since {} would be refused", title(manifest))
                })?;
            }
        }
    }
    Ok(())
}

/// Waits until all replicas of the operator are ready; an error says what is in their way.
pub async fn wait_until_ready(client: &Client, limit: Duration) -> anyhow::Result<()> {
    let problem = "the operator is not ready";
    match wait_for(deployments(client), NAME, Ready, limit, problem).await {
        Err(error) => match obstacle(client).await {
            Some(obstacle) => Err(error.context(obstacle)),
            None => Err(error),
        },
        ready => ready,
    }
}

/// A Deployment whose present version serves, and no other: the rule of `kubectl rollout status` (kubectl,
/// `polymorphichelpers/rollout_status.go`). kube's `is_deployment_completed` does not compare `observedGeneration`, so it
/// would accept the status of the version before.
struct Ready;

impl Condition<Deployment> for Ready {
    fn matches_object(&self, own: Option<&Deployment>) -> bool {
        own.is_some_and(|own| {
            let wanted = own.spec.as_ref().and_then(|spec| spec.replicas);
            own.status.as_ref().is_some_and(|status| {
                status.observed_generation == own.metadata.generation
                    && [status.replicas, status.updated_replicas, status.available_replicas] == [wanted; 3]
            })
        })
    }
}

/// What keeps a pod of the operator from running.
async fn obstacle(client: &Client) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let own =
        ListParams::default().labels("app.kubernetes.io/name=kube-node,app.kubernetes.io/component=operator");
    let pods = pods.list(&own).await.ok()?;
    if let Some(pod) = pods.iter().find(|pod| has_foreign_image(pod)) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let node = Api::<Node>::all(client.clone()).get(node).await.ok();
        return Some(format!("pod {}: {}", pod.name_any(), foreign_image(node.as_ref())));
    }
    pods.into_iter().find_map(|pod| Some(format!("pod {}: {}", pod.name_any(), reason(&pod)?)))
}

/// Returns true if the image of the pod has no program for the pod's node.
fn has_foreign_image(pod: &Pod) -> bool {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut states = containers.flat_map(|container| [&container.state, &container.last_state]).flatten();
    states.any(|state| {
        let waiting = state.waiting.as_ref().and_then(|waiting| waiting.message.as_deref());
        let ended = state.terminated.as_ref().and_then(|ended| ended.message.as_deref());
        [waiting, ended]
            .into_iter()
            .flatten()
            .any(|message| FOREIGN.iter().any(|part| message.contains(part)))
    })
}

/// What to do about an image without a program for this node.
fn foreign_image(node: Option<&Node>) -> String {
    let info = node.and_then(|node| node.status.as_ref()?.node_info.as_ref());
    let of_node = info.map_or_else(String::new, |info| format!(" ({})", info.architecture));
    format!(
        "the image is of another architecture than the node{of_node}: push one for both by kube-node image --push REGISTRY/NAME --programs AMD64 --programs ARM64, where AMD64 and ARM64 are the folders of the programs"
    )
}

fn reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let waits = |container: &ContainerStatus| {
        let Some(ContainerState { waiting: Some(waiting), .. }) = &container.state else { return None };
        let message = waiting.message.as_deref().unwrap_or_default();
        Some(format!("{} {message}", waiting.reason.as_deref()?).trim_end().to_owned())
    };
    let unscheduled =
        status.conditions.iter().flatten().find(|one| one.status == "False" && one.type_ == "PodScheduled");
    let mut containers = status.container_statuses.iter().flatten();
    unscheduled.and_then(|one| one.message.clone()).or_else(|| containers.find_map(waits))
}

fn deployments(client: &Client) -> Api<Deployment> {
    Api::namespaced(client.clone(), NAMESPACE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_image_replaces_that_of_the_operator_and_of_its_machines() {
        let text = serde_json::to_string(&everything(Some("example.com/a:1")).unwrap()).unwrap();
        assert_eq!(text.matches("example.com/a:1").count(), 2);
        assert!(!text.contains(images::KUBE_NODE));
        let strange = serde_json::to_string(&everything(Some("a\nkind: Pod")).unwrap()).unwrap();
        assert_eq!(strange.matches("a\\nkind: Pod").count(), 2);
        let usual = serde_json::to_string(&everything(Some(images::KUBE_NODE)).unwrap()).unwrap();
        assert_eq!(usual.matches(images::KUBE_NODE).count(), 2);
        assert!(everything(Some(images::KUBE_NODE)).unwrap().len() > everything(None).unwrap().len());
    }

    #[test]
    fn an_image_that_was_chosen_stays_until_there_is_another_version() {
        let next = |version: &str, image: &str| {
            let own = Installed { version: version.to_owned(), image: image.to_owned() };
            own.next_image().map(str::to_owned).map_err(|error| error.to_string())
        };
        let (this, pushed) = (env!("CARGO_PKG_VERSION"), "example.com:5000/a@sha256:12");
        assert_eq!(next(this, pushed).as_deref(), Ok(pushed));
        assert_eq!(next("0.0.1", "localhost/kube-node:0.0.1").as_deref(), Ok(images::KUBE_NODE));
        let wanted =
            format!("the operator of version 0.0.1 runs {pushed}: name the image of {this} with --image");
        assert_eq!(next("0.0.1", pushed), Err(wanted));
        assert!(next("0.0.1", "example.com/kube-node:0.0.1").is_err());
    }

    #[test]
    fn what_keeps_a_pod_from_running_is_said() {
        let of = |status: serde_json::Value| {
            reason(&serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).unwrap())
        };
        let waits = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
        let container = json!({ "name": "operator", "image": "a", "imageID": "", "ready": false, "restartCount": 0, "state": waits });
        assert_eq!(
            of(json!({ "containerStatuses": [container] })).unwrap(),
            "ImagePullBackOff no such image"
        );
        let condition =
            json!({ "type": "PodScheduled", "status": "False", "message": "0/1 nodes are available" });
        assert_eq!(of(json!({ "conditions": [condition] })).unwrap(), "0/1 nodes are available");
        assert_eq!(of(json!({ "phase": "Running" })), None);
    }

    /// A pod whose operator is in this state, after it was in the state `last`.
    fn pod(state: &Value, last: &Value) -> Pod {
        let container = json!({ "name": "operator", "image": "a", "imageID": "", "ready": false, "restartCount": 3, "state": state, "lastState": last });
        let pod = json!({ "metadata": { "name": "a" }, "status": { "containerStatuses": [container] } });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn an_image_of_another_architecture_is_told_from_other_failures() {
        let ended = |reason: &str, code: i32, message: &str| json!({ "terminated": { "reason": reason, "exitCode": code, "message": message } });
        let waits =
            |reason: &str, message: &str| json!({ "waiting": { "reason": reason, "message": message } });
        let again = waits("CrashLoopBackOff", "back-off 40s restarting failed container=operator");
        // runc starts the program itself, so its message is the last line of the log. Others refuse the start.
        let by_runc = ended("Error", 255, "exec /kube-node: exec format error\n");
        let by_start =
            ended("StartError", 128, "failed to start containerd task: exec format error: unknown");
        let index = "failed to pull and unpack image \"example.com/a:1\": no match for platform in manifest: not found";
        for (state, last) in [
            (&by_runc, &json!({})),
            (&again, &by_runc),
            (&by_start, &json!({})),
            (&again, &by_start),
            (&waits("ErrImagePull", index), &json!({})),
        ] {
            assert!(has_foreign_image(&pod(state, last)), "{state} {last}");
        }
        for last in [&ended("Error", 1, "error: grant the rights"), &ended("OOMKilled", 137, ""), &json!({})]
        {
            assert!(!has_foreign_image(&pod(&again, last)), "{last}");
        }
        assert!(!has_foreign_image(&pod(&waits("ImagePullBackOff", "no such image"), &json!({}))));
    }

    #[test]
    fn the_architecture_of_the_node_is_named() {
        let info = json!({ "architecture": "arm64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "" });
        let node = json!({ "metadata": { "name": "a" }, "status": { "nodeInfo": info } });
        let named = foreign_image(Some(&serde_json::from_value(node).unwrap()));
        let wanted = "the image is of another architecture than the node (arm64): push one for both by kube-node image --push ";
        assert!(named.starts_with(wanted), "{named}");
        assert!(foreign_image(None).starts_with("the image is of another architecture than the node: "));
    }

    #[test]
    fn only_a_deployment_whose_present_version_serves_is_ready() {
        let of = |generation: i64, counts: [i32; 3]| {
            let own = json!({
                "metadata": { "name": "a", "generation": 2 },
                "spec": { "replicas": 2, "selector": {}, "template": {} },
                "status": {
                    "observedGeneration": generation, "replicas": counts[0], "updatedReplicas": counts[1],
                    "availableReplicas": counts[2],
                },
            });
            Ready.matches_object(Some(&serde_json::from_value(own).unwrap()))
        };
        assert!(of(2, [2, 2, 2]));
        assert!(!of(1, [2, 2, 2]) && !of(2, [3, 2, 2]) && !of(2, [2, 1, 2]) && !of(2, [2, 2, 1]));
        assert!(!Ready.matches_object(None));
    }
}
