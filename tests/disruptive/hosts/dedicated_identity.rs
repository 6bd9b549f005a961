//! Machines with an identity each, on hosts and in the operator: whoever takes one over asks for a certificate of its own, and
//! no Node notices.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{CLUSTER, GROUP, group::Group, host::Host, write_node};
use kube_node_testing::{Fixture, LONG, class_spec, eventually, history::RecordedHistory};

/// How many Nodes there are.
const NODES: usize = 6;
/// What says how many machines have their identity.
const KUBELETS: &str = "kube_node_hollow_kubelets";

async fn have_identities(group: &Group, machines: usize) {
    let have = |host: &Host| host.metric(KUBELETS).unwrap_or(0);
    eventually(&format!("{machines} machines of hosts have identities"), LONG, async || {
        (group.hosts.iter().map(have).sum::<usize>() == machines).then_some(())
    })
    .await;
}

/// From host to host, and from them into the operator, which is killed then.
pub async fn machines_with_identities(group: &mut Group) {
    let mut class = class_spec();
    class["hollow"] = json!({ "hosts": GROUP, "load": "Kubelet" });
    let own = Fixture::new(&CLUSTER, "hosted-alone", i32::try_from(NODES).unwrap(), class).await;
    own.settled(NODES).await;
    have_identities(group, NODES).await;

    let history = RecordedHistory::begin(&own).await;
    let first = group.hosts[0].name.clone();
    let killed = group.take(&first);
    killed.signal(Signal::SIGKILL);
    have_identities(group, NODES).await;
    group.start(&[&first]);
    have_identities(group, NODES).await;
    history.shows_nothing_but(NODES).await;

    // One written by hand is told of its host and its load.
    write_node(&own, "alone-by-hand").await;
    have_identities(group, NODES + 1).await;
    let written = own.nodes.get("alone-by-hand").await.unwrap().metadata.labels.unwrap();
    assert_eq!(
        (&*written["kube-node.io/hollow-hosts"], &*written["kube-node.io/hollow-load"]),
        (GROUP, "Kubelet")
    );
    own.nodes.delete("alone-by-hand", &kube::api::DeleteParams::default()).await.unwrap();

    own.patch_class(json!({"spec": {"hollow": {"hosts": null}}})).await;
    have_identities(group, 0).await;
    own.settled(NODES).await;
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
