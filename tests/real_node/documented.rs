//! The commands of README and docs that need a node that runs pods, run as they stand: those about the local cluster's real node,
//! and those that install into a cluster, for which a local cluster stands with a registry beside it.
//!
//! A block is named by a part of its text. Replaced in it is what the reader fills in, and what is not the same here: the folder of
//! the cluster, and the registry, which has another port and speaks http. In between stand the steps that the documents describe in words.

#[path = "../docs/document.rs"]
#[allow(dead_code, reason = "a part of it is for the documents that are run whole")]
mod document;
#[path = "../docs/shell.rs"]
#[allow(dead_code, reason = "a part of it is for objects")]
mod shell;

use std::{
    fmt::Write as _,
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use kube_node_testing::{TemporaryCluster, real_node::said_of_pods, test_target};
use serde_json::{Value, json};

use self::document::{Block, Document};
use crate::{
    program::{HELM_VARIABLES, helm_program, said},
    registry::Registry,
};

/// A step on the way through the documents.
enum Step {
    /// The block of a document that has this text.
    Run(&'static str, &'static str),
    /// Commands that stand in no block.
    Shell(&'static str),
    /// A block whose last command is refused, and what is said.
    Refused(&'static str, &'static str, &'static str),
}
use Step::{Refused, Run, Shell};

const INSTALL: &str = "docs/install.md";
/// Waits until the Nodes of `examples/nodes.yaml` are available.
const RUNS: Step = Shell("kubectl wait nodeset/workers --for=condition=Available --timeout=2m");

/// From a cluster without kube-node, by each way in, and back.
const STEPS: &[Step] = &[
    // `up` has applied what the chart brings.
    Shell("kube-node cleanup --all"),
    Run("docs/images.md", "kube-node image --push $registry/kube-node"),
    Run("README.md", "kube-node setup --operator"),
    Shell("kube-node cleanup && kube-node cleanup --operator"),
    Run(INSTALL, "kube-node setup --operator --image REGISTRY/NAME:TAG"),
    Shell("kube-node cleanup && kube-node cleanup --operator"),
    Run(INSTALL, "helm test kube-node"),
    RUNS,
    Run("docs/hollow-hosts.md", "hollowHosts.big.replicas=5"),
    Shell("kubectl -n kube-node-system rollout status statefulset/kube-node-hollow-big --timeout=2m"),
    Shell(
        "helm upgrade kube-node charts/kube-node --namespace kube-node-system --reset-then-reuse-values --wait --wait-for-jobs --set autoscaler.enabled=true,autoscaler.clientNamespace=kube-system",
    ),
    Run(INSTALL, "patch secret kube-node-autoscaler-server"),
    Shell(
        "kubectl -n kube-node-system get secret kube-node-autoscaler-server -o jsonpath='{.data}' | grep tls.key >/dev/null",
    ),
    Run(INSTALL, "helm rollback kube-node --namespace kube-node-system --wait"),
    RUNS,
    Refused(INSTALL, "error: there are 1 NodeSet (hollow)", "there are 1 NodeSet (workers), 10 Nodes ("),
    RUNS,
    Run(INSTALL, "kubectl delete nodesets,nodeclasses --all"),
    Run(INSTALL, "kubectl delete crd"),
    // Refused once more, and drained by the job.
    Run("charts/kube-node/README.md", "helm test kube-node"),
    Shell("kubectl apply -f examples/nodes.yaml"),
    RUNS,
    Refused(INSTALL, "error: there are 1 NodeSet (hollow)", "there are 1 NodeSet (workers), 10 Nodes ("),
    Run(INSTALL, "--set uninstall.deleteNodes=true"),
    Run(INSTALL, "kubectl delete crd"),
    // An image that no node has, so that the job cannot run: it has 45 s more than its time.
    Shell(
        "helm install kube-node charts/kube-node --namespace kube-node-system --create-namespace --set image.repository=localhost/none,uninstall.timeout=1s",
    ),
    Shell("! helm uninstall kube-node --namespace kube-node-system"),
    Run(INSTALL, "--set image.repository=REGISTRY/NAME\n$ helm uninstall"),
    Run(INSTALL, "kubectl delete crd"),
];

/// About the real node itself; each document has a cluster of its own.
pub fn the_documented_commands_show_the_real_node() {
    let _place = crate::place_of_a_cluster();
    let failed: Vec<String> = Document::all(&root())
        .iter()
        .filter_map(|document| shell::run(document, Some("real-node")).err())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// A block that this module runs says so by its reason, and each of them is run.
pub fn each_block_that_installs_is_run() {
    for document in Document::all(&root()) {
        for block in document.blocks.iter().filter(|block| block.ignore.as_deref() == Some("installs")) {
            let is_run = STEPS.iter().any(|step| match step {
                Run(path, text) | Refused(path, text, _) => {
                    *path == document.path && block.text.contains(text)
                }
                Shell(_) => false,
            });
            assert!(is_run, "{}:{} stands in no step", document.path, block.line);
        }
    }
}

pub fn the_documented_commands_install_and_uninstall() {
    let _place = crate::place_of_a_cluster();
    let cluster =
        TemporaryCluster::start(test_target!(), "documented", &["--real-node", "--without-operator"]);
    let host: IpAddr = cluster.state()["network"]["host"].as_str().unwrap().parse().unwrap();
    let registry = Registry::start("documented", host, &json!({}));
    let reader = Reader::new(&cluster, registry.address);
    for (number, step) in (1..).zip(STEPS) {
        let (name, text, refusal) = match step {
            Shell(text) => (format!("step {number}"), (*text).to_owned(), None),
            Run(path, text) => (format!("{path}, {text}"), reader.block(path, text), None),
            Refused(path, text, refusal) => {
                (format!("{path}, {text}"), reader.block(path, text), Some(refusal))
            }
        };
        let output = reader.run(&text);
        let is_right = match refusal {
            None => output.status.success(),
            Some(refusal) => !output.status.success() && said(&output).contains(refusal),
        };
        let events = || said_of_pods(&cluster, "kube-node-system");
        assert!(is_right, "{name}: {}\n{}\n{}", output.status, said(&output), events());
    }
    fs::remove_dir_all(&reader.dir).unwrap();
}

/// A reader's shell.
struct Reader<'a> {
    cluster: &'a TemporaryCluster,
    registry: SocketAddr,
    /// The working folder, which is the home as well.
    dir: PathBuf,
}

impl<'a> Reader<'a> {
    fn new(cluster: &'a TemporaryCluster, registry: SocketAddr) -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("reader-{}", std::process::id()));
        shell::make_folder(&dir);
        // Programs of the profile that images are made of are where a build of this profile would have put them.
        let (programs, built) = (dir.join("programs"), dir.join("target/here/dist"));
        for folder in [&programs, &built] {
            fs::create_dir_all(folder).unwrap();
        }
        let kubectl = PathBuf::from(cluster.state()["binaries"].as_str().unwrap()).join("kubectl");
        let own = Path::new(env!("CARGO_BIN_EXE_kube-node"));
        for (name, program) in [("kube-node", own), ("kubectl", &kubectl), ("helm", helm_program())] {
            symlink(program, programs.join(name)).unwrap();
        }
        symlink(own, built.join("kube-node")).unwrap();
        Self { cluster, registry, dir }
    }

    /// Commands of a block, with what the reader fills in.
    fn block(&self, path: &str, text: &str) -> String {
        let document = Document::read(&root(), path);
        let is_it = |block: &&Block| block.ignore.as_deref() == Some("installs") && block.text.contains(text);
        let found: Vec<&Block> = document.blocks.iter().filter(is_it).collect();
        let [block] = found[..] else { panic!("{path} has {} blocks with {text:?}", found.len()) };
        let mut commands = String::new();
        for command in block.commands() {
            writeln!(commands, "{}", command.text).unwrap();
        }
        self.filled_in(&commands)
    }

    /// Commands with what the reader fills in.
    fn filled_in(&self, commands: &str) -> String {
        let registry = self.registry;
        let mut text = commands.to_owned();
        for (from, to) in [
            ("--push REGISTRY/NAME", format!("--push {registry}/kube-node --plain-http")),
            ("REGISTRY/NAME", format!("{registry}/kube-node")),
            (":TAG", format!(":{}", env!("CARGO_PKG_VERSION"))),
            ("~/.local/share/kube-node/default", self.cluster.dir.display().to_string()),
            (":5000", format!(":{}", registry.port())),
        ] {
            text = text.replace(from, &to);
        }
        if text.contains("REVISION") {
            let status = self.run("helm status kube-node --namespace kube-node-system -o json");
            let status: Value = serde_json::from_slice(&status.stdout).unwrap();
            text = text.replace("REVISION", &status["version"].to_string());
        }
        text
    }

    /// Runs commands, up to the first one that fails.
    fn run(&self, commands: &str) -> Output {
        let script =
            format!("set -euo pipefail\ntrap 'echo \"$BASH_COMMAND: this failed\" >&2' ERR\n{commands}");
        let path = format!("{}:{}", self.dir.join("programs").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.arg("-c").arg(script).current_dir(&self.dir).stdin(Stdio::null());
        command.env("PATH", path).env("HOME", &self.dir).env_remove("XDG_RUNTIME_DIR");
        for variable in HELM_VARIABLES.into_iter().chain(["DOCKER_CONFIG", "REGISTRY_AUTH_FILE"]) {
            command.env_remove(variable);
        }
        command.env("KUBECONFIG", self.cluster.dir.join("kubeconfig")).output().expect("bash")
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
