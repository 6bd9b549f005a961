//! Failures on purpose: of an entry in our own hollow kubelet, and of an upstream kubemark behind its proxy.

use serde_json::json;

use crate::{CLUSTER, kubemark::Kubemark};
use kube_node_testing::{
    Fixture,
    fault_injection::{
        FaultTarget, a_reboot_takes_its_pods_along, a_silent_node_becomes_unknown, ready_transitions,
        unhealthy_and_healthy_by_turns, unhealthy_for_ever_after_a_while,
    },
    name,
};

#[tokio::test]
async fn our_machine_by_turns() {
    unhealthy_and_healthy_by_turns::<Fixture>(&CLUSTER, "disrupt-turns").await;
}

#[tokio::test]
async fn our_machine_after_a_while() {
    unhealthy_for_ever_after_a_while::<Fixture>(&CLUSTER, "disrupt-after").await;
}

#[tokio::test]
async fn our_machine_in_silence() {
    a_silent_node_becomes_unknown::<Fixture>(&CLUSTER, "disrupt-silent").await;
}

#[tokio::test]
async fn our_machine_crashes_and_reboots() {
    a_reboot_takes_its_pods_along::<Fixture>(&CLUSTER, "disrupt-crash", "Reported").await;
}

#[tokio::test]
async fn our_machine_loses_its_power() {
    a_reboot_takes_its_pods_along::<Fixture>(&CLUSTER, "disrupt-power", "Silent").await;
}

#[tokio::test]
async fn an_upstream_kubemark_by_turns() {
    unhealthy_and_healthy_by_turns::<Kubemark>(&CLUSTER, "kubemark-turns").await;
}

#[tokio::test]
async fn an_upstream_kubemark_after_a_while() {
    unhealthy_for_ever_after_a_while::<Kubemark>(&CLUSTER, "kubemark-after").await;
}

#[tokio::test]
async fn an_upstream_kubemark_in_silence() {
    a_silent_node_becomes_unknown::<Kubemark>(&CLUSTER, "kubemark-silent").await;
}

#[tokio::test]
async fn a_set_says_that_its_node_is_not_available() {
    let failures = json!({"unhealthyDuration": "4s", "turnUnhealthyAfter": true});
    let own = <Fixture as FaultTarget>::start(&CLUSTER, "disrupt-set", &failures).await;
    ready_transitions(&own, 2).await;
    let message = own.set_says("Available", "False", "NodesUnavailable").await;
    let node = name(&own.my_nodes().await.remove(0));
    assert!(message.contains(&node), "{message}");
    own.patch_class(json!({"spec": {"failures": null}})).await;
    assert_eq!(name(&own.settled(1).await[0]), node);
    own.clean_up().await;
}
