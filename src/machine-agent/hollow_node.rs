//! `kube-node hollow-node`: one machine in one process, the hollow kubelet for a single Node with the identity
//! of that Node.
//!
//! The process caches its own Node and its own pods only, which is all that Node authorization lets it see.
//! It has to be small: thousands of them run as pods of one cluster. The reason why it ends is the last line
//! of its container.

use std::{
    net::Ipv4Addr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use hollow_kubelet::{Hollow, MachineSpec};
use kube::runtime::watcher;
use kube_ext::{admin::Admin, process::signals};
use kube_node_cache::{Cache, EventHandler, NodeView, PodView, run_protobuf};
use machine_identity::{Identity, IdentityOptions};
use prometheus::Registry;
use tokio::{process::Command, sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    machine_args::{self, MachineArgs, readiness},
    machine_dir::MachineDir,
};

/// Shell that runs the commands of a machine.
const SHELL: &str = "/bin/sh";
/// Error of a machine one of whose tasks or watches ended or panicked.
const PART_ENDED: &str = "a part of the machine ended by itself";

/// Arguments of `hollow-node`.
#[derive(Debug, Args)]
pub struct HollowNode {
    #[command(flatten)]
    machine: MachineArgs,
    /// Address that the Node shows; one that hollow machines have when absent
    #[arg(long, value_name = "ADDRESS", env = "POD_IP")]
    node_ip: Option<Ipv4Addr>,
}

impl HollowNode {
    /// Runs until SIGINT or SIGTERM, or until the Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        machine_args::run(self.machine.log_format, async { Box::pin(self.serve(signals()?)).await })
    }

    async fn serve(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self { machine: args, node_ip } = self;
        let dir = MachineDir::new(&args.machine_dir);
        let machine = dir.machine(&args.node)?;
        let settings = dir.settings()?;
        let registry = Registry::new();
        let nodes: Arc<Cache<NodeView>> = Arc::default();
        // These tasks finish their responses and writes under way at shutdown.
        let mut tasks = JoinSet::new();
        if let Some(address) = args.probes() {
            let (nodes, node) = (Arc::clone(&nodes), args.node.clone());
            let posted = move || nodes.get(&node).is_some_and(|node| node.kubelet_version.is_some());
            let readiness = readiness("no status was accepted yet", posted);
            let admin = Admin::bind(address, "--probe-port").await?;
            tasks.spawn(admin.serve(registry.clone(), readiness, shutdown.clone()));
        }
        let obtained = shutdown.run_until_cancelled(async {
            commands(&machine.commands).await?;
            let options = IdentityOptions::new(args.node.as_str(), dir.bootstrap(), args.state_dir);
            anyhow::Ok(Identity::obtain(options).await?)
        });
        let Some(identity) = obtained.await.transpose()? else { return Ok(()) };
        let client = identity.client();
        let pods: Arc<Cache<PodView>> = Arc::default();
        let deletion = Arc::new(DeletionWatcher::new(&machine.uid));
        nodes.add_event_handler(deletion.clone());
        let (hollow, kubelets) =
            Hollow::new(client.clone(), &nodes, &pods, hollow_kubelet::RESTART, &registry)?;
        let uid = machine.uid.clone();
        // To the API server the machine is a kubelet.
        hollow.create_csi_nodes();
        hollow.create(MachineSpec::new(machine, node_ip, settings), None);
        tasks.spawn(kubelets.run(shutdown.clone()));

        let own_node = watcher::Config::default().fields(&format!("metadata.name={}", args.node));
        let own_pods = watcher::Config::default().fields(&format!("spec.nodeName={}", args.node));
        let work = async {
            tokio::select! {
                biased;
                error = identity.keep() => return Err(error.into()),
                ended = run_protobuf(client.clone(), own_node, nodes) => ended?,
                ended = run_protobuf(client.clone(), own_pods, pods) => ended?,
                Some(ended) = tasks.join_next() => ended.context(PART_ENDED)?,
                () = dir.follow(|settings| hollow.update(&uid, settings)) => {}
                () = deletion.deleted.notified() => {
                    bail!("Node {} with the UID {uid} is gone: its machine ends", args.node)
                }
            }
            bail!(PART_ENDED)
        };
        tokio::select! {
            // The tasks end by the same token, so the shutdown is checked before their end.
            biased;
            () = shutdown.cancelled() => {}
            ended = work => return ended,
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    }
}

/// Runs the commands of the class before the kubelet starts. Their output goes to the log of the container.
async fn commands(commands: &[String]) -> anyhow::Result<()> {
    for (index, command) in commands.iter().enumerate() {
        info!(index, "running a command of the class");
        let ended = Command::new(SHELL).arg("-c").arg(command).kill_on_drop(true).status().await;
        let status = ended.with_context(|| {
            format!("provisioning.commands[{index}] cannot be run: it needs {SHELL}; give the operator a machine image that has one (kube-node image --shell, operator --machine-image), or remove the commands")
        })?;
        let beginning: String = command.chars().take(100).collect();
        ensure!(status.success(), "provisioning.commands[{index}] failed with {status}: {beginning}");
    }
    Ok(())
}

/// Notices that the Node is gone, or that another Node has its name.
struct DeletionWatcher {
    uid: Box<str>,
    is_seen: AtomicBool,
    deleted: Notify,
}

impl DeletionWatcher {
    fn new(uid: &str) -> Self {
        Self { uid: uid.into(), is_seen: AtomicBool::new(false), deleted: Notify::new() }
    }
}

impl EventHandler<NodeView> for DeletionWatcher {
    fn on_change(&self, _: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        let is_there = new.is_some_and(|node| *node.uid == *self.uid);
        self.is_seen.store(is_there, Ordering::Relaxed);
        if !is_there {
            self.deleted.notify_one();
        }
    }

    fn on_resync(&self) {
        if !self.is_seen.load(Ordering::Relaxed) {
            self.deleted.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

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
        let is_deleted = |watcher: &DeletionWatcher| watcher.deleted.notified().now_or_never().is_some();
        let watcher = DeletionWatcher::new("u-1");
        watcher.on_change(None, Some(&view("u-1")));
        watcher.on_resync();
        assert!(!is_deleted(&watcher), "it is there");
        watcher.on_change(Some(&view("u-1")), None);
        assert!(is_deleted(&watcher), "it went");
        let watcher = DeletionWatcher::new("u-1");
        watcher.on_change(None, Some(&view("u-2")));
        assert!(is_deleted(&watcher), "another one");
        let watcher = DeletionWatcher::new("u-1");
        watcher.on_resync();
        assert!(is_deleted(&watcher), "never there");
    }
}
