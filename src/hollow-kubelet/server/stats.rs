//! Resource usage of machines and pods in a kubelet's formats: `/stats/summary` (JSON), `/metrics/resource`
//! and some of `/metrics` (Prometheus text), with the names of kubelet 1.36.

use std::fmt::{Display, Write};

use jiff::Timestamp;
use kube_node_cache::PodView;
use serde_json::{Value, json};

use super::usage::{PodUsage, Usage};
use crate::clock::to_seconds;

/// Resource usage of a machine and its pods at one time.
pub struct Stats<'a> {
    /// Name of the Node.
    pub node: &'a str,
    /// Usage of the machine.
    pub usage: Usage,
    /// CPU time used by the machine, in nanoseconds of one core.
    pub cpu_nanos: u64,
    /// Memory capacity of the machine, in bytes.
    pub memory: u64,
    /// Running pods of the machine.
    pub pods: &'a [PodUsage<'a>],
    /// Time of the readings.
    pub now: Timestamp,
}

/// A sample: its labels, its usage, and the CPU time used.
type Sample<'a> = (String, &'a Usage, u64);

impl<'a> Stats<'a> {
    /// Body of `/stats/summary`.
    pub fn summary(&self) -> Value {
        let pods = self.pods.iter().map(|PodUsage { pod, whole, containers }| {
            let containers = containers.iter().map(|(name, usage)| {
                let mut stats = self.usage_of(usage, usage.core_nanos(self.now));
                stats["name"] = json!(name);
                stats
            });
            let mut stats = self.usage_of(whole, whole.core_nanos(self.now));
            let PodView { name, namespace, uid, .. } = pod;
            stats["podRef"] = json!({ "name": **name, "namespace": **namespace, "uid": **uid });
            stats["containers"] = containers.collect();
            stats
        });
        let mut node = self.usage_of(&self.usage, self.cpu_nanos);
        node["nodeName"] = json!(self.node);
        node["memory"]["availableBytes"] = json!(self.memory.saturating_sub(self.usage.memory));
        json!({ "node": node, "pods": pods.collect::<Vec<_>>() })
    }

    fn usage_of(&self, usage: &Usage, cpu_nanos: u64) -> Value {
        let now = to_seconds(self.now);
        json!({
            "startTime": to_seconds(usage.since),
            "cpu": { "time": now, "usageNanoCores": usage.nano_cores, "usageCoreNanoSeconds": cpu_nanos },
            "memory": {
                "time": now,
                "usageBytes": usage.memory, "workingSetBytes": usage.memory, "rssBytes": usage.memory,
                "pageFaults": 0, "majorPageFaults": 0,
            },
        })
    }

    /// Body of `/metrics`: only metrics of the machine, not those of the process that carries all machines.
    pub fn kubelet(&self) -> String {
        let mut text = String::with_capacity(1_024);
        let mut gauge = |name, help, labels: &str, value| {
            family(&mut text, (name, "gauge"), help, [(labels, value)]);
        };
        let help = "[ALPHA] The node's name. The count is always 1.";
        gauge("kubelet_node_name", help, &format!("{{node=\"{}\"}}", self.node), 1);
        let help = "[ALPHA] Number of containers currently running";
        let containers = self.pods.iter().map(|pod| pod.containers.len()).sum();
        gauge("kubelet_running_containers", help, "{container_state=\"running\"}", containers);
        let help = "[ALPHA] Number of pods that have a running pod sandbox";
        gauge("kubelet_running_pods", help, "", self.pods.len());
        text
    }

    /// Body of `/metrics/resource`. Measured values have a time, as a kubelet's do.
    pub fn resources(&self) -> String {
        let with_cpu = |labels, usage: &'a Usage| (labels, usage, usage.core_nanos(self.now));
        let containers: Vec<Sample<'_>> = self
            .pods
            .iter()
            .flat_map(|pod| pod.containers.iter().map(move |container| (pod.pod, container)))
            .map(|(pod, (name, usage))| with_cpu(labels_of(pod, Some(name)), usage))
            .collect();
        let pods = self.pods.iter().map(|pod| with_cpu(labels_of(pod.pod, None), &pod.whole)).collect();
        let node = vec![(String::new(), &self.usage, self.cpu_nanos)];
        let millis = self.now.as_millisecond();
        let mut text = String::with_capacity(1_024 + 512 * self.pods.len());
        for (kind, samples) in [("container", &containers), ("node", &node), ("pod", &pods)] {
            let cpu = samples.iter().map(|(labels, _, nanos)| {
                (labels, format!("{}.{:09} {millis}", nanos / 1_000_000_000, nanos % 1_000_000_000))
            });
            let name = format!("{kind}_cpu_usage_seconds_total");
            let help = format!("[STABLE] Cumulative cpu time consumed by the {kind} in core-seconds");
            family(&mut text, (&name, "counter"), &help, cpu);
            let memory =
                samples.iter().map(|(labels, usage, _)| (labels, format!("{} {millis}", usage.memory)));
            let name = format!("{kind}_memory_working_set_bytes");
            let help = format!("[STABLE] Current working set of the {kind} in bytes");
            family(&mut text, (&name, "gauge"), &help, memory);
        }
        let started = containers.iter().map(|(labels, usage, _)| {
            (labels, format!("{}.{:09}", usage.since.as_second(), usage.since.subsec_nanosecond()))
        });
        let help = "[STABLE] Start time of the container since unix epoch in seconds";
        family(&mut text, ("container_start_time_seconds", "gauge"), help, started);
        for (name, stability) in
            [("resource_scrape_error", "[STABLE]"), ("scrape_error", "[ALPHA] (Deprecated since 1.29.0)")]
        {
            let help =
                format!("{stability} 1 if there was an error while getting container metrics, 0 otherwise");
            family(&mut text, (name, "gauge"), &help, [("", 0)]);
        }
        text
    }
}

/// Writes a metric family in Prometheus' text format; nothing for one without samples. The crate `prometheus`
/// would write its values as floating-point numbers, which have too few digits for these.
fn family(
    text: &mut String,
    (name, kind): (&str, &str),
    help: &str,
    samples: impl IntoIterator<Item = (impl Display, impl Display)>,
) {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_none() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

/// Labels of a pod or a container. Object names need no escapes.
fn labels_of(pod: &PodView, container: Option<&str>) -> String {
    let container = container.map(|name| format!("container=\"{name}\",")).unwrap_or_default();
    format!("{{{container}namespace=\"{}\",pod=\"{}\"}}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod() -> PodView {
        PodView { name: "web".into(), namespace: "default".into(), uid: "u".into(), ..PodView::default() }
    }

    fn shown<T>(read: impl FnOnce(&Stats<'_>) -> T) -> T {
        let usage = |nano_cores| Usage { since: at(100), nano_cores, memory: 7 };
        let pod = pod();
        let pods =
            [PodUsage { pod: &pod, whole: usage(2_000_000), containers: vec![("main", usage(1_000_000))] }];
        let usage = usage(500_000_000);
        read(&Stats { node: "n", usage, cpu_nanos: 50_000_000_000, memory: 100, pods: &pods, now: at(200) })
    }

    #[test]
    fn metrics_are_named_as_a_kubelet_names_them() {
        let text = shown(|stats| format!("{}\n", stats.resources()));
        for line in [
            "# TYPE node_cpu_usage_seconds_total counter",
            "node_cpu_usage_seconds_total 50.000000000 200000",
            "node_memory_working_set_bytes 7 200000",
            "container_cpu_usage_seconds_total{container=\"main\",namespace=\"default\",pod=\"web\"} 0.100000000 200000",
            "container_start_time_seconds{container=\"main\",namespace=\"default\",pod=\"web\"} 100.000000000",
            "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web\"} 0.200000000 200000",
            "pod_memory_working_set_bytes{namespace=\"default\",pod=\"web\"} 7 200000",
            "scrape_error 0",
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
        let bare = Stats {
            node: "n",
            usage: Usage { since: at(1), nano_cores: 1, memory: 1 },
            cpu_nanos: 1,
            memory: 1,
            pods: &[],
            now: at(2),
        };
        assert!(!bare.resources().contains("container_"), "a family without samples is not written");
    }

    #[test]
    fn a_kubelets_own_metrics_are_those_of_its_machine() {
        let text = shown(|stats| [stats.kubelet()]).concat();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "kubelet_node_name{node=\"n\"} 1",
            "kubelet_running_containers{container_state=\"running\"} 1",
            "kubelet_running_pods 1",
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn a_summary_has_what_readers_read() {
        let summary = &shown(|stats| json!([stats.summary()]))[0];
        assert_eq!(summary["node"]["cpu"]["usageCoreNanoSeconds"], 50_000_000_000_u64);
        assert_eq!(summary["node"]["memory"]["availableBytes"], 93);
        let pod = &summary["pods"][0];
        assert_eq!(pod["podRef"], json!({"name": "web", "namespace": "default", "uid": "u"}));
        assert_eq!(pod["containers"][0]["cpu"]["usageNanoCores"], 1_000_000);
        assert_eq!(pod["containers"][0]["startTime"], "1970-01-01T00:01:40Z");
    }
}
