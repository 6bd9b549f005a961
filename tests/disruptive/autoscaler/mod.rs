//! cluster-autoscaler's loops against the real control plane: played by a client from the same .proto, with the
//! certificates that `up --autoscaler-server` makes. Some of it kills the operator or takes its certificates away, so these
//! tests have a cluster of their own and run one after another; what needs no such cluster stands beside them.

mod caller;
mod certificates;
mod channel;
mod failures;
mod hostile;
mod rollout;
mod sizes;
mod socket;
mod template;

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use self::{
    caller::Caller,
    channel::{Credentials, connect},
};
use kube_node_testing::{Fixture, TestCluster, eventually, test_target};

/// The cluster of this suite.
static CLUSTER: LazyLock<TestCluster> =
    LazyLock::new(|| TestCluster::shared(test_target!(), "autoscaler", &["--autoscaler-server"]));

/// The server's port.
fn port() -> u16 {
    u16::try_from(CLUSTER.state()["ports"]["autoscaler"].as_u64().unwrap()).unwrap()
}

/// Who may call.
fn credentials() -> Credentials {
    Credentials::of(&CLUSTER.dir.join("autoscaler-pki"))
}

/// One that may call, once the server answers.
async fn caller() -> Caller {
    eventually("the autoscaler server answers", Duration::from_mins(1), async || {
        let mut caller = Caller(connect(port(), &credentials()).await.ok()?);
        caller.refresh().await.ok()?;
        Some(caller)
    })
    .await
}

/// A set that cluster-autoscaler scales, once the server knows the set and its class: each has a watch of its own.
async fn group(name: &str, replicas: i32, min: i32, max: i32, class: Value) -> Fixture {
    let own = Fixture::without_set(&CLUSTER, name, class).await;
    let bounds = json!({"minReplicas": min, "maxReplicas": max});
    own.create_set(replicas, json!({"autoscaling": bounds})).await;
    let mut caller = caller().await;
    eventually("it is a group", kube_node_testing::LONG, async || caller.group(name).await).await;
    eventually("it has a template", kube_node_testing::LONG, async || caller.template(name).await.ok()).await;
    own
}

async fn replicas(own: &Fixture) -> i32 {
    own.sets.get(&own.name).await.unwrap().spec.replicas
}

#[tokio::test]
async fn cluster_autoscaler() {
    let _turn = super::turn().await;
    sizes::from_zero_to_some_and_back().await;
    sizes::within_the_limit_of_the_class().await;
    sizes::deletions_at_once().await;
    sizes::while_others_write().await;
    sizes::given_up().await;
    sizes::killed_between_two_calls().await;
    template::several_sets().await;
    template::as_go_reads_it().await;
    rollout::beside_a_rollout().await;
    failures::a_machine_without_room().await;
    failures::a_set_without_its_class().await;
    hostile::nonsense().await;
    hostile::who_may_not_call().await;
    certificates::what_does_not_serve().await;
}
