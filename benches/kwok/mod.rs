//! KWOK, built from its Go module: what benchmarks and tests compare with.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};

/// The annotation of Nodes that are KWOK's, as its documents have it.
pub const OWN: (&str, &str) = ("kwok.x-k8s.io/node", "fake");

/// The stages that kwokctl gives it when nodes have Leases.
const STAGES: [&str; 3] = ["node/fast", "node/heartbeat-with-lease", "pod/fast"];

/// KWOK's program, and what tells it how nodes and pods behave.
pub struct Kwok {
    binary: PathBuf,
    stages: Vec<PathBuf>,
}

/// Builds it once; Go's cache makes the next time quick.
pub fn build() -> anyhow::Result<Kwok> {
    let binary = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kwok");
    eprintln!("building KWOK (a minute or two the first time)");
    let path = binary.to_string_lossy();
    go(&["build", "-trimpath", "-ldflags", "-s -w", "-o", &path, "sigs.k8s.io/kwok/cmd/kwok"])?;
    let module = PathBuf::from(go(&["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])?.trim());
    let mut stages = Vec::new();
    for stage in STAGES {
        for file in std::fs::read_dir(module.join("kustomize/stage").join(stage))? {
            let file = file?.path();
            if file.extension().is_some_and(|kind| kind == "yaml") && !file.ends_with("kustomization.yaml") {
                stages.push(file);
            }
        }
    }
    Ok(Kwok { binary, stages })
}

fn go(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("go")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/kwok"))
        .env("CGO_ENABLED", "0")
        .args(arguments)
        .output()
        .context("Go is not installed")?;
    ensure!(output.status.success(), "go {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
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
