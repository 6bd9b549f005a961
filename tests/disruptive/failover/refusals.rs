//! How an operator may not take part in an election.

use std::process::Command;

use kube_node_testing::{
    LONG, TemporaryCluster, eventually,
    operator::{OperatorIdentity, OperatorProcess},
};

#[test]
fn times_that_contradict_each_other() {
    for (args, said) in [
        (&["--leader-elect-renew-deadline=15s"][..], "--leader-elect-lease-duration (15s) must be longer"),
        (
            &["--leader-elect-retry-period=5s"],
            "--leader-elect-renew-deadline (10s) must be longer than twice",
        ),
        (&["--leader-elect-lease-duration=forever"], "forever"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        let output = command.args(["operator", "--kubeconfig=/nowhere"]).args(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(said), "{args:?}: {text}");
    }
}

/// Those who would not hear of the one that leads.
pub async fn beside_a_leader(cluster: &TemporaryCluster) {
    let leader = OperatorProcess::start(cluster, "usual", OperatorIdentity::ServiceAccounts, &[]);
    leader.leads().await;
    for args in [
        &["--leader-elect=false"][..],
        &["--namespace=default"],
        &["--leader-elect-resource-name=kube-node-another"],
    ] {
        let mut operator = OperatorProcess::start(cluster, "beside", OperatorIdentity::Admin, args);
        assert_eq!(operator.ends().await.code(), Some(1), "{args:?}");
        let said = operator.said();
        assert!(said.contains("another operator works on this cluster, usual_"), "{args:?}: {said}");
    }
    assert!(leader.leads_now());
}

/// Comes last: afterwards no operator can be elected.
pub async fn without_rights(cluster: &TemporaryCluster) {
    let role = ["-n", "kube-node-system", "get", "role", "kube-node-operator", "-o", "json"];
    let mut role: serde_json::Value = serde_json::from_str(&cluster.kubectl(&role)).unwrap();
    // To follow the Leases of hosts is another matter.
    let is_reading = |verb: &serde_json::Value| verb == "list" || verb == "watch";
    for rule in role["rules"].as_array_mut().unwrap() {
        if rule["apiGroups"][0] == "coordination.k8s.io" {
            rule["verbs"].as_array_mut().unwrap().retain(is_reading);
        }
    }
    role["rules"].as_array_mut().unwrap().retain(|rule| rule["verbs"] != serde_json::json!([]));
    let rules = serde_json::json!({ "rules": role["rules"] }).to_string();
    let patch =
        ["-n", "kube-node-system", "patch", "role", "kube-node-operator", "--type=merge", "-p", &rules];
    cluster.kubectl(&patch);
    eventually("the right is gone", LONG, async || {
        let account = "--as=system:serviceaccount:kube-node-system:kube-node-operator";
        let can_i =
            ["auth", "can-i", "update", "leases/kube-node-operator", "-n", "kube-node-system", account];
        (!cluster.try_kubectl(&can_i).status.success()).then_some(())
    })
    .await;
    let mut operator =
        OperatorProcess::start(cluster, "without-rights", OperatorIdentity::ServiceAccounts, &[]);
    assert_eq!(operator.ends().await.code(), Some(1));
    let said = operator.said();
    assert!(
        said.contains("update leases kube-node-operator in kube-node-system")
            && said.contains("--leader-elect=false"),
        "{said}"
    );
}
