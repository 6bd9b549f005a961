//! All names that kube-node writes onto objects of others. Each name is defined only here.
//!
//! docs/reference/names.md is generated from these comments: `<sort> of <object>: <meaning>. By <writer>.`

/// API group of NodeClass and NodeSet.
pub const GROUP: &str = "kube-node.io";
/// Label of a Node: the NodeSet that it was created for. By the NodeSetController.
pub const LABEL_NODESET: &str = "kube-node.io/nodeset";
/// Label of a Node: the NodeClass of its machine. A Node created by hand with this label is provisioned like
/// any other. By the NodeSetController, or you.
pub const LABEL_NODECLASS: &str = "kube-node.io/nodeclass";
/// Label of a Node: the revision of its machine. By the NodeSetController; on a Node created by hand, by the
/// NodeController.
pub const LABEL_REVISION: &str = "kube-node.io/revision";
/// Label of a Node: the NodeController that serves it; admission policies recognize hollow Nodes by it. Of the Lease
/// of a hollow Node: the same, so that Lease renewals cost no policy evaluation. By the NodeSetController; on a Node
/// created by hand, by the NodeController; on a Lease, by the operator or worker that runs the machine.
pub const LABEL_NODE_CONTROLLER: &str = "kube-node.io/node-controller";
/// Label of a Node: the group of workers that runs its hollow machine; absent if the operator does. Of the
/// Lease of a worker: its group. By the NodeSetController; on a Node created by hand, by the NodeController;
/// on a Lease, by its worker.
pub const LABEL_HOLLOW_HOSTS: &str = "kube-node.io/hollow-hosts";
/// Label of a Node: the load of its hollow machine on the API server (`hollow.load` of its class); absent for
/// `Shared`. By the NodeSetController; on a Node created by hand, by the NodeController.
pub const LABEL_HOLLOW_LOAD: &str = "kube-node.io/hollow-load";
/// Label of a machine's pod: UID of the cluster of its Node, which is the UID of that cluster's namespace
/// kube-system. By the provider kubemark.
pub const LABEL_CLUSTER: &str = "kube-node.io/cluster";
/// Label of a machine's pod: UID of its Node. By the provider kubemark.
pub const LABEL_NODE_UID: &str = "kube-node.io/node-uid";
/// Label of a Secret in the operator's namespace: `true` allows classes to put its values into files of machines. By you.
pub const LABEL_MACHINE_FILE: &str = "kube-node.io/machine-file";
/// Annotation of a machine's pod: name of its Node. By the provider kubemark.
pub const ANNOTATION_NODE: &str = "kube-node.io/node";
/// Annotation of a machine's pod: the machine's specification, for its hollow kubelet. By the provider kubemark.
pub const ANNOTATION_MACHINE: &str = "kube-node.io/machine";
/// Annotation of a machine's pod: settings that may change while the machine lives. By the provider kubemark.
pub const ANNOTATION_SETTINGS: &str = "kube-node.io/settings";
/// Field manager of all writes of the operator.
pub const FIELD_MANAGER: &str = "kube-node";
/// Annotation of a Node: this Node goes first when its set shrinks. By you.
pub const ANNOTATION_DELETE_FIRST: &str = "kube-node.io/delete-first";
/// Annotation of a Node: the labels, annotations and taints that came from templates, so that only those are
/// removed. By the NodeSetController; on a Node created by hand, by the NodeController.
pub const ANNOTATION_APPLIED: &str = "kube-node.io/applied-template";
/// Annotation of a Node: the startup taints that it waits for, each as `key:effect`, separated by commas. A Node without it
/// is initialized once `kube-node.io/uninitialized` is gone, whatever taints come later. By the NodeSetController at the
/// creation; removed by it or the NodeController once the taints are gone.
pub const ANNOTATION_STARTUP_TAINTS: &str = "kube-node.io/startup-taints";
/// Annotation of a NodeSet: Nodes created before this time (RFC 3339) are replaced, as in a rollout, once the time has
/// come. By `kube-node rollout restart`.
pub const ANNOTATION_RESTARTED_AT: &str = "kube-node.io/restarted-at";
/// Annotation of a NodeSet: a rollout that halted itself before this time (RFC 3339) continues, once the time has come. By
/// `kube-node rollout resume`.
pub const ANNOTATION_RESUMED_AT: &str = "kube-node.io/resumed-at";
/// Annotation of a Node: no repair replaces it, unless the value is `false`. By you.
pub const ANNOTATION_SKIP_REMEDIATION: &str = "kube-node.io/skip-remediation";
/// Annotation of a pod: no drain evicts it, unless the value is `false`. By you.
pub const ANNOTATION_DO_NOT_EVICT: &str = "kube-node.io/do-not-evict";
/// Annotation of a Node that leaves: start of its drain (RFC 3339). By the NodeController.
pub const ANNOTATION_DRAIN_STARTED: &str = "kube-node.io/drain-started";
/// Default namespace of the operator, its service accounts and the revisions.
pub const OPERATOR_NAMESPACE: &str = "kube-node-system";
/// ServiceAccount of the operator. Its annotations are the parameters of the admission policies.
pub const OPERATOR_SERVICE_ACCOUNT: &str = "kube-node-operator";
/// Annotation of the operator's ServiceAccount: names of all present and past NodeSets, each between spaces;
/// no kubelet may create a Node of one of them. By the operator.
pub const ANNOTATION_NODESETS: &str = "kube-node.io/nodesets";
/// Annotation of the operator's ServiceAccount: names of the Nodes that are not hollow, each between spaces;
/// hollow kubelets may not write their pods and Leases. By the operator.
pub const ANNOTATION_NODES_NOT_HOLLOW: &str = "kube-node.io/nodes-not-hollow";
/// Lease of the operators' leader election, in the operator's namespace.
pub const OPERATOR_LEASE: &str = "kube-node-operator";
/// Name in cluster-autoscaler's client certificate, as `up` and the chart issue it; the autoscaler server
/// admits this name.
pub const AUTOSCALER_CLIENT: &str = "cluster-autoscaler";
/// Default namespace of kubemark machines, and of the accounts that machines start with.
pub const MACHINE_NAMESPACE: &str = "kubemark";
/// ServiceAccount of kubemark machines; it may only request certificates.
pub const MACHINE_SERVICE_ACCOUNT: &str = "kube-node-machine";
/// ServiceAccount of hollow machines with a dedicated identity; it may only request certificates.
pub const HOLLOW_MACHINE_SERVICE_ACCOUNT: &str = "kube-node-hollow-machine";
/// Finalizer of a Node: its machine may still exist. By the NodeSetController; on a Node created by hand, by
/// the NodeController, which removes it from all.
pub const FINALIZER_MACHINE: &str = "kube-node.io/machine";
/// Finalizer of a NodeSet: Nodes of it may still exist. By the NodeSetController.
pub const FINALIZER_NODES: &str = "kube-node.io/nodes";
/// Finalizer of a NodeClass: Nodes or NodeSets still need it. Of a credentials Secret: a NodeClass still
/// needs it. By the operator.
pub const FINALIZER_IN_USE: &str = "kube-node.io/in-use";
/// Taint of a Node: the Node is not initialized yet. By the NodeSetController; on a Node created by hand, by
/// the NodeController, which removes it from all.
pub const TAINT_UNINITIALIZED: &str = "kube-node.io/uninitialized";
/// Annotation of a NodeSet: UIDs of the victims, separated by commas, that scale requests named when they
/// lowered the replicas. By the autoscaler server; cleared by the NodeSetController.
pub const ANNOTATION_VICTIMS: &str = "kube-node.io/victims";
/// Annotation of a NodeSet: changed to settle a write whose outcome is unknown; the value has no meaning. By
/// the autoscaler server.
pub const ANNOTATION_FENCE: &str = "kube-node.io/fence";
/// Annotation of a Node: cluster-autoscaler does not remove it. By the NodeSetController, or you.
pub const ANNOTATION_SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Taint of a Node: cluster-autoscaler is about to remove it (utils/taints in its source). By cluster-autoscaler.
pub const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Taint of a Node on which nothing runs any more: kube-controller-manager deletes its pods by force and
/// detaches their volumes at once. By the NodeController.
pub const TAINT_OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Condition of a Node: False with the reason while its machine has a problem; written only after a problem
/// has occurred. By the NodeController.
pub const CONDITION_MACHINE: &str = "kube-node.io/Machine";
/// Condition of a Node that leaves: False with the reason while its drain is delayed; True once that is over.
/// By the NodeController.
pub const CONDITION_DRAINED: &str = "kube-node.io/Drained";
/// Prefix of all annotations that control the containers of a pod on a hollow Node: all its regular
/// containers, or, with a dot and its name at the end, one container.
pub const HOLLOW_PREFIX: &str = "hollow.kube-node.io/";
/// Annotation of a pod on a hollow Node: time to pull the image of a container and to create the container,
/// for example 5s. By you.
pub const ANNOTATION_START_TIME: &str = "hollow.kube-node.io/start-time";
/// Annotation of a pod on a hollow Node: message of the error that pulling the image of a container returns. By you.
pub const ANNOTATION_IMAGE_ERROR: &str = "hollow.kube-node.io/image-error";
/// Annotation of a pod on a hollow Node: message of the error that starting a container returns. By you.
pub const ANNOTATION_START_ERROR: &str = "hollow.kube-node.io/start-error";
/// Annotation of a pod on a hollow Node: time from a container's start until it is ready, for example 5s, or
/// `never`. By you.
pub const ANNOTATION_READY_TIME: &str = "hollow.kube-node.io/ready-time";
/// Annotation of a pod on a hollow Node: time from a container's start until it ends, for example 5s. By you.
pub const ANNOTATION_RUN_TIME: &str = "hollow.kube-node.io/run-time";
/// Annotation of a pod on a hollow Node: exit code of a container, 0 to 255. By you.
pub const ANNOTATION_EXIT_CODE: &str = "hollow.kube-node.io/exit-code";
/// Annotation of a pod on a hollow Node: reason of a container's end, for example `OOMKilled`. By you.
pub const ANNOTATION_EXIT_REASON: &str = "hollow.kube-node.io/exit-reason";
/// Annotation of a pod on a hollow Node: time that a container takes to stop, for example 5s. By you.
pub const ANNOTATION_STOP_TIME: &str = "hollow.kube-node.io/stop-time";
/// Annotation of a pod on a hollow Node: a line of a container's log. By you.
pub const ANNOTATION_LOG_LINE: &str = "hollow.kube-node.io/log-line";
/// Annotation of a pod on a hollow Node: time between two lines of a container's log, for example 5s. By you.
pub const ANNOTATION_LOG_INTERVAL: &str = "hollow.kube-node.io/log-interval";
/// Annotation of a pod on a hollow Node: CPU that a container uses, for example 10m. By you.
pub const ANNOTATION_CPU: &str = "hollow.kube-node.io/cpu";
/// Annotation of a pod on a hollow Node: memory that a container uses, for example 50Mi. By you.
pub const ANNOTATION_MEMORY: &str = "hollow.kube-node.io/memory";
/// Annotation of a pod on a hollow Node: exit code, 0 to 255, of commands in a container that the hollow
/// kubelet does not know. By you.
pub const ANNOTATION_EXEC_EXIT_CODE: &str = "hollow.kube-node.io/exec-exit-code";

/// Annotation of a Namespace that did not exist before kube-node was installed: `kube-node cleanup` deletes it. By `kube-node
/// setup` and `kube-node up`.
pub const ANNOTATION_CREATED: &str = "kube-node.io/created";

/// File name of the machine program, beside `kube-node` and at the root of the image.
pub const MACHINE_PROGRAM: &str = "kube-node-machine";
