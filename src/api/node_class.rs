//! `NodeClass`: a kind of nodes, described by an admin.
//!
//! What this version does not serve yet is refused by the schema with a message, never ignored.

use k8s_openapi::{
    api::core::v1::{Affinity, ResourceRequirements, Toleration},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::{
    GoDuration, LocalRef, NodeTemplate, Resources, SecretKeyRef,
    schema::{self, resources},
    shared::conditions,
};

/// A kind of nodes: who provisions its machines, and what they are.
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
    // One that is there already keeps its name: status and finalizers of it must still be written.
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
    /// Name of the NodeController that serves this class: `hollow`, `kubemark`, or that of somebody else's controller,
    /// which ours leaves alone. Like `StorageClass.provisioner`.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [schema::label_value()]))]
    pub node_controller: String,
    /// Free name of the kind of machine; becomes the label `node.kubernetes.io/instance-type`; absent,
    /// there is no such label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [schema::label_value()]))]
    pub machine_type: Option<String>,
    /// What a machine has, by resource name, extended resources included. Only a class of somebody else's NodeController
    /// may do without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resources")]
    pub capacity: Option<Resources>,
    /// What the system keeps for itself: allocatable = capacity - reserved; nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resources")]
    pub reserved: Option<Resources>,
    /// Secret in the operator's namespace with the provider's credentials: for kubemark a kubeconfig of the cluster
    /// whose pods the machines are; this cluster when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<LocalRef>,
    /// What reaches the machine before its kubelet starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// Labels, annotations and taints of every Node of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<NodeTemplate>,
    /// Bounds of the class: how much of it developers may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<NodeClassLimits>,
    /// What a node costs an hour, in any unit, for the autoscaler's price expander; absent, it knows no
    /// price of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub price: Option<String>,
    /// How long a machine lingers after its Node's deletion, for example 30s; no longer than the drain when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timeout: Option<GoDuration>,
    /// The disruptor: makes nodes turn unhealthy on purpose; absent, they never do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// What only a kubemark machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubemark: Option<KubemarkMachine>,
    /// What only a hollow machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hollow: Option<HollowMachine>,
}

/// Bounds of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClassLimits {
    /// Most Nodes of the class, whoever asks for them: those of all its NodeSets, the surge of their rollouts, those
    /// written by hand and those that are leaving. A NodeSet that would pass it waits (`ClassLimit`); no Node is taken
    /// away for it. No limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub nodes: Option<i32>,
}

/// What reaches a machine before its kubelet starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provisioning {
    /// Files on the machine, for kubemark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 64),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["path"],
            "x-kubernetes-validations" = [schema::files_size()]
        )
    )]
    pub files: Option<Vec<ProvisionedFile>>,
    /// The kubelet; that of the Kubernetes release which kube-node is built for when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletSource>,
    /// The container runtime that the Node reports; containerd 2.1.0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_runtime: Option<ContainerRuntime>,
    /// Commands run before the kubelet starts, by /bin/sh of the machine's image; one that fails keeps the kubelet from
    /// starting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 64),
        inner(length(max = 4096)),
        extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [schema::commands_size()])
    )]
    pub commands: Option<Vec<String>>,
}

/// A file on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.content), has(self.secretKeyRef), has(self.configMapKeyRef)].filter(has, has).size() == 1")
    .message("a file has one source: set exactly one of content, secretKeyRef and configMapKeyRef"))]
pub struct ProvisionedFile {
    /// Absolute path on the machine.
    #[schemars(length(min = 2, max = 4096), extend("x-kubernetes-validations" = [schema::file_path()]))]
    pub path: String,
    /// `user:group`: root, nonroot or numbers, for example "root:root". The machine's own user when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65), extend("x-kubernetes-validations" = [schema::file_owner()]))]
    pub owner: Option<String>,
    /// Octal mode, for example "0640"; 0644 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4), extend("x-kubernetes-validations" = [schema::file_mode()]))]
    pub permissions: Option<String>,
    /// Where the content comes from: exactly one of three.
    #[serde(flatten)]
    pub source: FileSource,
}

/// Where a file's content comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileSource {
    /// The content itself; absent where one of the two references is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub content: Option<String>,
    /// A key of a Secret in the operator's namespace; absent where one of the others is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyRef>,
    /// A key of a ConfigMap in the operator's namespace; absent where one of the others is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<SecretKeyRef>,
}

/// The kubelet of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KubeletSource {
    /// The version it reports, for example v1.36.3.
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [schema::version()]))]
    pub version: String,
}

/// The container runtime of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerRuntime {
    /// Its name, for example containerd.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its version, for example 2.1.0.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
}

/// The disruptor, with the names of the kubemark actuator's provider configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.turnUnhealthyPeriodically) && self.turnUnhealthyPeriodically) != (has(self.turnUnhealthyAfter) && self.turnUnhealthyAfter)")
        .message("set exactly one of turnUnhealthyPeriodically and turnUnhealthyAfter to true"),
    validation = Rule::new("!(has(self.turnUnhealthyPeriodically) && self.turnUnhealthyPeriodically) || has(self.healthyDuration)")
        .message("turnUnhealthyPeriodically needs healthyDuration: write for example healthyDuration: 40s"),
    validation = Rule::new("!(has(self.reboot) && self.reboot) || (has(self.turnUnhealthyPeriodically) && self.turnUnhealthyPeriodically)")
        .message("reboot is for nodes that come back: set turnUnhealthyPeriodically to true, or leave reboot out")
)]
pub struct Failures {
    /// Periodic: how long a node is unhealthy each time. After: how long after its boot it turns unhealthy.
    pub unhealthy_duration: GoDuration,
    /// Periodic: how long a node is healthy between two failures. After: absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_duration: Option<GoDuration>,
    /// Unhealthy, healthy, unhealthy and so on from the boot; false when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_unhealthy_periodically: Option<bool>,
    /// Healthy at first, unhealthy for ever from `unhealthyDuration` after the boot; false when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_unhealthy_after: Option<bool>,
    /// How an unhealthy node behaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FailureMode>,
    /// A node that was unhealthy comes back as one that has rebooted: with another boot ID, and its pods' containers ended with
    /// the machine. False when absent. Periodic alone; not for machines of an image of their own (`kubemark.image`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<bool>,
}

/// How an unhealthy node behaves: it reports Ready=False while its Lease goes on (`Reported`, when absent), or falls
/// silent, so that the Node becomes Unknown after the grace period (`Silent`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureMode {
    /// Reports Ready=False while its Lease goes on.
    #[default]
    Reported,
    /// Falls silent: neither Lease nor status, so that the Node becomes Unknown after the grace period.
    Silent,
}

/// What only a kubemark machine has: it is a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubemarkMachine {
    /// Image of an upstream kubemark; our own hollow kubelet when absent. Without a tag it gets
    /// `provisioning.kubelet.version` as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), extend("x-kubernetes-validations" = [schema::image()]))]
    pub image: Option<String>,
    /// Requests and limits of the pod; requests of 20m and 50Mi, and a limit of 100m, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::requirements")]
    pub resources: Option<ResourceRequirements>,
    /// Node selector of the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::node_selector")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Affinity of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::affinity")]
    pub affinity: Option<Affinity>,
    /// Pull secrets of the pod, in its namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub image_pull_secrets: Vec<LocalRef>,
    /// Further arguments of the hollow kubelet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 4096)), extend("x-kubernetes-list-type" = "atomic"))]
    pub extra_args: Vec<String>,
}

/// What only a hollow machine has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.hosts) || self.hosts.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
    .message("hollow.hosts is the name of a group of hosts, of lower case letters, digits and hyphens, such as big"))]
pub struct HollowMachine {
    /// The group of hosts (`kube-node hollow-host --hosts`) that carries the machines; the operator itself when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub hosts: Option<String>,
    /// What the machines are to the API server; `Shared` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<HollowLoad>,
    /// What its containers do unless their pod says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containers: Option<ContainerDefaults>,
}

/// What a hollow machine is to the API server: one of many that share an identity, a connection and watches (`Shared`, when
/// absent), or what a kubelet is, with an identity, a connection and watches of its own (`Kubelet`), for testing API servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HollowLoad {
    /// It shares identity, connections and watches with all machines of its process.
    #[default]
    Shared,
    /// It has a certificate `system:node:<name>`, an HTTP/2 connection and the watches of a kubelet.
    Kubelet,
}

impl HollowLoad {
    /// The value of the label of its Nodes; None for that they have none.
    #[must_use]
    pub const fn label(self) -> Option<&'static str> {
        match self {
            Self::Shared => None,
            Self::Kubelet => Some("Kubelet"),
        }
    }
}

/// What a hollow container does by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.cpu) || (isQuantity(self.cpu) && quantity(self.cpu).isGreaterThan(quantity('0')))")
        .message("hollow.containers.cpu is what a container uses: write for example 10m"),
    validation = Rule::new("!has(self.memory) || (isQuantity(self.memory) && quantity(self.memory).isGreaterThan(quantity('0')))")
        .message("hollow.containers.memory is what a container uses: write for example 50Mi")
)]
pub struct ContainerDefaults {
    /// How long a container of a pod that ends (`restartPolicy` Never or `OnFailure`) runs, for example 5s; 1s when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_time: Option<GoDuration>,
    /// Its exit code; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub exit_code: Option<i32>,
    /// How long it takes to pull the image of a container and to make it, for example 5s; at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<GoDuration>,
    /// How long a container runs before it is ready, for example 5s; as its probes say when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_time: Option<GoDuration>,
    /// How long a container takes to stop when it is told to, for example 5s; no time when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<GoDuration>,
    /// Which events the kubelet tells of its pods; `All` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<PodEvents>,
    /// CPU that a container uses, for example 10m; half of what it requests when absent, or 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub cpu: Option<String>,
    /// Memory that a container uses, for example 50Mi; half of what it requests when absent, or 10Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub memory: Option<String>,
}

/// Which events a hollow kubelet tells of its pods; `All` when absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodEvents {
    /// Those of a kubelet, as far as its rate allows.
    #[default]
    All,
    /// Only what something is wrong with.
    Warnings,
    /// None, but for annotations that cannot be read.
    None,
}

/// How a NodeClass stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClassStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Revision that new machines of the class get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// How many Nodes are of this class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i32>,
    /// `Accepted`, with the reason when refused, and `Ready`, which tools that follow kstatus read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}
