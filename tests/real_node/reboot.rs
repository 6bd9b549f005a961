//! The real node reboots under kubemark machines.

use std::{collections::BTreeMap, time::Instant};

use kube::ResourceExt;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use crate::{
    CLUSTER,
    kinds::{BOTH, UP, machine, process, ready},
};
use kube_node_testing::{Fixture, eventually, is_ready};

/// As after a power cut: nothing runs, nothing in memory is left, and the kubelet finds the pods that it has to run.
pub async fn machines_come_back_after_a_power_cut() {
    let _node = crate::NODE.write().await;
    let mut sets = Vec::new();
    for kind in BOTH {
        let own = Fixture::new(&CLUSTER, &kind.name("reboot"), 2, kind.class(json!({}))).await;
        let nodes = ready(&own, 2).await;
        let processes: BTreeMap<String, i32> = nodes
            .iter()
            .map(|node| (node.name_any(), process(&kind.program(&node.name_any())).expect("its process")))
            .collect();
        sets.push((kind, own, nodes, processes));
    }
    kill(CLUSTER.pid("real-node").expect("the node"), Signal::SIGKILL).unwrap();
    let start = Instant::now();
    for (kind, own, nodes, processes) in &sets {
        for node in nodes {
            let name = node.name_any();
            eventually(&format!("{name} runs again"), 2 * UP, async || {
                let again = own.nodes.get(&name).await.unwrap();
                assert_eq!(again.uid(), node.uid(), "the Node is the same");
                let pid = process(&kind.program(&name))?;
                (pid != processes[&name] && is_ready(&again) && machine(&again)?.0 == "True").then_some(())
            })
            .await;
            assert!(kill(Pid::from_raw(processes[&name]), None).is_err(), "nothing outlives the node");
        }
        own.settled(2).await;
        println!("{kind:?}: back {:?} after the power cut", start.elapsed());
    }
    for (_, own, ..) in sets {
        own.clean_up().await;
    }
}
