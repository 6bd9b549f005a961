//! Last steps: the Nodes are removed, then the whole recorded history is checked.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use kube_ext::call::call;
use kube_node_api::names;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    arrival::{BARE, FOREIGN, LOST, TORN},
    classes,
};
use crate::{
    checks, contract,
    objects::{LINGERS, NOBODY},
    record::History,
    test_run::TestRun,
    user_commands::machines_of,
};

/// Interval of listings of machines that must go.
const LOOK: Duration = Duration::from_secs(1);

/// Scales the NodeSet to zero and deletes the Nodes written by hand.
pub(super) async fn shrink(test_run: &TestRun) -> anyhow::Result<()> {
    // Pods first, while the machines that must end them exist.
    let all = ListParams::default();
    call("delete the DaemonSet", test_run.daemons.delete_collection(&DeleteParams::default(), &all)).await?;
    call("delete pods", test_run.pods.delete_collection(&DeleteParams::default(), &all)).await?;
    let _ = test_run
        .seen_pods
        .until(test_run.limit(), |all| all.values().all(|pod| has_left(test_run, pod)).then_some(()))
        .await;
    forced(test_run).await?;
    for (what, which) in [(LOST, "never had a machine"), (BARE, "has no set")] {
        let name = test_run.by_hand(what);
        call(format_args!("delete Node {name}"), test_run.nodes.delete(&name, &DeleteParams::default()))
            .await?;
        let gone = test_run.seen.gone(&name, test_run.limit()).await;
        let is = |what| format!("{name}, which {which}, {what}");
        test_run.judged(&contract::LEAVES, gone.map(|_| is("is gone")).ok_or_else(|| is("is still there")));
        if what == BARE
            && let Some(gone) = gone
        {
            lingered(test_run, &name, gone);
        }
    }
    test_run.set_spec(json!({"replicas": 0})).await?;
    let gone = test_run.seen.until(test_run.limit(), |all| {
        let is_left = |node: &Node| node.labels().get(names::LABEL_NODESET) == Some(&test_run.run);
        let left =
            all.values().filter(|history| history.gone.is_none() && history.last().is_some_and(is_left));
        (left.count() == 0).then_some(())
    });
    if gone.await.is_none() {
        test_run.broken(&contract::ROLLS, "Nodes are left although the set is to have none");
        return Ok(());
    }
    test_run.kept(&contract::ROLLS, "the set has shrunk to nothing");
    Ok(())
}

/// Clause 5.5, checked on a Node without pods.
fn lingered(test_run: &TestRun, name: &str, gone: Instant) {
    let asked = test_run.seen.of(name).and_then(|history| history.since(checks::is_leaving)).unwrap_or(gone);
    let lasted = gone.duration_since(asked);
    // Times of the API server are whole seconds.
    let judgement = if lasted + Duration::from_secs(1) < LINGERS {
        Err(format!("{name} was gone after {lasted:.1?}, and the class's deletionTimeout is {LINGERS:?}"))
    } else {
        Ok(format!("{name} was gone after {lasted:.1?}, with a deletionTimeout of {LINGERS:?}"))
    };
    test_run.judged(&contract::LINGERS, judgement);
}

/// Returns true if the pod is gone, or if its Node is gone and nothing can end the pod until
/// kube-controller-manager does.
fn has_left(test_run: &TestRun, pod: &History<Pod>) -> bool {
    let node = pod.last().and_then(|pod| pod.spec.as_ref()?.node_name.clone()).unwrap_or_default();
    pod.gone.is_some() || test_run.seen.of(&node).is_none_or(|node| node.gone.is_some())
}

/// Clause 3.6: the finalizer is removed by force.
async fn forced(test_run: &TestRun) -> anyhow::Result<()> {
    let name = test_run.by_hand(TORN);
    let node =
        call(format_args!("delete Node {name}"), test_run.nodes.delete(&name, &DeleteParams::default()))
            .await?;
    let node = node.left().unwrap_or_default();
    test_run.free(&name).await?;
    if test_run.args.machines.is_none() {
        test_run.unseen(&contract::ORPHANS, "needs --machines");
        return Ok(());
    }
    let begun = Instant::now();
    loop {
        let lines = test_run.machines().await?.unwrap_or_default();
        if machines_of(&lines, &node).is_empty() {
            test_run.kept(
                &contract::ORPHANS,
                format!("the machine of {name} went with its Node, whose finalizer was taken off by force"),
            );
            return Ok(());
        }
        if begun.elapsed() > test_run.limit() {
            test_run
                .broken(&contract::ORPHANS, format!("the machine of {name} is there, and its Node is not"));
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

/// Checks clauses that hold for the whole test run.
pub(super) async fn look_back(test_run: &TestRun) -> anyhow::Result<()> {
    test_run.judged(&contract::OTHER_CLASSES, classes::others_stay(test_run).await?);
    let all = test_run.seen.all();
    let (foreign, ours): (Vec<_>, Vec<_>) = all
        .values()
        .map(History::states)
        .partition(|states| states.first().is_some_and(|node| node.name_any() == test_run.by_hand(FOREIGN)));
    let foreign = foreign.into_iter().next().unwrap_or_default();
    let lines = test_run.machines().await?.unwrap_or_default();
    let machine =
        foreign.last().and_then(|node| machines_of(&lines, node).first().map(|line| (*line).to_owned()));
    test_run.judged(
        &contract::OTHER_NODES,
        match machine {
            Some(line) => Err(format!("a Node of the controller {NOBODY} has a machine: {line}")),
            None => checks::untouched(&foreign),
        },
    );
    let stays = ours.iter().try_for_each(|states| checks::rest_stays(states).map(drop));
    test_run.judged(&contract::REST, stays.map(|()| format!("{} Nodes kept what others wrote", ours.len())));
    test_run.judged(&contract::NUMBER, number(test_run, &ours).await?);
    Ok(())
}

/// Clause 2.2.
async fn number(test_run: &TestRun, lives: &[Vec<Node>]) -> anyhow::Result<checks::Judgement> {
    let by_hand = [BARE, TORN, LOST].map(|what| test_run.by_hand(what));
    let stranger = lives
        .iter()
        .filter_map(|states| states.first())
        .find(|node| !by_hand.contains(&node.name_any()) && node.owner_references().is_empty());
    if let Some(node) = stranger {
        return Ok(Err(format!("Node {} was made by nobody here", node.name_any())));
    }
    let set = call(format_args!("read NodeSet {}", test_run.run), test_run.sets.get(&test_run.run)).await?;
    if set.metadata.generation != test_run.generation() {
        return Ok(Err(format!("somebody changed the spec of NodeSet {}", test_run.run)));
    }
    Ok(Ok(format!("{} Nodes, all of them the set's or the run's", lives.len())))
}
