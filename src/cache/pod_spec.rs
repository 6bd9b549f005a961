//! Cached form of a pod's spec: the fields that a kubelet reads. Pods of one template share one interned
//! spec.

use std::{cmp::Ordering, time::Duration};

use prost::Message;
use serde::Deserialize;
use strum::EnumString;

use super::{InternedStr, ResourceList, Variable, protobuf::messages};

/// The spec of a pod, pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpecView {
    /// Containers, in order.
    pub containers: Box<[Container]>,
    /// Init containers, in order.
    pub init_containers: Box<[Container]>,
    /// Restart policy.
    pub restart_policy: RestartPolicy,
    /// True if the pod uses the address of its Node.
    pub host_network: bool,
    /// Types of the readiness gates: further conditions that Ready requires.
    pub readiness_gates: Box<[Box<str>]>,
    /// `activeDeadlineSeconds`.
    pub active_deadline: Option<Duration>,
    /// Termination grace period.
    pub grace: Duration,
    /// Operating system that the pod requires.
    pub os: Option<Box<str>>,
    /// Total requests.
    pub requests: ResourceList,
    /// Total limits of the containers that have any.
    pub limits: ResourceList,
    /// Labels that the Node must have.
    pub node_selector: Box<[(Box<str>, Box<str>)]>,
    /// Node affinity terms, one of which must match; None without required node affinity.
    pub node_terms: Option<Box<[NodeSelectorTerm]>>,
    /// Tolerations.
    pub tolerations: Box<[Toleration]>,
    /// Annotations under [`kube_node_api::names::HOLLOW_PREFIX`], which set the behaviour of hollow
    /// containers.
    pub hollow_annotations: Box<[(Box<str>, Box<str>)]>,
}

/// A container of the spec, pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Container {
    /// Name.
    pub name: InternedStr,
    /// Image.
    pub image: Box<str>,
    /// Container-level `restartPolicy`: `Always` makes an init container a sidecar.
    pub restart_policy: Option<RestartPolicy>,
    /// Requests and limits, as written.
    pub resources: ContainerResources,
    /// Startup probe.
    pub startup: Option<Probe>,
    /// Readiness probe.
    pub readiness: Option<Probe>,
    /// Sleep time of the `preStop` hook; zero for hooks of other kinds.
    pub pre_stop: Duration,
    /// Volume mounts.
    pub mounts: Box<[VolumeMount]>,
    /// Variables whose value the pod itself has.
    pub env: Box<[Variable]>,
}

messages! {
    /// Volume mount of a container, pruned.
    pub struct VolumeMount {
        /// Name of the volume; [`super::TOKEN_VOLUME`] for the token volume.
        pub name: String = 1 (string);
        /// True for a read-only mount.
        pub read_only: bool = 2 (bool);
        /// Mount path.
        pub mount_path: String = 3 (string);
        /// `Enabled` or `IfPossible` if mounts below it are read-only, too.
        pub recursive_read_only: String = 7 (string);
    }
}

impl VolumeMount {
    /// Returns true if mounts below a read-only mount are read-only, too.
    pub fn is_recursive(&self) -> bool {
        !matches!(&*self.recursive_read_only, "" | "Disabled")
    }
}

impl Container {
    /// Returns true if this init container is a sidecar, which runs beside the others.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}

/// Requests and limits of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContainerResources {
    /// Requests by resource name.
    pub requests: Box<[(Box<str>, Box<str>)]>,
    /// Limits by resource name.
    pub limits: Box<[(Box<str>, Box<str>)]>,
}

messages! {
    /// Times of a probe. The API server sets defaults, so a field that is zero was not sent.
    #[derive(Copy)]
    pub struct Probe {
        /// Seconds from the start of the container to the first try.
        pub initial_delay_seconds: i32 = 2 (int32);
        /// Seconds between two tries.
        pub period_seconds: i32 = 4 (int32);
        /// Successes in a row that make the probe pass.
        pub success_threshold: i32 = 5 (int32);
    }
}

/// Default of `periodSeconds`.
const PERIOD_SECONDS: u64 = 10;

impl Probe {
    /// Time from the first try until a container passes that always succeeds.
    pub fn passes_after(self) -> Duration {
        let further = u64::from(self.success_threshold.max(1).unsigned_abs()) - 1;
        let period = u64::try_from(self.period_seconds).ok().filter(|period| *period > 0);
        Duration::from_secs(period.unwrap_or(PERIOD_SECONDS) * further)
    }

    /// Time from the start of the container to the first try.
    pub fn begins_after(self) -> Duration {
        Duration::from_secs(self.initial_delay_seconds.max(0).unsigned_abs().into())
    }
}

/// Action at the end of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, EnumString)]
pub enum RestartPolicy {
    /// Start the container again.
    #[default]
    Always,
    /// Start the container again after a failure.
    OnFailure,
    /// Leave the container as it is.
    Never,
}

/// Node affinity term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSelectorTerm {
    /// False if the term matches no Node: it is empty, or excludes the name of the pod's Node.
    pub possible: bool,
    /// Requirements on labels.
    pub labels: Box<[NodeSelectorRequirement]>,
}

messages! {
    /// Requirement on one label.
    pub struct NodeSelectorRequirement {
        /// Key of the label.
        pub key: String = 1 (string);
        /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
        pub operator: String = 2 (string);
        /// Values to compare with.
        pub values: Vec<String> = 3 (string, repeated);
    }

    /// Toleration of taints.
    pub struct Toleration {
        /// Key of the taint; empty for any.
        pub key: String = 1 (string);
        /// `Exists` for any value; `Equal` or empty for `value` only.
        pub operator: String = 2 (string);
        /// Value of the taint.
        pub value: String = 3 (string);
        /// Effect of the taint; empty for any.
        pub effect: String = 4 (string);
    }
}

impl NodeSelectorRequirement {
    /// Returns true if the label's value matches; None stands for a missing label. An unknown operator matches
    /// no value.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let is_one = |value: &str| self.values.iter().any(|own| own == value);
        let order = |value: &str| {
            let own: i64 = self.values.first()?.parse().ok()?;
            Some(value.parse::<i64>().ok()?.cmp(&own))
        };
        match &*self.operator {
            "In" => value.is_some_and(is_one),
            "NotIn" => !value.is_some_and(is_one),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => value.and_then(order).is_some_and(Ordering::is_gt),
            "Lt" => value.and_then(order).is_some_and(Ordering::is_lt),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_compared_as_the_scheduler_does() {
        let requirement = |operator: &str, values: &[&str]| NodeSelectorRequirement {
            key: "k".into(),
            operator: operator.into(),
            values: values.iter().map(|&value| value.into()).collect(),
        };
        for (operator, values, matches, differs, absent) in [
            ("In", &["a", "b"][..], "b", "c", false),
            ("NotIn", &["a"], "b", "a", true),
            ("Gt", &["4"], "5", "4", false),
            ("Lt", &["4"], "-1", "x", false),
        ] {
            let requirement = requirement(operator, values);
            let found = [Some(matches), Some(differs), None].map(|value| requirement.matches(value));
            assert_eq!(found, [true, false, absent], "{operator}");
        }
        assert!(requirement("Exists", &[]).matches(Some("")));
        assert!(requirement("DoesNotExist", &[]).matches(None));
        assert!([None, Some("a")].iter().all(|value| !requirement("Like", &["a"]).matches(*value)));
    }
}
