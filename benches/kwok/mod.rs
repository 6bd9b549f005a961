//! KWOK, built from its Go module: what benchmarks and tests compare with.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context;

use kube_node_testing::go_program::GoProgram;

const KWOK: GoProgram = GoProgram {
    name: "kwok",
    folder: "benches/kwok",
    module: "sigs.k8s.io/kwok",
    package: "sigs.k8s.io/kwok/cmd/kwok",
};

/// The annotation of Nodes that are KWOK's, as its documents have it.
pub const OWN: (&str, &str) = ("kwok.x-k8s.io/node", "fake");

/// The stages that kwokctl gives it when nodes have Leases.
const STAGES: [&str; 3] = ["node/fast", "node/heartbeat-with-lease", "pod/fast"];

/// KWOK's program, and what tells it how nodes and pods behave.
pub struct Kwok {
    binary: PathBuf,
    stages: Vec<PathBuf>,
}

/// KWOK, built if it is not there: a minute or two.
pub fn build() -> anyhow::Result<Kwok> {
    let binary = KWOK.path()?;
    let sources = KWOK.sources()?;
    let mut stages = Vec::new();
    for stage in STAGES {
        for file in std::fs::read_dir(sources.join("kustomize/stage").join(stage))? {
            let file = file?.path();
            if file.extension().is_some_and(|kind| kind == "yaml") && !file.ends_with("kustomization.yaml") {
                stages.push(file);
            }
        }
    }
    Ok(Kwok { binary, stages })
}

impl Kwok {
    /// Starts it for the Nodes that are its [`OWN`], with the Leases of a kubelet.
    pub fn start(&self, kubeconfig: &Path) -> anyhow::Result<Child> {
        let (key, value) = OWN;
        Command::new(&self.binary)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--manage-all-nodes=false")
            .arg(format!("--manage-nodes-with-annotation-selector={key}={value}"))
            .arg("--node-lease-duration-seconds=40")
            .args(self.stages.iter().flat_map(|stage| [PathBuf::from("--config"), stage.clone()]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("KWOK does not run")
    }
}
