//! Last steps: the Nodes are removed, then the whole recorded history is checked.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use kube_ext::{call::call, objects::delete};
use serde_json::json;
use tokio::time::Instant;

use super::{
    arrival::{BARE, FOREIGN, LOST, TORN},
    classes,
};
use crate::{
    checks, contract,
    manifests::{LINGERS, NOBODY},
    record::{Histories, History, existing},
    test_run::TestRun,
    user_commands::machines_of,
};

/// Scales the NodeSet to zero and deletes the Nodes written by hand.
pub(super) async fn shrink(run: &TestRun) -> anyhow::Result<()> {
    // Pods first, while the machines that must end them exist.
    let (params, all) = (DeleteParams::default(), ListParams::default());
    call("delete the DaemonSet", run.daemons.delete_collection(&params, &all)).await?;
    call("delete pods", run.pods.delete_collection(&params, &all)).await?;
    let left = |all: &Histories<Pod>| all.values().all(|pod| has_left(run, pod)).then_some(());
    let _ = run.seen_pods.shared.until(run.limit(), left).await;
    forced(run).await?;
    for (what, which) in [(LOST, "never had a machine"), (BARE, "has no set")] {
        let name = run.by_hand(what);
        delete(&run.nodes, &name).await?;
        let gone = run.seen.gone(&name, run.limit()).await;
        let is = |what| format!("{name}, which {which}, {what}");
        run.checked(contract::LEAVES, gone.map(|_| is("is gone")).ok_or_else(|| is("is still there")));
        if let Some(gone) = gone.filter(|_| what == BARE) {
            lingered(run, &name, gone);
        }
    }
    run.set_spec(json!({"replicas": 0})).await?;
    let gone = run
        .seen
        .shared
        .until(run.limit(), |all| (!existing(all).iter().any(|node| run.is_of_set(node))).then_some(()));
    let gone = gone.await.map(|()| "the set has shrunk to nothing".to_owned());
    run.checked(
        contract::ROLLS,
        gone.ok_or_else(|| "Nodes are left although the set is to have none".to_owned()),
    );
    Ok(())
}

/// Clause 5.5, checked on a Node without pods.
fn lingered(run: &TestRun, name: &str, gone: Instant) {
    let deleted = run.seen.of(name).and_then(|history| history.since(checks::is_leaving)).unwrap_or(gone);
    let lasted = gone.duration_since(deleted);
    // Times of the API server are whole seconds.
    let checked = if lasted + Duration::from_secs(1) < LINGERS {
        Err(format!("{name} was gone after {lasted:.1?}, and the class's deletionTimeout is {LINGERS:?}"))
    } else {
        Ok(format!("{name} was gone after {lasted:.1?}, with a deletionTimeout of {LINGERS:?}"))
    };
    run.checked(contract::LINGERS, checked);
}

/// Returns true if the pod is gone, or if its Node is gone and nothing can end the pod until
/// kube-controller-manager does.
fn has_left(run: &TestRun, pod: &History<Pod>) -> bool {
    let node = pod.last().and_then(|pod| pod.spec.as_ref()?.node_name.clone()).unwrap_or_default();
    pod.gone.is_some() || run.seen.of(&node).is_none_or(|node| node.gone.is_some())
}

/// Clause 3.6: the finalizer is removed by force.
async fn forced(run: &TestRun) -> anyhow::Result<()> {
    let name = run.by_hand(TORN);
    let action = format!("delete Node {name}");
    let node =
        call(action, run.nodes.delete(&name, &DeleteParams::default())).await?.left().unwrap_or_default();
    run.free(&name).await?;
    if run.args.machines.is_none() {
        run.unseen(contract::ORPHANS, "needs --machines");
        return Ok(());
    }
    let has_none =
        |lines: &Option<Vec<String>>| machines_of(lines.as_deref().unwrap_or_default(), &node).is_empty();
    let gone = run.until(async || run.machines().await, has_none).await?;
    let gone = gone
        .map(|_| format!("the machine of {name} went with its Node, whose finalizer was taken off by force"));
    run.checked(
        contract::ORPHANS,
        gone.map_err(|_| format!("the machine of {name} is there, and its Node is not")),
    );
    Ok(())
}

/// Checks clauses that hold for the whole test run.
pub(super) async fn check_history(run: &TestRun) -> anyhow::Result<()> {
    run.checked(contract::OTHER_CLASSES, classes::others_stay(run).await?);
    let all = run.seen.all();
    let (foreign, ours): (Vec<_>, Vec<_>) = all
        .values()
        .map(History::states)
        .partition(|states| states.first().is_some_and(|node| node.name_any() == run.by_hand(FOREIGN)));
    let foreign = foreign.into_iter().next().unwrap_or_default();
    let lines = run.machines().await?.unwrap_or_default();
    let machine = foreign.last().and_then(|node| machines_of(&lines, node).into_iter().next());
    run.checked(
        contract::OTHER_NODES,
        match machine {
            Some(line) => Err(format!("a Node of the controller {NOBODY} has a machine: {line}")),
            None => checks::untouched(&foreign),
        },
    );
    let stays = ours.iter().try_for_each(|states| checks::rest_stays(states).map(drop));
    run.checked(contract::REST, stays.map(|()| format!("{} Nodes kept what others wrote", ours.len())));
    run.checked(contract::NUMBER, number(run, &ours).await?);
    Ok(())
}

/// Clause 2.2.
async fn number(run: &TestRun, lives: &[Vec<Node>]) -> anyhow::Result<checks::Checked> {
    let by_hand = [BARE, TORN, LOST].map(|what| run.by_hand(what));
    let stranger = lives
        .iter()
        .filter_map(|states| states.first())
        .find(|node| !by_hand.contains(&node.name_any()) && node.owner_references().is_empty());
    if let Some(node) = stranger {
        return Ok(Err(format!("Node {} was made by nobody here", node.name_any())));
    }
    let set = call(format_args!("read NodeSet {}", run.name), run.sets.get(&run.name)).await?;
    if set.metadata.generation != run.generation() {
        return Ok(Err(format!("somebody changed the spec of NodeSet {}", run.name)));
    }
    Ok(Ok(format!("{} Nodes, all of them the set's or the run's", lives.len())))
}
