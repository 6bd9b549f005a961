//! Resource usage of machines and pods in a kubelet's formats: `/stats/summary` (JSON), `/metrics/resource`
//! and some of `/metrics` (Prometheus text), with the names of kubelet 1.36.

use std::fmt::Write;

use jiff::Timestamp;
use kube_node_cache::PodView;
use serde_json::{Value, json};

use super::usage::{PodUsage, Usage};

/// Resource usage of a machine and its pods at one time.
#[derive(Debug)]
pub struct Stats<'a> {
    /// Name of the Node.
    pub node: &'a str,
    /// Usage of the machine.
    pub machine: Usage,
    /// CPU time used by the machine, in nanoseconds of one core.
    pub counted: u64,
    /// Memory capacity of the machine, in bytes.
    pub memory: u64,
    /// Running pods of the machine.
    pub pods: &'a [PodUsage<'a>],
    /// Time of the readings.
    pub now: Timestamp,
}

impl Stats<'_> {
    /// Body of `/stats/summary`.
    #[must_use]
    pub fn summary(&self) -> Value {
        let pods = self.pods.iter().map(|PodUsage { pod, whole, containers }| {
            let containers = containers.iter().map(|(name, usage)| {
                json!({
                    "name": name, "startTime": seconds(usage.since),
                    "cpu": self.cpu(usage, usage.core_nanos(self.now)), "memory": self.memory(usage, None),
                })
            });
            let PodView { name, namespace, uid, .. } = pod;
            json!({
                "podRef": { "name": **name, "namespace": **namespace, "uid": **uid },
                "startTime": seconds(whole.since),
                "containers": containers.collect::<Vec<_>>(),
                "cpu": self.cpu(whole, whole.core_nanos(self.now)), "memory": self.memory(whole, None),
            })
        });
        json!({
            "node": {
                "nodeName": self.node,
                "startTime": seconds(self.machine.since),
                "cpu": self.cpu(&self.machine, self.counted),
                "memory": self.memory(&self.machine, Some(self.memory)),
            },
            "pods": pods.collect::<Vec<_>>(),
        })
    }

    fn cpu(&self, usage: &Usage, counted: u64) -> Value {
        json!({
            "time": seconds(self.now),
            "usageNanoCores": usage.nano_cores,
            "usageCoreNanoSeconds": counted,
        })
    }

    fn memory(&self, usage: &Usage, of: Option<u64>) -> Value {
        let mut memory = json!({
            "time": seconds(self.now),
            "usageBytes": usage.memory, "workingSetBytes": usage.memory, "rssBytes": usage.memory,
            "pageFaults": 0, "majorPageFaults": 0,
        });
        if let Some(of) = of {
            memory["availableBytes"] = json!(of.saturating_sub(usage.memory));
        }
        memory
    }

    /// Body of `/metrics`: only metrics of the machine, not those of the process that carries all machines.
    #[must_use]
    pub fn kubelet(&self) -> String {
        let mut text = Text { text: String::with_capacity(1_024), now: self.now };
        let one = |labels: String, value: usize| std::iter::once((labels, value.to_string()));
        text.untimed(
            ("kubelet_node_name", "gauge"),
            "[ALPHA] The node's name. The count is always 1.",
            one(format!("{{node=\"{}\"}}", self.node), 1),
        );
        text.untimed(
            ("kubelet_running_containers", "gauge"),
            "[ALPHA] Number of containers currently running",
            one(
                "{container_state=\"running\"}".to_owned(),
                self.pods.iter().map(|pod| pod.containers.len()).sum(),
            ),
        );
        text.untimed(
            ("kubelet_running_pods", "gauge"),
            "[ALPHA] Number of pods that have a running pod sandbox",
            one(String::new(), self.pods.len()),
        );
        text.text
    }

    /// Body of `/metrics/resource`.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = Text { text: String::with_capacity(1_024 + 512 * self.pods.len()), now: self.now };
        let pods = || self.pods.iter().map(|pod| (labels_of(pod.pod, None), &pod.whole));
        let containers = || {
            let all = self.pods.iter().flat_map(|pod| pod.containers.iter().map(move |one| (pod.pod, one)));
            all.map(|(pod, (name, usage))| (labels_of(pod, Some(name)), usage))
        };
        let cpu = |usage: &Usage| to_seconds(usage.core_nanos(self.now));
        let memory = |usage: &Usage| usage.memory.to_string();
        let started =
            |usage: &Usage| format!("{}.{:09}", usage.since.as_second(), usage.since.subsec_nanosecond());
        text.family(
            ("container_cpu_usage_seconds_total", "counter"),
            "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
            containers().map(|(labels, usage)| (labels, cpu(usage))),
        );
        text.family(
            ("container_memory_working_set_bytes", "gauge"),
            "[STABLE] Current working set of the container in bytes",
            containers().map(|(labels, usage)| (labels, memory(usage))),
        );
        text.untimed(
            ("container_start_time_seconds", "gauge"),
            "[STABLE] Start time of the container since unix epoch in seconds",
            containers().map(|(labels, usage)| (labels, started(usage))),
        );
        let machine = |value: String| std::iter::once((String::new(), value));
        text.family(
            ("node_cpu_usage_seconds_total", "counter"),
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
            machine(to_seconds(self.counted)),
        );
        text.family(
            ("node_memory_working_set_bytes", "gauge"),
            "[STABLE] Current working set of the node in bytes",
            machine(memory(&self.machine)),
        );
        text.family(
            ("pod_cpu_usage_seconds_total", "counter"),
            "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
            pods().map(|(labels, usage)| (labels, cpu(usage))),
        );
        text.family(
            ("pod_memory_working_set_bytes", "gauge"),
            "[STABLE] Current working set of the pod in bytes",
            pods().map(|(labels, usage)| (labels, memory(usage))),
        );
        let error = "1 if there was an error while getting container metrics, 0 otherwise";
        for (name, stability) in
            [("resource_scrape_error", "[STABLE] "), ("scrape_error", "[ALPHA] (Deprecated since 1.29.0) ")]
        {
            text.untimed((name, "gauge"), &format!("{stability}{error}"), machine("0".to_owned()));
        }
        text.text
    }
}

/// Metric families in Prometheus' text format.
struct Text {
    text: String,
    now: Timestamp,
}

impl Text {
    /// Writes samples with their time, as a kubelet does for measured values.
    fn family(&mut self, head: (&str, &str), help: &str, samples: impl Iterator<Item = (String, String)>) {
        let now = self.now.as_millisecond();
        self.untimed(head, help, samples.map(|(labels, value)| (labels, format!("{value} {now}"))));
    }

    fn untimed(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        samples: impl Iterator<Item = (String, String)>,
    ) {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }
}

/// Labels of a pod or a container. Object names need no escapes.
fn labels_of(pod: &PodView, container: Option<&str>) -> String {
    let container = container.map(|name| format!("container=\"{name}\",")).unwrap_or_default();
    format!("{{{container}namespace=\"{}\",pod=\"{}\"}}", pod.namespace, pod.name)
}

fn to_seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn seconds(time: Timestamp) -> Timestamp {
    crate::clock::to_seconds(time)
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
        let machine = usage(500_000_000);
        read(&Stats { node: "n", machine, counted: 50_000_000_000, memory: 100, pods: &pods, now: at(200) })
    }

    #[test]
    fn metrics_are_named_as_a_kubelet_names_them() {
        let text = shown(|stats| format!("{}\n", stats.metrics()));
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
            assert!(text.lines().any(|own| own == line), "{line} in\n{text}");
        }
        let bare = Stats {
            node: "n",
            machine: Usage { since: at(1), nano_cores: 1, memory: 1 },
            counted: 1,
            memory: 1,
            pods: &[],
            now: at(2),
        };
        assert!(!bare.metrics().contains("container_"), "a family without samples is not named");
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
