//! An installation as on any cluster: the image comes out of a registry, and nothing is imported.

use std::{
    fs::{self, Permissions},
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use kube_node_api::{ARCHITECTURE, names::MACHINE_PROGRAM};
use kube_node_testing::{
    Fixture, TemporaryCluster, class_spec, create, real_node::said_of_pods, test_target,
};
use serde_json::json;

use crate::{
    program::{CHART, said, try_helm},
    registry::Registry,
};

/// Namespace of `setup`.
const NAMESPACE: &str = "kube-node-system";
/// Namespaces that nothing has by default.
const CHOSEN: &str = "nodes";
const CHOSEN_OF_MACHINES: &str = "machines";
const PROGRAM: &str = env!("CARGO_BIN_EXE_kube-node");

pub async fn the_chart_is_installed_with_an_image_out_of_a_registry() {
    let _place = crate::place_of_a_cluster();
    let cluster = TemporaryCluster::start(test_target!(), "pulled", &["--real-node", "--without-operator"]);
    let host: IpAddr = cluster.state()["network"]["host"].as_str().unwrap().parse().unwrap();
    let registry = Registry::start("pulled", host, &json!({}));
    let (address, repository) = (registry.address, format!("{}/team/kube-node", registry.address));
    // As docs/images.md says of a registry that speaks http.
    let settings = cluster.dir.join("real-node/certs.d").join(address.to_string());
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("hosts.toml"), format!("server = \"http://{address}\"\n")).unwrap();

    let start = Instant::now();
    let pushed = push(&repository, &[]);
    println!("kube-node image --push: {:.1} s", start.elapsed().as_secs_f64());
    let version = env!("CARGO_PKG_VERSION");
    let digest =
        pushed.strip_prefix(&format!("{repository}:{version}@")).unwrap_or_else(|| panic!("{pushed}"));

    // `up` has applied what the chart brings.
    let cleanup = cluster.kube_node(&["cleanup", "--all"]);
    assert!(cleanup.status.success(), "{}", said(&cleanup));
    let start = Instant::now();
    let image = format!("image.repository={repository}");
    let install = ["install", "kube-node", CHART, "--namespace", CHOSEN, "--create-namespace", "--wait"];
    let machines = format!("machines.namespace={CHOSEN_OF_MACHINES}");
    let values = ["--set", "replicas=1", "--set", &image, "--set", &machines];
    let limits = [&["--wait-for-jobs", "--timeout", "4m"][..], &values].concat();
    let output = try_helm(&cluster.dir.join("kubeconfig"), &[&install[..], &limits].concat());
    let events = || said_of_pods(&cluster, CHOSEN);
    assert!(output.status.success(), "{}\n{}", said(&output), events());
    println!("helm install with that image: {:.1} s", start.elapsed().as_secs_f64());

    let client = cluster.client().await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), CHOSEN);
    let of_operator = ListParams::default().labels("app.kubernetes.io/component=operator");
    let operators = pods.list(&of_operator).await.unwrap().items;
    assert_eq!(operators.len(), 1, "{}", events());
    let container = operators[0].status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
    assert_eq!(container.image, format!("{repository}:{version}"));
    // No image of this name was imported, so the digest is that of a pull.
    assert_eq!(container.image_id, format!("{repository}@{digest}"));

    let own = Fixture::of(client.clone(), "pulled");
    let mut class = class_spec();
    class["template"] = json!({"taints": [{"key": "example.com/hollow", "effect": "NoSchedule"}]});
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class})).await.unwrap();
    own.create_set(3, json!({})).await;
    own.settled(3).await;
    own.clean_up().await;
    machines_in_pods(&cluster, &client).await;
    let doctor = ["doctor", "--namespace", CHOSEN, "--machine-namespace", CHOSEN_OF_MACHINES];
    let output = cluster.kube_node(&doctor);
    assert!(output.status.success(), "{}", said(&output));
    for namespace in [NAMESPACE, "kubemark"] {
        let absent = cluster.try_kubectl(&["get", "namespace", namespace]);
        assert!(said(&absent).contains("NotFound"), "{}", said(&absent));
    }

    let output = try_helm(
        &cluster.dir.join("kubeconfig"),
        &["uninstall", "kube-node", "--namespace", CHOSEN, "--wait"],
    );
    assert!(output.status.success(), "{}", said(&output));
    cluster.kubectl(&[
        "delete",
        "crds",
        "nodesets.kube-node.io",
        "nodeclasses.kube-node.io",
        "--ignore-not-found",
    ]);
    foreign_image(&cluster, &repository);
    two_commands(&cluster, &format!("{repository}:{version}"));
}

/// A kubemark machine in the namespace that was chosen: its certificate is approved, and the policies let it work.
async fn machines_in_pods(cluster: &TemporaryCluster, client: &Client) {
    let own = Fixture::of(client.clone(), "pulled-pods");
    let mut class = class_spec();
    class["nodeController"] = json!("kubemark");
    class["template"] = json!({"taints": [{"key": "example.com/hollow", "effect": "NoSchedule"}]});
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class})).await.unwrap();
    own.create_set(1, json!({})).await;
    own.settled(1).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), CHOSEN_OF_MACHINES);
    let events = || said_of_pods(cluster, CHOSEN_OF_MACHINES);
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 1, "{}", events());
    own.clean_up().await;
}

/// An operator whose image is of another architecture than the node does not start, and the command says so.
fn foreign_image(cluster: &TemporaryCluster, repository: &str) {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("foreign-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    // A static program, as far as its header tells: for arm64 (183) or amd64 (62).
    let number = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    elf.resize(16, 0);
    elf.extend([2, 0, number, 0, 1, 0, 0, 0]);
    elf.resize(64, 0);
    elf[52] = 64;
    for program in ["kube-node", MACHINE_PROGRAM] {
        fs::write(dir.join(program), &elf).unwrap();
    }
    push(repository, &["--tag", "foreign", "--programs", dir.to_str().unwrap()]);
    fs::remove_dir_all(&dir).unwrap();
    let image = format!("{repository}:foreign");
    let setup = cluster.kube_node(&["setup", "--operator", "--image", &image, "--timeout", "30s"]);
    let wanted =
        format!("the image is of another architecture than the node ({ARCHITECTURE}): push one for both");
    let events = || said_of_pods(cluster, NAMESPACE);
    assert!(!setup.status.success() && said(&setup).contains(&wanted), "{}\n{}", said(&setup), events());
    let cleanup = cluster.kube_node(&["cleanup", "--operator"]);
    assert!(cleanup.status.success(), "{}", said(&cleanup));
}

/// From a cluster without kube-node to an operator and 100 Ready nodes, as the README has it, and back.
fn two_commands(cluster: &TemporaryCluster, image: &str) {
    let start = Instant::now();
    let setup = cluster.kube_node(&["setup", "--operator", "--image", image]);
    assert!(setup.status.success(), "{}", said(&setup));
    println!("setup --operator: {:.1} s", start.elapsed().as_secs_f64());
    let create = cluster.kube_node(&["create", "100", "--timeout", "2m"]);
    assert!(
        create.status.success() && said(&create).contains("100 of 100 nodes are Ready"),
        "{}",
        said(&create)
    );
    // The node that the operator runs on is not hollow.
    assert!(said(&create).contains("with the taint kube-node.io/hollow:NoSchedule"), "{}", said(&create));
    println!("and create 100: {:.1} s", start.elapsed().as_secs_f64());
    let refused = cluster.kube_node(&["cleanup", "--operator"]);
    assert!(!refused.status.success() && said(&refused).contains("delete NodeSet"), "{}", said(&refused));
    for args in [&["cleanup"][..], &["cleanup", "--operator"]] {
        let output = cluster.kube_node(args);
        assert!(output.status.success(), "{}", said(&output));
    }
}

/// Pushes the image of this build, whose layer no imported image has: a byte is added to the machine program. Returns the last
/// line.
fn push(repository: &str, args: &[&str]) -> String {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("pushed-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let program = dir.join("kube-node");
    fs::hard_link(Path::new(PROGRAM), &program).unwrap();
    let mut machine = fs::read(env!("CARGO_BIN_EXE_kube-node-machine")).unwrap();
    machine.push(0);
    fs::write(dir.join(MACHINE_PROGRAM), machine).unwrap();
    fs::set_permissions(dir.join(MACHINE_PROGRAM), Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&program)
        .args(["image", "--push", repository, "--plain-http"])
        .args(args)
        // No credentials of whoever runs the tests.
        .env("DOCKER_CONFIG", &dir)
        .env_remove("REGISTRY_AUTH_FILE")
        .env_remove("XDG_RUNTIME_DIR")
        .output()
        .unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned()
}
