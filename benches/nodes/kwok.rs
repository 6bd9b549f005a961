//! KWOK, built from its Go module, running before the first node is created.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};

use crate::{bare, plane::Plane, process::Process};

/// Builds it once; Go's cache makes the next time quick.
pub fn build() -> anyhow::Result<PathBuf> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/kwok");
    let binary = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kwok");
    eprintln!("building KWOK (a minute or two the first time)");
    let status = Command::new("go")
        .current_dir(module)
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&binary)
        .arg("sigs.k8s.io/kwok/cmd/kwok")
        .status()
        .context("Go is not installed")?;
    ensure!(status.success(), "KWOK was not built");
    Ok(binary)
}

/// Starts it for all nodes of the plane, with the Leases of a kubelet.
pub async fn start(binary: &Path, plane: &Plane) -> anyhow::Result<Process> {
    let child = Command::new(binary)
        .arg("--kubeconfig")
        .arg(plane.kubeconfig())
        .args(["--manage-all-nodes=true", "--node-lease-duration-seconds=40", "--v=0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("KWOK does not run")?;
    // Its informers and its config take a moment.
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(Process::owned(child))
}

/// Creates the nodes that it makes Ready.
pub async fn create_nodes(plane: &Plane, nodes: usize) -> anyhow::Result<()> {
    bare::create_all(plane, nodes).await
}
