//! Last steps: the Nodes are removed, then the whole recorded history is checked.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use kube_ext::{call::call, objects::delete};
use kube_node_api::GoDuration;
use serde_json::json;
use tokio::time::Instant;

use super::{
    arrival::{BARE, FOREIGN, LOST, TORN},
    classes,
};
use crate::{
    checks, contract,
    manifests::NOBODY,
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
    let _ = run.seen_pods.until(run.limit(), left).await;
    forced(run).await?;
    let lingers = run.timeouts().deletion();
    let change = json!({"spec": {"deletionTimeout": GoDuration(lingers)}});
    let desired = run.patch(&run.classes, &run.name, change).await?.metadata.generation;
    // Clause 1.2 says whether a controller follows its class.
    let _ = run.class_is(|class| classes::generation(class) >= desired).await?;
    for (what, which) in [(LOST, "never had a machine"), (BARE, "has no set")] {
        let name = run.by_hand(what);
        delete(&run.nodes, &name).await?;
        let gone = run.seen.gone(&name, run.limit()).await;
        let is = |state| format!("{name}, which {which}, {state}");
        run.checked(contract::LEAVES, gone.map(|_| is("is gone")).ok_or_else(|| is("is still there")));
        if let Some(gone) = gone.filter(|_| what == BARE) {
            lingered(run, &name, gone, lingers);
        }
    }
    run.set_spec(json!({"replicas": 0})).await?;
    let are_gone =
        |all: &Histories<Node>| (!existing(all).iter().any(|node| run.is_of_set(node))).then_some(());
    match run.seen.until(run.limit(), are_gone).await {
        Some(()) => run.pass(contract::ROLLS, "the set has shrunk to nothing"),
        None => run.fail(contract::ROLLS, "Nodes are left although the set is to have none"),
    }
    Ok(())
}

/// Clause 5.5, checked on a Node without pods whose class has the `deletionTimeout` `lingers`.
fn lingered(run: &TestRun, name: &str, gone: Instant, lingers: Duration) {
    let deleted = run.seen.of(name).and_then(|history| history.since(checks::is_leaving)).unwrap_or(gone);
    let lasted = gone.duration_since(deleted);
    let gone = format!("{name} was gone after {lasted:.1?}");
    // Times of the API server are whole seconds.
    if lasted + Duration::from_secs(1) < lingers {
        run.fail(contract::LINGERS, format!("{gone}, and the class's deletionTimeout is {lingers:?}"));
    } else {
        run.pass(contract::LINGERS, format!("{gone}, with a deletionTimeout of {lingers:?}"));
    }
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
        run.skip(contract::ORPHANS, "needs --machines");
        return Ok(());
    }
    let has_none =
        |lines: &Option<Vec<String>>| machines_of(lines.as_deref().unwrap_or_default(), &node).is_empty();
    let went = run.until(async || run.machines().await, has_none).await?;
    let went = went
        .map(|_| format!("the machine of {name} went with its Node, whose finalizer was taken off by force"));
    let stays = |_| format!("the machine of {name} is there, and its Node is not");
    run.checked(contract::ORPHANS, went.map_err(stays));
    Ok(())
}

/// Checks clauses that hold for the whole test run.
pub(super) async fn check_history(run: &TestRun) -> anyhow::Result<()> {
    run.checked(contract::OTHER_CLASSES, classes::others_stay(run).await?);
    let all = run.seen.all();
    let name = run.by_hand(FOREIGN);
    let is_ours = |history: &&History<Node>| history.last().is_none_or(|node| node.name_any() != name);
    let ours: Vec<Vec<Node>> = all.values().filter(is_ours).map(History::states).collect();
    let foreign = run.seen.states(&name);
    let lines = run.machines().await?.unwrap_or_default();
    let machine = foreign.last().and_then(|node| machines_of(&lines, node).first().copied());
    let checked = match machine {
        Some(line) => Err(format!("a Node of the controller {NOBODY} has a machine: {line}")),
        None => checks::untouched(&foreign),
    };
    run.checked(contract::OTHER_NODES, checked);
    let stays = ours.iter().try_for_each(|states| checks::rest_stays(states).map(drop));
    run.checked(contract::REST, stays.map(|()| format!("{} Nodes kept what others wrote", ours.len())));
    run.checked(contract::NUMBER, number(run, &ours).await?);
    Ok(())
}

/// Clause 2.2.
async fn number(run: &TestRun, lives: &[Vec<Node>]) -> anyhow::Result<checks::Checked> {
    let by_hand = [BARE, TORN, LOST].map(|what| run.by_hand(what));
    let mut first = lives.iter().filter_map(|states| states.first());
    let is_unknown = |node: &&Node| !by_hand.contains(&node.name_any()) && node.owner_references().is_empty();
    if let Some(node) = first.find(is_unknown) {
        return Ok(Err(format!("Node {} was made by nobody here", node.name_any())));
    }
    let set = call(format_args!("read NodeSet {}", run.name), run.sets.get(&run.name)).await?;
    if set.metadata.generation != *run.generation.lock() {
        return Ok(Err(format!("somebody changed the spec of NodeSet {}", run.name)));
    }
    Ok(Ok(format!("{} Nodes, all of them the set's or the run's", lives.len())))
}
