//! API types: NodeClass, NodeSet, the names of all labels, annotations, taints and finalizers, and the contents of a
//! machine's files. No I/O.

mod architecture;
mod crds;
mod duration;
pub mod generated_name;
pub mod label_map;
pub mod machine_files;
pub mod machine_identity;
pub mod names;
mod node_class;
pub mod node_lease;
mod node_set;
pub mod quantity;
mod schema;
mod shared;
pub mod taints;
pub mod time;

pub use architecture::ARCHITECTURE;
pub use crds::crds;
pub use duration::{GoDuration, ParseDurationError};
pub use node_class::{
    ContainerDefaults, ContainerRuntime, CsiNodeCreation, FailureMode, Failures, FileSource, HollowLoad,
    HollowMachine, KubeletSource, KubemarkMachine, NodeClass, NodeClassLimits, NodeClassSpec,
    NodeClassStatus, PodEvents, ProvisionedFile, Provisioning,
};
pub use node_set::{
    Autoscaling, AutoscalingOptions, ClassOverrides, Drain, NodeSet, NodeSetSpec, NodeSetStatus, Remediation,
    ReplacementOrder, RollingUpdate, RolloutStatus, ScaleDown, ScaleDownOrder, StartFailures, Strategy,
    StrategyType, UnhealthyCondition, UnmanagedPods, WaitStatus,
};
pub use shared::{LocalRef, NodeTemplate, Resources, SecretKeyRef};
