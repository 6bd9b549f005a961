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

/// The stages that kwokctl gives it when nodes have Leases: those of nodes, and those of pods.
const OF_NODES: [&str; 2] = ["node/fast", "node/heartbeat-with-lease"];
pub const FAST_PODS: &str = "pod/fast";

/// KWOK's program, and the folder of the stages that tell it how nodes and pods behave.
pub struct Kwok {
    binary: PathBuf,
    stages: PathBuf,
}

/// KWOK, built if it is not there: a minute or two.
pub fn build() -> anyhow::Result<Kwok> {
    let binary = KWOK.path()?;
    Ok(Kwok { binary, stages: KWOK.sources()?.join("kustomize/stage") })
}

impl Kwok {
    /// Starts it for the Nodes with an annotation, such as [`OWN`], and with these stages of pods; the Leases are those of
    /// a kubelet.
    pub fn start(&self, kubeconfig: &Path, (key, value): (&str, &str), pods: &str) -> anyhow::Result<Child> {
        let mut files = Vec::new();
        for stage in OF_NODES.into_iter().chain([pods]) {
            for file in std::fs::read_dir(self.stages.join(stage))? {
                let file = file?.path();
                let is_stage = file.extension().is_some_and(|kind| kind == "yaml");
                if is_stage && !file.ends_with("kustomization.yaml") {
                    files.push(file);
                }
            }
        }
        Command::new(&self.binary)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--manage-all-nodes=false")
            .arg(format!("--manage-nodes-with-annotation-selector={key}={value}"))
            .arg("--node-lease-duration-seconds=40")
            .args(files.into_iter().flat_map(|file| [PathBuf::from("--config"), file]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("KWOK does not run")
    }
}
