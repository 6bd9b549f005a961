//! The leader ends, told to or not.

use std::time::Instant;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use nix::sys::signal::Signal;

use super::scale;
use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, eventually,
    history::RecordedHistory,
    operator::{OperatorIdentity, OperatorProcess},
};

/// Returns who leads in the end: an operator that acts as the admin.
pub async fn in_good_order_and_by_a_crash(cluster: &TemporaryCluster, own: &Fixture) -> OperatorProcess {
    let mut first = OperatorProcess::start(cluster, "first", OperatorIdentity::ServiceAccounts, &[]);
    first.leads().await;
    scale(own, 20).await;
    own.settled(20).await;
    let history = RecordedHistory::begin(own).await;
    let mut second = OperatorProcess::start(cluster, "second", OperatorIdentity::ServiceAccounts, &[]);
    second.is_ready().await;
    let status = second.leader_status().unwrap();
    assert!(status["leader"].as_str().unwrap().starts_with("first_"), "{status}");
    assert!(status["identity"].as_str().unwrap().starts_with("second_"), "{status}");
    assert_eq!(status["leading"], false);
    assert_eq!((first.metric("kube_node_leader"), second.metric("kube_node_leader")), (Some(1), Some(0)));
    assert!(first.serves_autoscaler() && !second.serves_autoscaler());

    // The next leader is frozen meanwhile, so that the Lease is seen between the two.
    second.signal(Signal::SIGSTOP);
    first.ends_in_good_order().await;
    let holder = election(own).await.holder_identity;
    assert!(holder.as_deref().is_none_or(str::is_empty), "the Lease was not given back: {holder:?}");
    second.signal(Signal::SIGCONT);
    let stopped = Instant::now();
    second.leads().await;
    println!("clean stop: the next one leads after {:.1?}", stopped.elapsed());
    eventually("cluster-autoscaler is served", LONG, async || second.serves_autoscaler().then_some(())).await;
    works(own, &second, 22).await;
    history.shows_nothing_but(22).await;

    let third = OperatorProcess::start(cluster, "third", OperatorIdentity::Admin, &[]);
    third.is_ready().await;
    let killed = Instant::now();
    second.signal(Signal::SIGKILL);
    third.leads().await;
    println!("crash: the next one leads after {:.1?}", killed.elapsed());
    assert!(!second.ends().await.success());
    works(own, &third, 24).await;
    history.shows_nothing_but(24).await;

    let spec = election(own).await;
    assert!(spec.holder_identity.unwrap().starts_with("third_"));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(2)));
    third
}

/// What the Lease of the election says.
async fn election(own: &Fixture) -> LeaseSpec {
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), "kube-node-system");
    leases.get("kube-node-operator").await.unwrap().spec.unwrap()
}

/// The one that leads scales, and carries all machines.
pub async fn works(own: &Fixture, leader: &OperatorProcess, count: usize) {
    scale(own, count).await;
    own.settled(count).await;
    eventually("all machines are carried", LONG, async || {
        (leader.metric("kube_node_hollow_machines")? == count).then_some(())
    })
    .await;
}
