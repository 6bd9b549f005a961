//! `kube-node up`: starts a real control plane on this machine, with nodes, in the foreground until Ctrl-C or
//! in the background.

use std::{
    fs,
    io::{self, Seek, SeekFrom},
    net::IpAddr,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use kube_ext::process::signals;
use kube_node_api::names::TAINT_UNINITIALIZED;
use local_cluster::{
    Cluster, ComponentArg, Layout, NODE_SET, Nodes, Options, Progress, binaries::KUBERNETES_VERSION,
    procs::ProcessId, real_node,
};
use nix::sys::signal::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Poll interval for the background process.
const POLL: Duration = Duration::from_millis(50);
/// Poll interval for the parent process.
const PARENT_POLL: Duration = Duration::from_millis(500);

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Number of nodes; that of the last start when absent, or 10
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=100_000))]
    nodes: Option<i32>,
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Folder of etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, and for a real
    /// node of kubelet and kube-proxy; located or built when absent
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// Run in the background and return when the nodes are Ready; `down` stops the cluster
    #[arg(long)]
    detach: bool,
    /// Port of kube-apiserver on 127.0.0.1; that of the last start or a free one when absent
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Further address of this machine at which kube-apiserver is reached, at the same port; may be repeated
    ///
    /// For machines in another cluster and for other clients. The server's certificate contains the address.
    /// Kubemark machines use the first address.
    #[arg(long, value_name = "ADDRESS")]
    listen_address: Vec<IpAddr>,
    /// Do not start the operator, without which nothing turns a NodeSet into nodes; run one yourself
    #[arg(long)]
    without_operator: bool,
    /// Serve cluster-autoscaler: make certificates, let the operator listen, and write a cloud-config
    #[arg(long, conflicts_with = "without_operator")]
    autoscaler_server: bool,
    /// Do not serve the kubelets of hollow nodes: no logs, exec, port-forward and top
    #[arg(long, conflicts_with = "without_operator")]
    without_kubelet_endpoints: bool,
    #[command(flatten)]
    real_node: RealNode,
    /// Extra argument for a component, such as kube-apiserver=--v=4; may be repeated
    #[arg(long, value_name = "COMPONENT=ARG")]
    component_arg: Vec<ComponentArg>,
    /// Stop the cluster when this process ends
    #[arg(long, value_name = "PID", hide = true)]
    with_parent: Option<i32>,
    /// Run as the background process, whose parent reports the result
    #[arg(long, hide = true)]
    detached: bool,
}

/// Arguments of the real node.
#[derive(Debug, Args)]
#[command(next_help_heading = "Real node")]
struct RealNode {
    /// Add a real node that runs containers: kubelet, containerd and kube-proxy in namespaces of their own; needs root
    #[arg(long = "real-node", id = "real_node")]
    enabled: bool,
    /// Path of containerd, 2.0 or later, with its shim and ctr; built when absent
    #[arg(long, value_name = "FILE", requires = "real_node")]
    containerd: Option<PathBuf>,
    /// Path of runc; built when absent
    #[arg(long, value_name = "FILE", requires = "real_node")]
    runc: Option<PathBuf>,
    /// Folder of the CNI plugins bridge, host-local, loopback and portmap; built when absent
    #[arg(long, value_name = "DIR", requires = "real_node")]
    cni_dir: Option<PathBuf>,
    /// Import the image of upstream kubemark into the real node; kubemark is built if needed
    #[arg(long, requires = "real_node")]
    kubemark: bool,
}

impl RealNode {
    fn options(self) -> Option<real_node::Options> {
        let Self { enabled, containerd, runc, cni_dir, kubemark } = self;
        enabled.then_some(real_node::Options { containerd, runc, cni_dir, kubemark })
    }
}

impl Up {
    /// Starts the cluster and supervises it, or leaves it to a background process.
    pub async fn run(self) -> anyhow::Result<()> {
        if self.detach { self.in_background().await } else { self.in_foreground().await }
    }

    async fn in_foreground(self) -> anyhow::Result<()> {
        let progress = Progress::stderr();
        let stop = stop_signals(self.with_parent)?;
        let layout = Layout::new(self.data_dir.as_deref())?;
        let nodes = match (self.without_operator, self.nodes) {
            (true, _) => Nodes::None,
            (false, None) => Nodes::Keep,
            (false, Some(nodes)) => Nodes::Exactly(nodes),
        };
        let options = Options {
            nodes,
            data_dir: self.data_dir,
            binaries: self.binaries,
            port: self.port,
            listen_addresses: self.listen_address,
            component_args: self.component_arg,
            with_operator: !self.without_operator,
            autoscaler: self.autoscaler_server,
            kubelets: !self.without_kubelet_endpoints,
            real_node: self.real_node.options(),
        };
        let Some(created) = stop.run_until_cancelled(Cluster::create(options, &progress)).await else {
            return Ok(());
        };
        let cluster = created?;
        let launched = stop.run_until_cancelled(cluster.launch(&progress)).await;
        progress.finish();
        if let Some(Ok(nodes)) = &launched {
            if !self.detached {
                super::print_line(summary(&layout, *nodes, self.without_operator, self.autoscaler_server));
                super::print_line("Ctrl-C ends it.");
            }
            stop.cancelled().await;
        }
        cluster.shutdown(&progress).await?;
        progress.finish();
        launched.transpose().map(drop)
    }

    /// Runs `up` as a separate process, shows its output, and returns when its nodes are Ready.
    async fn in_background(self) -> anyhow::Result<()> {
        let stop = stop_signals(self.with_parent)?;
        let layout = Layout::new(self.data_dir.as_deref())?;
        layout.prepare(KUBERNETES_VERSION)?;
        // Checks that no supervisor runs. The background process takes the lock itself.
        drop(layout.lock().await?);
        let path = layout.log("up");
        let log = fs::OpenOptions::new().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("cannot write {}", path.display()))?;
        let mut unread = fs::File::open(&path)?;
        unread.seek(SeekFrom::End(0))?;
        let program = std::env::current_exe().context("cannot find the program of kube-node itself")?;
        let mut child = Command::new(program)
            .args(std::env::args_os().skip(1).filter(|argument| argument != "--detach"))
            .arg("--detached")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C in this terminal must not reach the cluster.
            .process_group(0)
            .spawn()
            .context("cannot run kube-node in the background")?;
        let process = i32::try_from(child.id()).ok().and_then(ProcessId::of);
        let mut is_stopping = false;
        loop {
            let ended = child.try_wait()?;
            // Standard error may be closed.
            let _ = io::copy(&mut unread, &mut io::stderr());
            match ended {
                Some(_) if is_stopping => bail!("interrupted: the cluster was not started"),
                Some(status) => bail!("the cluster did not start ({status}); see {}", path.display()),
                None => {}
            }
            // The background process records when the cluster is ready.
            if layout
                .load()?
                .is_some_and(|state| state.ready && process.is_some() && state.supervisor == process)
            {
                break;
            }
            // Until the cluster is ready, this process stops it. The background process then prints what it stops.
            if stop.is_cancelled() && !is_stopping {
                process.map_or(Ok(()), |process| process.signal(Signal::SIGTERM))?;
                is_stopping = true;
            }
            sleep(POLL).await;
        }
        let nodes = if self.without_operator { 0 } else { super::status::ready_nodes(&layout).await?.0 };
        super::print_line(summary(&layout, nodes, self.without_operator, self.autoscaler_server));
        Ok(())
    }
}

/// Message about the next steps.
fn summary(layout: &Layout, nodes: i32, without_operator: bool, autoscaler: bool) -> String {
    let own = match Layout::new(None) {
        Ok(default) if default == *layout => String::new(),
        _ => format!(" --data-dir {}", layout.dir().display()),
    };
    let kubeconfig = layout.kubeconfig();
    let kubeconfig = kubeconfig.display();
    let has_real_node = layout.load().ok().flatten().is_some_and(|state| state.network.is_some());
    let what = match (without_operator, has_real_node) {
        (true, false) => "The control plane is ready; no operator runs.".to_owned(),
        (true, true) => "The control plane and the real node are ready; no operator runs.".to_owned(),
        (false, false) => format!("{nodes} nodes are Ready."),
        (false, true) => format!("{nodes} hollow nodes and the real one are Ready."),
    };
    format!(
        "{what}\n\n  export KUBECONFIG={kubeconfig}\n\n  kubectl get nodes                                    (or kube-node kubectl{own} -- get nodes)\n  kubectl scale nodeset {NODE_SET} --replicas=20\n  kube-node down{own}\n{}",
        if autoscaler { autoscaler_flags(layout) } else { String::new() }
    )
}

/// Command line of a cluster-autoscaler on this machine; docs/cluster-autoscaler.md explains each flag.
fn autoscaler_flags(layout: &Layout) -> String {
    let (kubeconfig, config) = (layout.kubeconfig(), layout.cloud_config());
    format!(
        "\ncluster-autoscaler is served to NodeSets with spec.autoscaling:\n\n  cluster-autoscaler \\\n    --kubeconfig={} \\\n    --cloud-provider=externalgrpc \\\n    --cloud-config={} \\\n    --startup-taint={TAINT_UNINITIALIZED} \\\n    --leader-elect=false\n",
        kubeconfig.display(),
        config.display()
    )
}

/// A token cancelled by SIGINT, SIGTERM, SIGHUP, or the end of the parent.
fn stop_signals(parent: Option<i32>) -> anyhow::Result<CancellationToken> {
    let stop = signals().context("cannot receive signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot receive signals")?;
    let find = |parent| ProcessId::of(parent).with_context(|| format!("there is no process {parent}"));
    let parent = parent.map(find).transpose()?;
    let ended = stop.clone();
    tokio::spawn(async move {
        while parent.is_none_or(ProcessId::is_alive) {
            if timeout(PARENT_POLL, hangup.recv()).await.is_ok() {
                break;
            }
        }
        ended.cancel();
    });
    Ok(stop)
}
