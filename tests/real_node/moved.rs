//! A cluster on a machine whose address changes, as that of a laptop on another network: in a network of one thread.

use std::{process::Command, thread};

use nix::sched::{CloneFlags, unshare};

use crate::CLUSTER;
use kube_node_testing::{LONG, TemporaryCluster, eventually, harness::block_on, test_target};

/// Addresses of the machine, at first and later.
const HOME: &str = "192.0.2.10";
const OFFICE: &str = "192.0.2.20";

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Gives the machine an address, and a way out.
fn be_at(address: &str) {
    ip(&["address", "add", &format!("{address}/24"), "dev", "out"]);
    ip(&["route", "add", "default", "via", "192.0.2.1"]);
}

pub fn logs_and_commands_reach_pods_after_the_machine_has_moved() {
    // A new network has no way to the sources of Kubernetes: they are built before.
    CLUSTER.state();
    let alone = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip(&["link", "set", "lo", "up"]);
        ip(&["link", "add", "out", "type", "veth", "peer", "name", "far"]);
        for end in ["out", "far"] {
            ip(&["link", "set", end, "up"]);
        }
        be_at(HOME);
        let cluster = TemporaryCluster::start(test_target!(), "moved", &[]);
        cluster.kubectl(&["scale", "nodeset", "hollow-nodes", "--replicas=2"]);
        cluster.kubectl(&["run", "talks", "--image=registry.example.com/talks"]);
        block_on(serves(&cluster, HOME));
        // Its address takes the route along.
        ip(&["address", "flush", "dev", "out"]);
        be_at(OFFICE);
        block_on(serves(&cluster, OFFICE));
    });
    alone.join().unwrap();
}

/// Waits until all Nodes have the address, and logs and commands of the pod work.
async fn serves(cluster: &TemporaryCluster, address: &str) {
    let commands = [&["logs", "talks"][..], &["exec", "talks", "--", "true"]];
    eventually(&format!("nodes are at {address}"), LONG, async || {
        let query = r#"jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}"#;
        let shown = cluster.kubectl(&["get", "nodes", "--output", query]);
        if shown != format!("{address} {address}") {
            return Err(format!("nodes are at {shown}"));
        }
        let refused = commands
            .iter()
            .map(|command| cluster.try_kubectl(command))
            .find(|output| !output.status.success());
        refused.map_or(Ok(()), |output| Err(String::from_utf8_lossy(&output.stderr).into_owned()))
    })
    .await;
}
