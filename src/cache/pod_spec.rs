//! What is kept of a pod's spec: what a kubelet goes by. Pods of one template have the same, which is kept once.

use std::{cmp::Ordering, time::Duration};

use super::{InternedStr, ResourceList};

/// The spec of a pod, pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpecView {
    /// Containers, in their order.
    pub containers: Box<[Container]>,
    /// Init containers, in their order.
    pub init_containers: Box<[Container]>,
    /// What happens when a container ends.
    pub restart_policy: RestartPolicy,
    /// Whether it has the address of its Node.
    pub host_network: bool,
    /// Conditions of others without which it is not Ready.
    pub readiness_gates: Box<[Box<str>]>,
    /// How long it may be active.
    pub active_deadline: Option<Duration>,
    /// How long it may take to stop.
    pub grace: Duration,
    /// The operating system that it is for.
    pub os: Option<Box<str>>,
    /// What it requests of its Node.
    pub requests: ResourceList,
    /// What it is limited to, where its containers are.
    pub limits: ResourceList,
    /// Labels that its Node is to have.
    pub node_selector: Box<[(Box<str>, Box<str>)]>,
    /// Terms of which its Node is to match one; None for no such wish.
    pub node_terms: Option<Box<[NodeTerm]>>,
    /// Which taints it tolerates.
    pub tolerations: Box<[Toleration]>,
    /// Annotations under [`kube_node_api::names::HOLLOW_PREFIX`]: what its hollow containers do.
    pub told: Box<[(Box<str>, Box<str>)]>,
}

/// A container as the spec has it, pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Container {
    /// Name.
    pub name: InternedStr,
    /// Image.
    pub image: Box<str>,
    /// `restartPolicy` of its own: `Always` makes an init container a sidecar.
    pub restart_policy: Option<RestartPolicy>,
    /// What it requests and what it is limited to, as it was written.
    pub resources: ContainerResources,
    /// Its startup probe.
    pub startup: Option<Probe>,
    /// Its readiness probe.
    pub readiness: Option<Probe>,
    /// How long its `preStop` hook sleeps; zero for hooks of other kinds.
    pub pre_stop: Duration,
    /// The volumes that it sees.
    pub mounts: Box<[Mount]>,
}

/// How the volume of a pod's token is called, up to a suffix that each pod has of its own: see [`super::PodView::token`].
pub const TOKEN_VOLUME: &str = "kube-api-access-";

/// A volume that a container sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mount {
    /// The volume; [`TOKEN_VOLUME`] for that of the pod's token.
    pub volume: Box<str>,
    /// Where it sees it.
    pub path: Box<str>,
    /// Whether it only reads it.
    pub read_only: bool,
    /// Whether it only reads what is mounted below it, too.
    pub recursive: bool,
}

impl Container {
    /// Whether it is one of its own, as an init container: it runs beside the others.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}

/// What a container requests and what it is limited to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContainerResources {
    /// Requests, by name.
    pub requests: Box<[(Box<str>, Box<str>)]>,
    /// Limits, by name.
    pub limits: Box<[(Box<str>, Box<str>)]>,
}

/// The times of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Seconds from the start of its container to the first try.
    pub initial_delay_seconds: u32,
    /// Seconds between two tries.
    pub period_seconds: u32,
    /// Successes in a row that count as one.
    pub success_threshold: u32,
}

impl Default for Probe {
    fn default() -> Self {
        Self { initial_delay_seconds: 0, period_seconds: 10, success_threshold: 1 }
    }
}

impl Probe {
    /// How long after its first try a container passes that always succeeds.
    #[must_use]
    pub fn passes_after(self) -> Duration {
        let further = self.success_threshold.saturating_sub(1);
        Duration::from_secs(u64::from(self.period_seconds) * u64::from(further))
    }

    /// How long after the start of its container it is first tried.
    #[must_use]
    pub fn begins_after(self) -> Duration {
        Duration::from_secs(self.initial_delay_seconds.into())
    }
}

/// What happens when a container ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RestartPolicy {
    /// It starts again.
    #[default]
    Always,
    /// It starts again after a failure.
    OnFailure,
    /// It stays as it is.
    Never,
}

impl RestartPolicy {
    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// One of the terms of which a Node has to match one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    /// Whether it can match at all: it says something, and the name of its Node is one that it wants.
    pub possible: bool,
    /// What it asks of labels.
    pub labels: Box<[Requirement]>,
}

/// What is asked of one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The label.
    pub key: Box<str>,
    /// How its value is compared.
    pub operator: Operator,
    /// With what.
    pub values: Box<[Box<str>]>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// It has one of the values.
    In,
    /// It has none of them, or there is no such label.
    NotIn,
    /// There is such a label.
    Exists,
    /// There is no such label.
    DoesNotExist,
    /// It is a greater number.
    Gt,
    /// It is a smaller number.
    Lt,
}

impl Operator {
    /// The one of this name.
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

/// Which taints a pod tolerates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Those of this key; empty for any.
    pub key: Box<str>,
    /// `Exists` for any value, `Equal` or empty for this one.
    pub operator: Box<str>,
    /// That value.
    pub value: Box<str>,
    /// Those of this effect; empty for any.
    pub effect: Box<str>,
}

impl Requirement {
    /// Whether a label has the value that is asked for; None where there is no such label.
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
