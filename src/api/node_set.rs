//! `NodeSet`: how many nodes of a class, said by a developer.
//!
//! What this version does not serve yet is refused by the schema with a message, never ignored.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, Time},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Failures, GoDuration, NodeTemplate, Resources,
    schema::{self, int_or_percent, resources},
    shared::conditions,
};

/// Ensures that a number of Nodes of one class exist at any time.
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
        .message("progressDeadline must be longer than minReadyTime: a node that is Ready for less makes no progress")
)]
pub struct NodeSetSpec {
    /// How many Nodes; 1 when absent.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 100_000))]
    pub replicas: i32,
    /// The NodeClass of the Nodes.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [schema::object_name()]))]
    pub node_class_name: String,
    /// Labels, annotations and taints of every Node of the set; wins over the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<NodeTemplate>,
    /// Fields of the class that this set changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_overrides: Option<ClassOverrides>,
    /// Pins the revision of the machines, for example v1-9f86d08188; the class's newest when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [schema::label_value()]))]
    pub revision: Option<String>,
    /// Lets cluster-autoscaler scale the set; absent, it leaves the set alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// How a change of the class reaches the Nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Time that a Node must be Ready to count as available, for example 30s; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready_time: Option<GoDuration>,
    /// Time that a rollout may wait for its new Nodes without progress before it halts itself, for example 20m; 10m when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline: Option<GoDuration>,
    /// Stops the rollout, while scaling and repair go on; false when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// How many old revisions that no Node has are kept; 10 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000))]
    pub revision_history_limit: Option<i32>,
    /// Which Nodes go first when the set shrinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScaleDown>,
    /// How a Node is emptied before its machine goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// When a Node counts as sick and is replaced; absent, never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<Remediation>,
    /// Age at which a Node is replaced, for example 720h; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<GoDuration>,
}

/// Default of `replicas`, as a Deployment has it.
fn one() -> i32 {
    1
}

/// Fields of the class that a set may change without leave of the admin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.reserved) || !has(self.capacity) || self.reserved.all(k, !(k in self.capacity) || !isQuantity(string(self.reserved[k])) || !isQuantity(string(self.capacity[k])) || !quantity(string(self.reserved[k])).isGreaterThan(quantity(string(self.capacity[k]))))")
    .message("reserved is larger than capacity: allocatable = capacity - reserved cannot be negative"))]
pub struct ClassOverrides {
    /// Replaces amounts of the class's capacity, name by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resources")]
    pub capacity: Option<Resources>,
    /// Replaces amounts of what is reserved, name by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resources")]
    pub reserved: Option<Resources>,
    /// Replaces the machine type; that of the class when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [schema::label_value()]))]
    pub machine_type: Option<String>,
    /// Replaces the disruptor; that of the class when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
}

/// Bounds for cluster-autoscaler: with them the set is a node group of its own name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas")
        .message("minReplicas is more than maxReplicas: lower minReplicas or raise maxReplicas")
)]
pub struct Autoscaling {
    /// Fewest Nodes; 0 when absent.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub min_replicas: i32,
    /// Most Nodes.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_replicas: i32,
    /// Options of the node group; absent, cluster-autoscaler uses those of its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<AutoscalingOptions>,
}

/// Options of a node group, by the names of cluster-autoscaler's flags; where one is absent, its flag counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingOptions {
    /// Share of a Node's allocatable in use, below which the Node may be removed, for example "0.5"; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("x-kubernetes-validations" = [schema::share()]))]
    pub scale_down_utilization_threshold: Option<String>,
    /// The same share of its GPUs; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("x-kubernetes-validations" = [schema::share()]))]
    pub scale_down_gpu_utilization_threshold: Option<String>,
    /// Time that a Node is not needed before it is removed, for example 10m; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down_unneeded_time: Option<GoDuration>,
    /// Time that a Node which is not Ready is not needed before it is removed, for example 20m; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down_unready_time: Option<GoDuration>,
    /// Time that a machine may take to appear as a Node, for example 15m; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_node_provision_time: Option<GoDuration>,
    /// Time that a Node may take to become Ready, for example 15m; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_node_startup_time: Option<GoDuration>,
    /// Scale to 0 or to maxReplicas only; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero_or_max_node_scaling: Option<bool>,
    /// Leave the pods of DaemonSets out of a Node's use; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_daemon_sets_utilization: Option<bool>,
    /// Keep the part that could be created where all was asked for; as the flag says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_non_atomic_scale_up_to_max: Option<bool>,
}

/// How a change of the class reaches the Nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.type) || self.type != 'OnDelete' || !has(self.rollingUpdate) || !has(self.rollingUpdate.partition)")
    .message("strategy.rollingUpdate.partition has no meaning with type OnDelete: remove one of the two"))]
pub struct Strategy {
    /// Whether Nodes of an old revision are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<StrategyType>,
    /// How many Nodes may be more or fewer than `replicas` while Nodes are replaced, whatever the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// Which comes first when one Node is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<ReplacementOrder>,
}

/// Whether Nodes of an old revision are replaced: by the controller, within the budget (`RollingUpdate`, when absent), or
/// only when somebody deletes them (`OnDelete`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StrategyType {
    /// By the controller, within the budget.
    RollingUpdate,
    /// Only when somebody deletes them.
    OnDelete,
}

/// The one budget that rollout, repair, expiry and deletions by hand spend from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.maxSurge) || !(string(self.maxSurge) in ['0', '0%', '00%', '000%']) || (has(self.maxUnavailable) && !(string(self.maxUnavailable) in ['0', '0%', '00%', '000%']))")
    .message("maxSurge and maxUnavailable cannot both be 0: nothing could be replaced; write maxUnavailable: 1, or leave maxSurge at 1"))]
pub struct RollingUpdate {
    /// How many Nodes above `replicas`, a number or a percentage, rounded up; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_percent")]
    pub max_surge: Option<IntOrString>,
    /// How many Nodes may be missing, a number or a percentage, rounded down; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_percent")]
    pub max_unavailable: Option<IntOrString>,
    /// How many Nodes keep the old revision, so that the others try the new one first; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub partition: Option<i32>,
}

/// Which comes first when one Node is replaced: the new one comes, then the old one goes (`SurgeFirst`, when absent), or
/// the other way round (`DeleteFirst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReplacementOrder {
    /// The new Node, then the old one goes.
    SurgeFirst,
    /// The old one goes, then the new Node.
    DeleteFirst,
}

/// Which Nodes go first when the set shrinks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScaleDown {
    /// The order among Nodes that are Ready and not marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<ScaleDownOrder>,
}

/// Which go first among Nodes that are Ready and not marked: those with the fewest pods to move (`LeastPods`, when
/// absent), the youngest (`Newest`) or the oldest (`Oldest`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScaleDownOrder {
    /// Fewest pods that a drain would move.
    #[default]
    LeastPods,
    /// Youngest first.
    Newest,
    /// Oldest first.
    Oldest,
}

/// How a Node is emptied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// After this, pods that are left are deleted, with 30 s of grace at most, and the machine goes; absent, never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
    /// Whether pods with emptyDir volumes are evicted (true, when absent) or block the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_empty_dir_data: Option<bool>,
    /// What happens to pods that no controller would make again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmanaged_pods: Option<UnmanagedPods>,
}

/// What happens to pods that no controller would make again: they are evicted as any other (`Evict`, when absent), or
/// block the drain (`Keep`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnmanagedPods {
    /// They are evicted as any other.
    Evict,
    /// They block the drain.
    Keep,
}

/// When a Node counts as sick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// How long a Node may take to become Ready and initialised; absent, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_startup_timeout: Option<GoDuration>,
    /// Conditions of an initialised Node that make it sick.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type", "status"])
    )]
    pub unhealthy_conditions: Vec<UnhealthyCondition>,
    /// While more Nodes are sick than this, a number or a percentage, none is replaced; 100% when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_percent")]
    pub max_unhealthy: Option<IntOrString>,
    /// How many repairs run at once; as many as the budget allows when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max_in_flight: Option<i32>,
}

/// A condition that makes a Node sick when it lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnhealthyCondition {
    /// Type of the condition, for example Ready.
    #[schemars(length(min = 1, max = 317), extend("x-kubernetes-validations" = [schema::qualified()]))]
    pub r#type: String,
    /// Its status: True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// How long it must last, for example 5m.
    pub r#for: GoDuration,
}

/// How a NodeSet stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that exist and are not leaving.
    #[serde(default)]
    pub replicas: i32,
    /// Nodes that are Ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Nodes that have been Ready for `minReadyTime`.
    #[serde(default)]
    pub available_replicas: i32,
    /// Nodes of the newest revision.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Nodes that are missing or not available.
    #[serde(default)]
    pub unavailable_replicas: i32,
    /// Label selector of the Nodes, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Revision that the Nodes come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// Revision that new Nodes get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,
    /// Where the replacement of outdated Nodes stands; absent when none is outdated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Nodes that failed to start one after the other; absent when the last one started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_failures: Option<StartFailures>,
    /// What the set waits for, the most important first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<WaitStatus>,
    /// `Available`, `Progressing` and `Degraded`, each with a reason that names what it waits for, and `Ready`, which tools that
    /// follow kstatus read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// Where the replacement of outdated Nodes stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Revision that the Nodes are to have.
    pub revision: String,
    /// When it began.
    pub start_time: Time,
    /// When a new Node became available or an old one was gone last.
    pub progress_time: Time,
    /// Nodes of the revision that were available then.
    #[serde(default)]
    pub available: i32,
    /// Outdated Nodes that are left, those that are leaving included.
    #[serde(default)]
    pub outdated: i32,
    /// When it halted itself because `progressDeadline` was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt_time: Option<Time>,
}

/// Nodes that failed to start one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFailures {
    /// Revision that the set asked for then: another one begins anew.
    pub revision: String,
    /// How many.
    pub count: i32,
    /// When the last one was given up.
    pub last_time: Time,
}

/// One thing that the set waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitStatus {
    /// What it is, in one word, for example `DrainBlocked`.
    pub reason: String,
    /// What it is, in a sentence that names Nodes, pods and budgets.
    pub message: String,
    /// How many Nodes it concerns.
    #[serde(default)]
    pub nodes: i32,
    /// Since when the set waits for it.
    pub since: Time,
}
