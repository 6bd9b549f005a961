//! What cannot be, and who says so.

use super::{CLUSTER, host::Host};
use kube_node_testing::{Fixture, LONG, condition, eventually, name};

/// Nodes whose group has no host wait, and say what for.
pub async fn without_a_host(own: &Fixture) {
    let said = eventually("a Node says that no host is there", LONG, async || {
        let nodes = own.my_nodes().await;
        let node = nodes.first()?;
        assert_eq!(node.metadata.labels.as_ref().unwrap()["kube-node.io/hollow-hosts"], "big");
        let condition = condition(node, "kube-node.io/Machine")?;
        (condition.reason.as_deref() == Some("NoHost")).then(|| condition.message.clone().unwrap())
    })
    .await;
    assert!(said.contains("kube-node hollow-host --hosts big"), "{said}");
    let first = name(&own.my_nodes().await[0]);
    eventually("an event says it too", LONG, async || own.event_of(&first, "NoHost").await).await;
}

/// Each ends with one sentence that says what to do instead.
pub async fn without_rights_or_a_name(own: &Fixture) {
    let mut host = Host::start_as("h-9", &CLUSTER.dir.join("hollow.kubeconfig"));
    assert!(!host.ends().await.success());
    let said = host.said();
    for right in ["watch nodes", "watch nodeclasses", "get controllerrevisions in kube-node-system"] {
        assert!(said.contains(right), "{right}: {said}");
    }
    let mut host = Host::start("Not_A_Name");
    assert!(!host.ends().await.success());
    assert!(
        host.said().contains("--name is \"Not_A_Name\": write up to 63 lower case letters"),
        "{}",
        host.said()
    );

    // The identity of hosts may not touch the operators' own Lease.
    let host = CLUSTER.client_as(
        "system:serviceaccount:kube-node-system:kube-node-hollow-host",
        &["system:serviceaccounts", "system:serviceaccounts:kube-node-system"],
    );
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(host.await, "kube-node-system");
    let lease =
        serde_json::json!({"metadata": {"name": "kube-node-operator"}, "spec": {"holderIdentity": "h"}});
    let lease = serde_json::from_value(lease).unwrap();
    let refused = leases.create(&kube::api::PostParams::default(), &lease).await.unwrap_err().to_string();
    assert!(refused.contains("a host writes the Leases hollow-host.<group>.<name> alone"), "{refused}");
    assert!(
        own.my_nodes().await.iter().all(|node| condition(node, "Ready").is_none_or(|c| c.status != "True"))
    );
}
