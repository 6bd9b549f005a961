//! The hosts of the test.

use std::collections::{BTreeMap, BTreeSet};

use kube_node_controllers::hosts::share;

use super::host::Host;
use kube_node_testing::{Fixture, LONG, eventually};

/// What is compared.
const PAGE: &str = include_str!("../../../docs/metrics.md");
/// Metric: number of machines of a host.
const MACHINES: &str = "kube_node_hollow_machines";

#[derive(Default)]
pub struct Group {
    pub hosts: Vec<Host>,
}

impl Group {
    pub fn start(&mut self, names: &[&str]) {
        self.hosts.extend(names.iter().map(|name| Host::start(name)));
    }

    /// Takes one out.
    pub fn take(&mut self, name: &str) -> Host {
        let index = self.hosts.iter().position(|host| host.name == name).unwrap();
        self.hosts.remove(index)
    }

    /// So many machines are carried, all by hosts of this group, and none by two of them.
    pub async fn runs(&self, machines: usize) {
        self.sum_is(MACHINES, machines).await;
    }

    /// Waits until each host answers, and the sum of the metric over all hosts is `wanted`.
    pub async fn sum_is(&self, metric: &str, wanted: usize) {
        let what = format!("{metric} of {} hosts is {wanted} in all", self.hosts.len());
        eventually(&what, LONG, async || {
            let said = self.values(metric);
            if said.values().copied().sum::<Option<usize>>() == Some(wanted) { Ok(()) } else { Err(said) }
        })
        .await;
    }

    /// Value of the metric by host; None if the host does not answer.
    fn values(&self, metric: &str) -> BTreeMap<&str, Option<usize>> {
        self.hosts.iter().map(|host| (host.name.as_str(), host.metric(metric))).collect()
    }

    /// Each carries as many as the hash says, of the Nodes that there are, and each carries some.
    pub async fn shares_are_by_the_hash(&self, own: &Fixture) {
        let shares = self.values_are_by_the_hash(MACHINES, own).await;
        assert!(shares.values().all(|share| *share > Some(0)), "{shares:?}");
    }

    /// Waits until the metric of each host is the number of present Nodes that the hash assigns to the host. Returns these numbers.
    pub async fn values_are_by_the_hash(&self, metric: &str, own: &Fixture) -> BTreeMap<&str, Option<usize>> {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let mut wanted: BTreeMap<&str, Option<usize>> = names.iter().map(|name| (*name, Some(0))).collect();
        for node in &own.my_nodes().await {
            let host = share::host_of(names.iter().copied(), node.metadata.uid.as_deref().unwrap()).unwrap();
            *wanted.get_mut(host).unwrap().as_mut().unwrap() += 1;
        }
        eventually(&format!("{metric} of hosts is {wanted:?}"), LONG, async || {
            let said = self.values(metric);
            if said == wanted { Ok(()) } else { Err(said) }
        })
        .await;
        wanted
    }

    /// Metrics of a host, and the page's table of them.
    pub fn exports_what_the_page_says(&self) {
        let exported = self.hosts[0].get("metrics").unwrap();
        let exported: BTreeSet<&str> = exported
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, _)| name)
            .collect();
        let names = |mark: &str| -> BTreeSet<&str> {
            let table = PAGE.split(&format!("<!-- {mark} -->")).nth(1).unwrap();
            table
                .lines()
                .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
                .map(|(name, _)| name)
                .collect()
        };
        let shared = |name: &&str| name.starts_with("kube_node_hollow_") || *name == "kube_node_build_info";
        let mut documented: BTreeSet<&str> = names("metrics").into_iter().filter(shared).collect();
        documented.extend(names("metrics of hosts"));
        assert_eq!(exported, documented);
    }
}
