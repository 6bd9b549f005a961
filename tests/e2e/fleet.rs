//! The fleet's commands, one after the other as people use them, on a cluster of their own: the last one takes away what
//! every other test needs.

use std::{
    fs,
    io::{Read, Write},
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use kube_node_testing::{LONG, TemporaryCluster, eventually, test_target};

/// A cluster without nodes.
struct FleetCommands {
    cluster: TemporaryCluster,
}

impl FleetCommands {
    fn start() -> Self {
        Self { cluster: TemporaryCluster::start(test_target!(), "fleet", &[]) }
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kube-node"))
            .args(args)
            .env("KUBECONFIG", self.cluster.dir.join("kubeconfig"))
            .env_remove("KUBEMARK_VERSION")
            .output()
            .unwrap()
    }

    /// What a command that succeeds says.
    fn output(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What one that fails says, on both outputs.
    fn fails(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.output(&["list", "-o", "json"])).unwrap()
    }
}

#[tokio::test]
async fn from_setup_to_cleanup() {
    let own = FleetCommands::start();
    // `up` has made a set of this name, of a class of its own.
    let said = own.fails(&["create", "3"]);
    assert!(
        said.contains("with nodes of NodeClass hollow: change their number with kube-node scale"),
        "{said}"
    );
    own.output(&["cleanup"]);
    assert!(own.fails(&["verify"]).contains("make it with kube-node create"));
    assert!(own.output(&["list"]).contains("kube-node create makes one"));

    for _ in 0..2 {
        assert!(own.output(&["setup"]).contains("An operator runs."));
    }
    let said = own.output(&["create", "3"]);
    // All nodes here are hollow, so no taint has to keep pods away.
    assert!(said.starts_with("NodeSet hollow-nodes: 3 nodes of NodeController hollow\n"), "{said}");
    assert!(!said.contains("operator"), "one serves it: {said}");
    assert!(said.ends_with("3 of 3 nodes are Ready\n"), "{said}");
    assert_eq!(own.output(&["verify"]), "3 of 3 nodes are Ready\n");
    let list = own.list();
    let nodes = list["nodes"].as_array().unwrap();
    assert_eq!((nodes.len(), &list["ready"], &list["wanted"]), (3, &3.into(), &3.into()));
    assert!(nodes.iter().all(|node| node["name"].as_str().unwrap().starts_with("hollow-")), "{list}");
    let yaml: Value = serde_norway::from_str(&own.output(&["list", "-o", "yaml"])).unwrap();
    assert_eq!(yaml["nodes"], list["nodes"]);
    let table = own.output(&["list"]);
    assert_eq!(table.lines().filter(|line| line.contains(" Ready ")).count(), 3, "{table}");
    assert!(own.output(&["list", "-o", "wide"]).contains("containerd://"));

    assert!(own.output(&["scale", "5"]).ends_with("5 of 5 nodes are Ready\n"));
    assert!(own.output(&["scale", "2"]).ends_with("2 of 2 nodes are Ready\n"));
    // Those that leave do not count, and may be there for a moment.
    eventually("the others are gone", LONG, async || {
        (own.list()["nodes"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    let said = own.fails(&["create", "--node-controller", "kubemark"]);
    assert!(
        said.contains("NodeClass hollow-nodes is there already, with nodes of NodeController hollow"),
        "{said}"
    );

    every_hollow_node_counts(&own).await;
    an_edited_class_stays(&own);

    let said = own.output(&["doctor"]);
    assert!(said.lines().all(|line| line.starts_with("ok ")), "{said}");

    // Nodes that fail on purpose are named with their reason.
    let failures = r#"{"spec":{"failures":{"unhealthyDuration":"1s","turnUnhealthyAfter":true}}}"#;
    own.cluster.kubectl(&["patch", "nodeclass", "hollow-nodes", "--type=merge", "-p", failures]);
    let said = eventually("the failures are seen", LONG, async || {
        let output = own.run(&["verify"]);
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code() == Some(1) && said.matches("fault injection").count() >= 2).then_some(said)
    })
    .await;
    assert!(said.starts_with("0 of 2 nodes are Ready\n"), "{said}");
    let said = own.fails(&["doctor"]);
    assert!(said.contains("BAD  NodeSets     hollow-nodes: 0 of 2 nodes are Ready"), "{said}");
    assert!(said.contains("note nodes        0 of 2 are Ready"), "{said}");
    own.cluster.kubectl(&[
        "patch",
        "nodeclass",
        "hollow-nodes",
        "--type=merge",
        "-p",
        r#"{"spec":{"failures":null}}"#,
    ]);
    assert!(own.output(&["verify", "--wait", "--timeout", "90s"]).ends_with("2 of 2 nodes are Ready\n"));

    pods_in_trouble(&own);
    taint_beside_another_node(&own);

    // The operator releases the class that `create` asked it with a moment after that one has ended.
    no_probe_is_left(&own).await;
    // An operator that hangs reconciles nothing.
    let operator = own.cluster.pid("operator").unwrap();
    kill(operator, Signal::SIGSTOP).unwrap();
    let said = own.fails(&["scale", "4", "--timeout", "3s"]);
    assert!(said.contains("timed out after 3s: 2 of 4 nodes are Ready"), "{said}");
    let said = own.fails(&["doctor"]);
    assert!(said.contains("BAD  operator     none answers"), "{said}");
    assert!(said.contains("the operator has not observed its last change"), "{said}");
    let said = own.output(&["create", "4", "--no-wait"]);
    assert!(said.contains("\nNo operator serves NodeController hollow: start one, "), "{said}");
    an_interrupted_doctor_leaves_nothing(&own).await;
    kill(operator, Signal::SIGCONT).unwrap();
    assert!(own.output(&["verify", "--wait"]).ends_with("4 of 4 nodes are Ready\n"));

    let said = own.fails(&["cleanup", "--all"]);
    assert!(
        said.contains("there are nodes that need what setup installed: delete NodeClass hollow first"),
        "{said}"
    );
    assert_eq!(own.list()["nodes"].as_array().unwrap().len(), 4, "nothing was touched");
    a_refused_question_deletes_nothing(&own);
    own.cluster.kubectl(&["delete", "nodeclass", "hollow"]);
    // What a class has left that went by force.
    own.cluster.kubectl(&["-n", "kube-node-system", "create", "secret", "generic", "left"]);
    let held = r#"{"metadata":{"finalizers":["kube-node.io/in-use"]}}"#;
    own.cluster.kubectl(&["-n", "kube-node-system", "patch", "secret", "left", "--type=merge", "-p", held]);
    let said = own.output(&["cleanup", "--all"]);
    assert!(said.ends_with("all nodes are gone\nAll that setup installed is gone.\n"), "{said}");
    let left = own.cluster.kubectl(&[
        "get",
        "crds,namespaces,validatingadmissionpolicies,clusterroles",
        "-o",
        "name",
    ]);
    assert!(left.contains("namespace/kube-node-lease"), "that is Kubernetes' own");
    let ours = left.lines().filter(|line| line.contains("kube-node") && !line.ends_with("kube-node-lease"));
    assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(own.fails(&["create"]).contains("kube-node setup installs it"));
    let said = own.fails(&["doctor"]);
    assert!(
        said.contains("BAD  kinds ")
            && said.contains("BAD  setup        missing: Namespace kube-node-system"),
        "{said}"
    );
    assert!(
        own.output(&["cleanup", "--all"]).contains("There is no NodeSet"),
        "a second time changes nothing"
    );
}

/// Nodes of another NodeSet that are not Ready.
async fn every_hollow_node_counts(own: &FleetCommands) {
    let mut class: Value =
        serde_json::from_str(&own.cluster.kubectl(&["get", "nodeclass", "hollow-nodes", "-o", "json"]))
            .unwrap();
    class["metadata"] = json!({"name": "theirs"});
    class["spec"]["failures"] = json!({"unhealthyDuration": "1s", "turnUnhealthyAfter": true});
    let set = json!({"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeSet", "metadata": {"name": "theirs"},
        "spec": {"nodeClassName": "theirs", "replicas": 1}});
    let file = own.cluster.dir.join("theirs.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": [class, set]}).to_string()).unwrap();
    let file = file.to_str().unwrap();
    own.cluster.kubectl(&["apply", "-f", file]);
    let said = eventually("the other node fails", LONG, async || {
        let said = String::from_utf8(own.run(&["verify"]).stdout).unwrap();
        said.contains("fault injection").then_some(said)
    })
    .await;
    assert!(
        said.starts_with(
            "NodeSet hollow-nodes: 2 of 2 nodes are Ready\nNodeSet theirs: 0 of 1 nodes are Ready\n"
        ),
        "{said}"
    );
    own.fails(&["verify"]);
    assert_eq!(own.output(&["verify", "hollow-nodes"]), "2 of 2 nodes are Ready\n");
    assert!(own.output(&["list"]).ends_with("2 NodeSets: 2 of 3 nodes are Ready\n"));
    own.cluster.kubectl(&["delete", "-f", file]);
}

/// An edit of the class is the user's, for `create` and for a further `up`.
fn an_edited_class_stays(own: &FleetCommands) {
    let cpu = |class: &str| {
        own.cluster.kubectl(&["get", "nodeclass", class, "-o", "jsonpath={.spec.capacity.cpu}"])
    };
    let edit = |class: &str, amount: &str| {
        let patch = json!({"spec": {"capacity": {"cpu": amount}}}).to_string();
        own.cluster.kubectl(&["patch", "nodeclass", class, "--type=merge", "-p", &patch]);
    };
    edit("hollow-nodes", "64");
    let said = own.output(&["create", "2"]);
    assert!(
        said.starts_with("NodeClass hollow-nodes stays as it is, with spec.capacity.cpu 64 instead of 4; to change it: kubectl patch "),
        "{said}"
    );
    assert!(own.output(&["create", "--no-wait"]).contains("NodeSet hollow-nodes: 2 nodes of "));
    assert_eq!(cpu("hollow-nodes"), "64");
    edit("hollow-nodes", "4");
}

/// A Node that is not of ours makes `create` taint its nodes, unless asked not to.
fn taint_beside_another_node(own: &FleetCommands) {
    let file = own.cluster.dir.join("node.json");
    fs::write(&file, r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}"#).unwrap();
    own.cluster.kubectl(&["create", "-f", file.to_str().unwrap()]);
    let taints = || {
        own.cluster.kubectl(&[
            "get",
            "nodeclass",
            "hollow-nodes",
            "-o",
            "jsonpath={.spec.template.taints[*].key}",
        ])
    };
    // The class is there, and stays as it is.
    let said = own.output(&["create", "2"]);
    let note = "NodeClass hollow-nodes stays without the taint kube-node.io/hollow:NoSchedule, which keeps pods of other nodes away; to add the taint: ";
    let command = said.strip_prefix(note).and_then(|rest| rest.split_once('\n')).unwrap().0;
    assert_eq!(taints(), "");
    let cluster = own.cluster.dir.to_str().unwrap();
    let kubectl = command
        .replace("kubectl", &format!("{} kubectl --data-dir {cluster} --", env!("CARGO_BIN_EXE_kube-node")));
    assert!(Command::new("sh").args(["-c", &kubectl]).status().unwrap().success(), "{kubectl}");
    assert_eq!(taints(), "kube-node.io/hollow");
    let said = own.output(&["create", "2"]);
    assert!(
        said.contains("NodeController hollow, with the taint kube-node.io/hollow:NoSchedule\n"),
        "{said}"
    );
    let said = own.output(&["create", "2", "--no-taint"]);
    assert!(said.starts_with("NodeSet hollow-nodes: 2 nodes of NodeController hollow\n"), "{said}");
    assert_eq!(taints(), "");
    own.cluster.kubectl(&["delete", "-f", file.to_str().unwrap()]);
}

/// `cleanup` at a terminal, which `script` makes.
fn a_refused_question_deletes_nothing(own: &FleetCommands) {
    let mut cleanup = Command::new("script")
        .args([
            "--quiet",
            "--return",
            "--command",
            concat!(env!("CARGO_BIN_EXE_kube-node"), " cleanup"),
            "/dev/null",
        ])
        .env("KUBECONFIG", own.cluster.dir.join("kubeconfig"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    cleanup.stdin.as_ref().unwrap().write_all(b"n\n").unwrap();
    let mut said = String::new();
    cleanup.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(cleanup.wait().unwrap().code(), Some(1), "{said}");
    for line in [
        "Cluster: context kube-node of ",
        "Delete the hollow nodes of this cluster? [y/N]",
        "error: nothing was changed",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert_eq!(own.list()["nodes"].as_array().unwrap().len(), 4);
}

/// NodeClasses, with those that commands ask the operator with.
fn probes(own: &FleetCommands) -> String {
    own.cluster.kubectl(&["get", "nodeclasses", "-o", "yaml"])
}

async fn no_probe_is_left(own: &FleetCommands) {
    eventually("the probe is gone", LONG, async || {
        let left = probes(own);
        if left.contains("kube-node-probe-") { Err(left) } else { Ok(()) }
    })
    .await;
}

/// Ctrl-C while `doctor` waits for an operator that does not answer.
async fn an_interrupted_doctor_leaves_nothing(own: &FleetCommands) {
    no_probe_is_left(own).await;
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_kube-node"))
        .arg("doctor")
        .env("KUBECONFIG", own.cluster.dir.join("kubeconfig"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("doctor asks", LONG, async || probes(own).contains("kube-node-probe-").then_some(())).await;
    kill(Pid::from_raw(i32::try_from(doctor.id()).unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(doctor.wait().unwrap().code(), Some(130));
    no_probe_is_left(own).await;
    let mut said = String::new();
    doctor.stderr.unwrap().read_to_string(&mut said).unwrap();
    let kubeconfig = own.cluster.dir.join("kubeconfig");
    assert!(
        said.starts_with("Cluster: context kube-node of KUBECONFIG or ~/.kube/config, https://127.0.0.1:"),
        "{said}"
    );
    assert!(said.ends_with("\nerror: interrupted\n"), "{said} {}", kubeconfig.display());
}

/// Pods as machines have them: one that no node takes, and one that runs, without its Secret and without a kubelet.
fn pods_in_trouble(own: &FleetCommands) {
    let host = own.list()["nodes"][0]["name"].as_str().unwrap().to_owned();
    let pod = |name: &str, spec: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "kubemark", "labels": {"name": "hollow-node"},
                "annotations": {"kube-node.io/node": name.split('-').next()}}, "spec": spec});
        pod["spec"]["containers"] = json!([{"name": "hollow-kubelet", "image": "example.com/kubemark:1"}]);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
        pod
    };
    let volumes =
        json!([{"name": "machine", "projected": {"sources": [{"secret": {"name": "ghost-token"}}]}}]);
    let file = own.cluster.dir.join("pods.json");
    let mut guest = pod("guest-0123abcd", json!({"nodeSelector": {"nowhere": "to-be-found"}}));
    guest["metadata"]["labels"]["kube-node.io/cluster"] = json!("another");
    let items = json!([
        pod("homeless-0123abcd", json!({"nodeSelector": {"nowhere": "to-be-found"}})),
        pod("ghost-0123abcd", json!({"nodeName": host, "volumes": volumes})),
        guest,
    ]);
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    let file = file.to_str().unwrap();
    own.cluster.kubectl(&["apply", "-f", file]);
    own.cluster.kubectl(&[
        "-n",
        "kubemark",
        "wait",
        "pod/ghost-0123abcd",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
    own.cluster.kubectl(&[
        "-n",
        "kubemark",
        "wait",
        "pod/homeless-0123abcd",
        "--for=condition=PodScheduled=false",
        "--timeout=60s",
    ]);
    let said = own.fails(&["doctor"]);
    for line in [
        "BAD  pods         homeless-0123abcd: Unschedulable: no node takes its pod: 0/2 nodes are available",
        "BAD  credentials  missing Secrets: ghost-token of pod ghost-0123abcd",
        "BAD  network      1 of 1 machines whose pods run do not reach the API server: ghost (no Lease)",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(!said.contains("guest"), "a machine of another cluster: {said}");
    let found: Value = serde_json::from_slice(&own.run(&["doctor", "-o", "json"]).stdout).unwrap();
    assert!(
        found.as_array().unwrap().iter().any(|f| f["topic"] == "credentials" && f["verdict"] == "bad"),
        "{found}"
    );
    own.cluster.kubectl(&["delete", "-f", file]);
}

#[test]
fn a_provider_configuration_becomes_a_class() {
    let file =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("convert-{}.yaml", std::process::id()));
    let kube_node =
        |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_kube-node")).args(args).output().unwrap();
    let path = file.to_str().unwrap();
    fs::write(
        &file,
        "apiVersion: kubemarkproviderconfig.k8s.io/v1alpha1\nkind: KubemarkMachineProviderConfig\nunhealthyDuration: 40s\nturnUnhealthyAfter: true\n",
    )
    .unwrap();
    let output = kube_node(&["convert", "-f", path, "--name", "sick"]);
    assert!(output.status.success());
    let class: Value = serde_norway::from_slice(&output.stdout).unwrap();
    assert_eq!((&class["kind"], &class["metadata"]["name"]), (&"NodeClass".into(), &"sick".into()));
    assert_eq!(class["spec"]["failures"]["unhealthyDuration"], "40s");

    fs::write(&file, "kind: KubemarkMachineProviderConfig\nnumcores: 4\n").unwrap();
    let output = kube_node(&["convert", "-f", path]);
    assert_eq!(output.status.code(), Some(1), "something is lost");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains(": not converted: numcores: is numCores meant?")
    );
    assert_eq!(kube_node(&["convert", "-f", path, "--allow-loss"]).status.code(), Some(0));
    fs::remove_file(&file).unwrap();
    let output = kube_node(&["convert", "-f", path]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read"));
}
