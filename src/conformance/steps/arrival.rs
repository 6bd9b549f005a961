//! Step: Nodes start. The Nodes of a NodeSet, two Nodes written by hand without the finalizer, one whose
//! machine cannot be made, and one of another controller.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    jiff::Timestamp,
};
use kube::{Api, ResourceExt};
use kube_ext::call::call;
use kube_node_api::names;
use serde_json::json;

use crate::{
    checks::{self, has_posted},
    contract, objects,
    record::History,
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

pub(super) async fn arrive(test_run: &TestRun, revision: &str) -> anyhow::Result<bool> {
    let begun = Instant::now();
    test_run.create(&test_run.namespaces, json!({"metadata": {"name": test_run.run}})).await?;
    test_run.create(&test_run.daemons, objects::daemons(&test_run.run, &test_run.args.image)).await?;
    let set = test_run.create(&test_run.sets, objects::set(&test_run.run, test_run.args.nodes)).await?;
    test_run.wrote(&set);
    let (class, nobody) = (test_run.run.clone(), objects::of_nobody(&test_run.run));
    for (what, class, controller, revision, finalizer) in [
        (BARE, &class, test_run.controller(), revision, false),
        (TORN, &class, test_run.controller(), revision, false),
        (LOST, &class, test_run.controller(), NO_REVISION, true),
        (FOREIGN, &nobody, objects::NOBODY, NO_REVISION, true),
    ] {
        let name = test_run.by_hand(what);
        test_run
            .create(
                &test_run.nodes,
                objects::node(&test_run.run, &name, class, controller, revision, finalizer),
            )
            .await?;
    }
    let wanted = usize::try_from(test_run.args.nodes)? + 2;
    let lost = test_run.by_hand(LOST);
    let came = test_run.seen.until(test_run.limit(), |all| {
        let nodes = all.values().filter_map(|history| history.last());
        (nodes.filter(|node| is_at_work(node)).count() >= wanted).then_some(())
    });
    let came = came.await.is_some();
    let all = test_run.seen.all();
    let by_hand = [BARE, TORN].map(|what| test_run.by_hand(what));
    let of = |node: &Node| test_run.is_of_set(node) || by_hand.contains(&node.name_any());
    let lives: Vec<Vec<Node>> =
        all.values().filter(|history| history.last().is_some_and(of)).map(History::states).collect();
    if came {
        let took = begun.elapsed().as_secs_f32();
        test_run.judged(&contract::KUBELET, leases(test_run, &lives, took).await?);
    } else {
        test_run.broken(&contract::KUBELET, late(&lives, wanted));
    }
    test_run.judged(
        &contract::NO_EXECUTE,
        all_of(&lives, checks::no_execute, "lost it when a kubelet had posted"),
    );
    test_run
        .judged(&contract::NO_SCHEDULE, all_of(&lives, checks::no_schedule, "lost it when they were Ready"));
    test_run.judged(&contract::PROVIDER_ID, checks::provider_ids(&lives));
    let bare = test_run.seen.of(&test_run.by_hand(BARE)).as_ref().map(History::states).unwrap_or_default();
    test_run.judged(&contract::FINALIZER_FIRST, checks::finalizer_first(&bare));
    if let Some(node) = lives.iter().filter_map(|states| states.last()).find(|node| checks::is_leaving(node))
    {
        test_run.broken(
            &contract::NUMBER,
            format!("{} is being deleted, and nobody here has asked for it", node.name_any()),
        );
    }
    trouble(test_run, &lost).await?;
    let nodes: Vec<&Node> = lives.iter().filter_map(|states| states.last()).collect();
    match test_run.machines().await? {
        None => test_run.unseen(&contract::ONE, "needs --machines"),
        Some(machines) if came => test_run.judged(&contract::ONE, one_each(&machines, &nodes)),
        Some(_) => test_run.unseen(&contract::ONE, "the Nodes did not come"),
    }
    Ok(came)
}

/// Applies a check to all Nodes; the first failure is the result.
fn all_of(lives: &[Vec<Node>], judge: fn(&[Node]) -> checks::Judgement, seen: &str) -> checks::Judgement {
    lives.iter().try_for_each(|states| judge(states).map(drop))?;
    Ok(format!("{} Nodes {seen}", lives.len()))
}

/// Clause 3.4.
fn one_each(machines: &[String], nodes: &[&Node]) -> checks::Judgement {
    for node in nodes {
        let count = machines_of(machines, node).len();
        if count != 1 {
            return Err(format!("{} has {count} machines", node.name_any()));
        }
    }
    Ok(format!("{} Nodes have one each", nodes.len()))
}

/// Reason why fewer Nodes than wanted have started.
fn late(lives: &[Vec<Node>], wanted: usize) -> String {
    let last = || lives.iter().filter_map(|states| states.last());
    let there = last().filter(|node| is_at_work(node)).count();
    let why = last().find(|node| !is_at_work(node)).map_or_else(
        || "more Nodes were not made".to_owned(),
        |node| {
            let (status, reason, message) =
                checks::condition(node, "Ready").unwrap_or(("Unknown", "", "no condition"));
            let taint = if checks::has_taint(node, names::TAINT_UNINITIALIZED, None) {
                ", and has our taint"
            } else {
                ""
            };
            format!("{} has Ready={status} ({reason}: {message}){taint}", node.name_any())
        },
    );
    format!("{there} of {wanted} Nodes came: {why}")
}

/// Clause 4.1: the Leases of the started Nodes.
async fn leases(test_run: &TestRun, lives: &[Vec<Node>], took: f32) -> anyhow::Result<checks::Judgement> {
    let leases: Api<Lease> = Api::namespaced(test_run.nodes.clone().into_client(), "kube-node-lease");
    for node in lives.iter().filter_map(|states| states.last()) {
        let name = node.name_any();
        let lease = call(format_args!("read Lease {name}"), leases.get_opt(&name)).await?;
        let Some(renewed) = lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time) else {
            return Ok(Err(format!("{name} is Ready and has no Lease that was renewed")));
        };
        let age = Timestamp::now().duration_since(renewed.0).as_secs();
        if age > LEASE {
            return Ok(Err(format!("the Lease of {name} was renewed {age} s ago")));
        }
    }
    Ok(Ok(format!("{} Nodes are Ready after {took:.1} s, with fresh Leases", lives.len())))
}

/// Clauses 3.3 and 3.2: the Node with a nonexistent revision reports the reason and has no machine.
async fn trouble(test_run: &TestRun, name: &str) -> anyhow::Result<()> {
    let says = |node: &Node| {
        checks::condition(node, names::CONDITION_MACHINE)
            .filter(|(status, reason, message)| {
                *status == "False" && !reason.is_empty() && !message.is_empty()
            })
            .map(|(_, reason, message)| format!("{reason}: {message}"))
    };
    let limit = test_run.limit().min(Duration::from_mins(2));
    let said = test_run.seen.until(limit, |all| {
        let node = all.values().filter_map(|history| history.last()).find(|node| node.name_any() == name)?;
        if has_posted(node) { Some(None) } else { says(node).map(Some) }
    });
    match said.await {
        Some(Some(said)) => {
            test_run.kept(&contract::TROUBLE, format!("of a revision that nobody has: {said}"));
        }
        Some(None) => {
            test_run.broken(
                &contract::REVISION,
                format!("{name} has a machine, and names the revision {NO_REVISION} that nobody has"),
            );
            test_run.unseen(&contract::TROUBLE, "its machine was made all the same");
        }
        None => test_run.broken(
            &contract::TROUBLE,
            format!("{name} names the revision {NO_REVISION} that nobody has, and does not say so"),
        ),
    }
    Ok(())
}
