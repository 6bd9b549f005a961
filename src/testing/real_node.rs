//! The real node of a cluster, from outside.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

use crate::TestCluster;

/// The processes inside the node, by name, with their pids as seen from here.
pub fn daemons(cluster: &TestCluster) -> BTreeMap<String, i32> {
    let output = cluster.kube_node(&["status", "-o", "json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = status["components"].as_array().unwrap().iter();
    rows.filter(|row| ["containerd", "kubelet", "kube-proxy"].contains(&row["name"].as_str().unwrap()))
        .filter(|row| row["health"] == "ok")
        .map(|row| {
            (row["name"].as_str().unwrap().to_owned(), i32::try_from(row["pid"].as_i64().unwrap()).unwrap())
        })
        .collect()
}

/// What keeps pods of a namespace from running, for whoever reads a failed test: pods, jobs and events, and the taints and
/// conditions of the node.
pub fn said_of_pods(cluster: &TestCluster, namespace: &str) -> String {
    let events = cluster.try_kubectl(&["-n", namespace, "get", "pods,jobs,events"]);
    let columns = r#"custom-columns=NODE:.metadata.name,TAINTS:.spec.taints[*].key,TRUE:.status.conditions[?(@.status=="True")].type"#;
    let node = cluster.try_kubectl(&["get", "node", "real-node", "--output", columns]);
    let texts = [events.stdout, events.stderr, node.stdout, node.stderr];
    let texts = texts.iter().map(|text| String::from_utf8_lossy(text).into_owned());
    texts.chain([last_words(cluster, namespace)]).collect()
}

/// The last lines of each container that was started again, before that.
fn last_words(cluster: &TestCluster, namespace: &str) -> String {
    let restarted = r#"jsonpath={range .items[?(@.status.containerStatuses[0].restartCount>0)]}{.metadata.name}{"\n"}{end}"#;
    let pods = cluster.try_kubectl(&["-n", namespace, "get", "pods", "--output", restarted]);
    let names = String::from_utf8_lossy(&pods.stdout).into_owned();
    let of = |pod: &str| {
        let log = cluster.try_kubectl(&["-n", namespace, "logs", pod, "--previous", "--tail=8"]);
        let [lines, errors] =
            [log.stdout, log.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        format!("{pod}, before it was started again:\n{lines}{errors}")
    };
    names.lines().map(of).collect()
}

/// A command that runs in the node's network.
pub fn in_its_network(cluster: &TestCluster, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", daemons(cluster)["containerd"])).args(["--", program]);
    command
}
