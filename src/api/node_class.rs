//! `NodeClass`: a kind of nodes, specified by an admin.
//!
//! The schema refuses fields that this version does not serve yet, with a message; none is ignored.

use k8s_openapi::{
    api::core::v1::{Affinity, ResourceRequirements, Toleration},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;
use std::collections::BTreeMap;

use super::{
    GoDuration, LocalRef, NodeTemplate, Resources, SecretKeyRef,
    schema::{self, resources},
};

/// A kind of nodes: the NodeController that provisions their machines, and the specification of the machines.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kube-node.io",
    version = "v1alpha1",
    kind = "NodeClass",
    plural = "nodeclasses",
    shortname = "nclass",
    category = "kube-node",
    status = "NodeClassStatus",
    derive = "PartialEq",
    doc = "A kind of nodes: who provisions their machines, and what these are.",
    printcolumn(name = "NodeController", type_ = "string", json_path = ".spec.nodeController"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.machineType"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Accepted")].status"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "CPU", type_ = "string", priority = 1, json_path = ".spec.capacity.cpu"),
    printcolumn(name = "Memory", type_ = "string", priority = 1, json_path = ".spec.capacity.memory"),
    printcolumn(name = "Revision", type_ = "string", priority = 1, json_path = ".status.revision"),
    printcolumn(
        name = "Message",
        type_ = "string",
        priority = 1,
        json_path = r#".status.conditions[?(@.type=="Accepted")].message"#
    ),
    // An existing object keeps its name: its status and finalizers must still be writable.
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 63")
        .message("the name is too long: it is a label of the class's nodes, so use 63 characters or fewer")
        .optional_old_self(true)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(self.nodeController in ['hollow', 'kubemark']) || has(self.capacity)")
        .message("a hollow machine needs a capacity: write for example capacity: {cpu: \"4\", memory: 16Gi, pods: \"110\"}"),
    validation = Rule::new("self.nodeController != 'hollow' || !has(self.provisioning) || (!has(self.provisioning.files) && !has(self.provisioning.commands))")
        .message("a hollow machine has neither files nor commands: remove provisioning.files and provisioning.commands, or use nodeController kubemark"),
    validation = Rule::new("self.nodeController == 'kubemark' || !has(self.kubemark)")
        .message("kubemark speaks of pods: remove it, or use nodeController kubemark"),
    validation = Rule::new("self.nodeController != 'hollow' || !has(self.credentialsSecretRef)")
        .message("a hollow machine needs no credentials: remove credentialsSecretRef, or use nodeController kubemark"),
    validation = Rule::new("self.nodeController != 'kubemark' || (has(self.credentialsSecretRef) == has(oldSelf.credentialsSecretRef) && (!has(self.credentialsSecretRef) || self.credentialsSecretRef.name == oldSelf.credentialsSecretRef.name))")
        .message("credentialsSecretRef cannot change: the machines of a class stay in one cluster; make another NodeClass"),
    validation = Rule::new("!has(self.kubemark) || !has(self.kubemark.image) || self.kubemark.image.matches('(@|:[^/]+$)') || (has(self.provisioning) && has(self.provisioning.kubelet))")
        .message("kubemark.image needs a tag, or provisioning.kubelet.version to be it: write for example image: registry.example.com/kubemark:v1.36.3"),
    validation = Rule::new("!has(self.machineType) || !has(self.template) || !has(self.template.labels) || !('node.kubernetes.io/instance-type' in self.template.labels)")
        .message("machineType is the label node.kubernetes.io/instance-type: leave one of them out"),
    validation = Rule::new("!has(self.reserved) || (has(self.capacity) && self.reserved.all(k, k in self.capacity))")
        .message("reserved names a resource that capacity does not have: add it to capacity or take it out of reserved"),
    validation = Rule::new("!has(self.reserved) || !has(self.capacity) || self.reserved.all(k, !(k in self.capacity) || !isQuantity(string(self.reserved[k])) || !isQuantity(string(self.capacity[k])) || !quantity(string(self.reserved[k])).isGreaterThan(quantity(string(self.capacity[k]))))")
        .message("reserved is larger than capacity: allocatable = capacity - reserved cannot be negative"),
    validation = Rule::new("!has(self.price) || self.price.matches('^[0-9]+([.][0-9]+)?$')")
        .message("price is a decimal number, as a text, without a currency: write for example \"0.25\""),
    validation = Rule::new("!has(self.kubemark) || !has(self.kubemark.image) || !has(self.failures) || !has(self.failures.reboot) || !self.failures.reboot")
        .message("failures.reboot is not for machines of another image (kubemark.image), whose kubelet does not reboot: leave one of them out")
)]
pub struct NodeClassSpec {
    /// Name of the NodeController that serves this class: `hollow`, `kubemark`, or the name of a third-party
    /// NodeController, whose classes ours leaves alone. Like `StorageClass.provisioner`.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [schema::label_value()]))]
    pub node_controller: String,
    /// Free name of the kind of machine, the value of the label `node.kubernetes.io/instance-type`; no label
    /// when absent. A NodeSet's template may give its Nodes another value.
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [schema::label_value()]))]
    pub machine_type: Option<String>,
    /// Resources of a machine by name, extended resources included. Only a class of a third-party
    /// NodeController may omit them.
    #[schemars(default, schema_with = "resources")]
    pub capacity: Option<Resources>,
    /// Resources reserved for the system: allocatable = capacity - reserved; nothing when absent.
    #[schemars(default, schema_with = "resources")]
    pub reserved: Option<Resources>,
    /// Secret in the operator's namespace with the provider's credentials: for kubemark a kubeconfig of the
    /// hosting cluster, whose pods are the machines; this cluster when absent.
    pub credentials_secret_ref: Option<LocalRef>,
    /// Data that a machine gets before its kubelet starts.
    pub provisioning: Option<Provisioning>,
    /// Labels, annotations and taints of every Node of the class.
    pub template: Option<NodeTemplate>,
    /// Limits on the use of the class.
    pub limits: Option<NodeClassLimits>,
    /// Price of a node per hour in any unit, for cluster-autoscaler's price expander; absent, the class has no price.
    #[schemars(length(max = 32))]
    pub price: Option<String>,
    /// Minimum time from a Node's deletion to its machine's, for example 30s; no longer than the drain when absent.
    pub deletion_timeout: Option<GoDuration>,
    /// Fault injection: makes nodes turn unhealthy on purpose; absent, nodes never turn unhealthy.
    pub failures: Option<Failures>,
    /// Fields of kubemark machines.
    pub kubemark: Option<KubemarkMachine>,
    /// Fields of hollow machines.
    pub hollow: Option<HollowMachine>,
}

/// Limits on the use of a class.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClassLimits {
    /// Maximum number of Nodes of the class: those of all its NodeSets, the surge of their rollouts, those
    /// created by hand and those that are leaving. A NodeSet at the limit waits (`ClassLimit`); no Node is
    /// deleted for it. No limit when absent.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub nodes: Option<i32>,
}

/// Data that a machine gets before its kubelet starts.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provisioning {
    /// Files on the machine, for kubemark.
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"])
    )]
    // They share a Secret, of at most 1 MiB, with the machine's credential.
    #[x_kube(validation = Rule::new("self.map(f, has(f.content) ? size(bytes(f.content)) : 0).sum() <= 1000000")
        .message("the contents of all files are more than the 1000000 bytes that one Secret holds: shorten them, or put them into the image"))]
    pub files: Option<Vec<ProvisionedFile>>,
    /// The kubelet; of the API server's version when absent.
    pub kubelet: Option<KubeletSource>,
    /// The container runtime that the Node reports; containerd 2.1.0 when absent.
    pub container_runtime: Option<ContainerRuntime>,
    /// Commands that /bin/sh of the machine's image runs before the kubelet starts; a command that fails
    /// keeps the kubelet from starting.
    // 128 KiB: the longest argument that Linux passes to a program.
    #[schemars(length(max = 64), inner(length(max = 4096)), extend("x-kubernetes-list-type" = "atomic"))]
    #[x_kube(validation = Rule::new("self.map(c, size(bytes(c))).sum() <= 131072")
        .message("all commands are more than 131072 bytes together: put them into a script of the image"))]
    pub commands: Option<Vec<String>>,
}

/// A file on a machine.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.content), has(self.secretKeyRef), has(self.configMapKeyRef)].filter(has, has).size() == 1")
    .message("a file has one source: set exactly one of content, secretKeyRef and configMapKeyRef"))]
pub struct ProvisionedFile {
    /// Absolute path on the machine.
    #[schemars(length(min = 2, max = 4096))]
    #[x_kube(validation = Rule::new("self.startsWith('/') && !self.matches('^(/tmp|/kubeconfig/kubeconfig|/var/run/kube-node/(machine|state))/*$') && !self.startsWith('/var/run/kube-node/machine/')")
        .message("write an absolute path, for example /etc/motd; /tmp itself, /kubeconfig/kubeconfig and /var/run/kube-node are the machine's own"))]
    pub path: String,
    /// `user:group`: root, nonroot or numbers, for example "root:root". The machine's own user when absent.
    #[schemars(length(max = 65))]
    #[x_kube(validation = Rule::new("self.split(':').size() <= 2 && self.split(':').all(id, id in ['root', 'nonroot'] || (id.matches('^[0-9]{1,10}$') && int(id) <= 4294967295))")
        .message("write user and group, each root, nonroot or a number, for example \"root:root\" or \"1000:1000\""))]
    pub owner: Option<String>,
    /// Octal mode, for example "0640"; 0644 when absent.
    #[schemars(length(max = 4))]
    #[x_kube(validation = Rule::new("self.matches('^0?[0-7]{3}$')").message("write an octal mode as a text, for example \"0640\""))]
    pub permissions: Option<String>,
    /// Source of the content: exactly one of three.
    #[serde(flatten)]
    pub source: FileSource,
}

/// Source of a file's content.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileSource {
    /// The content itself; absent where one of the two references is set.
    #[schemars(length(max = 65536))]
    pub content: Option<String>,
    /// A key of a Secret of type Opaque in the operator's namespace with the label kube-node.io/machine-file: "true"; absent where
    /// one of the others is set.
    pub secret_key_ref: Option<SecretKeyRef>,
    /// A key of a ConfigMap in the operator's namespace; absent where one of the others is set.
    pub config_map_key_ref: Option<SecretKeyRef>,
}

/// The kubelet of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct KubeletSource {
    /// Version that the kubelet reports, for example v1.36.3.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^v[0-9]+[.][0-9]+[.][0-9]+')").message("write a version, for example v1.36.3"))]
    pub version: String,
}

/// The container runtime of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerRuntime {
    /// Name of the runtime, for example containerd.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Version of the runtime, for example 2.1.0.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
}

/// Fault injection, with the field names of the kubemark actuator's provider configuration.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.turnUnhealthyPeriodically) && self.turnUnhealthyPeriodically) != (has(self.turnUnhealthyAfter) && self.turnUnhealthyAfter)")
        .message("set exactly one of turnUnhealthyPeriodically and turnUnhealthyAfter to true"),
    validation = Rule::new("!(has(self.turnUnhealthyPeriodically) && self.turnUnhealthyPeriodically) || has(self.healthyDuration)")
        .message("turnUnhealthyPeriodically needs healthyDuration: write for example healthyDuration: 40s"),
    validation = Rule::new("!(has(self.reboot) && self.reboot) || (has(self.turnUnhealthyPeriodically) && self.turnUnhealthyPeriodically)")
        .message("reboot is for nodes that come back: set turnUnhealthyPeriodically to true, or leave reboot out"),
    validation = Rule::new(schema::is_phase("self.unhealthyDuration"))
        .message("unhealthyDuration is at least 1s: write for example unhealthyDuration: 5s, or 0s for none"),
    validation = Rule::new(format!("!has(self.healthyDuration) || {}", schema::is_phase("self.healthyDuration")))
        .message("healthyDuration is at least 1s: write for example healthyDuration: 40s, or 0s for none")
)]
pub struct Failures {
    /// With `turnUnhealthyPeriodically`: length of each unhealthy phase. With `turnUnhealthyAfter`: time from
    /// the boot until the node turns unhealthy. At least 1s, or 0s.
    pub unhealthy_duration: GoDuration,
    /// With `turnUnhealthyPeriodically`: length of each healthy phase, at least 1s, or 0s for nodes that are never
    /// healthy. With `turnUnhealthyAfter`: absent.
    pub healthy_duration: Option<GoDuration>,
    /// Alternate between unhealthy and healthy phases from the boot, unhealthy first; false when absent.
    pub turn_unhealthy_periodically: Option<bool>,
    /// Turn unhealthy for ever at `unhealthyDuration` after the boot; false when absent.
    pub turn_unhealthy_after: Option<bool>,
    /// Behaviour of an unhealthy node.
    pub mode: Option<FailureMode>,
    /// End each unhealthy phase with a reboot: the node gets another boot ID, and its pods' containers have
    /// ended. Only with `turnUnhealthyPeriodically`; not for machines of an image of their own
    /// (`kubemark.image`). False when absent.
    pub reboot: Option<bool>,
}

/// Behaviour of an unhealthy node: it reports Ready=False while its Lease is renewed (`Reported`, when
/// absent), or stops reporting, so that the Node becomes Unknown after the grace period (`Silent`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureMode {
    /// Reports Ready=False while the Lease is renewed.
    #[default]
    Reported,
    /// Stops Lease renewals and status updates, so that the Node becomes Unknown after the grace period.
    Silent,
}

/// Fields of kubemark machines, which are pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KubemarkMachine {
    /// Image of an upstream kubemark; our own hollow kubelet when absent. An image without a tag gets
    /// `provisioning.kubelet.version` as its tag.
    #[schemars(length(max = 1024), extend("x-kubernetes-validations" = [schema::image()]))]
    pub image: Option<String>,
    /// Requests and limits of the pod; requests of 20m and 50Mi, and a limit of 100m, when absent.
    #[schemars(schema_with = "schema::requirements")]
    pub resources: Option<ResourceRequirements>,
    /// Node selector of the pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Affinity of the pod.
    #[schemars(schema_with = "schema::affinity")]
    pub affinity: Option<Affinity>,
    /// Pull secrets of the pod, in its namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub image_pull_secrets: Vec<LocalRef>,
    /// Additional arguments of the hollow kubelet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 4096)), extend("x-kubernetes-list-type" = "atomic"))]
    pub extra_args: Vec<String>,
}

/// Fields of hollow machines.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.hosts) || self.hosts.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
    .message("hollow.hosts is the name of a group of hosts, of lower case letters, digits and hyphens, such as big"))]
pub struct HollowMachine {
    /// Group of workers (`kube-node hollow-host --hosts`) that runs the machines; the operator itself when absent.
    #[schemars(length(max = 40))]
    pub hosts: Option<String>,
    /// Load of the machines on the API server; `Shared` when absent.
    pub load: Option<HollowLoad>,
    /// Creation of the Nodes' `CSINode` objects; `WithDrivers` when absent.
    pub csi_node: Option<CsiNodeCreation>,
    /// Defaults for the containers of the machines' pods.
    pub containers: Option<ContainerDefaults>,
}

/// Creation of a Node's `CSINode`, which a kubelet creates when it starts: as soon as the cluster has a
/// `CSIDriver` (`WithDrivers`, when absent), since nobody reads the object before, or in any case (`Always`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CsiNodeCreation {
    /// Once the cluster has a `CSIDriver`.
    #[default]
    WithDrivers,
    /// As soon as the machine starts.
    Always,
}

/// Load of a hollow machine on the API server: that of one of many machines that share an identity, a
/// connection and watches (`Shared`, when absent), or that of a kubelet, with an identity, a connection and
/// watches of its own (`Kubelet`), for testing API servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HollowLoad {
    /// The machine shares identity, connections and watches with all machines of its process.
    #[default]
    Shared,
    /// The machine has a certificate `system:node:<name>`, an HTTP/2 connection and the watches of a kubelet.
    Kubelet,
}

impl HollowLoad {
    /// Value of the label of the Nodes; None if they have no such label.
    pub const fn label(self) -> Option<&'static str> {
        match self {
            Self::Shared => None,
            Self::Kubelet => Some("Kubelet"),
        }
    }
}

/// Default behaviour of hollow containers; annotations of a pod override it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.cpu) || (isQuantity(self.cpu) && quantity(self.cpu).isGreaterThan(quantity('0')))")
        .message("hollow.containers.cpu is what a container uses: write for example 10m"),
    validation = Rule::new("!has(self.memory) || (isQuantity(self.memory) && quantity(self.memory).isGreaterThan(quantity('0')))")
        .message("hollow.containers.memory is what a container uses: write for example 50Mi")
)]
pub struct ContainerDefaults {
    /// Run time of a container of a pod that ends (`restartPolicy` Never or `OnFailure`), for example 5s; 1s
    /// when absent.
    pub run_time: Option<GoDuration>,
    /// Exit code of a container of a pod that ends; 0 when absent.
    #[schemars(range(min = 0, max = 255))]
    pub exit_code: Option<i32>,
    /// Time to pull a container's image and to create the container, for example 5s; at once when absent.
    pub start_time: Option<GoDuration>,
    /// Time from a container's start until it is ready, for example 5s; as its probes say when absent.
    pub ready_time: Option<GoDuration>,
    /// Time that a container takes to stop, for example 5s; no time when absent.
    pub stop_time: Option<GoDuration>,
    /// Events that the kubelet writes for its pods; `All` when absent.
    pub events: Option<PodEvents>,
    /// CPU usage of a container, for example 10m; half of its request, or 1m without one, when absent.
    #[schemars(length(max = 32))]
    pub cpu: Option<String>,
    /// Memory usage of a container, for example 50Mi; half of its request, or 10Mi without one, when absent.
    #[schemars(length(max = 32))]
    pub memory: Option<String>,
}

/// Events that a hollow kubelet writes for its pods; `All` when absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodEvents {
    /// All events of a kubelet, within its rate limit.
    #[default]
    All,
    /// Only events of type Warning.
    Warnings,
    /// None, except for annotations that cannot be parsed.
    None,
}

/// Observed state of a NodeClass.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClassStatus {
    /// Generation of the spec that this status refers to.
    pub observed_generation: Option<i64>,
    /// Revision of new machines of the class.
    pub revision: Option<String>,
    /// Number of Nodes of this class.
    pub nodes: Option<i32>,
    /// `Accepted`, with the reason when refused, and `Ready`, for tools that follow kstatus.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
