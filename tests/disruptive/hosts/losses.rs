//! A host is lost in each way there is, and its Nodes go on: none ceases to be Ready, none is made anew.

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::DeleteParams};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::{CLUSTER, NODES, group::Group, in_the_operator};
use kube_node_testing::{Fixture, LONG, eventually, history::RecordedHistory};

/// What the Nodes went through: nothing.
async fn nothing_happened(own: &Fixture, history: &RecordedHistory) {
    history.shows_nothing_but(NODES).await;
    assert_eq!(own.endpoints().await, NODES, "pods run on");
}

fn leases(own: &Fixture) -> Api<Lease> {
    Api::namespaced(own.client.clone(), "kube-node-system")
}

async fn holder(own: &Fixture, host: &str) -> Option<String> {
    let lease = leases(own).get(&format!("hollow-host.big.{host}")).await.unwrap();
    lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
}

/// The others take over once its Lease is over, and give its share back when it comes again.
pub async fn killed(own: &Fixture, group: &mut Group) {
    let history = RecordedHistory::begin(own).await;
    let killed = group.take("h-1");
    killed.signal(Signal::SIGKILL);
    let since = Instant::now();
    group.runs(NODES).await;
    println!("taken over {:?} after a SIGKILL", since.elapsed());
    group.shares_are_by_the_hash(own).await;
    assert!(holder(own, "h-1").await.is_some(), "it had no time to give its Lease back");
    group.start(&["h-1"]);
    group.shares_are_by_the_hash(own).await;
    nothing_happened(own, &history).await;
}

/// One that is frozen for longer than its Lease lasts is over: it ends when it wakes, and wrote nothing meanwhile.
pub async fn frozen(own: &Fixture, group: &mut Group) {
    let history = RecordedHistory::begin(own).await;
    let mut frozen = group.take("h-2");
    frozen.signal(Signal::SIGSTOP);
    group.runs(NODES).await;
    frozen.signal(Signal::SIGCONT);
    assert!(!frozen.ends().await.success());
    let said = frozen.said();
    assert!(said.contains("has lost the Lease kube-node-system/hollow-host.big.h-2"), "{said}");
    group.start(&["h-2"]);
    group.shares_are_by_the_hash(own).await;
    nothing_happened(own, &history).await;
}

/// One that is told to stop gives its Lease back, so that nobody waits.
pub async fn stopped(own: &Fixture, group: &mut Group) {
    let history = RecordedHistory::begin(own).await;
    let mut stopped = group.take("h-0");
    stopped.signal(Signal::SIGTERM);
    let since = Instant::now();
    assert!(stopped.ends().await.success(), "{}", stopped.said());
    assert_eq!(holder(own, "h-0").await, None, "given back");
    group.runs(NODES).await;
    println!("taken over {:?} after a SIGTERM", since.elapsed());
    group.start(&["h-0"]);
    group.shares_are_by_the_hash(own).await;
    nothing_happened(own, &history).await;
}

/// Somebody deletes the Lease of a host that works: it makes another one and carries on.
pub async fn of_a_lease(own: &Fixture, group: &Group) {
    let history = RecordedHistory::begin(own).await;
    let before = holder(own, "h-0").await.unwrap();
    leases(own).delete("hollow-host.big.h-0", &DeleteParams::default()).await.unwrap();
    eventually("the Lease is there again", LONG, async || {
        let lease = leases(own).get_opt("hollow-host.big.h-0").await.unwrap()?;
        (lease.spec?.holder_identity? == before).then_some(())
    })
    .await;
    group.shares_are_by_the_hash(own).await;
    nothing_happened(own, &history).await;
}

/// Hosts need no operator, and one that comes back has nothing to do.
pub async fn of_the_operator(own: &Fixture, group: &Group) {
    let history = RecordedHistory::begin(own).await;
    let before = CLUSTER.pid("operator").unwrap();
    assert!(CLUSTER.kill("operator"));
    let is_back = async || {
        let pid = CLUSTER.pid("operator").filter(|pid| *pid != before)?;
        CLUSTER.metrics().contains("kube_node_nodes{stage=\"ready\"} 60").then_some(pid)
    };
    eventually("the operator is back", LONG, is_back).await;
    assert_eq!(in_the_operator(), 0);
    group.runs(NODES).await;
    nothing_happened(own, &history).await;
}
