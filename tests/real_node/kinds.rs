//! The two images of kubemark machines, and what is looked at of such a machine.

use std::{collections::HashSet, fs, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use kube_node_testing::{Fixture, condition, eventually, is_ready, kubemark_image};

/// Until a few pods run, on a machine that runs much else.
pub const UP: Duration = Duration::from_mins(3);

/// An image of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Fixture,
    Upstream,
}

pub const BOTH: [Kind; 2] = [Kind::Fixture, Kind::Upstream];

impl Kind {
    /// A class of such machines; `more` is merged into its spec.
    pub fn class(self, more: Value) -> Value {
        let mut spec = json!({
            "nodeController": "kubemark",
            "machineType": "m.small",
            "capacity": {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "30", "example.com/gpu": "2"},
            "reserved": {"cpu": "500m", "memory": "1Gi"},
            "provisioning": {"containerRuntime": {"name": "cri-o", "version": "1.33.0"}},
            "kubemark": {},
        });
        if self == Self::Upstream {
            spec["kubemark"]["image"] = json!(kubemark_image());
        }
        merge(&mut spec, more);
        spec
    }

    pub fn name(self, what: &str) -> String {
        match self {
            Self::Fixture => format!("own-{what}"),
            Self::Upstream => format!("up-{what}"),
        }
    }

    /// What the hollow kubelet's command line holds.
    pub fn program(self, node: &str) -> [String; 2] {
        match self {
            Self::Fixture => ["hollow-node".to_owned(), format!("--node={node}")],
            Self::Upstream => ["--morph=kubelet".to_owned(), format!("--name={node}")],
        }
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

pub fn pods(own: &Fixture) -> Api<Pod> {
    Api::namespaced(own.client.clone(), "kubemark")
}

/// The pod of a Node.
pub async fn pod_of(own: &Fixture, node: &Node) -> Option<Pod> {
    let selector = format!("kube-node.io/node-uid={}", node.uid().unwrap());
    let mut listed = pods(own).list(&ListParams::default().labels(&selector)).await.unwrap().items;
    listed.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
    listed.into_iter().next()
}

/// The process on this machine with these words on its command line.
pub fn process(arguments: &[String]) -> Option<i32> {
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let args: HashSet<&[u8]> = line.split(|byte| *byte == 0).collect();
        arguments.iter().all(|word| args.contains(word.as_bytes())).then_some(pid)
    })
}

/// Status, reason and message of the Node's condition that speaks of its machine.
pub fn machine(node: &Node) -> Option<(String, String, String)> {
    let condition = condition(node, "kube-node.io/Machine")?;
    Some((
        condition.status.clone(),
        condition.reason.clone().unwrap_or_default(),
        condition.message.clone().unwrap_or_default(),
    ))
}

pub async fn ready(own: &Fixture, count: usize) -> Vec<Node> {
    eventually(&format!("{count} Ready nodes of {}", own.name), UP, async || {
        let nodes = own.my_nodes().await;
        (nodes.len() == count && nodes.iter().all(is_ready)).then_some(())
    })
    .await;
    own.settled(count).await
}
