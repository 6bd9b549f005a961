//! Hollow machines that are to the API server what a kubelet is: whom it takes them for, what they ask of it, what they may
//! not, and that their connections end with them.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{Node, Secret},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, eventually, is_ready, name, phase};

/// How many.
const NODES: usize = 3;
/// Watches of a machine without pods.
const WATCHES: usize = 5;

/// The value of a metric of the operator without labels.
fn metric(wanted: &str) -> usize {
    let metrics = CLUSTER.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}

/// Paths of what the machine of a Node watches, as the API server has it.
fn watched(node: &str) -> BTreeSet<String> {
    let calls = CLUSTER.calls_of(&format!("system:node:{node}"));
    let watches = calls.into_iter().filter(|(verb, _)| verb == "watch");
    watches.map(|(_, uri)| uri.split_once('?').unwrap().0.to_owned()).collect()
}

async fn holds(watches: usize) {
    let what = format!("{watches} watches are open");
    eventually(&what, LONG, async || (metric("kube_node_hollow_watches") == watches).then_some(())).await;
}

#[tokio::test]
async fn machines_that_are_kubelets_to_the_api_server() {
    let mut class = class_spec();
    class["hollow"] = json!({ "load": "Kubelet" });
    let own = Fixture::new(&CLUSTER, "load", i32::try_from(NODES).unwrap(), class).await;
    let nodes: Vec<String> = own.settled(NODES).await.iter().map(name).collect();
    assert_eq!(metric("kube_node_hollow_kubelets"), NODES);
    holds(NODES * WATCHES).await;

    // Each has a certificate of its own, and writes by it.
    let csrs: Api<CertificateSigningRequest> = Api::all(own.client.clone());
    for node in &nodes {
        let all = csrs.list(&ListParams::default()).await.unwrap().items;
        let mut requests =
            all.iter().filter(|csr| csr.metadata.name.as_ref().unwrap().starts_with(&format!("{node}-")));
        let user = requests.next().unwrap().spec.username.as_deref();
        assert_eq!(user, Some("system:serviceaccount:kubemark:kube-node-hollow-machine"));
        let calls = CLUSTER.calls_of(&format!("system:node:{node}"));
        let wrote = |verb: &str, path: &str| calls.iter().any(|(v, uri)| v == verb && uri.starts_with(path));
        assert!(wrote("patch", &format!("/api/v1/nodes/{node}/status")), "{calls:?}");
        assert!(
            wrote("create", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
            "{calls:?}"
        );
        let wanted = [
            "/api/v1/nodes",
            "/api/v1/pods",
            "/api/v1/services",
            "/apis/node.k8s.io/v1/runtimeclasses",
            "/apis/storage.k8s.io/v1/csidrivers",
        ];
        assert_eq!(watched(node), wanted.map(str::to_owned).into());
    }

    // What its pod mounts it watches one by one, and it requests the pod's token.
    let secrets: Api<Secret> = Api::default_namespaced(own.client.clone());
    create(&secrets, json!({"metadata": {"name": "load-secret"}})).await.unwrap();
    let node = &nodes[0];
    let volumes = json!({"volumes": [{"name": "s", "secret": {"secretName": "load-secret"}}]});
    own.pod_on(node, "load-pod", json!({}), volumes).await;
    eventually("its pod runs", LONG, async || {
        (phase(&own.pods.get("load-pod").await.unwrap()) == "Running").then_some(())
    })
    .await;
    holds(NODES * WATCHES + 2).await;
    let watched = watched(node);
    assert!(watched.contains("/api/v1/namespaces/default/secrets"), "{watched:?}");
    assert!(watched.contains("/api/v1/namespaces/default/configmaps"), "{watched:?}");
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    eventually("the token of its pod", LONG, async || {
        let calls = CLUSTER.calls_of(&format!("system:node:{node}"));
        calls.iter().any(|(verb, uri)| verb == "create" && uri.starts_with(token)).then_some(())
    })
    .await;
    let events = CLUSTER.calls_of(&format!("system:node:{node}"));
    assert!(events.iter().any(|(_, uri)| uri.starts_with("/api/v1/namespaces/default/events")), "{events:?}");
    let pod = "/api/v1/namespaces/default/pods/load-pod";
    assert!(
        events.iter().any(|(verb, uri)| verb == "get" && uri == pod),
        "read before it is written: {events:?}"
    );
    own.pods.delete("load-pod", &kube::api::DeleteParams::default()).await.unwrap();
    holds(NODES * WATCHES).await;

    what_it_may_not(&own, &nodes).await;
    dead_machines_watch_nothing(&own).await;

    own.clean_up().await;
    assert_eq!(metric("kube_node_hollow_kubelets"), 0);
    holds(0).await;
    secrets.delete("load-secret", &kube::api::DeleteParams::default()).await.unwrap();
}

/// Neither what a node identity may not, nor can the identity that others share speak for it.
async fn what_it_may_not(own: &Fixture, nodes: &[String]) {
    let refusal = |error: kube::Error| match error {
        kube::Error::Api(status) if status.code == 403 => status.message,
        other => panic!("{other}"),
    };
    let itself = CLUSTER.client_as(&format!("system:node:{}", nodes[0]), &["system:nodes"]).await;
    let leases: Api<Lease> = Api::namespaced(itself.clone(), "kube-node-lease");
    leases.get(&nodes[0]).await.unwrap();
    assert!(refusal(leases.get(&nodes[1]).await.unwrap_err()).contains("can only access node lease"));
    let merge = PatchParams::default();
    let seen: Api<Node> = Api::all(itself);
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"kube-node.io/nodeset": "other"}}}));
    let refused = refusal(seen.patch(&nodes[0], &merge, &relabel).await.unwrap_err());
    assert!(refused.contains("labels under kube-node.io/"), "{refused}");
    let others = CLUSTER.client_as("system:serviceaccount:kube-node-system:kube-node-hollow", &[]).await;
    let others: Api<Node> = Api::all(others);
    let status = Patch::Merge(json!({"status": {"phase": "Running"}}));
    let refused = refusal(others.patch_status(&nodes[0], &merge, &status).await.unwrap_err());
    assert!(refused.contains("none that has an identity of its own"), "{refused}");
    assert!(own.my_nodes().await.iter().all(is_ready));
}

/// One that is silent has no watches, and has them again when it speaks.
async fn dead_machines_watch_nothing(own: &Fixture) {
    let silent = json!({"unhealthyDuration": "1s", "turnUnhealthyAfter": true, "mode": "Silent"});
    own.patch_class(json!({"spec": {"failures": silent}})).await;
    holds(0).await;
    assert_eq!(metric("kube_node_hollow_kubelets"), NODES, "their identities are kept");
    own.patch_class(json!({"spec": {"failures": null}})).await;
    holds(NODES * WATCHES).await;
    own.settled(NODES).await;
}
