//! The leader is killed again and again while a set grows.

use std::time::Duration;

use kube::Client;
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep};

use super::{scale, set_of};
use kube_node_testing::{
    Fixture, LONG, TemporaryCluster,
    history::{RecordedHistory, leased, renewed},
    operator::{OperatorIdentity, OperatorProcess},
};

const KILLS: usize = 20;
const NODES: usize = 200;
/// Chooses the moments of the kills.
const SEED: u64 = 20_261_121;
/// An election that takes its turns faster than usual, so that so many kills take two minutes. With a Lease of 3 s, no
/// leader kept it on a busy machine.
const FAST: [&str; 3] = [
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=500ms",
];

/// Some operators, one of which leads.
struct Operators<'a> {
    cluster: &'a TemporaryCluster,
    running: Vec<OperatorProcess>,
    started: usize,
}

impl Operators<'_> {
    fn start(&mut self) {
        self.started += 1;
        let name = format!("fast-{}", self.started);
        self.running.push(OperatorProcess::start(
            self.cluster,
            &name,
            OperatorIdentity::ServiceAccounts,
            &FAST,
        ));
    }

    /// Takes the leader out once it runs `machines` machines or more and their Leases are fresh: a process that dies before it has
    /// taken over adds nothing to its predecessor's death. On a very busy machine an operator may lose its Lease; it ends, as it
    /// should, and another one is started in its place.
    async fn leader(&mut self, client: &Client, machines: usize) -> OperatorProcess {
        let until = Instant::now() + LONG;
        loop {
            let lost: Vec<usize> = (0..self.running.len())
                .rev()
                .filter(|&index| self.running[index].has_ended().is_some())
                .collect();
            for index in lost {
                let lost = self.running.remove(index);
                assert!(lost.said().contains("has lost the Lease"), "{}", lost.said());
                println!("{} lost its Lease", lost.name);
                self.start();
            }
            let has_taken_over = |operator: &OperatorProcess| {
                operator.leads_now()
                    && operator.metric("kube_node_hollow_machines").is_some_and(|count| count >= machines)
            };
            if let Some(index) = self.running.iter().position(has_taken_over) {
                let leader = self.running.remove(index);
                renewed(client, LONG).await;
                return leader;
            }
            assert!(Instant::now() < until, "nobody leads with {machines} machines");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// `old` are Nodes of another set, which nothing happens to meanwhile; `before` leads.
pub async fn twenty_during_a_scale_up(
    cluster: &TemporaryCluster,
    old: &Fixture,
    mut before: OperatorProcess,
) {
    let mut random = StdRng::seed_from_u64(SEED);
    let own = set_of(cluster, "kills").await;
    let (history, old_history) = (RecordedHistory::begin(&own).await, RecordedHistory::begin(old).await);
    let others = old_history.born();
    let mut operators = Operators { cluster, running: Vec::new(), started: 0 };
    (0..3).for_each(|_| operators.start());
    for operator in &operators.running {
        operator.is_ready().await;
    }
    before.ends_in_good_order().await;
    let begin = Instant::now();
    for kill in 1..=KILLS {
        let mut leader = operators.leader(&own.client, history.born() + others).await;
        scale(&own, NODES * kill / KILLS).await;
        let offset = Duration::from_millis(random.random_range(0..500));
        sleep(offset).await;
        println!("kill {kill}: {} after {offset:?}, {} nodes were made", leader.name, history.born());
        leader.signal(Signal::SIGKILL);
        leader.ends().await;
        operators.start();
    }
    println!("{KILLS} kills in {:.0?}", begin.elapsed());
    own.settled(NODES).await;
    history.shows_nothing_but(NODES).await;
    old_history.shows_nothing_but(others).await;

    leased(&own.client, LONG).await;
    let leader = operators.leader(&own.client, NODES + others).await;
    assert_eq!(leader.metric("kube_node_hollow_machines"), Some(NODES + others), "as many machines as Nodes");
}
