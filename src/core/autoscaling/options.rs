//! What a set wishes of cluster-autoscaler: its own values where it has any, else those that it is offered.

use std::{collections::BTreeMap, time::Duration};

use crate::api::GoDuration;

/// Options of a group, by cluster-autoscaler's names; None is left as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// Use of a Node below which it may go.
    pub scale_down_utilization_threshold: Option<f64>,
    /// The same of its GPUs.
    pub scale_down_gpu_utilization_threshold: Option<f64>,
    /// How long a Node is not needed before it goes.
    pub scale_down_unneeded_time: Option<Duration>,
    /// The same of one that is not Ready.
    pub scale_down_unready_time: Option<Duration>,
    /// How long a machine may take to come.
    pub max_node_provision_time: Option<Duration>,
    /// How long a Node may take to become Ready.
    pub max_node_startup_time: Option<Duration>,
    /// All or none.
    pub zero_or_max_node_scaling: Option<bool>,
    /// Whether the pods of `DaemonSets` count as use.
    pub ignore_daemon_sets_utilization: Option<bool>,
    /// Whether a part of «all» is kept.
    pub allow_non_atomic_scale_up_to_max: Option<bool>,
}

impl Wishes {
    /// What the set says. The schema has checked names and forms; what does not fit is left out.
    #[must_use]
    pub fn of(said: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| said.get(name).map(String::as_str);
        let share = |name: &str| text(name)?.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        let span = |name: &str| text(name)?.parse().ok().map(|GoDuration(span)| span);
        let switch = |name: &str| text(name)?.parse().ok();
        Self {
            scale_down_utilization_threshold: share("scaleDownUtilizationThreshold"),
            scale_down_gpu_utilization_threshold: share("scaleDownGpuUtilizationThreshold"),
            scale_down_unneeded_time: span("scaleDownUnneededTime"),
            scale_down_unready_time: span("scaleDownUnreadyTime"),
            max_node_provision_time: span("maxNodeProvisionTime"),
            max_node_startup_time: span("maxNodeStartupTime"),
            zero_or_max_node_scaling: switch("zeroOrMaxNodeScaling"),
            ignore_daemon_sets_utilization: switch("ignoreDaemonSetsUtilization"),
            allow_non_atomic_scale_up_to_max: switch("allowNonAtomicScaleUpToMax"),
        }
    }
}
