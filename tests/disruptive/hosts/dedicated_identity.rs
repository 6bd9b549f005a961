//! Machines with an identity each, on hosts and in the operator: whoever takes one over asks for a certificate of its own, and
//! no Node notices.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{CLUSTER, GROUP, group::Group, write_node};
use kube_node_testing::{Fixture, LONG, class_spec, eventually, history::RecordedHistory};

/// How many Nodes there are.
const NODES: usize = 6;
/// Metric: number of machines of a host that have their identity.
const KUBELETS: &str = "kube_node_hollow_kubelets";

/// From host to host, and from them into the operator, which is killed then.
pub async fn machines_with_identities(group: &mut Group) {
    let mut class = class_spec();
    class["hollow"] = json!({ "hosts": GROUP, "load": "Kubelet" });
    let own = Fixture::new(&CLUSTER, "hosted-alone", i32::try_from(NODES).unwrap(), class).await;
    own.settled(NODES).await;
    group.sum_is(KUBELETS, NODES).await;

    let history = RecordedHistory::begin(&own).await;
    let first = group.hosts[0].name.clone();
    let killed = group.take(&first);
    killed.signal(Signal::SIGKILL);
    group.sum_is(KUBELETS, NODES).await;
    group.start(&[&first]);
    group.values_are_by_the_hash(KUBELETS, &own).await;
    history.shows_nothing_but(NODES).await;

    // One written by hand is told of its host and its load.
    write_node(&own, "alone-by-hand").await;
    group.sum_is(KUBELETS, NODES + 1).await;
    let written = own.nodes.get("alone-by-hand").await.unwrap().metadata.labels.unwrap();
    assert_eq!(
        (&*written["kube-node.io/hollow-hosts"], &*written["kube-node.io/hollow-load"]),
        (GROUP, "Kubelet")
    );
    own.nodes.delete("alone-by-hand", &kube::api::DeleteParams::default()).await.unwrap();

    own.patch_class(json!({"spec": {"hollow": {"hosts": null}}})).await;
    own.rolled(NODES).await;
    group.sum_is(KUBELETS, 0).await;
    let history = RecordedHistory::begin(&own).await;
    let before = CLUSTER.pid("operator").unwrap();
    assert!(CLUSTER.kill("operator"));
    eventually("the operator that comes has identities for its machines", LONG, async || {
        CLUSTER.pid("operator").filter(|pid| *pid != before)?;
        CLUSTER.metrics().contains(&format!("{KUBELETS} {NODES}\n")).then_some(())
    })
    .await;
    history.shows_nothing_but(NODES).await;
    own.clean_up().await;
}
