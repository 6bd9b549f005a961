//! The part of the node that runs in the host's namespaces: makes cgroups and link, starts the first process
//! in its own namespaces, and runs the TCP proxy to kube-apiserver. The node ends with this process, even if
//! it crashes.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use kube_ext::process::signals;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::{cgroups::Cgroups, description::Node, init::GO, network};
use crate::tcp_proxy::TcpProxy;

/// Time limit for `unshare` to leave the host's network namespace.
const LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// Context of an error.
const NOT_STARTED: &str = "cannot start the first process of the real node in namespaces of its own";

/// Runs the node that `dir` describes until SIGTERM or SIGINT.
pub async fn run(dir: &Path) -> anyhow::Result<()> {
    let stopped = signals().context(NOT_STARTED)?;
    let node = Node::load(dir)?;
    let ended = tokio::select! {
        ended = supervise(&node, dir) => ended,
        () = stopped.cancelled() => Ok(()),
    };
    // Not left to the kernel alone: after the end of this process nothing of the node may remain.
    super::cleanup::remove(&node.id).await?;
    ended
}

async fn supervise(node: &Node, dir: &Path) -> anyhow::Result<()> {
    let cgroups = Cgroups::of(&node.id)?;
    // Remains of an earlier host process that was killed.
    cgroups.remove().await?;
    cgroups.create()?;
    network::renew(&node.id, &node.network)?;
    let address = SocketAddr::from((node.network.host, node.apiserver_port));
    let proxy = TcpProxy::open(address, Some(&network::link_name(&node.id)))
        .with_context(|| format!("cannot listen at {address} for the pods of the real node"))?;

    let mut child = start(node, dir).context(NOT_STARTED)?;
    let pid = child.id().unwrap_or_default();
    left_our_network(pid, &mut child).await?;
    network::attach(&node.id, &node.network, pid)?;
    // Open until the end of the node: when the pipe closes, the first process ends.
    let mut stdin = child.stdin.take();
    if let Some(stdin) = &mut stdin {
        stdin.write_all(&[GO]).await.context(NOT_STARTED)?;
    }
    let status = tokio::select! {
        status = child.wait() => status,
        _ = proxy.serve() => unreachable!("a proxy serves until it is dropped"),
    };
    bail!(ended(status.context(NOT_STARTED)?))
}

fn start(node: &Node, dir: &Path) -> io::Result<Child> {
    Command::new("unshare")
        .args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--"])
        .arg(fs::read_link("/proc/self/exe")?)
        .args([Path::new("real-node"), Path::new("init"), dir])
        .env("PATH", &node.programs.path)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// Waits until `unshare` has a network namespace of its own. `unshare` itself enters all new namespaces
/// except the PID namespace before it forks.
async fn left_our_network(pid: u32, child: &mut Child) -> anyhow::Result<()> {
    let of = |process: &str| fs::read_link(PathBuf::from(format!("/proc/{process}/ns/net")));
    let ours = of("self").context(NOT_STARTED)?;
    let left = async {
        while of(&pid.to_string()).map_or(true, |theirs| theirs == ours) {
            if let Some(status) = child.try_wait().context(NOT_STARTED)? {
                bail!(ended(status));
            }
            sleep(POLL).await;
        }
        Ok(())
    };
    timeout(LIMIT, left).await.map_err(io::Error::from).context(NOT_STARTED)?
}

fn ended(status: ExitStatus) -> String {
    format!("the first process of the real node has ended ({status})")
}
