//! The leader's process is frozen in the middle of its work, for longer than its Lease, and wakes while another one leads.

use std::time::Duration;

use jiff::Timestamp;
use nix::sys::signal::Signal;

use super::{
    audit::{ADMIN, Audit},
    ends::works,
    scale,
};
use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, always, eventually,
    history::RecordedHistory,
    operator::{OperatorIdentity, OperatorProcess},
};

/// `frozen` leads and acts as the admin. Returns who leads in the end.
pub async fn beyond_the_lease(
    cluster: &TemporaryCluster,
    own: &Fixture,
    audit: &Audit,
    mut frozen: OperatorProcess,
) -> OperatorProcess {
    let next = OperatorProcess::start(cluster, "sixth", OperatorIdentity::ServiceAccounts, &[]);
    next.is_ready().await;
    let history = RecordedHistory::begin(own).await;
    let before = history.born();
    scale(own, before + 100).await;
    eventually("it has begun to make Nodes", LONG, async || (history.born() > before).then_some(())).await;
    frozen.signal(Signal::SIGSTOP);
    next.leads().await;
    works(own, &next, before + 100).await;
    // What it would do when it wakes: go on with its Nodes, renew its Leases, and make what this set lacks.
    works(own, &next, before + 110).await;
    history.shows_nothing_but(before + 110).await;
    let woken = Timestamp::now();
    frozen.signal(Signal::SIGCONT);
    let status = frozen.ends().await;
    assert_eq!(status.code(), Some(1), "{}", frozen.said());
    assert!(frozen.said().contains("has lost the Lease"), "{}", frozen.said());
    // A request that it left behind would be served by then.
    always("the next one leads", Duration::from_secs(2), async || next.leads_now()).await;
    let late = audit.writes_of(ADMIN, woken);
    assert!(late.is_empty(), "written after it was woken: {late:?}");
    own.settled(before + 110).await;
    history.shows_nothing_but(before + 110).await;
    next
}
