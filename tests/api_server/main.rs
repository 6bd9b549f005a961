//! The in-memory API server against a real one: the same random requests go to both, and the answers must agree.
//!
//! `KUBE_NODE_REQUESTS=100000 cargo test --test api_server` sends more; `KUBE_NODE_SEEDS=5..6` begins with another seed.
//! The answers of the real server to the first requests are kept in `golden.json`, which is compared without a cluster
//! and written with `KUBE_NODE_WRITE=1`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod operator;
mod requests;
mod side;

use std::sync::LazyLock;

use kube::Client;
use kube_node_testing::{
    TestCluster,
    api_server::{ApiServer, Random},
    seeds, test_target,
};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use self::side::Side;

/// Requests of `cargo test`.
const REQUESTS: usize = 1_500;
/// Requests from one empty state.
const SEQUENCE: usize = 50;
/// Of so many sequences one is watched as well, which takes two seconds.
const WATCHED: u64 = 5;
/// Sequences after which the test says how far it is.
const REPORTED: u64 = 100;
/// Sequences in the golden file.
const GOLDEN: u64 = 20;
const GOLDEN_FILE: &str = "tests/api_server/golden.json";

static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| {
    let cluster = TestCluster::shared(test_target!(), "api-server", &["--without-operator"]);
    for kind in ["nodeclasses", "nodesets"] {
        cluster.kubectl(&["apply", "--server-side", "-f", &format!("crds/{kind}.yaml")]);
    }
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]);
    cluster.kubectl(&["wait", "--for=create", "serviceaccount/default", "--timeout=60s"]);
    // Nobody but the test writes from now on.
    for component in ["kube-controller-manager", "kube-scheduler"] {
        kill(cluster.pid(component).unwrap(), Signal::SIGSTOP).unwrap();
    }
    cluster
});

fn in_memory(seed: u64) -> Side {
    Side::new(Client::new(ApiServer::new(seed, jiff::Timestamp::now), "default"))
}

/// Requests of a seed, each with its answer.
async fn sequence(seed: u64, side: &mut Side) -> Vec<(String, Value)> {
    let mut random = Random::new(seed);
    let mut answers = Vec::new();
    let kind = usize::try_from(seed / WATCHED).unwrap() % requests::WATCHED_KINDS;
    let since = side.present(kind).await;
    for _ in 0..SEQUENCE {
        let request = requests::random(&mut random);
        let answer = side.run(&request).await;
        answers.push((format!("{request:?}"), answer));
    }
    if seed.is_multiple_of(WATCHED) {
        for labels in ["", "tier%3Dfront"] {
            let changes = side.changes(kind, &since, labels).await;
            answers.push((format!("changes of kind {kind} with labels {labels:?}"), json!(changes)));
        }
    }
    answers
}

/// The first answers that differ, with the requests before them.
fn difference(seed: u64, real: &[(String, Value)], memory: &[(String, Value)]) -> Option<String> {
    let at = real.iter().zip(memory).position(|(real, memory)| real != memory)?;
    let about = |text: &str| text.split("action").next().unwrap_or_default().to_owned();
    let before: Vec<String> = real[..at]
        .iter()
        .filter(|(request, _)| about(request) == about(&real[at].0))
        .map(|(request, answer)| format!("  {request}\n    {answer}"))
        .collect();
    let (request, answer) = &real[at];
    Some(format!(
        "seed {seed}, request {at}:\n{}\n{request}\n  real   {answer}\n  memory {}",
        before.join("\n"),
        memory[at].1
    ))
}

#[tokio::test]
async fn both_servers_answer_alike() {
    let mut real = Side::new(CLUSTER.client().await);
    let wanted = std::env::var("KUBE_NODE_REQUESTS").ok().map(|text| {
        text.parse().unwrap_or_else(|_| panic!("KUBE_NODE_REQUESTS is a number such as 100000, not {text}"))
    });
    let requests: usize = wanted.unwrap_or(REQUESTS);
    let first = seeds::wanted().map_or(0, |seeds| seeds.start);
    let sequences = u64::try_from(requests.div_ceil(SEQUENCE)).unwrap();
    let (mut differences, mut golden) = (Vec::new(), Vec::new());
    for seed in first..first + sequences {
        real.clear().await;
        real = Side::new(CLUSTER.client().await);
        let answers = sequence(seed, &mut real).await;
        let memory = sequence(seed, &mut in_memory(seed)).await;
        differences.extend(difference(seed, &answers, &memory));
        let done = seed - first + 1;
        if done.is_multiple_of(REPORTED) {
            println!("{done} of {sequences} sequences, {} differ", differences.len());
        }
        if seed < GOLDEN {
            golden.push(json!(answers.into_iter().map(|(_, answer)| answer).collect::<Vec<_>>()));
        }
    }
    real.clear().await;
    if std::env::var_os("KUBE_NODE_WRITE").is_some() {
        let lines: Vec<String> = golden.iter().map(Value::to_string).collect();
        std::fs::write(GOLDEN_FILE, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
    }
    let count = differences.len();
    let shown: Vec<String> = differences.into_iter().take(20).collect();
    assert!(count == 0, "{count} of {sequences} sequences differ:\n{}", shown.join("\n\n"));
}

#[tokio::test]
async fn the_server_in_memory_answers_as_the_real_one_did() {
    let golden: Vec<Vec<Value>> =
        serde_json::from_str(&std::fs::read_to_string(GOLDEN_FILE).unwrap()).unwrap();
    for (seed, real) in (0..).zip(golden) {
        let memory = sequence(seed, &mut in_memory(seed)).await;
        let real: Vec<_> = memory.iter().map(|(request, _)| request.clone()).zip(real).collect();
        assert_eq!(real.len(), memory.len());
        if let Some(difference) = difference(seed, &real, &memory) {
            panic!("{difference}");
        }
    }
}
