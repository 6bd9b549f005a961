//! The leader's election stands still, and nothing else of it: one thread is stopped, the others work on and know nothing. Only
//! the door of its writes is in their way.

use std::time::Duration;

use jiff::Timestamp;
use nix::{
    sys::{ptrace, wait::waitpid},
    unistd::Pid,
};
use tokio::time::sleep;

use super::{
    audit::{ADMIN, Audit},
    ends::works,
    scale,
};
use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, eventually,
    history::RecordedHistory,
    operator::{OperatorIdentity, OperatorProcess},
};

/// For a request that was sent in time, to arrive.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// A stopped thread.
struct Stopped(Pid);

impl Stopped {
    /// The first thread of a process, in which the election runs.
    fn first_of(pid: Pid) -> Self {
        ptrace::seize(pid, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(pid).unwrap();
        waitpid(pid, None).unwrap();
        Self(pid)
    }

    fn wake(self) {
        ptrace::detach(self.0, None).unwrap();
    }
}

/// `deaf` leads and acts as the admin. Returns who leads in the end, as the admin, too.
pub async fn without_its_election(
    cluster: &TemporaryCluster,
    own: &Fixture,
    audit: &Audit,
    mut deaf: OperatorProcess,
) -> OperatorProcess {
    let mut next = OperatorProcess::start(cluster, "fourth", OperatorIdentity::ServiceAccounts, &[]);
    next.is_ready().await;
    let history = RecordedHistory::begin(own).await;
    let count = history.born() + 10;
    let began = Timestamp::now();
    let stopped = Stopped::first_of(deaf.pid());
    scale(own, count - 5).await;
    eventually("its claim is over", LONG, async || {
        // In this order: the next one leads only after that.
        let (next_leads, is_over) = (next.leads_now(), !deaf.leads_now());
        assert!(is_over || !next_leads, "both lead");
        is_over.then_some(())
    })
    .await;
    let wrote = audit.writes_of(ADMIN, began);
    assert!(wrote.iter().any(|write| write.contains("create")), "it works until then: {wrote:?}");
    sleep(ON_ITS_WAY).await;
    let over = Timestamp::now();
    // It sees that, and its Leases are due.
    scale(own, count).await;
    next.leads().await;
    works(own, &next, count).await;
    let tried = deaf.metric("kube_node_hollow_lease_renewals_total{result=\"unreachable\"}");
    stopped.wake();
    assert_eq!(deaf.ends().await.code(), Some(1), "{}", deaf.said());
    assert!(deaf.said().contains("has lost the Lease"), "{}", deaf.said());
    let late = audit.writes_of(ADMIN, over);
    assert!(late.is_empty(), "written after its claim was over: {late:?}");
    assert!(tried.is_some_and(|tried| tried > 0), "it tried to: {tried:?}");
    history.shows_nothing_but(count).await;

    let fifth = OperatorProcess::start(cluster, "fifth", OperatorIdentity::Admin, &[]);
    fifth.is_ready().await;
    next.ends_in_good_order().await;
    fifth.leads().await;
    fifth
}
