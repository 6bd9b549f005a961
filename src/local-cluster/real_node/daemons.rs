//! Supervises containerd, kubelet and kube-proxy inside the node. The kubelet starts after the import of the
//! images, so that every pod finds its image.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use super::{
    DaemonName, NAME, Node, NodeError,
    config::{self, SOCKET},
};
use crate::process_supervisor::{Plan, ProcessSupervisor, ProcessSupervisorError};

/// Time limit for containerd to answer.
const READY_LIMIT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(50);

/// Reason why the node's processes do not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonsError {
    /// The node's description cannot be used.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A process cannot be started.
    #[error("cannot start {name}")]
    Start {
        /// Name of the process.
        name: &'static str,
        /// The error.
        source: ProcessSupervisorError,
    },
    /// containerd does not answer.
    #[error("containerd does not answer after {} s: {said}; see {}", READY_LIMIT.as_secs(), log.display())]
    NotReady {
        /// Output of containerd's client.
        said: String,
        /// Path of containerd's log.
        log: PathBuf,
    },
    /// containerd's client cannot be run.
    #[error("cannot run {}", path.display())]
    Run {
        /// Path of the client.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// An image cannot be imported.
    #[error("containerd does not take {}: {said}", path.display())]
    Import {
        /// Path of the archive.
        path: PathBuf,
        /// Output of containerd's client.
        said: String,
    },
}

/// Runs the processes until this process is killed.
pub async fn run(dir: &Path) -> Result<std::convert::Infallible, DaemonsError> {
    let node = Node::load(dir)?;
    let containerd = keeper(&node, dir, DaemonName::Containerd);
    let kubelet = keeper(&node, dir, DaemonName::Kubelet);
    let proxy = keeper(&node, dir, DaemonName::KubeProxy);
    start(&containerd, DaemonName::Containerd).await?;
    start(&proxy, DaemonName::KubeProxy).await?;
    answers(&node).await?;
    import(&node).await?;
    start(&kubelet, DaemonName::Kubelet).await?;
    std::future::pending().await
}

async fn start(keeper: &ProcessSupervisor, name: DaemonName) -> Result<(), DaemonsError> {
    keeper.start().await.map_err(|source| DaemonsError::Start { name: name.name(), source })
}

fn keeper(node: &Node, dir: &Path, daemon: DaemonName) -> ProcessSupervisor {
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
            ],
        ),
        DaemonName::KubeProxy => (node.binaries.join("kube-proxy"), vec![file("config", config::PROXY)]),
    };
    let log = node.logs.join(format!("{}.log", daemon.name()));
    // No pids are recorded: they mean nothing outside this PID namespace. `daemons` reads them from the cgroup.
    ProcessSupervisor::new(Plan { name: daemon.name(), program, args, log }, Box::new(|_| Ok(())))
}

async fn answers(node: &Node) -> Result<(), DaemonsError> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let Err(said) = ctr(node, &["version".as_ref()]).await? else { return Ok(()) };
        if Instant::now() >= deadline {
            let log = node.logs.join("containerd.log");
            return Err(DaemonsError::NotReady { said, log });
        }
        sleep(POLL).await;
    }
}

/// Imports the images that containerd lacks or has of another build.
async fn import(node: &Node) -> Result<(), DaemonsError> {
    let listed = ctr(node, &["images".as_ref(), "ls".as_ref()]).await?.unwrap_or_default();
    let there = parse_images(&listed);
    for image in &node.images {
        if there.contains(&(image.name.as_str(), image.digest.as_str())) {
            continue;
        }
        let imported = ctr(node, &["images".as_ref(), "import".as_ref(), image.path.as_os_str()]).await?;
        imported.map_err(|said| DaemonsError::Import { path: image.path.clone(), said })?;
    }
    Ok(())
}

/// Names and digests parsed from `ctr images ls`.
fn parse_images(listed: &str) -> BTreeSet<(&str, &str)> {
    let rows = listed.lines().skip(1).map(|line| line.split_ascii_whitespace());
    rows.filter_map(|mut columns| Some((columns.next()?, columns.nth(1)?))).collect()
}

/// Output of containerd's client; its error output if it fails.
async fn ctr(node: &Node, args: &[&std::ffi::OsStr]) -> Result<Result<String, String>, DaemonsError> {
    let output = Command::new(&node.programs.ctr)
        .args(["--address", SOCKET, "--namespace", "k8s.io"])
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| DaemonsError::Run { path: node.programs.ctr.clone(), source })?;
    Ok(if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))
    })
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
