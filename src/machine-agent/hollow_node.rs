//! One machine in one process: the hollow kubelet for a single Node, with the identity of that Node.
//!
//! The process caches its own Node and its own pods only, which is all that Node authorization lets it see.
//! It has to be small: thousands of them run as pods of one cluster.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::FutureExt;
use hollow_kubelet::{Hollow, MachineSpec};
use kube::runtime::watcher;
use kube_ext::admin::{Admin, AdminError, Readiness};
use kube_node_cache::{Cache, EventHandler, NodeView, PodView, ReflectError};
use prometheus::Registry;
use tokio::{process::Command, sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    identity::{self, Identity, IdentityError},
    machine_dir::{self, MachineDir, MachineDirError},
};

/// Shell that runs the commands of a machine.
const SHELL: &str = "/bin/sh";

/// Settings of a machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the machine's Node.
    pub node: String,
    /// Folder that the provider mounts.
    pub machine_dir: PathBuf,
    /// Folder for the certificate.
    pub state_dir: PathBuf,
    /// Address of the machine; None for one of those that hollow machines have.
    pub ip: Option<Ipv4Addr>,
    /// Address for probes; None for no probes.
    pub probes: Option<SocketAddr>,
}

/// Reason why a machine ended. It is the last line of its container.
#[derive(Debug, thiserror::Error)]
pub enum HollowNodeError {
    /// The provider's files cannot be used.
    #[error(transparent)]
    MachineDir(#[from] MachineDirError),
    /// A command cannot be run.
    #[error(
        "provisioning.commands[{index}] cannot be run: it needs {SHELL}; give the operator a machine image that has one (kube-node image --shell, operator --machine-image), or remove the commands"
    )]
    NoShell {
        /// Index of the command, from 0.
        index: usize,
        /// Cause.
        source: io::Error,
    },
    /// A command failed.
    #[error("provisioning.commands[{index}] failed with {status}: {command}")]
    Command {
        /// Index of the command, from 0.
        index: usize,
        /// Exit status.
        status: ExitStatus,
        /// First 100 characters of the command.
        command: String,
    },
    /// The identity could not be obtained, or has ended.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The Node is gone.
    #[error("Node {node} with the UID {uid} is gone: its machine ends")]
    NodeGone {
        /// Name of the Node.
        node: String,
        /// UID of the Node.
        uid: String,
    },
    /// A watch cannot start.
    #[error(transparent)]
    Reflect(#[from] ReflectError),
    /// The port for probes cannot be opened.
    #[error(transparent)]
    Probes(#[from] AdminError),
    /// A metric is registered twice, which is a bug.
    #[error("a metric cannot be registered")]
    Metrics(#[from] prometheus::Error),
    /// A task ended or panicked.
    #[error("a part of the machine ended by itself")]
    Part(#[source] Option<tokio::task::JoinError>),
}

/// Runs the machine until `shutdown`.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), HollowNodeError> {
    let dir = MachineDir::new(&options.machine_dir);
    let machine = dir.machine(&options.node)?;
    let settings = dir.settings()?;
    let registry = Registry::new();
    let nodes: Arc<Cache<NodeView>> = Arc::default();
    let mut parts: JoinSet<Result<(), HollowNodeError>> = JoinSet::new();
    if let Some(address) = options.probes {
        let readiness = readiness(Arc::clone(&nodes), options.node.clone());
        let admin = Admin::bind(address, "--probe-port").await?;
        let serving = admin.serve(registry.clone(), readiness, shutdown.clone());
        parts.spawn(serving.map(Ok));
    }
    let begun = shutdown.run_until_cancelled(async {
        commands(&machine.commands).await?;
        let asked = identity::Options::new(options.node.as_str(), dir.bootstrap(), options.state_dir);
        Ok::<_, HollowNodeError>(Identity::obtain(asked).await?)
    });
    let Some(identity) = begun.await.transpose()? else { return Ok(()) };
    let client = identity.client();
    let pods: Arc<Cache<PodView>> = Arc::default();
    let gone = Arc::new(Gone::new(&machine.uid));
    nodes.add_event_handler(gone.clone());
    let (hollow, kubelets) = Hollow::new(
        client.clone(),
        Arc::clone(&nodes),
        Arc::clone(&pods),
        hollow_kubelet::RESTART,
        &registry,
    )?;
    let uid: Arc<str> = machine.uid.as_str().into();
    hollow.create(spec(&machine, options.ip, settings), None);

    // This task finishes its writes under way at shutdown.
    parts.spawn(kubelets.run(shutdown.clone()).map(Ok));
    let mut until_shutdown = |part: futures::future::BoxFuture<'static, Result<(), HollowNodeError>>| {
        let part = shutdown.clone().run_until_cancelled_owned(part);
        parts.spawn(part.map(|ended| ended.unwrap_or(Ok(()))));
    };
    until_shutdown(identity.keep().map(|error| Err(error.into())).boxed());
    let own = watcher::Config::default().fields(&format!("metadata.name={}", options.node));
    until_shutdown(kube_node_cache::run_protobuf(client.clone(), own, nodes).map(|ended| Ok(ended?)).boxed());
    let own = watcher::Config::default().fields(&format!("spec.nodeName={}", options.node));
    until_shutdown(kube_node_cache::run_protobuf(client, own, pods).map(|ended| Ok(ended?)).boxed());
    let change = hollow.clone();
    let following = async move {
        dir.follow(|settings| change.update(&uid, changeable(settings))).await;
        Ok(())
    };
    until_shutdown(following.boxed());
    let (node, uid) = (machine.node, machine.uid);
    let watching = async move {
        gone.told.notified().await;
        Err(HollowNodeError::NodeGone { node, uid })
    };
    until_shutdown(watching.boxed());

    let ended = tokio::select! {
        ended = parts.join_next() => ended,
        () = shutdown.cancelled() => None,
    };
    if !shutdown.is_cancelled() {
        return match ended {
            Some(Ok(Err(error))) => Err(error),
            Some(Ok(Ok(()))) | None => Err(HollowNodeError::Part(None)),
            Some(Err(panicked)) => Err(HollowNodeError::Part(Some(panicked))),
        };
    }
    while parts.join_next().await.is_some() {}
    Ok(())
}

/// Runs the commands of the class before the kubelet starts. Their output goes to the log of the container.
async fn commands(commands: &[String]) -> Result<(), HollowNodeError> {
    for (index, command) in commands.iter().enumerate() {
        info!(index, "running a command of the class");
        let ended = Command::new(SHELL).arg("-c").arg(command).kill_on_drop(true).status().await;
        let status = ended.map_err(|source| HollowNodeError::NoShell { index, source })?;
        if !status.success() {
            let command = command.chars().take(100).collect();
            return Err(HollowNodeError::Command { index, status, command });
        }
    }
    Ok(())
}

fn spec(
    machine: &machine_dir::Machine,
    ip: Option<Ipv4Addr>,
    settings: machine_dir::Settings,
) -> MachineSpec {
    MachineSpec {
        node: machine.node.as_str().into(),
        uid: machine.uid.as_str().into(),
        capacity: machine.capacity.clone(),
        allocatable: machine.allocatable.clone(),
        kubelet_version: machine.kubelet_version.clone(),
        container_runtime: machine.container_runtime.clone(),
        ip,
        settings: changeable(settings),
    }
}

fn changeable(settings: machine_dir::Settings) -> hollow_kubelet::Settings {
    let machine_dir::Settings { failures, containers } = settings;
    hollow_kubelet::Settings { failures, containers }
}

/// Ready once the API server has accepted a status.
fn readiness(nodes: Arc<Cache<NodeView>>, node: String) -> Readiness {
    Arc::new(move || {
        let posted = nodes.get(&node).is_some_and(|node| node.kubelet_version.is_some());
        if posted { Vec::new() } else { vec!["no status was accepted yet".to_owned()] }
    })
}

/// Notices that the Node is gone, or that another Node has its name.
struct Gone {
    uid: Box<str>,
    seen: AtomicBool,
    told: Notify,
}

impl Gone {
    fn new(uid: &str) -> Self {
        Self { uid: uid.into(), seen: AtomicBool::new(false), told: Notify::new() }
    }
}

impl EventHandler<NodeView> for Gone {
    fn on_change(&self, _: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        let is_there = new.is_some_and(|node| *node.uid == *self.uid);
        self.seen.store(is_there, Ordering::Relaxed);
        if !is_there {
            self.told.notify_one();
        }
    }

    fn on_resync(&self) {
        if !self.seen.load(Ordering::Relaxed) {
            self.told.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_that_fails_is_named() {
        let run = async |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|&command| command.to_owned()).collect();
            commands(&all).await
        };
        run(&["true", "exit 0"]).await.unwrap();
        let error = run(&["true", "exit 3"]).await.unwrap_err().to_string();
        assert_eq!(error, "provisioning.commands[1] failed with exit status: 3: exit 3");
    }

    #[tokio::test]
    async fn a_node_that_goes_or_was_never_there_is_noticed() {
        let view = |uid: &str| Arc::new(NodeView { uid: uid.into(), ..NodeView::default() });
        let told = |gone: &Gone| gone.told.notified().now_or_never().is_some();
        let gone = Gone::new("u-1");
        gone.on_change(None, Some(&view("u-1")));
        gone.on_resync();
        assert!(!told(&gone), "it is there");
        gone.on_change(Some(&view("u-1")), None);
        assert!(told(&gone), "it went");
        let gone = Gone::new("u-1");
        gone.on_change(None, Some(&view("u-2")));
        assert!(told(&gone), "another one");
        let gone = Gone::new("u-1");
        gone.on_resync();
        assert!(told(&gone), "never there");
    }
}
