//! Failures on purpose, of kubemark machines.

use std::fs;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, runtime::watcher};
use serde_json::{Value, json};

use crate::{CLUSTER, kinds::Kind};
use kube_node_testing::{
    Fixture, TestCluster,
    fault_injection::{
        FaultTarget, a_reboot_takes_its_pods_along, a_silent_node_becomes_unknown, by_turns, unhealthy_after,
        unhealthy_and_healthy_by_turns, unhealthy_for_ever_after_a_while,
    },
};

/// A set of one machine: of upstream kubemark, or of our own image.
struct Pod<const UPSTREAM: bool>(Fixture);

impl<const UPSTREAM: bool> FaultTarget for Pod<UPSTREAM> {
    async fn start(cluster: &TestCluster, name: &str, failures: &Value) -> Self {
        let kind = if UPSTREAM { Kind::Upstream } else { Kind::Fixture };
        Self(Fixture::new(cluster, name, 1, kind.class(json!({"failures": failures}))).await)
    }

    async fn set_failures(&self, failures: Value) {
        self.0.set_failures(failures).await;
    }

    fn selector(&self) -> watcher::Config {
        self.0.selector()
    }

    fn nodes(&self) -> &Api<Node> {
        self.0.nodes()
    }

    async fn clean_up(self) {
        self.0.clean_up().await;
    }
}

pub async fn our_pod_by_turns() {
    let _node = crate::NODE.read().await;
    unhealthy_and_healthy_by_turns::<Pod<false>>(&CLUSTER, "own-turns").await;
}

pub async fn our_pod_after_a_while() {
    let _node = crate::NODE.read().await;
    unhealthy_for_ever_after_a_while::<Pod<false>>(&CLUSTER, "own-after").await;
}

pub async fn our_pod_in_silence() {
    let _node = crate::NODE.read().await;
    a_silent_node_becomes_unknown::<Pod<false>>(&CLUSTER, "own-silent").await;
}

pub async fn our_pod_reboots() {
    let _node = crate::NODE.read().await;
    a_reboot_takes_its_pods_along::<Pod<false>>(&CLUSTER, "own-reboot", "Silent").await;
}

pub async fn an_upstream_pod_by_turns() {
    let _node = crate::NODE.read().await;
    unhealthy_and_healthy_by_turns::<Pod<true>>(&CLUSTER, "up-turns").await;
}

pub async fn an_upstream_pod_after_a_while() {
    let _node = crate::NODE.read().await;
    unhealthy_for_ever_after_a_while::<Pod<true>>(&CLUSTER, "up-after").await;
}

pub async fn an_upstream_pod_in_silence() {
    let _node = crate::NODE.read().await;
    a_silent_node_becomes_unknown::<Pod<true>>(&CLUSTER, "up-silent").await;
}

/// A machine of the class that `kube-node convert` made of an example of the provider configuration. The image of the example
/// is in no registry that a test may depend on, so the machine has our own.
async fn converted(example: &str) -> Pod<false> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/convert/examples");
    let text = fs::read_to_string(format!("{folder}/{example}.converted.yaml")).unwrap();
    let mut class: Value = serde_norway::from_str(&text).unwrap();
    class["spec"]["kubemark"] = json!({});
    Pod(Fixture::new(&CLUSTER, example, 1, class["spec"].clone()).await)
}

pub async fn a_converted_configuration_by_turns() {
    let _node = crate::NODE.read().await;
    let pod = converted("unready-by-turns").await;
    by_turns(&pod, 5, 40).await;
    pod.clean_up().await;
}

pub async fn a_converted_configuration_after_a_while() {
    let _node = crate::NODE.read().await;
    let pod = converted("unready-after-40s").await;
    unhealthy_after(&pod, 40).await;
    pod.clean_up().await;
}
