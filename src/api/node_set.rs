//! `NodeSet`: a number of nodes of one class, requested by a developer.
//!
//! The schema refuses fields that this version does not serve yet, with a message; none is ignored.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, Time},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::{
    Failures, GoDuration, NodeTemplate, Resources,
    schema::{self, int_or_percent, resources},
};

/// Ensures that a number of Nodes of one class exist at any time.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kube-node.io",
    version = "v1alpha1",
    kind = "NodeSet",
    plural = "nodesets",
    shortname = "nset",
    category = "kube-node",
    status = "NodeSetStatus",
    derive = "PartialEq",
    doc = "A number of nodes of one class, kept at any time.",
    scale = r#"{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}"#,
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.nodeClassName"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "Terminating", type_ = "integer", json_path = ".status.terminatingReplicas"),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Progressing")].reason"#),
    printcolumn(name = "Degraded", type_ = "string", json_path = r#".status.conditions[?(@.type=="Degraded")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Revision", type_ = "string", priority = 1, json_path = ".status.updateRevision"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Progressing")].message"#),
    validation = Rule::new("size(self.metadata.name) <= 56")
        .message("the name is too long: node names are <name>-<6 characters> and hold 63 at most, so use 56 characters or fewer"),
    validation = Rule::new("!self.metadata.name.contains('.')")
        .message("the name is a label of its nodes and part of their host names: use no dots")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.progressDeadline) || duration(self.progressDeadline) > duration(has(self.minReadyTime) ? self.minReadyTime : '0')")
        .message("progressDeadline must be longer than minReadyTime: a node that is Ready for less makes no progress"),
    validation = Rule::new("!has(self.minReadyTime) || duration(self.minReadyTime) <= duration('24h')")
        .message("minReadyTime is 24h at most: write for example 30s"),
    validation = Rule::new("!has(self.progressDeadline) || duration(self.progressDeadline) <= duration('168h')")
        .message("progressDeadline is 168h at most: write for example 10m")
)]
pub struct NodeSetSpec {
    /// Number of Nodes; 1 when absent.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 100_000))]
    pub replicas: i32,
    /// The NodeClass of the Nodes.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [schema::object_name()]))]
    pub node_class_name: String,
    /// Labels, annotations and taints of every Node of the set; they override those of the class.
    pub template: Option<NodeTemplate>,
    /// Fields of the class that this set changes.
    pub class_overrides: Option<ClassOverrides>,
    /// Pins the revision of the machines, for example v1-9f86d08188; the class's newest when absent.
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [schema::revision()]))]
    pub revision: Option<String>,
    /// Lets cluster-autoscaler scale the set; absent, cluster-autoscaler leaves the set alone.
    pub autoscaling: Option<Autoscaling>,
    /// Rollout of a change of the class.
    pub strategy: Option<Strategy>,
    /// Time that a Node must be Ready to count as available, for example 30s; 0 when absent.
    pub min_ready_time: Option<GoDuration>,
    /// Time that a rollout may wait for its new Nodes without progress before it halts itself, for example
    /// 20m; 10m when absent.
    pub progress_deadline: Option<GoDuration>,
    /// Pauses the rollout, while scaling and repair continue; false when absent.
    pub paused: Option<bool>,
    /// Number of old revisions without Nodes that are kept; 10 when absent.
    #[schemars(range(min = 0, max = 1_000))]
    pub revision_history_limit: Option<i32>,
    /// Choice of victims when the set shrinks.
    pub scale_down: Option<ScaleDown>,
    /// Drain of a Node before its machine is deleted.
    pub drain: Option<Drain>,
    /// Replacement of unhealthy Nodes; absent, no Node is repaired.
    pub remediation: Option<Remediation>,
    /// Age at which a Node is replaced, for example 720h; never when absent.
    pub expire_after: Option<GoDuration>,
}

/// Default of `replicas`, as for a Deployment.
fn one() -> i32 {
    1
}

/// Fields of the class that a set may change without permission of the admin.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.reserved) || !has(self.capacity) || self.reserved.all(k, !(k in self.capacity) || !isQuantity(string(self.reserved[k])) || !isQuantity(string(self.capacity[k])) || !quantity(string(self.reserved[k])).isGreaterThan(quantity(string(self.capacity[k]))))")
    .message("reserved is larger than capacity: allocatable = capacity - reserved cannot be negative"))]
pub struct ClassOverrides {
    /// Replaces amounts of the class's capacity, by resource name.
    #[schemars(default, schema_with = "resources")]
    pub capacity: Option<Resources>,
    /// Replaces amounts of the class's reserved resources, by resource name.
    #[schemars(default, schema_with = "resources")]
    pub reserved: Option<Resources>,
    /// Replaces the machine type; that of the class when absent.
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [schema::label_value()]))]
    pub machine_type: Option<String>,
    /// Replaces the fault injection; that of the class when absent.
    pub failures: Option<Failures>,
}

/// Bounds for cluster-autoscaler: the set becomes a node group of the same name.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas")
        .message("minReplicas is more than maxReplicas: lower minReplicas or raise maxReplicas")
)]
pub struct Autoscaling {
    /// Minimum number of Nodes; 0 when absent.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub min_replicas: i32,
    /// Maximum number of Nodes.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_replicas: i32,
    /// Options of the node group; absent, cluster-autoscaler uses those of its command line.
    pub options: Option<AutoscalingOptions>,
}

/// Options of a node group, by the names of cluster-autoscaler's flags; an absent option has the value of its flag.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingOptions {
    /// Utilization of a Node's allocatable resources below which it may be removed, for example "0.5"; as the
    /// flag says when absent.
    #[schemars(length(max = 8), extend("x-kubernetes-validations" = [schema::share()]))]
    pub scale_down_utilization_threshold: Option<String>,
    /// Utilization of a Node's GPUs below which it may be removed, for example "0.5"; as the flag says when absent.
    #[schemars(length(max = 8), extend("x-kubernetes-validations" = [schema::share()]))]
    pub scale_down_gpu_utilization_threshold: Option<String>,
    /// Time that a Node must be unneeded before it is removed, for example 10m; as the flag says when absent.
    pub scale_down_unneeded_time: Option<GoDuration>,
    /// Time that an unready Node must be unneeded before it is removed, for example 20m; as the flag says when absent.
    pub scale_down_unready_time: Option<GoDuration>,
    /// Maximum time until a machine appears as a Node, for example 15m; as the flag says when absent.
    pub max_node_provision_time: Option<GoDuration>,
    /// Maximum time until a Node becomes Ready, for example 15m; as the flag says when absent.
    pub max_node_startup_time: Option<GoDuration>,
    /// Scale only to 0 or to `maxReplicas`; as the flag says when absent.
    pub zero_or_max_node_scaling: Option<bool>,
    /// Ignore pods of DaemonSets in a Node's utilization; as the flag says when absent.
    pub ignore_daemon_sets_utilization: Option<bool>,
    /// Keep the Nodes of a scale-up that succeeded only in part; as the flag says when absent.
    pub allow_non_atomic_scale_up_to_max: Option<bool>,
}

/// Rollout of a change of the class.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.type) || self.type != 'OnDelete' || !has(self.rollingUpdate) || !has(self.rollingUpdate.partition)")
    .message("strategy.rollingUpdate.partition has no meaning with type OnDelete: remove one of the two"))]
pub struct Strategy {
    /// Replacement of Nodes of an old revision.
    pub r#type: Option<StrategyType>,
    /// Numbers of Nodes above and below `replicas` while Nodes are replaced for any reason.
    pub rolling_update: Option<RollingUpdate>,
    /// Order of creation and deletion when one Node is replaced.
    pub replacement: Option<ReplacementOrder>,
}

/// Replacement of Nodes of an old revision: by the controller, within the budget (`RollingUpdate`, when
/// absent), or only when somebody deletes them (`OnDelete`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StrategyType {
    /// The controller replaces Nodes of an old revision, within the budget.
    RollingUpdate,
    /// Nodes of an old revision are replaced only when somebody deletes them.
    OnDelete,
}

/// The one budget of rollout, repair, expiry and deletions by hand.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.maxSurge) || !(string(self.maxSurge) in ['0', '0%', '00%', '000%']) || (has(self.maxUnavailable) && !(string(self.maxUnavailable) in ['0', '0%', '00%', '000%']))")
    .message("maxSurge and maxUnavailable cannot both be 0: nothing could be replaced; write maxUnavailable: 1, or leave maxSurge at 1"))]
pub struct RollingUpdate {
    /// Maximum number of Nodes above `replicas`, a number or a percentage, rounded up; 1 when absent.
    #[schemars(default, schema_with = "int_or_percent")]
    pub max_surge: Option<IntOrString>,
    /// Maximum number of missing Nodes, a number or a percentage, rounded down; 0 when absent.
    #[schemars(default, schema_with = "int_or_percent")]
    pub max_unavailable: Option<IntOrString>,
    /// Number of Nodes that keep the old revision while the others try the new one; 0 when absent.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub partition: Option<i32>,
}

/// Order when one Node is replaced: the new Node is created, then the old one goes (`SurgeFirst`, when
/// absent), or the other way round (`DeleteFirst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReplacementOrder {
    /// The new Node is created, then the old one goes.
    SurgeFirst,
    /// The old Node goes, then the new one is created.
    DeleteFirst,
}

/// Choice of victims when the set shrinks.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScaleDown {
    /// Order of victims among Nodes that are Ready and not marked.
    pub order: Option<ScaleDownOrder>,
}

/// Order of victims among Nodes that are Ready and not marked: the fewest pods to evict (`LeastPods`, when
/// absent), the youngest (`Newest`) or the oldest (`Oldest`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScaleDownOrder {
    /// Fewest pods that a drain would evict first.
    #[default]
    LeastPods,
    /// Youngest first.
    Newest,
    /// Oldest first.
    Oldest,
}

/// Drain of a Node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Time until remaining pods are deleted, with at most 30 s of grace, and the machine goes; absent, never.
    pub timeout: Option<GoDuration>,
    /// Evict pods with emptyDir volumes (true, when absent); otherwise they block the drain.
    pub delete_empty_dir_data: Option<bool>,
    /// Handling of pods that no controller would recreate.
    pub unmanaged_pods: Option<UnmanagedPods>,
}

/// Handling of pods that no controller would recreate: they are evicted like any other (`Evict`, when
/// absent), or block the drain (`Keep`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnmanagedPods {
    /// Such pods are evicted like any other.
    Evict,
    /// Such pods block the drain.
    Keep,
}

/// Replacement of unhealthy Nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Remediation {
    /// Maximum time until a Node is Ready and initialized; absent, no limit.
    pub node_startup_timeout: Option<GoDuration>,
    /// Conditions that make an initialized Node unhealthy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type", "status"])
    )]
    pub unhealthy_conditions: Vec<UnhealthyCondition>,
    /// Number or percentage of unhealthy Nodes above which no Node is repaired; 100% when absent.
    #[schemars(schema_with = "int_or_percent")]
    pub max_unhealthy: Option<IntOrString>,
    /// Maximum number of concurrent repairs; as many as the budget allows when absent.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max_in_flight: Option<i32>,
}

/// A condition that makes a Node unhealthy once it has lasted long enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnhealthyCondition {
    /// Type of the condition, for example Ready.
    #[schemars(length(min = 1, max = 317), extend("x-kubernetes-validations" = [schema::qualified()]))]
    pub r#type: String,
    /// Status of the condition: True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Minimum duration of the condition, for example 5m.
    pub r#for: GoDuration,
}

/// Observed state of a NodeSet.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSetStatus {
    /// Generation of the spec that this status refers to.
    pub observed_generation: Option<i64>,
    /// Generation of the NodeClass that this status refers to.
    pub observed_class_generation: Option<i64>,
    /// Number of Nodes that exist and are not leaving.
    pub replicas: i32,
    /// Number of Nodes that are Ready.
    pub ready_replicas: i32,
    /// Number of Nodes that have been Ready for `minReadyTime`.
    pub available_replicas: i32,
    /// Number of Nodes of the newest revision.
    pub updated_replicas: i32,
    /// Number of Nodes that are missing or not available.
    pub unavailable_replicas: i32,
    /// Number of Nodes that are being drained and deleted; the other counts do not include them. Named as in the status
    /// of a Deployment.
    pub terminating_replicas: i32,
    /// Label selector of the Nodes, for the scale subresource.
    pub selector: Option<String>,
    /// Revision before the current rollout; the new one once every Node has it.
    pub current_revision: Option<String>,
    /// Revision of new Nodes.
    pub update_revision: Option<String>,
    /// Last restart that this status accounts for: the time of the annotation `kube-node.io/restarted-at`, once it has come.
    pub restart_time: Option<Time>,
    /// Progress of the replacement of outdated Nodes; absent when none is outdated.
    pub rollout: Option<RolloutStatus>,
    /// Nodes that failed to start one after the other; absent when the last one started.
    pub start_failures: Option<StartFailures>,
    /// Waits of the set, the most important first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<WaitStatus>,
    /// `Available`, `Progressing` and `Degraded`, each with a reason that names the current wait, and
    /// `Ready`, for tools that follow kstatus.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Progress of the replacement of outdated Nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Revision that the Nodes should have.
    pub revision: String,
    /// Start of the rollout.
    pub start_time: Time,
    /// Time since which the rollout waits for new Nodes to become available; absent while it does not, or is paused.
    pub waiting_time: Option<Time>,
    /// Last time at which a new Node became available or an old one was gone.
    pub progress_time: Time,
    /// Number of available Nodes of the revision at that time.
    #[serde(default)]
    pub available: i32,
    /// Number of outdated Nodes left, leaving ones included.
    #[serde(default)]
    pub outdated: i32,
    /// Time at which the rollout halted itself because `progressDeadline` was over.
    pub halt_time: Option<Time>,
}

/// Nodes that failed to start one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFailures {
    /// Revision of these Nodes; another revision starts a new count.
    pub revision: String,
    /// Number of failures; Nodes created together count as one.
    pub count: i32,
    /// Time at which the last one was given up.
    pub last_time: Time,
}

/// One wait of the set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitStatus {
    /// Reason, for example `PodDisruptionBudget`.
    pub reason: String,
    /// Message that names Nodes, pods and budgets.
    pub message: String,
    /// Number of affected Nodes.
    #[serde(default)]
    pub nodes: i32,
    /// Start of the wait.
    pub since: Time,
}
