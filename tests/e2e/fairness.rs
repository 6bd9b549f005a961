//! API priority and fairness: which level the API server puts our requests on.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, eventually};

/// How many requests of each flow schema ran, as `schema@level`.
fn dispatched() -> BTreeMap<String, f64> {
    let metrics = CLUSTER.kubectl(&["get", "--raw", "/metrics"]);
    let mut all = BTreeMap::new();
    for line in metrics.lines() {
        let Some(labels) = line.strip_prefix("apiserver_flowcontrol_dispatched_requests_total{") else {
            continue;
        };
        let (labels, count) = labels.split_once("} ").unwrap();
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.to_owned()
        };
        let key = format!("{}@{}", label("flow_schema"), label("priority_level"));
        *all.entry(key).or_default() += count.parse::<f64>().unwrap();
    }
    all
}

#[tokio::test]
async fn heartbeats_and_the_lead_do_not_wait_behind_the_rest() {
    let before = dispatched();
    let own = Fixture::new(&CLUSTER, "fairness", 3, class_spec()).await;
    own.settled(3).await;
    // One operator alone holds no election.
    let groups =
        ["system:serviceaccounts", "system:serviceaccounts:kube-node-system", "system:authenticated"];
    let operator =
        CLUSTER.client_as("system:serviceaccount:kube-node-system:kube-node-operator", &groups).await;
    let leases: Api<Lease> = Api::namespaced(operator, "kube-node-system");
    leases.get_opt("kube-node-operator").await.unwrap();
    eventually("requests of each flow", LONG, async || {
        let now = dispatched();
        let more = |flow: &str| now.get(flow) > before.get(flow);
        ["kube-node-leader-election@leader-election", "kube-node-heartbeats@node-high", "kube-node@kube-node"]
            .into_iter()
            .all(more)
            .then_some(())
    })
    .await;
    own.clean_up().await;
}
