//! Cached form of a pod's spec: the fields that a kubelet reads. Pods of one template share one interned
//! spec.

use std::{cmp::Ordering, time::Duration};

use super::{InternedStr, ResourceList};

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
    pub node_terms: Option<Box<[NodeTerm]>>,
    /// Tolerations.
    pub tolerations: Box<[Toleration]>,
    /// Annotations under [`kube_node_api::names::HOLLOW_PREFIX`], which set the behaviour of hollow
    /// containers.
    pub told: Box<[(Box<str>, Box<str>)]>,
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
    pub mounts: Box<[Mount]>,
}

/// Prefix of the token volume's name, which ends differently in each pod: see [`super::PodView::token`].
pub const TOKEN_VOLUME: &str = "kube-api-access-";

/// Volume mount of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mount {
    /// Name of the volume; [`TOKEN_VOLUME`] for the token volume.
    pub volume: Box<str>,
    /// Mount path.
    pub path: Box<str>,
    /// True for a read-only mount.
    pub read_only: bool,
    /// True if mounts below it are read-only, too.
    pub recursive: bool,
}

impl Container {
    /// Returns true if this init container is a sidecar, which runs beside the others.
    #[must_use]
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

/// Times of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Seconds from the start of the container to the first try.
    pub initial_delay_seconds: u32,
    /// Seconds between two tries.
    pub period_seconds: u32,
    /// Successes in a row that make the probe pass.
    pub success_threshold: u32,
}

impl Default for Probe {
    fn default() -> Self {
        Self { initial_delay_seconds: 0, period_seconds: 10, success_threshold: 1 }
    }
}

impl Probe {
    /// Time from the first try until a container passes that always succeeds.
    #[must_use]
    pub fn passes_after(self) -> Duration {
        let further = self.success_threshold.saturating_sub(1);
        Duration::from_secs(u64::from(self.period_seconds) * u64::from(further))
    }

    /// Time from the start of the container to the first try.
    #[must_use]
    pub fn begins_after(self) -> Duration {
        Duration::from_secs(self.initial_delay_seconds.into())
    }
}

/// Action at the end of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RestartPolicy {
    /// Start the container again.
    #[default]
    Always,
    /// Start the container again after a failure.
    OnFailure,
    /// Leave the container as it is.
    Never,
}

impl RestartPolicy {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// Node affinity term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    /// False if the term matches no Node: it is empty, has an unknown operator, or excludes the name of the
    /// pod's Node.
    pub possible: bool,
    /// Requirements on labels.
    pub labels: Box<[Requirement]>,
}

/// Requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// Key of the label.
    pub key: Box<str>,
    /// Comparison with `values`.
    pub operator: Operator,
    /// Values to compare with.
    pub values: Box<[Box<str>]>,
}

/// Comparison of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or does not exist.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
    /// The label is a greater number.
    Gt,
    /// The label is a smaller number.
    Lt,
}

impl Operator {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "In" => Some(Self::In),
            "NotIn" => Some(Self::NotIn),
            "Exists" => Some(Self::Exists),
            "DoesNotExist" => Some(Self::DoesNotExist),
            "Gt" => Some(Self::Gt),
            "Lt" => Some(Self::Lt),
            _ => None,
        }
    }
}

/// Toleration of taints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Key of the taint; empty for any.
    pub key: Box<str>,
    /// `Exists` for any value; `Equal` or empty for `value` only.
    pub operator: Box<str>,
    /// Value of the taint.
    pub value: Box<str>,
    /// Effect of the taint; empty for any.
    pub effect: Box<str>,
}

impl Requirement {
    /// Returns true if the label's value matches; None stands for a missing label.
    #[must_use]
    pub fn matches(&self, value: Option<&str>) -> bool {
        let is_one = |value: &str| self.values.iter().any(|own| **own == *value);
        let order = |value: &str| {
            let own: i64 = self.values.first()?.parse().ok()?;
            Some(value.parse::<i64>().ok()?.cmp(&own))
        };
        match self.operator {
            Operator::In => value.is_some_and(is_one),
            Operator::NotIn => !value.is_some_and(is_one),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => value.and_then(order).is_some_and(Ordering::is_gt),
            Operator::Lt => value.and_then(order).is_some_and(Ordering::is_lt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_compared_as_the_scheduler_does() {
        let requirement = |operator, values: &[&str]| Requirement {
            key: "k".into(),
            operator,
            values: values.iter().map(|&value| value.into()).collect(),
        };
        for (operator, values, matches, differs, absent) in [
            (Operator::In, &["a", "b"][..], "b", "c", false),
            (Operator::NotIn, &["a"], "b", "a", true),
            (Operator::Gt, &["4"], "5", "4", false),
            (Operator::Lt, &["4"], "-1", "x", false),
        ] {
            let requirement = requirement(operator, values);
            let found = [Some(matches), Some(differs), None].map(|value| requirement.matches(value));
            assert_eq!(found, [true, false, absent], "{operator:?}");
        }
        assert!(requirement(Operator::Exists, &[]).matches(Some("")));
        assert!(requirement(Operator::DoesNotExist, &[]).matches(None));
    }
}
