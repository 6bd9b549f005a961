//! Nodes come: those of a set, two that were written by hand without the finalizer, one whose machine cannot be made, and one
//! that is somebody else's.

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
    asked::machines_of,
    contract,
    course::{Course, is_at_work},
    judge::{self, has_posted},
    objects,
    record::History,
};

/// Name of a Node without a finalizer.
pub(super) const BARE: &str = "bare";
/// Name of the Node that will lose its finalizer by force.
pub(super) const TORN: &str = "torn";
/// Name of the Node whose revision nobody has.
pub(super) const LOST: &str = "lost";
/// Name of somebody else's Node.
pub(super) const FOREIGN: &str = "foreign";
/// A revision that there cannot be.
const NO_REVISION: &str = "v1-0000000000";
/// How long a Lease lives.
const LEASE: i64 = 40;

pub(super) async fn arrive(course: &Course, revision: &str) -> anyhow::Result<bool> {
    let begun = Instant::now();
    course.create(&course.namespaces, json!({"metadata": {"name": course.run}})).await?;
    course.create(&course.daemons, objects::daemons(&course.run, &course.args.image)).await?;
    let set = course.create(&course.sets, objects::set(&course.run, course.args.nodes)).await?;
    course.wrote(&set);
    let (class, nobody) = (course.run.clone(), objects::of_nobody(&course.run));
    for (what, class, controller, revision, finalizer) in [
        (BARE, &class, course.controller(), revision, false),
        (TORN, &class, course.controller(), revision, false),
        (LOST, &class, course.controller(), NO_REVISION, true),
        (FOREIGN, &nobody, objects::NOBODY, NO_REVISION, true),
    ] {
        let name = course.by_hand(what);
        course
            .create(&course.nodes, objects::node(&course.run, &name, class, controller, revision, finalizer))
            .await?;
    }
    let wanted = usize::try_from(course.args.nodes)? + 2;
    let lost = course.by_hand(LOST);
    let came = course.seen.until(course.limit(), |all| {
        let nodes = all.values().filter_map(|history| history.last());
        (nodes.filter(|node| is_at_work(node)).count() >= wanted).then_some(())
    });
    let came = came.await.is_some();
    let all = course.seen.all();
    let by_hand = [BARE, TORN].map(|what| course.by_hand(what));
    let of = |node: &Node| course.is_of_set(node) || by_hand.contains(&node.name_any());
    let lives: Vec<Vec<Node>> =
        all.values().filter(|history| history.last().is_some_and(of)).map(History::states).collect();
    if came {
        let took = begun.elapsed().as_secs_f32();
        course.judged(&contract::KUBELET, leases(course, &lives, took).await?);
    } else {
        course.broken(&contract::KUBELET, late(&lives, wanted));
    }
    course.judged(
        &contract::NO_EXECUTE,
        all_of(&lives, judge::no_execute, "lost it when a kubelet had posted"),
    );
    course.judged(&contract::NO_SCHEDULE, all_of(&lives, judge::no_schedule, "lost it when they were Ready"));
    course.judged(&contract::PROVIDER_ID, judge::provider_ids(&lives));
    let bare = course.seen.of(&course.by_hand(BARE)).as_ref().map(History::states).unwrap_or_default();
    course.judged(&contract::FINALIZER_FIRST, judge::finalizer_first(&bare));
    if let Some(node) = lives.iter().filter_map(|states| states.last()).find(|node| judge::is_leaving(node)) {
        course.broken(
            &contract::NUMBER,
            format!("{} is being deleted, and nobody here has asked for it", node.name_any()),
        );
    }
    trouble(course, &lost).await?;
    let nodes: Vec<&Node> = lives.iter().filter_map(|states| states.last()).collect();
    match course.machines().await? {
        None => course.unseen(&contract::ONE, "needs --machines"),
        Some(machines) if came => course.judged(&contract::ONE, one_each(&machines, &nodes)),
        Some(_) => course.unseen(&contract::ONE, "the Nodes did not come"),
    }
    Ok(came)
}

/// One judgement of all; the first that is broken stands for them.
fn all_of(lives: &[Vec<Node>], judge: fn(&[Node]) -> judge::Judgement, seen: &str) -> judge::Judgement {
    lives.iter().try_for_each(|states| judge(states).map(drop))?;
    Ok(format!("{} Nodes {seen}", lives.len()))
}

/// 3.4.
fn one_each(machines: &[String], nodes: &[&Node]) -> judge::Judgement {
    for node in nodes {
        let count = machines_of(machines, node).len();
        if count != 1 {
            return Err(format!("{} has {count} machines", node.name_any()));
        }
    }
    Ok(format!("{} Nodes have one each", nodes.len()))
}

/// Why there are fewer Nodes than are wanted.
fn late(lives: &[Vec<Node>], wanted: usize) -> String {
    let last = || lives.iter().filter_map(|states| states.last());
    let there = last().filter(|node| is_at_work(node)).count();
    let why = last().find(|node| !is_at_work(node)).map_or_else(
        || "more Nodes were not made".to_owned(),
        |node| {
            let (status, reason, message) =
                judge::condition(node, "Ready").unwrap_or(("Unknown", "", "no condition"));
            let taint = if judge::has_taint(node, names::TAINT_UNINITIALIZED, None) {
                ", and has our taint"
            } else {
                ""
            };
            format!("{} has Ready={status} ({reason}: {message}){taint}", node.name_any())
        },
    );
    format!("{there} of {wanted} Nodes came: {why}")
}

/// 4.1: the Leases of Nodes that came.
async fn leases(course: &Course, lives: &[Vec<Node>], took: f32) -> anyhow::Result<judge::Judgement> {
    let leases: Api<Lease> = Api::namespaced(course.nodes.clone().into_client(), "kube-node-lease");
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

/// 3.3 and 3.2: the Node that names no revision says so, and has no machine.
async fn trouble(course: &Course, name: &str) -> anyhow::Result<()> {
    let says = |node: &Node| {
        judge::condition(node, names::CONDITION_MACHINE)
            .filter(|(status, reason, message)| {
                *status == "False" && !reason.is_empty() && !message.is_empty()
            })
            .map(|(_, reason, message)| format!("{reason}: {message}"))
    };
    let limit = course.limit().min(Duration::from_mins(2));
    let said = course.seen.until(limit, |all| {
        let node = all.values().filter_map(|history| history.last()).find(|node| node.name_any() == name)?;
        if has_posted(node) { Some(None) } else { says(node).map(Some) }
    });
    match said.await {
        Some(Some(said)) => course.kept(&contract::TROUBLE, format!("of a revision that nobody has: {said}")),
        Some(None) => {
            course.broken(
                &contract::REVISION,
                format!("{name} has a machine, and names the revision {NO_REVISION} that nobody has"),
            );
            course.unseen(&contract::TROUBLE, "its machine was made all the same");
        }
        None => course.broken(
            &contract::TROUBLE,
            format!("{name} names the revision {NO_REVISION} that nobody has, and does not say so"),
        ),
    }
    Ok(())
}
