//! The NodeController and what goes wrong with the machine of one Node: it costs that Node alone, and no more than it must.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams, PropagationPolicy},
};
use prometheus::{Registry, TextEncoder};
use serde_json::json;

use crate::machines::{Shelf, Shelves, serve_with, set_of};
use kube_node_testing::{Fixture, LONG, condition, create, delete, eventually, name, taints};

/// How many Nodes wait for this.
fn waiting(registry: &Registry, reason: &str) -> usize {
    let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let name = format!("kube_node_waiting_nodes{{reason=\"{reason}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// What a kubelet of a machine that its provider knows nothing more of writes once.
async fn kubelet(own: &Fixture, node: &str) {
    let info = json!({
        "machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "6", "osImage": "o",
        "containerRuntimeVersion": "containerd://2", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
        "operatingSystem": "linux", "architecture": "amd64",
    });
    let now = jiff::Timestamp::now();
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": format!("{now:.0}"), "lastTransitionTime": format!("{now:.0}")});
    let status = json!({"status": {"nodeInfo": info, "conditions": [ready]}});
    own.nodes.patch_status(node, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), "kube-node-lease");
    let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": format!("{now:.6}")});
    create(&leases, json!({"metadata": {"name": node}, "spec": spec})).await.unwrap();
}

#[tokio::test]
async fn a_node_at_work_waits_for_nothing_and_is_left_alone() {
    let shelves = Shelves::new("ready.example.com", Shelf { deaf: true, ..Shelf::default() });
    let own = set_of(&shelves, "machine-ready").await;
    let registry = Registry::new();
    own.create_set(1, json!({})).await;
    serve_with(Arc::clone(&shelves), &registry).await;
    eventually("the machine is made", LONG, async || (shelves.created().len() == 1).then_some(())).await;
    let node = name(&own.my_nodes().await[0]);
    kubelet(&own, &node).await;
    // Settings that do not reach its machine do not keep pods from it.
    eventually("pods are let in", LONG, async || {
        let node = own.nodes.get(&node).await.unwrap();
        taints(&node).iter().all(|(key, _)| !key.starts_with("kube-node.io/uninit")).then_some(())
    })
    .await;
    shelves.shelf.lock().unwrap().deaf = false;
    // Others write onto a young Node for a while. The Node is looked at for that, and by no clock.
    let mut reads = (usize::MAX, tokio::time::Instant::now());
    eventually("nobody looks at it any more", Duration::from_secs(35), async || {
        let now = shelves.shelf.lock().unwrap().reads[node.as_str()];
        if now != reads.0 {
            reads = (now, tokio::time::Instant::now());
        }
        (reads.1.elapsed() > Duration::from_secs(12)).then_some(())
    })
    .await;
    for reason in ["WaitingForLease", "WaitingForReady", "WaitingForMachine"] {
        assert_eq!(waiting(&registry, reason), 0, "{reason}");
    }
    own.clean_up().await;
}

#[tokio::test]
async fn machines_that_end_at_once_are_made_ever_more_rarely() {
    let shelves = Shelves::new("dead.example.com", Shelf { dies: true, ..Shelf::default() });
    let own = set_of(&shelves, "machine-dead").await;
    let registry = Registry::new();
    own.create_set(1, json!({})).await;
    serve_with(Arc::clone(&shelves), &registry).await;
    let created = || shelves.created().len();
    eventually("the second follows the first", LONG, async || (created() == 2).then_some(())).await;
    let node = name(&own.my_nodes().await[0]);
    let machine_says = async |status: &str, reason: &str| {
        eventually(&format!("machine {status} {reason}"), LONG, async || {
            let node = own.nodes.get(&node).await.unwrap();
            let condition = condition(&node, "kube-node.io/Machine")?;
            (condition.status == status && condition.reason.as_deref() == Some(reason))
                .then(|| condition.message.clone().unwrap_or_default())
        })
        .await
    };
    let said = machine_says("False", "MachineBackOff").await;
    assert!(said.starts_with("2 machines in a row ended soon, the next is made after 10 s"), "{said}");
    let event = eventually("an event says it", LONG, async || own.event_of(&node, "MachineBackOff").await);
    assert_eq!(event.await, said);
    assert_eq!((waiting(&registry, "MachineBackOff"), created()), (1, 2));
    eventually("the third", LONG, async || (created() == 3).then_some(())).await;
    let waited = {
        let made = &shelves.shelf.lock().unwrap().created;
        made[2].1 - made[1].1
    };
    assert!(waited >= Duration::from_secs(10), "the third is made {waited:?} after the second");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(created(), 3, "the next one waits for longer");
    // It comes to life: nothing of the wait stays.
    shelves.shelf.lock().unwrap().dies = false;
    machine_says("True", "Running").await;
    eventually("nobody waits", LONG, async || (waiting(&registry, "MachineBackOff") == 0).then_some(()))
        .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_finalizer_goes_with_the_machine_though_nobody_knows_whose_it_was() {
    let shelves = Shelves::new("lost.example.com", Shelf { lingers: true, ..Shelf::default() });
    let own = set_of(&shelves, "machine-lost").await;
    let registry = Registry::new();
    let labels = json!({"kube-node.io/nodeclass": "machine-lost"});
    create(&own.nodes, json!({"metadata": {"name": "machine-lost", "labels": labels}})).await.unwrap();
    serve_with(Arc::clone(&shelves), &registry).await;
    eventually("the machine is made", LONG, async || (shelves.created().len() == 1).then_some(())).await;
    // The same labels and finalizer, of somebody else's NodeController.
    let foreign = json!({"metadata": {"name": "machine-foreign", "finalizers": ["kube-node.io/machine"]},
        "spec": {"providerID": "other.example.com://machine-foreign"}});
    create(&own.nodes, foreign).await.unwrap();
    for node in ["machine-lost", "machine-foreign"] {
        delete(&own.nodes, node, PropagationPolicy::Background).await;
    }
    eventually("the machine leaves", LONG, async || {
        (!shelves.shelf.lock().unwrap().leaving.is_empty()).then_some(())
    })
    .await;
    let none = json!({"metadata": {"labels": {"kube-node.io/nodeclass": null, "kube-node.io/node-controller": null}}});
    own.nodes.patch("machine-lost", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    let machine = shelves.created().remove(0);
    shelves.lose(&machine);
    eventually("the Node goes", LONG, async || {
        own.nodes.get_opt("machine-lost").await.unwrap().is_none().then_some(())
    })
    .await;
    let said = eventually("people are told of the other", LONG, async || {
        own.event_of("machine-foreign", "ProviderUnknown").await
    })
    .await;
    assert!(said.contains("put the label kube-node.io/node-controller back"), "{said}");
    let none = json!({"metadata": {"finalizers": []}});
    own.nodes.patch("machine-foreign", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    own.clean_up().await;
}
