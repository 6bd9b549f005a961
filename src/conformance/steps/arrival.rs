//! Step: Nodes start. The Nodes of a NodeSet, two Nodes written by hand without the finalizer, one whose
//! machine cannot be made, and one of another controller.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    jiff::Timestamp,
};
use kube::{Api, ResourceExt};
use kube_ext::objects::read;
use kube_node_api::names;
use serde_json::json;

use crate::{
    checks::{self, Checked, has_posted},
    contract, manifests,
    record::{History, of_name},
    test_run::{TestRun, is_at_work},
    user_commands::machines_of,
};

/// Name of a Node without the finalizer.
pub(super) const BARE: &str = "bare";
/// Name of the Node whose finalizer is removed by force.
pub(super) const TORN: &str = "torn";
/// Name of the Node with a revision that does not exist.
pub(super) const LOST: &str = "lost";
/// Name of the Node of another controller.
pub(super) const FOREIGN: &str = "foreign";
/// A revision that cannot exist.
const NO_REVISION: &str = "v1-0000000000";
/// Duration of a node Lease, in seconds.
const LEASE: i64 = 40;

pub(super) async fn arrive(run: &TestRun, revision: &str) -> anyhow::Result<bool> {
    let begun = Instant::now();
    run.create(&run.namespaces, json!({"metadata": {"name": run.name}})).await?;
    run.create(&run.daemons, manifests::daemons(&run.name, &run.args.image)).await?;
    let set = run.create(&run.sets, manifests::set(&run.name, run.args.nodes)).await?;
    run.wrote(&set);
    let (class, nobody) = (run.name.clone(), manifests::of_nobody(&run.name));
    let ours = run.given.node_controller.as_str();
    for (what, class, controller, revision, finalizer) in [
        (BARE, &class, ours, revision, false),
        (TORN, &class, ours, revision, false),
        (LOST, &class, ours, NO_REVISION, true),
        (FOREIGN, &nobody, manifests::NOBODY, NO_REVISION, true),
    ] {
        let node = manifests::node(&run.name, &run.by_hand(what), class, controller, revision, finalizer);
        run.create(&run.nodes, node).await?;
    }
    let desired = usize::try_from(run.args.nodes)? + 2;
    let came = run.seen.until(run.limit(), |all| {
        let nodes = all.values().filter_map(History::last);
        (nodes.filter(|node| is_at_work(node)).count() >= desired).then_some(())
    });
    let came = came.await.is_some();
    let all = run.seen.all();
    let by_hand = [BARE, TORN].map(|what| run.by_hand(what));
    let is_checked = |node: &Node| run.is_of_set(node) || by_hand.contains(&node.name_any());
    let lives: Vec<Vec<Node>> =
        all.values().filter(|history| history.last().is_some_and(is_checked)).map(History::states).collect();
    let nodes: Vec<&Node> = lives.iter().filter_map(|states| states.last()).collect();
    let took = begun.elapsed();
    run.started_within(took);
    let leases =
        if came { leases(run, &nodes, took.as_secs_f32()).await? } else { Err(late(&nodes, desired)) };
    run.checked(contract::KUBELET, leases);
    let posted = all_of(&lives, checks::no_execute, "lost it when a kubelet had posted");
    run.checked(contract::NO_EXECUTE, posted);
    run.checked(contract::NO_SCHEDULE, all_of(&lives, checks::no_schedule, "lost it when they were Ready"));
    run.checked(contract::PROVIDER_ID, checks::provider_ids(&lives));
    let bare = run.seen.states(&run.by_hand(BARE));
    run.checked(contract::FINALIZER_FIRST, checks::finalizer_first(&bare));
    if let Some(node) = nodes.iter().find(|node| checks::is_leaving(node)) {
        let name = node.name_any();
        run.fail(contract::NUMBER, format!("{name} is being deleted, and nobody here has asked for it"));
    }
    trouble(run, &run.by_hand(LOST)).await;
    match run.machines().await? {
        None => run.skip(contract::ONE, "needs --machines"),
        Some(machines) if came => run.checked(contract::ONE, one_each(&machines, &nodes)),
        Some(_) => run.skip(contract::ONE, "the Nodes did not come"),
    }
    Ok(came)
}

/// Applies a check to all Nodes; the first failure is the result.
fn all_of(lives: &[Vec<Node>], check: fn(&[Node]) -> Checked, seen: &str) -> Checked {
    lives.iter().try_for_each(|states| check(states).map(drop))?;
    Ok(format!("{} Nodes {seen}", lives.len()))
}

/// Clause 3.4.
fn one_each(machines: &[String], nodes: &[&Node]) -> Checked {
    let count = |node: &Node| machines_of(machines, node).len();
    match nodes.iter().find(|node| count(node) != 1) {
        Some(node) => Err(format!("{} has {} machines", node.name_any(), count(node))),
        None => Ok(format!("{} Nodes have one each", nodes.len())),
    }
}

/// Reason why fewer Nodes than desired have started.
fn late(nodes: &[&Node], desired: usize) -> String {
    let (came, late): (Vec<&Node>, Vec<&Node>) = nodes.iter().partition(|node| is_at_work(node));
    let count = came.len();
    let Some(node) = late.first() else {
        return format!("{count} of {desired} Nodes came: more Nodes were not made");
    };
    let (status, reason, message) =
        checks::condition(node, "Ready").unwrap_or(("Unknown", "", "no condition"));
    let has_taint = checks::has_taint(node, names::TAINT_UNINITIALIZED, None);
    let (name, taint) = (node.name_any(), if has_taint { ", and has our taint" } else { "" });
    format!("{count} of {desired} Nodes came: {name} has Ready={status} ({reason}: {message}){taint}")
}

/// Clause 4.1: the Leases of the started Nodes.
async fn leases(run: &TestRun, nodes: &[&Node], took: f32) -> anyhow::Result<Checked> {
    let leases: Api<Lease> = Api::namespaced(run.nodes.clone().into_client(), "kube-node-lease");
    for node in nodes {
        let name = node.name_any();
        let lease = read(&leases, &name).await?;
        let Some(renewed) = lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time) else {
            return Ok(Err(format!("{name} is Ready and has no Lease that was renewed")));
        };
        let age = Timestamp::now().duration_since(renewed.0).as_secs();
        if age > LEASE {
            return Ok(Err(format!("the Lease of {name} was renewed {age} s ago")));
        }
    }
    Ok(Ok(format!("{} Nodes are Ready after {took:.1} s, with fresh Leases", nodes.len())))
}

/// Clauses 3.3 and 3.2: the Node with a nonexistent revision reports the reason and has no machine.
async fn trouble(run: &TestRun, name: &str) {
    let limit = run.limit().min(Duration::from_mins(2));
    let observed = run.seen.until(limit, |all| {
        let node = of_name(all, name).next()?.last()?;
        if has_posted(node) {
            return Some(None);
        }
        checks::obstacle(node, names::CONDITION_MACHINE).map(Some)
    });
    match observed.await {
        Some(Some(message)) => {
            run.pass(contract::TROUBLE, format!("of a revision that nobody has: {message}"));
        }
        Some(None) => {
            let why = format!("{name} has a machine, and names the revision {NO_REVISION} that nobody has");
            run.fail(contract::REVISION, why);
            run.skip(contract::TROUBLE, "its machine was made all the same");
        }
        None => {
            let why = format!("{name} names the revision {NO_REVISION} that nobody has, and does not say so");
            run.fail(contract::TROUBLE, why);
        }
    }
}
