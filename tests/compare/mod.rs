//! Compared to the real thing: the same pods on a real kubelet, on our hollow one, on two of KWOK's and on upstream kubemark's, on
//! four nodes of one cluster, at the same time. One watch records what each pod shows; where a system shows something else
//! than the real kubelet does, it differs. Ours has to differ in the fewest places, and docs/fidelity.md has to list and
//! explain each of them.
//!
//! `KUBE_NODE_WRITE=1 cargo test --test real_node compare` writes the tables of docs/fidelity.md. What was seen, and what was made of
//! it, is in `target/*/tmp/compare` afterwards. Needs root, like the tests of the real node, and Go.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod differences;
mod edits;
pub mod facts;
#[path = "../../benches/kwok/mod.rs"]
mod kwok;
mod node;
pub mod page;
mod record;
mod registry;
mod restart;
mod scenario_run;
mod scenarios;
mod systems;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::{
    core::v1::{Event, Namespace, Node},
    storage::v1::CSIDriver,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::json;

use self::{
    facts::{Aspect, Fact, Facts, Known},
    page::Row,
    record::{Record, Story},
    registry::Registry,
    scenario_run::{ScenarioResult, pod_name},
    scenarios::{Goal, Scenario},
    systems::{Nodes, System, Target},
};
use kube_node_testing::{TestCluster, create, test_target};

/// The cluster of this suite. Without the taint eviction controller: it would delete pods that do not tolerate a taint, maybe
/// before their kubelet has refused them.
static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| {
    TestCluster::shared(
        test_target!(),
        "compare",
        &[
            "--real-node",
            "--kubemark",
            "--component-arg",
            "kube-controller-manager=--controllers=*,-taint-eviction-controller",
            // However long a kubelet takes to start again.
            "--component-arg",
            "kube-controller-manager=--node-monitor-grace-period=10m",
        ],
    )
});
/// Where the pods are.
const NAMESPACE: &str = "compare";
/// A resource of which each node has one.
const SLOT: &str = "example.com/slot";
/// Key of the taint that each node has.
const TAINT: &str = "example.com/compare";
/// After the last step of all: what a kubelet still has to say.
const QUIET: Duration = Duration::from_secs(10);
/// Components that tell of pods and are no kubelet.
const CONTROL_PLANE: [&str; 3] = ["default-scheduler", "node-controller", "controllermanager"];

/// Reasons of events of a real kubelet that has no luck: a pod comes before it has heard of all that the pod mounts, or the
/// runtime is too slow.
const HICCUPS: [&str; 3] = ["FailedMount", "FailedCreatePodSandBox", "SandboxChanged"];

/// A scenario on a node, and how that went.
type Ran<'a> = (&'a Scenario, &'a Target, ScenarioResult);

pub async fn ours_differs_least_and_each_difference_is_explained() {
    // It runs hundreds of pods at once on five nodes.
    let _places = crate::all_places_of_clusters();
    let kwok = kwok::build().expect("KWOK is built");
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compare");
    let _ = fs::remove_dir_all(&dir);
    let client = CLUSTER.client().await;
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    create(&Api::<Namespace>::all(client.clone()), namespace).await.unwrap();
    let _registry = Registry::start(&dir.join("registry"));
    // For its sake hollow nodes have CSINodes.
    let driver = json!({"metadata": {"name": "csi.example.com"}, "spec": {}});
    create(&Api::<CSIDriver>::all(client.clone()), driver).await.unwrap();
    let mut nodes = Nodes::start(&client, &kwok).await;
    let record = Record::begin(&client, NAMESPACE).await;
    let scenarios = scenarios::all();
    let pairs = scenarios.iter().flat_map(|scenario| nodes.places.iter().map(move |place| (scenario, place)));
    let courses = pairs.map(async |(scenario, place)| {
        (scenario, place, scenario_run::run(&client, &record, place, scenario).await)
    });
    let ran: Vec<Ran<'_>> = join_all(courses).await;
    tokio::time::sleep(QUIET).await;

    let mut all = facts_of_pods(&client, &record, &ran).await;
    let mut of_nodes = facts_of_nodes(&client, &mut nodes, &kwok).await;
    for place in &nodes.places {
        all.insert((node::NAME, place.system), of_nodes.remove(&place.system).unwrap());
    }
    keep(&dir, &record, &all);
    CLUSTER.down();
    let names = scenarios.iter().map(|scenario| scenario.name).chain([node::NAME]);
    let (mut rows, mut ours) = (Vec::new(), Vec::new());
    for scenario in names {
        let real = &all[&(scenario, System::Kubelet)];
        let found =
            System::OTHERS.map(|system| differences::between(scenario, real, &all[&(scenario, system)]));
        rows.push(Row { scenario, places: real.len(), differs: found.each_ref().map(Vec::len) });
        ours.extend(found.into_iter().next().unwrap());
    }
    let sums = [0, 1, 2, 3].map(|system| rows.iter().map(|row| row.differs[system]).sum::<usize>());
    println!(
        "places where kube-node, KWOK with pod/fast and with pod/general, and kubemark differ from a kubelet: {sums:?}; see {}",
        dir.display()
    );
    assert!(sums[1..].iter().all(|others| sums[0] < *others), "ours differs least");
    page::write_or_check(&rows, &ours);
}

/// The facts of all nodes: at rest, some time after edits by another client, and after a restart of the kubelet.
async fn facts_of_nodes(client: &Client, nodes: &mut Nodes, kwok: &kwok::Kwok) -> BTreeMap<System, Facts> {
    let places = nodes.places.clone();
    let at_rest = join_all(places.iter().map(|place| node::facts(client, place))).await;
    let edited = join_all(places.iter().map(|place| edits::edit(client, place))).await;
    tokio::time::sleep(edits::REPAIRED).await;
    let after_edits =
        join_all(places.iter().zip(&edited).map(|(place, edited)| edited.left(client, place))).await;
    let before = join_all(places.iter().map(|place| restart::before(client, place))).await;
    restart::restart(client, nodes, kwok).await;
    let mut all = BTreeMap::new();
    let systems = places.iter().zip(at_rest).zip(after_edits).zip(edited.iter().zip(&before));
    for (((place, mut facts), after_edits), (edited, before)) in systems {
        facts.insert(Aspect::Edits, after_edits);
        facts.insert(Aspect::Restart, before.facts(client, place).await);
        facts.insert(Aspect::EditsAfterRestart, edited.left(client, place).await);
        all.insert(place.system, facts);
    }
    all
}

/// The facts of all pods, by scenario and system.
async fn facts_of_pods(
    client: &Client,
    record: &Record,
    ran: &[Ran<'_>],
) -> BTreeMap<(&'static str, System), Facts> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut events = events(client).await;
    let mut addresses: BTreeMap<System, BTreeMap<String, usize>> = BTreeMap::new();
    for (scenario, place, _) in ran {
        let story = record.of(&pod_name(scenario.name, place.system));
        let is_over = story.shown.last().is_none_or(|(_, pod)| Goal::Over.is_met(pod));
        if is_over || story.gone.is_some() {
            // Its address may be another's by now.
            continue;
        }
        let mut had: Vec<&str> =
            story.shown.iter().filter_map(|(_, pod)| pod["status"]["podIP"].as_str()).collect();
        had.dedup();
        for address in had {
            *addresses.entry(place.system).or_default().entry(address.to_owned()).or_default() += 1;
        }
    }
    let mut all = BTreeMap::new();
    for (scenario, place, outcome) in ran {
        let name = pod_name(scenario.name, place.system);
        let story = record.of(&name);
        let uid =
            story.shown.first().and_then(|(_, pod)| pod["metadata"]["uid"].as_str()).unwrap_or_default();
        let node = nodes.get(&place.node).await.unwrap();
        let known = Known {
            names: vec![(uid.to_owned(), "UID"), (name.clone(), "POD"), (node.name_any(), "NODE")],
            addresses: addresses.get(&place.system).cloned().unwrap_or_default(),
            events: &events.remove(&name).unwrap_or_default(),
            is_kubelet: place.system == System::Kubelet,
        };
        all.insert((scenario.name, place.system), facts::of_pod(scenario, &story, *outcome, &known));
    }
    all
}

/// Types, reasons and parts of pods that events are about, by pod.
async fn events(client: &Client) -> BTreeMap<String, Vec<String>> {
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    let mut by_pod: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in events.list(&ListParams::default()).await.unwrap() {
        let by = event.source.and_then(|source| source.component).or(event.reporting_component);
        let by_others = by.is_some_and(|by| CONTROL_PLANE.contains(&by.as_str()));
        let is_hiccup = event.reason.as_deref().is_some_and(|reason| HICCUPS.contains(&reason));
        if by_others || is_hiccup {
            continue;
        }
        let parts = [event.type_, event.reason, event.involved_object.field_path];
        let line = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
        by_pod.entry(event.involved_object.name.unwrap_or_default()).or_default().push(line);
    }
    for lines in by_pod.values_mut() {
        lines.sort();
        lines.dedup();
    }
    by_pod
}

/// Writes down what was seen and what was made of it.
fn keep(dir: &Path, record: &Record, all: &BTreeMap<(&'static str, System), Facts>) {
    for ((scenario, system), facts) in all {
        let name = pod_name(scenario, *system);
        let texts = |facts: &[Fact]| facts.iter().map(|fact| fact.text.clone()).collect::<Vec<_>>();
        let made: BTreeMap<_, _> =
            facts.iter().map(|(aspect, facts)| (aspect.name(), texts(facts))).collect();
        let Story { shown, gone } = record.of(&name);
        let begun = shown.first().map(|(at, _)| *at);
        let seconds = |at: std::time::Instant| begun.map(|begun| (at - begun).as_secs_f32());
        let seen: Vec<_> = shown.iter().map(|(at, pod)| json!({"after": seconds(*at), "pod": pod})).collect();
        let story = json!({"facts": made, "seen": seen, "gone": gone.and_then(seconds)});
        fs::write(dir.join(format!("{name}.json")), serde_json::to_string_pretty(&story).unwrap()).unwrap();
    }
}
