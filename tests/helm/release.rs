//! A release from its first day to its last, on the local cluster with a real node: the operator is a pod of our own image,
//! in a namespace that lets in nothing but restricted pods.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Output,
    time::{Duration, Instant},
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Pod, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PropagationPolicy},
    core::GroupVersionKind,
};
use kube_node::{
    autoscaler::proto::RefreshRequest,
    cluster::pki::{AutoscalerCertificates, Identity},
};
use serde_json::json;

use crate::{
    bed::{LONG, Own, bed, class_spec, create, delete, eventually, name},
    channel::{Credentials, connect_to},
    program::{CHART, copy_of_chart, said, try_helm},
};

/// Where a release is.
const NAMESPACE: &str = "kube-node-system";
/// How the autoscaler server is called.
const SERVER: &str = "kube-node-autoscaler.kube-node-system.svc";
/// A Secret that a running pod mounts is looked at by its kubelet every minute or two.
const SECRET_LIMIT: Duration = Duration::from_mins(4);
/// Values that all steps have: one operator.
const ONE: &str = "replicas=1";

/// Runs helm on the cluster, in the release's namespace.
fn try_helm_here(args: &[&str]) -> Output {
    try_helm(&bed().dir.join("kubeconfig"), &[args, &["--namespace", NAMESPACE]].concat())
}

fn helm(args: &[&str]) -> String {
    let output = try_helm_here(args);
    assert!(output.status.success(), "helm {args:?}: {}\n{}", said(&output), pods_said());
    said(&output)
}

/// What stands in the way, for whoever reads a failed test.
fn pods_said() -> String {
    let events = bed().try_kubectl(&["-n", NAMESPACE, "get", "pods,jobs,events"]);
    let logs = bed().try_kubectl(&["-n", NAMESPACE, "logs", "--prefix", "-l", "app.kubernetes.io/name=kube-node"]);
    said(&events) + &said(&logs)
}

/// Installs or upgrades, with values of this step alone, and waits until the operator is Ready.
fn upgrade(chart: &str, set: &[&str]) -> String {
    let mut args = vec!["upgrade", "--install", "kube-node", chart, "--wait", "--timeout", "4m", "--reset-values"];
    [&[ONE], set].concat().into_iter().for_each(|value| args.extend(["--set", value]));
    helm(&args)
}

fn uninstall() -> Output {
    try_helm_here(&["uninstall", "kube-node", "--wait", "--timeout", "4m"])
}

/// The one pod of the operator that is not leaving.
async fn operator(client: &Client) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_operator = ListParams::default().labels("app.kubernetes.io/component=operator");
    eventually("one pod of the operator", LONG, async || {
        let mut pods = pods.list(&of_operator).await.unwrap().items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        (pods.len() == 1).then(|| pods.remove(0))
    })
    .await
}

/// Names and UIDs of the Nodes of the set.
async fn machines(own: &Own) -> Vec<(String, String)> {
    let mut nodes: Vec<_> = own.my_nodes().await.iter().map(|node| (name(node), node.uid().unwrap())).collect();
    nodes.sort();
    nodes
}

/// The Nodes of the set are these, and stay so while the operator that is there now gets hold of them.
async fn are_alive(own: &Own, wanted: &[(String, String)], step: &str) {
    own.settled(wanted.len()).await;
    assert_eq!(machines(own).await, wanted, "{step}");
    let pod = operator(&own.client).await;
    let status = &pod.status.unwrap().container_statuses.unwrap()[0];
    assert_eq!(status.restart_count, 0, "{step}: {}", pods_said());
}

/// A call of cluster-autoscaler with these credentials succeeds.
async fn is_served(client: &Client, credentials: &Credentials) {
    eventually("cluster-autoscaler is served", SECRET_LIMIT, async || {
        let address = operator(client).await.status?.pod_ip?;
        let address = SocketAddr::new(address.parse().unwrap(), 8086);
        let mut caller = connect_to(address, SERVER, credentials).await.ok()?;
        caller.refresh(RefreshRequest {}).await.ok()
    })
    .await;
}

fn credentials(ca: &str, own: &Identity) -> Credentials {
    Credentials { ca: ca.into(), own: Some((own.certificate.clone().into(), own.key.clone().into())) }
}

/// The version before this one, packed.
fn earlier_version() -> PathBuf {
    let copy = copy_of_chart("earlier", "0.0.9", |_| {});
    let dir = copy.parent().unwrap().to_owned();
    helm(&["package", copy.to_str().unwrap(), "--destination", dir.to_str().unwrap()]);
    dir.join("kube-node-0.0.9.tgz")
}

#[tokio::test]
async fn from_install_to_uninstall() {
    // `up` has applied what the chart brings.
    let cleanup = bed().kube_node(&["cleanup", "--all"]);
    assert!(cleanup.status.success(), "{}", said(&cleanup));
    let client = bed().client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let restricted = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    create(&namespaces, json!({"metadata": {"name": NAMESPACE, "labels": restricted}})).await.unwrap();

    let earlier = earlier_version();
    let earlier = earlier.to_str().unwrap();
    let (own, nodes) = installed(&client, earlier).await;
    refused_beside_another(&own).await;
    upgraded_and_rolled_back(&own, &nodes).await;
    certificates_of_ones_own(&own, &nodes).await;
    uninstalled(own, &nodes).await;
    again(&client).await;

    fs::remove_dir_all(Path::new(earlier).parent().unwrap()).unwrap();
}

/// From nothing to ten Nodes, and two more.
async fn installed(client: &Client, chart: &str) -> (Own, Vec<(String, String)>) {
    let start = Instant::now();
    let notes = upgrade(chart, &[]);
    let ready = start.elapsed();
    assert!(notes.contains("kubectl scale nodeset hollow --replicas=100"), "{notes}");
    let own = Own::of(client.clone(), "helm");
    let mut class = class_spec();
    class["template"] = json!({"taints": [{"key": "example.com/hollow", "effect": "NoSchedule"}]});
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class})).await.unwrap();
    own.create_set(10, json!({})).await;
    own.settled(10).await;
    println!(
        "helm install: the operator Ready after {:.1} s, 10 nodes Ready after {:.1} s",
        ready.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    let pod = operator(client).await;
    let spec = pod.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("real-node"));
    assert_eq!(spec.containers[0].image.as_deref(), Some(kube_node::images::KUBE_NODE));
    bed().kubectl(&["scale", "nodeset", &own.name, "--replicas=12"]);
    own.settled(12).await;
    let nodes = machines(&own).await;
    (own, nodes)
}

/// A second installation, in whatever namespace.
async fn refused_beside_another(own: &Own) {
    let sentence = "kube-node is in this cluster already, as release kube-node in namespace kube-node-system";
    for args in [["--namespace", NAMESPACE], ["--namespace", "default"]] {
        let line = [&["install", "second", CHART], &args[..]].concat();
        let output = try_helm(&bed().dir.join("kubeconfig"), &line);
        assert!(!output.status.success());
        assert!(said(&output).contains(sentence), "{}", said(&output));
    }
    // What the cluster has not.
    let without = [
        ("autoscaler.certificates.source=CertManager", "and this cluster has no cert-manager"),
        ("autoscaler.certificates.source=Secret,autoscaler.certificates.secretName=own", "there is no tls.crt in Secret own"),
        ("serviceMonitor.enabled=true,autoscaler.port=8087", "for the Prometheus operator, whose kinds this cluster has not"),
    ];
    for (set, sentence) in without {
        let set = format!("autoscaler.enabled=true,{set}");
        let output = try_helm_here(&["upgrade", "kube-node", CHART, "--set", &set]);
        assert!(!output.status.success() && said(&output).contains(sentence), "{set}: {}", said(&output));
    }
    assert_eq!(own.my_nodes().await.len(), 12);
}

/// To this version, with certificates from the chart's job; back to the one before; and here again.
async fn upgraded_and_rolled_back(own: &Own, nodes: &[(String, String)]) {
    let before = operator(&own.client).await.uid();
    upgrade(CHART, &["autoscaler.enabled=true"]);
    assert_ne!(operator(&own.client).await.uid(), before, "another pod");
    are_alive(own, nodes, "upgrade").await;
    let secrets: Api<Secret> = Api::namespaced(own.client.clone(), NAMESPACE);
    let made = async || {
        let data = secrets.get("kube-node-autoscaler-client").await.unwrap().data.unwrap_or_default();
        let text = |key: &str| data.get(key).map(|ByteString(text)| text.clone()).unwrap_or_default();
        Credentials { ca: text("ca.crt"), own: Some((text("tls.crt"), text("tls.key"))) }
    };
    let start = Instant::now();
    let credentials = made().await;
    assert!(!credentials.ca.is_empty(), "helm has waited for the job");
    is_served(&own.client, &credentials).await;
    println!("cluster-autoscaler is served {:.1} s after the upgrade", start.elapsed().as_secs_f64());

    helm(&["rollback", "kube-node", "1", "--wait", "--timeout", "4m"]);
    are_alive(own, nodes, "rollback").await;
    assert!(secrets.get_opt("kube-node-autoscaler-client").await.unwrap().is_none());

    upgrade(CHART, &["autoscaler.enabled=true"]);
    let first = made().await;
    is_served(&own.client, &first).await;
    // What serves is kept.
    upgrade(CHART, &["autoscaler.enabled=true", "operator.logFilter=info"]);
    assert_eq!((made().await.ca, made().await.own), (first.ca.clone(), first.own.clone()));
    is_served(&own.client, &first).await;
    are_alive(own, nodes, "second upgrade").await;
}

/// The server with a Secret that is not the chart's.
async fn certificates_of_ones_own(own: &Own, nodes: &[(String, String)]) {
    let secrets: Api<Secret> = Api::namespaced(own.client.clone(), NAMESPACE);
    let all = AutoscalerCertificates::make(&[SERVER], &[]).unwrap();
    let data = json!({"tls.crt": all.server.certificate, "tls.key": all.server.key, "ca.crt": all.ca});
    create(&secrets, json!({"metadata": {"name": "own"}, "stringData": data})).await.unwrap();
    upgrade(
        CHART,
        &["autoscaler.enabled=true", "autoscaler.certificates.source=Secret", "autoscaler.certificates.secretName=own"],
    );
    is_served(&own.client, &credentials(&all.ca, &all.client)).await;
    assert!(secrets.get_opt("kube-node-autoscaler-client").await.unwrap().is_none());
    are_alive(own, nodes, "own certificates").await;
}

/// Not while there are Nodes; then with them; and nothing stays.
async fn uninstalled(own: Own, nodes: &[(String, String)]) {
    let refused = uninstall();
    assert!(!refused.status.success());
    let sentence = "there are 1 NodeSet (helm), 12 Nodes (";
    assert!(said(&refused).contains(sentence), "{}", said(&refused));
    are_alive(&own, nodes, "refused uninstall").await;
    // Back to a release that can be upgraded.
    helm(&["rollback", "kube-node", "--wait", "--timeout", "4m"]);
    upgrade(CHART, &["uninstall.deleteNodes=true"]);
    are_alive(&own, nodes, "upgrade before the uninstall").await;
    // As after a class that went by force.
    let secrets: Api<Secret> = Api::namespaced(own.client.clone(), NAMESPACE);
    let held = json!({"metadata": {"name": "held", "finalizers": ["kube-node.io/in-use"]}});
    create(&secrets, held).await.unwrap();
    let start = Instant::now();
    let output = uninstall();
    assert!(output.status.success(), "{}\n{}", said(&output), pods_said());
    println!("helm uninstall of 12 nodes: {:.1} s", start.elapsed().as_secs_f64());
    nothing_is_left(&own.client).await;
}

/// What is documented as staying can be deleted, and nothing else is there.
async fn nothing_is_left(client: &Client) {
    for kind in ["nodesets", "nodeclasses"] {
        assert_eq!(bed().kubectl(&["get", kind, "--output=name"]), "");
    }
    assert_eq!(bed().kubectl(&["get", "nodes", "--output=name"]), "node/real-node\n");
    for (group, version, kind) in [
        ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
        ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
        ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"),
        ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding"),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let names: Vec<String> =
            api.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
        assert!(!names.iter().any(|name| name.starts_with("kube-node-")), "{kind}: {names:?}");
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    delete(&namespaces, NAMESPACE, PropagationPolicy::Background).await;
    for name in [NAMESPACE, "kubemark"] {
        eventually(&format!("namespace {name} is gone"), LONG, async || {
            namespaces.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }
}

/// With the kinds that the first release has left; and these go, too.
async fn again(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let before = crds.get("nodesets.kube-node.io").await.unwrap().uid();
    upgrade_in_new_namespace();
    assert_eq!(crds.get("nodesets.kube-node.io").await.unwrap().uid(), before);
    let own = Own::of(client.clone(), "helm");
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class_spec()})).await.unwrap();
    own.create_set(1, json!({})).await;
    own.settled(1).await;
    own.clean_up().await;
    let output = uninstall();
    assert!(output.status.success(), "{}\n{}", said(&output), pods_said());
    nothing_is_left(client).await;
    for name in ["nodesets.kube-node.io", "nodeclasses.kube-node.io"] {
        delete(&crds, name, PropagationPolicy::Background).await;
        eventually(&format!("{name} is gone"), LONG, async || {
            crds.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }
}

fn upgrade_in_new_namespace() {
    helm(&["install", "kube-node", CHART, "--create-namespace", "--wait", "--timeout", "4m", "--set", ONE]);
}
