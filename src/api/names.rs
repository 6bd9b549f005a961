//! Every name that kube-node writes onto objects of others. A name is written here once and nowhere else.
//!
//! docs/reference/names.md is made from these comments: what bears the name, what it means, and who writes it (`By ...`).

/// API group of both kinds.
pub const GROUP: &str = "kube-node.io";
/// Label of a Node: the NodeSet it was created for. By the NodeSetController.
pub const LABEL_NODESET: &str = "kube-node.io/nodeset";
/// Label of a Node: the NodeClass that shapes its machine. A Node written by hand with it is provisioned like
/// any other. By the NodeSetController, or you.
pub const LABEL_NODECLASS: &str = "kube-node.io/nodeclass";
/// Label of a Node: the revision its machine is built from. By the NodeSetController; on a Node written by
/// hand by the NodeController.
pub const LABEL_REVISION: &str = "kube-node.io/revision";
/// Label of a Node: the provider that serves it; admission policies tell hollow Nodes by it. Of the Lease of a hollow Node: the
/// same, so that its renewals cost no policy anything. By the NodeSetController; on a Node written by hand by the
/// NodeController; of a Lease by whoever carries the machine.
pub const LABEL_NODE_CONTROLLER: &str = "kube-node.io/node-controller";
/// Label of a Node: the group of hosts that carries its hollow machine; none where the operator does. Of the Lease of
/// such a host: its group. By the NodeSetController; on a Node written by hand by the NodeController; of a Lease by
/// its host.
pub const LABEL_HOLLOW_HOSTS: &str = "kube-node.io/hollow-hosts";
/// Label of a Node: what its hollow machine is to the API server, as `hollow.load` of its class says; none for `Shared`. By
/// the NodeSetController; on a Node written by hand by the NodeController.
pub const LABEL_HOLLOW_LOAD: &str = "kube-node.io/hollow-load";
/// Label of a machine's pod: UID of the cluster whose Node it is, which is that of its namespace kube-system.
/// By the provider kubemark.
pub const LABEL_CLUSTER: &str = "kube-node.io/cluster";
/// Label of a machine's pod: UID of its Node. By the provider kubemark.
pub const LABEL_NODE_UID: &str = "kube-node.io/node-uid";
/// Annotation of a machine's pod: name of its Node. By the provider kubemark.
pub const ANNOTATION_NODE: &str = "kube-node.io/node";
/// Annotation of a machine's pod: what the machine is, as its hollow kubelet reads it. By the provider
/// kubemark.
pub const ANNOTATION_MACHINE: &str = "kube-node.io/machine";
/// Annotation of a machine's pod: what changes while the machine lives. By the provider kubemark.
pub const ANNOTATION_SETTINGS: &str = "kube-node.io/settings";
/// Field manager of all that the operator writes.
pub const FIELD_MANAGER: &str = "kube-node";
/// Annotation of a Node: delete it before any other when its set shrinks. By you.
pub const ANNOTATION_DELETE_FIRST: &str = "kube-node.io/delete-first";
/// Annotation of a Node: which labels, annotations and taints came from templates, so that only those are
/// taken away. By the NodeSetController; on a Node written by hand by the NodeController.
pub const ANNOTATION_APPLIED: &str = "kube-node.io/applied-template";
/// Annotation of a NodeSet: Nodes created before this time (RFC 3339) are replaced, as a rollout does it. By
/// `kube-node rollout restart`.
pub const ANNOTATION_RESTARTED_AT: &str = "kube-node.io/restarted-at";
/// Annotation of a NodeSet: a rollout that halted itself before this time (RFC 3339) goes on. By `kube-node
/// rollout resume`.
pub const ANNOTATION_RESUMED_AT: &str = "kube-node.io/resumed-at";
/// Annotation of a Node: it is not replaced for being sick, unless the value is `false`. By you.
pub const ANNOTATION_SKIP_REMEDIATION: &str = "kube-node.io/skip-remediation";
/// Annotation of a pod: no drain evicts it, unless the value is `false`. By you.
pub const ANNOTATION_DO_NOT_EVICT: &str = "kube-node.io/do-not-evict";
/// Annotation of a Node that leaves: when its drain began (RFC 3339). By the NodeController.
pub const ANNOTATION_DRAIN_STARTED: &str = "kube-node.io/drain-started";
/// Namespace of the operator, its service accounts and the revisions, where nobody chooses another one.
pub const OPERATOR_NAMESPACE: &str = "kube-node-system";
/// ServiceAccount of the operator. Its annotations are the parameters of the admission policies.
pub const OPERATOR_SERVICE_ACCOUNT: &str = "kube-node-operator";
/// Annotation of the operator's ServiceAccount: names of the NodeSets that there are and were, each between spaces; no kubelet
/// creates a Node of theirs. By the operator.
pub const ANNOTATION_NODESETS: &str = "kube-node.io/nodesets";
/// Annotation of the operator's ServiceAccount: names of the Nodes that are not hollow, each between spaces; the hollow kubelets
/// write no pod and no Lease of theirs. By the operator.
pub const ANNOTATION_NODES_NOT_HOLLOW: &str = "kube-node.io/nodes-not-hollow";
/// Lease in it by which the one operator is elected that works.
pub const OPERATOR_LEASE: &str = "kube-node-operator";
/// Name of cluster-autoscaler's certificate, as `up` and the chart make it: with it the operator's server lets a client in.
pub const AUTOSCALER_CLIENT: &str = "cluster-autoscaler";
/// Namespace of machines that are pods, and of what they begin with.
pub const MACHINE_NAMESPACE: &str = "kubemark";
/// ServiceAccount of machines that are pods: it may ask for certificates, and nothing else.
pub const MACHINE_SERVICE_ACCOUNT: &str = "kube-node-machine";
/// ServiceAccount of hollow machines that have an identity each: it may ask for certificates, and nothing else.
pub const HOLLOW_MACHINE_SERVICE_ACCOUNT: &str = "kube-node-hollow-machine";
/// Finalizer of a Node: its machine may still exist. By the NodeSetController; on a Node written by hand by
/// the NodeController, which takes it off.
pub const FINALIZER_MACHINE: &str = "kube-node.io/machine";
/// Finalizer of a NodeSet: Nodes of it may still exist. By the NodeSetController.
pub const FINALIZER_NODES: &str = "kube-node.io/nodes";
/// Finalizer of a NodeClass: Nodes or NodeSets still need it. Of a credentials Secret: a NodeClass still
/// needs it. By the operator.
pub const FINALIZER_IN_USE: &str = "kube-node.io/in-use";
/// Taint of a Node: no kubelet has taken it over yet. By the NodeSetController; on a Node written by hand by
/// the NodeController, which takes it off.
pub const TAINT_UNINITIALIZED: &str = "kube-node.io/uninitialized";
/// Annotation of a NodeSet: UIDs of Nodes, separated by commas, that were named to go when its replicas were
/// lowered. By the autoscaler server; cleared by the NodeSetController.
pub const ANNOTATION_VICTIMS: &str = "kube-node.io/victims";
/// Annotation of a NodeSet: written where the fate of a change without an answer has to be settled; it says
/// nothing. By the autoscaler server.
pub const ANNOTATION_FENCE: &str = "kube-node.io/fence";
/// Annotation of a Node: cluster-autoscaler does not take it away. By the NodeSetController, or you.
pub const ANNOTATION_SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Taint of a Node: cluster-autoscaler is about to remove it (utils/taints in its source). By cluster-autoscaler.
pub const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Taint of a Node on which nothing runs any more: kube-controller-manager deletes its pods by force and
/// detaches their volumes at once. By the NodeController.
pub const TAINT_OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Condition of a Node: whether its machine could be made; written only when something stands in the way. By
/// the NodeController.
pub const CONDITION_MACHINE: &str = "kube-node.io/Machine";
/// Condition of a Node that leaves: False, with what holds its drain up; True when that is over. By the
/// NodeController.
pub const CONDITION_DRAINED: &str = "kube-node.io/Drained";
/// What all annotations begin with that say what the containers of a pod on a hollow Node do: all its regular containers,
/// or, with a dot and its name at the end, one container.
pub const HOLLOW_PREFIX: &str = "hollow.kube-node.io/";
/// Annotation of a pod on a hollow Node: how long it takes to pull the image of a container and to make it, for example 5s. By you.
pub const ANNOTATION_START_TIME: &str = "hollow.kube-node.io/start-time";
/// Annotation of a pod on a hollow Node: why the image of a container cannot be pulled, in words. By you.
pub const ANNOTATION_IMAGE_ERROR: &str = "hollow.kube-node.io/image-error";
/// Annotation of a pod on a hollow Node: why a container cannot be started, in words. By you.
pub const ANNOTATION_START_ERROR: &str = "hollow.kube-node.io/start-error";
/// Annotation of a pod on a hollow Node: how long a container runs before it is ready, for example 5s, or `never`. By you.
pub const ANNOTATION_READY_TIME: &str = "hollow.kube-node.io/ready-time";
/// Annotation of a pod on a hollow Node: how long a container runs before it ends, for example 5s. By you.
pub const ANNOTATION_RUN_TIME: &str = "hollow.kube-node.io/run-time";
/// Annotation of a pod on a hollow Node: the code a container exits with, 0 to 255. By you.
pub const ANNOTATION_EXIT_CODE: &str = "hollow.kube-node.io/exit-code";
/// Annotation of a pod on a hollow Node: why a container ends, for example `OOMKilled`. By you.
pub const ANNOTATION_EXIT_REASON: &str = "hollow.kube-node.io/exit-reason";
/// Annotation of a pod on a hollow Node: how long a container takes to stop, for example 5s. By you.
pub const ANNOTATION_STOP_TIME: &str = "hollow.kube-node.io/stop-time";
/// Annotation of a pod on a hollow Node: a line of a container's log. By you.
pub const ANNOTATION_LOG_LINE: &str = "hollow.kube-node.io/log-line";
/// Annotation of a pod on a hollow Node: time between two lines of a container's log, for example 5s. By you.
pub const ANNOTATION_LOG_INTERVAL: &str = "hollow.kube-node.io/log-interval";
/// Annotation of a pod on a hollow Node: CPU that a container uses, for example 10m. By you.
pub const ANNOTATION_CPU: &str = "hollow.kube-node.io/cpu";
/// Annotation of a pod on a hollow Node: memory that a container uses, for example 50Mi. By you.
pub const ANNOTATION_MEMORY: &str = "hollow.kube-node.io/memory";
/// Annotation of a pod on a hollow Node: the code with which commands end that are run in a container and that a hollow
/// kubelet does not know, 0 to 255. By you.
pub const ANNOTATION_EXEC_EXIT_CODE: &str = "hollow.kube-node.io/exec-exit-code";

/// File of the program of machines: beside `kube-node`, and at the root of the image.
pub const MACHINE_PROGRAM: &str = "kube-node-machine";
