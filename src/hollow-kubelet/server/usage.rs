//! Simulated resource usage of machines and pods, from the pods' scripts, their status and the time.
//!
//! CPU time grows at a constant rate, memory is constant, and no value is zero, which readers would take for
//! «unknown». A pod's CPU counter is a rate times an age, so it continues after a restart of this process; a
//! machine's is kept in memory, and starts anew.

use jiff::Timestamp;
use kube_node_api::{ContainerDefaults, Resources, quantity};
use kube_node_cache::PodView;

use crate::{
    cpu_counter::core_nanos,
    pod::{
        output::{Output, Run, containers},
        script::Role,
    },
};

/// Share of its capacity that a machine uses itself: one part in this many.
const OWN_SHARE: i128 = 20;

/// Resource usage, and the start of its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Start of the count.
    pub since: Timestamp,
    /// CPU usage, in billionths of a core.
    pub nano_cores: u64,
    /// Memory usage, in bytes.
    pub memory: u64,
}

impl Usage {
    /// CPU time until `now`, in nanoseconds of one core; never zero.
    pub fn core_nanos(&self, now: Timestamp) -> u64 {
        core_nanos(self.nano_cores, self.since, now).max(1)
    }
}

/// Resource usage of a pod and of its running containers.
pub struct PodUsage<'a> {
    /// The pod.
    pub pod: &'a PodView,
    /// Usage of the whole pod.
    pub whole: Usage,
    /// Running containers, by name.
    pub containers: Vec<(&'a str, Usage)>,
}

/// Resource usage of a pod; None if no container runs.
pub fn of_pod<'a>(pod: &'a PodView, defaults: &ContainerDefaults) -> Option<PodUsage<'a>> {
    let running = containers(pod).filter_map(|found| {
        let run = Run::current(found.view?)?;
        let Output { nano_cores, memory, .. } = Output::of(&pod.spec, found.spec, found.role, defaults);
        Some((&*found.spec.name, Usage { since: run.began, nano_cores, memory }))
    });
    let running: Vec<_> = running.collect();
    let first = running.iter().map(|(_, usage)| usage.since).min()?;
    // CPU of all containers, running or not, since the start of the pod: otherwise the counter would drop
    // when a container ends.
    let all = containers(pod).filter(|found| found.role != Role::Init);
    let rates = all.map(|found| Output::of(&pod.spec, found.spec, found.role, defaults).nano_cores);
    let whole = Usage {
        since: pod.status.start_time.unwrap_or(first),
        nano_cores: rates.fold(0, u64::saturating_add).max(1),
        memory: running.iter().fold(0, |sum: u64, (_, usage)| sum.saturating_add(usage.memory)),
    };
    Some(PodUsage { pod, whole, containers: running })
}

/// Resource usage of a machine: a share of its capacity, plus the usage of its pods.
pub fn of_machine(capacity: &Resources, booted: Timestamp, pods: &[PodUsage<'_>]) -> Usage {
    let share =
        |name, unit: i128| u64::try_from(nanos(capacity, name) / OWN_SHARE / unit).unwrap_or(u64::MAX).max(1);
    let with_pods = |base: u64, of: fn(&Usage) -> u64| {
        pods.iter().map(|pod| of(&pod.whole)).fold(base, u64::saturating_add)
    };
    Usage {
        since: booted,
        nano_cores: with_pods(share("cpu", 1), |usage| usage.nano_cores),
        memory: with_pods(share("memory", 1_000_000_000), |usage| usage.memory),
    }
}

/// Memory capacity of a machine, in bytes.
pub fn memory_capacity(capacity: &Resources) -> u64 {
    u64::try_from(nanos(capacity, "memory") / 1_000_000_000).unwrap_or_default()
}

/// Capacity of a resource, in billionths of its unit.
fn nanos(capacity: &Resources, name: &str) -> i128 {
    capacity.get(name).and_then(|amount| quantity::nanos(amount).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;
    use kube_node_cache::{Container, ContainerState, ContainerView, PodSpecView, PodStatus, Terminated};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(state: ContainerState) -> PodView {
        let container = |name: &str| Container { name: name.into(), ..Container::default() };
        let view = |name: &str, state| ContainerView {
            name: name.into(),
            ready: true,
            started: true,
            restarts: 0,
            image: "docker.io/library/i:latest".into(),
            crashes: 0,
            state,
            last: None,
        };
        let spec = PodSpecView {
            containers: [container("a"), container("b")].into(),
            init_containers: [container("init")].into(),
            hollow_annotations: [("hollow.kube-node.io/cpu".into(), "250m".into())].into(),
            ..PodSpecView::default()
        };
        let status = PodStatus {
            start_time: Some(at(100)),
            containers: [view("a", state), view("b", ContainerState::Running { since: Some(at(160)) })]
                .into(),
            ..PodStatus::default()
        };
        PodView { spec: Arc::new(spec), status, ..PodView::default() }
    }

    #[test]
    fn a_pod_counts_from_its_start_on_whatever_its_containers_do() {
        let none = ContainerDefaults::default();
        let running = pod(ContainerState::Running { since: Some(at(110)) });
        let ended = pod(ContainerState::Terminated(Terminated::default()));
        let (running, ended) = (of_pod(&running, &none).unwrap(), of_pod(&ended, &none).unwrap());
        assert_eq!((running.containers.len(), ended.containers.len()), (2, 1));
        assert_eq!(running.containers[1].1.core_nanos(at(170)), 2_500_000_000);
        assert_eq!(running.whole.core_nanos(at(200)), 50_000_000_000);
        assert_eq!(running.whole.core_nanos(at(200)), ended.whole.core_nanos(at(200)));
        assert!(ended.whole.memory < running.whole.memory && ended.whole.memory > 0);
        assert_eq!(running.whole.core_nanos(at(1)), 1, "never zero, whatever the clock says");
    }

    #[test]
    fn a_machine_uses_what_its_pods_use_and_never_counts_back_when_they_leave() {
        let capacity: Resources = [("cpu", "4"), ("memory", "1Gi")]
            .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
            .into();
        let here = pod(ContainerState::Running { since: Some(at(110)) });
        let with = of_machine(&capacity, at(50), &[of_pod(&here, &ContainerDefaults::default()).unwrap()]);
        let without = of_machine(&capacity, at(50), &[]);
        assert_eq!((with.nano_cores, without.nano_cores), (700_000_000, 200_000_000));
        assert!(with.memory > without.memory && without.memory > 0);
        let bare = of_machine(&Resources::new(), at(50), &[]);
        assert!(bare.nano_cores > 0 && bare.memory > 0);

        let mut counter = crate::cpu_counter::CpuCounter::new(at(40));
        let mut read = |usage: &Usage, now| counter.read(usage.nano_cores, at(50), at(now));
        assert_eq!([read(&with, 60), read(&without, 70)], [7_000_000_000, 9_000_000_000]);
        assert_eq!(read(&with, 65), 9_000_000_000, "the clock went back");
        assert_eq!(counter.read(1, at(80), at(80)), 1, "it rebooted");
    }
}
