//! The hosts of the test.

use std::collections::{BTreeMap, BTreeSet};

use kube_node_controllers::hosts::share;

use super::host::Host;
use kube_node_testing::{Fixture, LONG, eventually};

/// What is compared.
const PAGE: &str = include_str!("../../../docs/metrics.md");

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
        let what = format!("{} hosts carry {machines} machines", self.hosts.len());
        eventually(&what, LONG, async || {
            let carried = self.carried();
            if carried.values().flatten().sum::<usize>() == machines { Ok(()) } else { Err(carried) }
        })
        .await;
    }

    /// Number of machines of each host; None where a host does not answer.
    fn carried(&self) -> BTreeMap<&str, Option<usize>> {
        let carried = |host: &Host| host.metric("kube_node_hollow_machines");
        self.hosts.iter().map(|host| (host.name.as_str(), carried(host))).collect()
    }

    /// Each carries as many as the hash says, of the Nodes that there are.
    pub async fn shares_are_by_the_hash(&self, own: &Fixture) {
        let nodes = own.my_nodes().await;
        let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let mut wanted: BTreeMap<&str, usize> = names.iter().map(|name| (*name, 0)).collect();
        for node in &nodes {
            let uid = node.metadata.uid.as_deref().unwrap();
            *wanted.get_mut(share::host_of(names.iter().copied(), uid).unwrap()).unwrap() += 1;
        }
        assert!(wanted.values().all(|share| *share > 0), "{wanted:?}");
        let wanted: BTreeMap<&str, Option<usize>> =
            wanted.into_iter().map(|(name, share)| (name, Some(share))).collect();
        let what = format!("shares are {wanted:?}");
        eventually(&what, LONG, async || {
            let carried = self.carried();
            if carried == wanted { Ok(()) } else { Err(carried) }
        })
        .await;
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
