//! Supervises containerd, kubelet and kube-proxy inside the node. The kubelet starts after the import of the
//! images, so that every pod finds its image.

use std::{collections::BTreeSet, ffi::OsStr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, ensure};
use strum::IntoStaticStr;
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use super::{
    config::{self, SOCKET},
    description::{ImageArchive, NAME, Node},
};
use crate::{
    addresses::Network,
    process_supervisor::{ProcessSpec, ProcessSupervisor},
};

/// Time limit for containerd to answer.
const READY_LIMIT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(50);

/// A process of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum DaemonName {
    /// The container runtime.
    Containerd,
    /// The kubelet.
    Kubelet,
    /// The Service proxy.
    KubeProxy,
}

impl DaemonName {
    /// All processes, in the order of `status`.
    pub const ALL: [Self; 3] = [Self::Containerd, Self::Kubelet, Self::KubeProxy];

    /// Name of the program and of its log.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Health endpoint that is reachable from the host: a base URL and a path. containerd has none.
    pub fn health(self, network: &Network) -> Option<(String, &'static str)> {
        match self {
            Self::Containerd => None,
            Self::Kubelet => Some(network.kubelet_health()),
            Self::KubeProxy => Some(network.proxy_health()),
        }
    }
}

/// Runs the processes until this process is killed.
pub async fn run(dir: &Path) -> anyhow::Result<std::convert::Infallible> {
    let node = Node::load(dir)?;
    let _containerd = start(&node, dir, DaemonName::Containerd)?;
    let _proxy = start(&node, dir, DaemonName::KubeProxy)?;
    wait_ready(&node).await?;
    import(&node).await?;
    let _kubelet = start(&node, dir, DaemonName::Kubelet)?;
    std::future::pending().await
}

/// Starts a process; it ends when its supervisor is dropped.
fn start(node: &Node, dir: &Path, daemon: DaemonName) -> anyhow::Result<ProcessSupervisor> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", dir.join(name).display());
    let (program, args) = match daemon {
        DaemonName::Containerd => {
            let args = vec!["--config".to_owned(), dir.join(config::CONTAINERD).display().to_string()];
            (node.programs.containerd.clone(), args)
        }
        DaemonName::Kubelet => (
            node.binaries.join("kubelet"),
            vec![
                file("config", config::KUBELET),
                file("kubeconfig", "kubelet.kubeconfig"),
                format!("--hostname-override={NAME}"),
                format!("--node-ip={}", node.network.node),
                // A container that is created and does not run yet counts as a dead one for the kubelet's garbage collection,
                // which keeps the youngest alone: each minute, a slow machine would lose how the container before it ended.
                "--minimum-container-ttl-duration=1m".to_owned(),
            ],
        ),
        DaemonName::KubeProxy => (node.binaries.join("kube-proxy"), vec![file("config", config::PROXY)]),
    };
    let log = node.logs.join(format!("{}.log", daemon.name()));
    // No pids are recorded: they mean nothing outside this PID namespace. `daemons` reads them from the cgroup.
    let spec = ProcessSpec { name: daemon.name(), program, args, log };
    ProcessSupervisor::start(spec, Box::new(|_| Ok(())))
        .with_context(|| format!("cannot start {}", daemon.name()))
}

/// Waits until containerd answers.
async fn wait_ready(node: &Node) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    while let Err(error) = ctr(node, ["version"]).await {
        if Instant::now() >= deadline {
            let (limit, log) = (READY_LIMIT.as_secs(), node.logs.join("containerd.log"));
            let text = format!("containerd does not answer after {limit} s, see {}", log.display());
            return Err(error.context(text));
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Imports the images that containerd lacks or has of another build.
async fn import(node: &Node) -> anyhow::Result<()> {
    let listed = ctr(node, ["images", "ls"]).await.unwrap_or_default();
    let present = parse_images(&listed);
    let is_absent = |image: &&ImageArchive| !present.contains(&(image.name.as_str(), image.digest.as_str()));
    for ImageArchive { path, .. } in node.images.iter().filter(is_absent) {
        let imported = ctr(node, [OsStr::new("images"), OsStr::new("import"), path.as_os_str()]).await;
        imported.with_context(|| format!("containerd does not take {}", path.display()))?;
    }
    Ok(())
}

/// Names and digests parsed from `ctr images ls`.
fn parse_images(listed: &str) -> BTreeSet<(&str, &str)> {
    let rows = listed.lines().skip(1).map(|line| line.split_ascii_whitespace());
    rows.filter_map(|mut columns| Some((columns.next()?, columns.nth(1)?))).collect()
}

/// Output of containerd's client; its error output is the error if it fails.
async fn ctr(node: &Node, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> anyhow::Result<String> {
    let output = Command::new(&node.programs.ctr)
        .args(["--address", SOCKET, "--namespace", "k8s.io"])
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {}", node.programs.ctr.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    ensure!(output.status.success(), errors);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_as_ctr_lists_them() {
        let listed = "REF TYPE DIGEST SIZE PLATFORMS LABELS\n\
            localhost/kube-node:0.1.0 application/vnd.oci.image.manifest.v1+json sha256:aa 9.6 MiB linux/amd64 -\n\
            sha256:bb application/vnd.oci.image.manifest.v1+json sha256:cc 9.6 MiB linux/amd64 -\n";
        let images = parse_images(listed);
        assert!(images.contains(&("localhost/kube-node:0.1.0", "sha256:aa")) && images.len() == 2);
        assert!(parse_images("").is_empty());
    }
}
