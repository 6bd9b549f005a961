//! A release from its first day to its last, on the local cluster with a real node: the operator is a pod of our own image,
//! in a namespace that lets in nothing but restricted pods.

use std::{fs, time::Instant};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PropagationPolicy},
    core::GroupVersionKind,
};
use local_cluster::pki::AutoscalerCertificates;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{
    CLUSTER,
    channel::Credentials,
    cluster::{
        Fleet, NAMESPACE, SERVER, crash, credentials, definitions_are_new, earlier_version, helm, is_served,
        leader, operators, pods_said, try_helm_here, uninstall, upgrade,
    },
    growth::Growth,
    hosts,
    program::{CHART, said, try_helm},
};
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually};

pub async fn from_install_to_uninstall() {
    let _place = crate::place_of_a_cluster();
    // `up` has applied what the chart brings.
    let cleanup = CLUSTER.kube_node(&["cleanup", "--all"]);
    assert!(cleanup.status.success(), "{}", said(&cleanup));
    let client = CLUSTER.client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let restricted = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    create(&namespaces, json!({"metadata": {"name": NAMESPACE, "labels": restricted}})).await.unwrap();

    let earlier = earlier_version();
    let fleet = installed(&client, earlier.to_str().unwrap()).await;
    refused_beside_another(&fleet).await;
    upgraded_and_rolled_back(&fleet).await;
    hosts::come_and_go(&fleet).await;
    certificates_of_ones_own(&fleet).await;
    uninstalled(&fleet).await;
    again(&client).await;
    taken_over();

    fs::remove_dir_all(earlier.parent().unwrap()).unwrap();
    CLUSTER.down();
}

/// From nothing to Nodes, and two more.
async fn installed(client: &Client, chart: &str) -> Fleet {
    let start = Instant::now();
    let notes = upgrade(chart, &[]);
    let ready = start.elapsed();
    assert!(notes.contains("kubectl scale nodeset hollow --replicas=100"), "{notes}");
    let mut fleet = Fleet::new(client).await;
    fleet.hollow.settled(10).await;
    println!(
        "helm install: the operator Ready after {:.1} s, 10 nodes Ready after {:.1} s",
        ready.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    fleet.pods.settled(2).await;
    let answers = helm(&["test", "kube-node", "--logs"]);
    assert!(answers.contains("An operator answers."), "{answers}");
    for pod in operators(client).await {
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("real-node"));
        assert_eq!(spec.containers[0].image.as_deref(), Some(local_cluster::images::KUBE_NODE));
    }
    CLUSTER.kubectl(&["scale", "nodeset", &fleet.hollow.name, "--replicas=12"]);
    fleet.hollow.settled(12).await;
    fleet.remember().await;
    fleet
}

/// A second installation, in whatever namespace.
async fn refused_beside_another(fleet: &Fleet) {
    let sentence = "kube-node is in this cluster already, as release kube-node in namespace kube-node-system";
    for args in [["--namespace", NAMESPACE], ["--namespace", "default"]] {
        let line = [&["install", "second", CHART], &args[..]].concat();
        let output = try_helm(&CLUSTER.dir.join("kubeconfig"), &line);
        assert!(!output.status.success());
        assert!(said(&output).contains(sentence), "{}", said(&output));
    }
    for command in ["setup", "cleanup"] {
        let output = CLUSTER.kube_node(&[command, "--operator"]);
        let sentence = "the release kube-node of helm in namespace kube-node-system is kube-node already";
        assert!(!output.status.success() && said(&output).contains(sentence), "{}", said(&output));
    }
    // What the cluster has not.
    let without = [
        ("autoscaler.certificates.source=CertManager", "and this cluster has no cert-manager"),
        (
            "autoscaler.certificates.source=Secret,autoscaler.certificates.secretName=own",
            "there is no tls.crt in Secret own",
        ),
        (
            "tracing.endpoint=https://collector:4317,tracing.tls.secretName=collector",
            "there is no ca.crt in Secret collector",
        ),
        (
            "serviceMonitor.enabled=true,autoscaler.port=8087",
            "for the Prometheus operator, whose CRDs this cluster lacks",
        ),
    ];
    for (set, sentence) in without {
        let set = format!("autoscaler.enabled=true,{set}");
        let output = try_helm_here(&["upgrade", "kube-node", CHART, "--set", &set]);
        assert!(!output.status.success() && said(&output).contains(sentence), "{set}: {}", said(&output));
    }
    fleet.is_alive("refused").await;
}

/// helm is a process that is waited for.
async fn blocking(helm: impl FnOnce() + Send + 'static) {
    spawn_blocking(helm).await.unwrap();
}

/// To this version, with certificates from the chart's job; a crash of the leader; back to the version before; and here again.
/// Another set grows from nothing to 200 meanwhile.
async fn upgraded_and_rolled_back(fleet: &Fleet) {
    let client = &fleet.hollow.client;
    let uids = async || operators(client).await.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    let (before, first) = (uids().await, leader(client, "").await);
    definitions_are_new(client, false).await;
    let mut growth = Growth::begin(client).await;
    growth.to(80, blocking(|| drop(upgrade(CHART, &["autoscaler.enabled=true"])))).await;
    assert!(uids().await.iter().all(|uid| !before.contains(uid)), "other pods");
    let second = leader(client, &first).await;
    definitions_are_new(client, true).await;
    fleet.is_alive("upgrade").await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let made = async || {
        let data = secrets.get("kube-node-autoscaler-client").await.unwrap().data.unwrap_or_default();
        let text = |key: &str| data.get(key).map(|ByteString(text)| text.clone()).unwrap_or_default();
        Credentials { ca: text("ca.crt"), own: Some((text("tls.crt"), text("tls.key"))) }
    };
    let start = Instant::now();
    let credentials = made().await;
    assert!(!credentials.ca.is_empty(), "helm has waited for the job");
    is_served(client, &credentials).await;
    println!("cluster-autoscaler is served {:.1} s after the upgrade", start.elapsed().as_secs_f64());

    let failover = async {
        crash(client, &second).await;
        leader(client, &second).await
    };
    let third = growth.to(140, failover).await;
    let rollback = ["rollback", "kube-node", "1", "--wait", "--timeout", "4m"];
    growth.to(200, blocking(move || drop(helm(&rollback)))).await;
    leader(client, &third).await;
    definitions_are_new(client, false).await;
    growth.ends_whole(12).await;
    fleet.is_alive("rollback").await;
    assert!(secrets.get_opt("kube-node-autoscaler-client").await.unwrap().is_none());

    upgrade(CHART, &["autoscaler.enabled=true"]);
    let usual = made().await;
    is_served(client, &usual).await;
    // What serves is kept; and nobody waits for a collector that is not there.
    upgrade(CHART, &["autoscaler.enabled=true", "tracing.endpoint=http://collector.example.com:4317"]);
    assert_eq!((made().await.ca, made().await.own), (usual.ca.clone(), usual.own.clone()));
    is_served(client, &usual).await;
    fleet.is_alive("second upgrade").await;
    // So does the job that renews it later.
    let system = ["-n", NAMESPACE];
    CLUSTER.kubectl(
        &[&system[..], &["create", "job", "early", "--from=cronjob/kube-node-certificates"]].concat(),
    );
    CLUSTER
        .kubectl(&[&system[..], &["wait", "job/early", "--for=condition=Complete", "--timeout=3m"]].concat());
    assert_eq!((made().await.ca, made().await.own), (usual.ca.clone(), usual.own.clone()));
    // What is taken away is made anew.
    let empty = r#"[{"op": "remove", "path": "/data"}]"#;
    let secret =
        ["-n", NAMESPACE, "patch", "secret", "kube-node-autoscaler-server", "--type=json", "-p", empty];
    CLUSTER.kubectl(&secret);
    upgrade(CHART, &["autoscaler.enabled=true"]);
    assert_ne!(made().await.ca, usual.ca);
}

/// The server with a Secret that is not the chart's.
async fn certificates_of_ones_own(fleet: &Fleet) {
    let client = &fleet.hollow.client;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let all = AutoscalerCertificates::make(&[SERVER]).unwrap();
    let data = json!({"tls.crt": all.server.certificate, "tls.key": all.server.key, "ca.crt": all.ca});
    create(&secrets, json!({"metadata": {"name": "own"}, "stringData": data})).await.unwrap();
    upgrade(
        CHART,
        &[
            "autoscaler.enabled=true",
            "autoscaler.certificates.source=Secret",
            "autoscaler.certificates.secretName=own",
        ],
    );
    is_served(client, &credentials(&all.ca, &all.client)).await;
    assert!(secrets.get_opt("kube-node-autoscaler-client").await.unwrap().is_none());
    fleet.is_alive("own certificates").await;
}

/// Not while there are Nodes; then with them; and nothing stays.
async fn uninstalled(fleet: &Fleet) {
    let client = &fleet.hollow.client;
    let refused = uninstall();
    assert!(!refused.status.success());
    let sentence = "there are 2 NodeSets (helm-hollow, helm-pods), 14 Nodes (";
    assert!(said(&refused).contains(sentence), "{}", said(&refused));
    fleet.is_alive("refused uninstall").await;
    // Back to a release that can be upgraded: its last revision, with the values that it had.
    let status: Value = serde_json::from_str(&helm(&["status", "kube-node", "--output", "json"])).unwrap();
    helm(&["rollback", "kube-node", &status["version"].to_string(), "--wait", "--timeout", "4m"]);
    let delete_nodes = ["--reset-then-reuse-values", "--set", "uninstall.deleteNodes=true"];
    helm(&[&["upgrade", "kube-node", CHART, "--wait", "--timeout", "4m"], &delete_nodes[..]].concat());
    let values = helm(&["get", "values", "kube-node"]);
    assert!(values.contains("secretName: own") && values.contains("deleteNodes: true"), "{values}");
    fleet.is_alive("upgrade before the uninstall").await;
    // As after a class that went by force.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let held = json!({"metadata": {"name": "held", "finalizers": ["kube-node.io/in-use"]}});
    create(&secrets, held).await.unwrap();
    let start = Instant::now();
    let output = uninstall();
    assert!(output.status.success(), "{}\n{}", said(&output), pods_said());
    println!("helm uninstall of 14 nodes: {:.1} s", start.elapsed().as_secs_f64());
    nothing_is_left(client).await;
}

/// What is documented as staying can be deleted, and nothing else is there.
async fn nothing_is_left(client: &Client) {
    for kind in ["nodesets", "nodeclasses"] {
        assert_eq!(CLUSTER.kubectl(&["get", kind, "--output=name"]), "");
    }
    assert_eq!(CLUSTER.kubectl(&["get", "nodes", "--output=name"]), "node/real-node\n");
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

/// With the kinds that the first release has left. An operator that goes by force leaves Nodes with finalizers; the next one
/// finds them, and can be uninstalled with them and with the kinds.
async fn again(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let before = crds.get("nodesets.kube-node.io").await.unwrap().uid();
    upgrade(CHART, &[]);
    assert_eq!(crds.get("nodesets.kube-node.io").await.unwrap().uid(), before);
    let own = Fixture::of(client.clone(), "helm-again");
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class_spec()})).await.unwrap();
    own.create_set(1, json!({})).await;
    let node = own.settled(1).await.remove(0).uid();

    helm(&["uninstall", "kube-node", "--no-hooks", "--wait", "--timeout", "4m"]);
    let left = own.my_nodes().await.remove(0);
    assert_eq!((left.uid(), left.finalizers().is_empty()), (node.clone(), false));

    upgrade(CHART, &["uninstall.deleteNodes=true", "crds.keep=false"]);
    assert_eq!(own.settled(1).await.remove(0).uid(), node);
    let output = uninstall();
    assert!(output.status.success(), "{}\n{}", said(&output), pods_said());
    for name in ["nodesets.kube-node.io", "nodeclasses.kube-node.io"] {
        eventually(&format!("{name} is gone"), LONG, async || {
            crds.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }
}

/// What `setup` has installed becomes the chart's where that is asked for.
fn taken_over() {
    let setup = CLUSTER.kube_node(&["setup"]);
    assert!(setup.status.success(), "{}", said(&setup));
    let install = ["install", "kube-node", CHART, "--set", "replicas=1", "--wait", "--timeout", "4m"];
    let refused = try_helm_here(&install);
    assert!(said(&refused).contains("namespace kubemark is there already"), "{}", said(&refused));
    let install = [&install[..], &["--set", "machines.createNamespace=false"]].concat();
    let refused = try_helm_here(&install);
    assert!(said(&refused).contains("cannot be imported into the current release"), "{}", said(&refused));
    helm(&[&install[..], &["--take-ownership", "--force-conflicts"]].concat());
    let output = uninstall();
    assert!(output.status.success(), "{}\n{}", said(&output), pods_said());
    CLUSTER.kubectl(&["get", "namespace", "kubemark"]);
}
