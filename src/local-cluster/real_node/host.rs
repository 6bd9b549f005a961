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

use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::{
    Node, NodeError, RemoveError,
    cgroups::{CgroupError, Cgroups},
    network::{self, NetworkError},
};
use crate::tcp_proxy::TcpProxy;

/// Time limit for `unshare` to leave the host's network namespace.
const LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// Byte on standard input that lets the first process continue.
pub(super) const GO: u8 = b'+';

/// Reason why the node does not run.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The node's description cannot be used.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The node's cgroups cannot be made.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// The node's network cannot be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The node's remains cannot be removed.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// The TCP proxy cannot listen.
    #[error("cannot listen at {address} for the pods of the real node")]
    TcpProxy {
        /// Listen address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The first process cannot be started in its own namespaces.
    #[error("cannot start the first process of the real node in namespaces of its own")]
    Start(#[source] io::Error),
    /// The first process has ended.
    #[error("the first process of the real node has ended ({0})")]
    Ended(ExitStatus),
}

/// Runs the node that `dir` describes until SIGTERM or SIGINT.
pub async fn run(dir: &Path) -> Result<(), HostError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(HostError::Start)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(HostError::Start)?;
    let node = Node::load(dir)?;
    let ended = tokio::select! {
        ended = keep(&node, dir) => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // Not left to the kernel alone: after the end of this process nothing of the node may remain.
    super::remove_of(&node.id).await?;
    ended
}

async fn keep(node: &Node, dir: &Path) -> Result<(), HostError> {
    let cgroups = Cgroups::of(&node.id)?;
    // Remains of an earlier host process that was killed.
    cgroups.remove().await?;
    cgroups.create()?;
    network::renew(&node.id, &node.network)?;
    let address = (node.network.host, node.apiserver_port).into();
    let door = TcpProxy::open(address, Some(&network::link_name(&node.id)))
        .map_err(|source| HostError::TcpProxy { address, source })?;

    let mut child = start(node, dir).map_err(HostError::Start)?;
    let pid = child.id().unwrap_or_default();
    left_our_network(pid, &mut child).await?;
    network::attach(&node.id, &node.network, pid)?;
    // Open until the end of the node: when the pipe closes, the first process ends.
    let mut stdin = child.stdin.take();
    if let Some(stdin) = &mut stdin {
        stdin.write_all(&[GO]).await.map_err(HostError::Start)?;
    }
    let status = tokio::select! {
        status = child.wait() => status,
        _ = door.serve() => unreachable!("a door is open until it is dropped"),
    };
    Err(HostError::Ended(status.map_err(HostError::Start)?))
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
async fn left_our_network(pid: u32, child: &mut Child) -> Result<(), HostError> {
    let of = |process: &str| fs::read_link(PathBuf::from(format!("/proc/{process}/ns/net")));
    let (ours, deadline) = (of("self").map_err(HostError::Start)?, Instant::now() + LIMIT);
    loop {
        match of(&pid.to_string()) {
            Ok(theirs) if theirs != ours => return Ok(()),
            _ if Instant::now() >= deadline => {
                return Err(HostError::Start(io::ErrorKind::TimedOut.into()));
            }
            _ => {}
        }
        if let Some(status) = child.try_wait().map_err(HostError::Start)? {
            return Err(HostError::Ended(status));
        }
        sleep(POLL).await;
    }
}
