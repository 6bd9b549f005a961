//! kubectl: our program as a plugin of the cluster's own, and what it shows of our kinds. docs/kubectl.md has the same
//! columns.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
};

use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, eventually};

const PAGE: &str = include_str!("../../docs/kubectl.md");

/// A folder that is alone on PATH, with our program in it under the plugin's name.
struct Plugin(PathBuf);

impl Plugin {
    fn install() -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("plugin-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        symlink(env!("CARGO_BIN_EXE_kube-node"), dir.join("kubectl-kube_node")).unwrap();
        Self(dir)
    }

    /// Runs the cluster's kubectl.
    fn kubectl(&self, args: &[&str]) -> Output {
        let state = CLUSTER.state();
        let kubectl = Path::new(state["binaries"].as_str().unwrap()).join("kubectl");
        let mut command = Command::new(kubectl);
        command.args(args).env("PATH", &self.0).env("KUBECONFIG", CLUSTER.dir.join("kubeconfig"));
        command.output().unwrap()
    }

    fn output(&self, args: &[&str]) -> String {
        let output = self.kubectl(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        // Warnings would be there, of names that hide each other or files that do not run.
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn the_program_is_a_plugin_of_kubectl() {
    let own = Fixture::new(&CLUSTER, "kubectl-plugin", 1, class_spec()).await;
    own.settled(1).await;
    own.set_says("Progressing", "False", "Complete").await;
    let plugin = Plugin::install();
    assert!(plugin.output(&["plugin", "list"]).contains("/kubectl-kube_node"));
    for (args, usage) in [
        (&["kube-node", "--help"][..], "Usage: kubectl kube-node <COMMAND>"),
        (&["kube-node", "rollout", "status", "--help"], "Usage: kubectl kube-node rollout status "),
    ] {
        let said = plugin.output(args);
        assert!(said.contains(usage), "{said}");
    }
    let said = plugin.output(&["kube-node", "top"]);
    assert!(said.lines().any(|line| line.starts_with("kubectl-plugin ")), "{said}");
    let said = plugin.output(&["kube-node", "rollout", "status", "nodeset/kubectl-plugin"]);
    assert!(said.contains("successfully rolled out"), "{said}");
    let wrong = plugin.kubectl(&["kube-node", "rollout", "status", "nodeset/nonsense"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("there is no NodeSet nonsense"));
    let wrong = plugin.kubectl(&["kube-node", "nonsense"]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        said.contains("unrecognized subcommand 'nonsense'") && said.contains("kubectl kube-node"),
        "{said}"
    );
    own.clean_up().await;
}

/// `kubectl get nset NAME --watch`, until it is dropped.
struct Watch {
    kubectl: Child,
    file: PathBuf,
}

impl Watch {
    fn start(set: &str) -> Self {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("watch-{}", std::process::id()));
        let kubectl = Command::new(Path::new(CLUSTER.state()["binaries"].as_str().unwrap()).join("kubectl"))
            .args(["get", "nset", set, "--watch", "--no-headers"])
            .env("KUBECONFIG", CLUSTER.dir.join("kubeconfig"))
            .stdout(File::create(&file).unwrap())
            .spawn()
            .unwrap();
        Self { kubectl, file }
    }

    /// The lines so far, without the name, the class and the age, and with one blank between two words.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.file).unwrap();
        let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let cells = complete.map(|line| line.split_whitespace().collect::<Vec<_>>());
        cells.map(|cells| cells[2..cells.len() - 1].join(" ")).collect()
    }

    /// Waits until this is the last line.
    async fn shows(&self, cells: &str) {
        eventually(&format!("kubectl prints {cells}"), LONG, async || {
            (self.lines().last()? == cells).then_some(())
        })
        .await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
        let _ = fs::remove_file(&self.file);
    }
}

#[tokio::test]
async fn a_watch_prints_one_line_for_each_change_of_counts() {
    const REPLICAS: usize = 20;
    let own = Fixture::new(&CLUSTER, "kubectl-watch", 0, class_spec()).await;
    own.set_says("Progressing", "False", "Complete").await;
    let watch = Watch::start("kubectl-watch");
    watch.shows("0 0 0 0 0 Complete False").await;
    own.patch_set(json!({"spec": {"replicas": REPLICAS}})).await;
    watch.shows("20 20 20 20 0 Complete False").await;
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
    own.set_says("Progressing", "True", "RollingOut").await;
    watch.shows("20 20 20 20 0 Complete False").await;
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    watch.shows("0 0 0 0 0 Complete False").await;

    let lines = watch.lines();
    for pair in lines.windows(2) {
        assert_ne!(pair[0], pair[1], "a line is repeated in\n{}", lines.join("\n"));
    }
    // Each Node is created, becomes Ready, and leaves; and so does its successor.
    assert!(lines.len() <= 3 * 2 * REPLICAS, "{} lines:\n{}", lines.len(), lines.join("\n"));
    own.clean_up().await;
}

/// The words of the first line that begins a table.
fn heading(text: &str) -> Vec<&str> {
    let line = text.lines().find(|line| line.starts_with("NAME "));
    line.unwrap_or_else(|| panic!("no table in {text}")).split_whitespace().collect()
}

#[tokio::test]
async fn what_kubectl_shows_tells_how_things_stand() {
    let own = Fixture::without_set(&CLUSTER, "kubectl-shows", class_spec()).await;
    own.create_set(2, json!({"nodeClassName": "kubectl-missing"})).await;
    own.set_says("Degraded", "True", "ClassNotFound").await;
    own.set_says("Progressing", "True", "ScalingUp").await;
    let shown = CLUSTER.kubectl(&["get", "nset", "kubectl-shows", "--no-headers"]);
    let cells: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(
        cells[..9],
        ["kubectl-shows", "kubectl-missing", "2", "0", "0", "0", "0", "ScalingUp", "True"],
        "{shown}"
    );
    let wide = CLUSTER.kubectl(&["get", "nset", "kubectl-shows", "-o", "wide"]);
    assert!(wide.contains("0 of 2 nodes are created: there is no NodeClass kubectl-missing"), "{wide}");
    own.patch_set(json!({"spec": {"nodeClassName": "kubectl-shows"}})).await;
    own.settled(2).await;
    own.set_says("Progressing", "False", "Complete").await;
    // The class counts its Nodes in a look of its own.
    eventually("the class counts its Nodes", LONG, async || {
        let status = own.classes.get("kubectl-shows").await.unwrap().status?;
        (status.nodes == Some(2)).then_some(())
    })
    .await;

    for (command, output) in
        [("$ kubectl get nset,nclass\n", &[][..]), ("$ kubectl get nset,nclass -o wide\n", &["-o", "wide"])]
    {
        let sets = CLUSTER.kubectl(&[&["get", "nset"], output].concat());
        let classes = CLUSTER.kubectl(&[&["get", "nclass"], output].concat());
        let (_, page) = PAGE.split_once(command).unwrap();
        let (of_sets, of_classes) = page.split_once("\n\n").unwrap();
        assert_eq!((heading(of_sets), heading(of_classes)), (heading(&sets), heading(&classes)), "{command}");
    }
    let classes = CLUSTER.kubectl(&["get", "nclass", "kubectl-shows", "-o", "wide", "--no-headers"]);
    let cells: Vec<&str> = classes.split_whitespace().collect();
    assert_eq!(cells[1..5], ["hollow", "test", "2", "True"], "{classes}");
    assert_eq!(cells[6..8], ["4", "16Gi"], "{classes}");
    for field in ["nodeset.spec.drain.timeout", "nodeclass.spec.failures"] {
        assert!(CLUSTER.kubectl(&["explain", field]).contains("DESCRIPTION:"), "{field}");
    }
    let all = CLUSTER.kubectl(&["get", "kube-node", "-o", "name"]);
    for kind in ["nodeset", "nodeclass"] {
        assert!(all.contains(&format!("{kind}.kube-node.io/kubectl-shows")), "{all}");
    }
    own.clean_up().await;
}
