//! `kube-node up`: starts a real control plane on this machine, with nodes, in the foreground until Ctrl-C or
//! in the background.

use std::{
    fs,
    io::{self, Seek, SeekFrom, Write as _},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use kube_ext::{files, process::Interrupted};
use kube_node_api::names::TAINT_UNINITIALIZED;
use local_cluster::{Cluster, Layout, NODE_SET, Options, Progress, counted, procs::ProcessId};
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
    /// Run in the background and return when the nodes are Ready; `down` stops the cluster
    #[arg(long, display_order = 3)]
    detach: bool,
    #[command(flatten)]
    options: Options,
    /// Stop the cluster when this process ends
    #[arg(long, value_name = "PID", hide = true)]
    with_parent: Option<i32>,
    /// Run as the background process, whose parent reports the result
    #[arg(long, hide = true)]
    detached: bool,
}

impl Up {
    /// Starts the cluster and supervises it, or leaves it to a background process.
    pub async fn run(self) -> anyhow::Result<()> {
        if self.detach { self.in_background().await } else { self.in_foreground().await }
    }

    async fn in_foreground(self) -> anyhow::Result<()> {
        let progress = Progress::stderr();
        let stop = stop_signals(self.with_parent)?;
        let layout = Layout::new(self.options.data_dir.as_deref())?;
        let Some(created) =
            stop.token.run_until_cancelled(Cluster::create(self.options.clone(), &progress)).await
        else {
            return Err(stop.interrupted());
        };
        let cluster = created?;
        let launched = stop.token.run_until_cancelled(Box::pin(cluster.launch(&progress))).await;
        progress.finish();
        if let Some(Ok(nodes)) = &launched {
            if !self.detached {
                super::print_line(summary(&layout, *nodes, &self.options));
                super::print_line("Ctrl-C ends it.");
            }
            stop.token.run_until_cancelled(cluster.follow_address(&progress)).await;
        }
        let ended = cluster.shutdown(&progress).await;
        progress.finish();
        // The first failure is the cause.
        match (launched.unwrap_or_else(|| Err(stop.interrupted())), ended) {
            (Err(error), Err(further)) => {
                progress.line(&format!("{further:#}"));
                Err(error)
            }
            (launched, ended) => launched.map(drop).and(ended),
        }
    }

    /// Runs `up` as a separate process, shows its output, and returns when its nodes are Ready.
    async fn in_background(self) -> anyhow::Result<()> {
        let stop = stop_signals(self.with_parent)?;
        let layout = self.options.layout()?;
        // Checks that no supervisor runs. The background process takes the lock itself.
        drop(layout.lock().await?);
        let path = layout.log("up");
        let log = fs::OpenOptions::new().create(true).append(true).open(&path);
        let mut log = log.map_err(|error| files::cannot_write(&path, error))?;
        // What the background process could not write there nobody would ever read.
        let begun = writeln!(log, "{} kube-node up --detach", Timestamp::now());
        begun.map_err(|error| files::cannot_write(&path, error))?;
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
                Some(_) if is_stopping => return Err(stop.interrupted()),
                Some(status) => bail!("the cluster did not start ({status}); see {}", path.display()),
                None => {}
            }
            // The background process records when the cluster is ready.
            let state = layout.load()?;
            if state.is_some_and(|state| state.ready && process.is_some() && state.supervisor == process) {
                break;
            }
            // Until the cluster is ready, this process stops it. The background process then prints what it stops.
            if stop.token.is_cancelled() && !is_stopping {
                process.map_or(Ok(()), |process| process.signal(Signal::SIGTERM))?;
                is_stopping = true;
            }
            sleep(POLL).await;
        }
        let nodes =
            if self.options.without_operator { 0 } else { super::status::ready_nodes(&layout).await?.0 };
        super::print_line(summary(&layout, nodes, &self.options));
        Ok(())
    }
}

/// Message about the next steps.
fn summary(layout: &Layout, nodes: i32, options: &Options) -> String {
    let own = match Layout::new(None) {
        Ok(default) if default == *layout => String::new(),
        _ => format!(" --data-dir {}", layout.dir().display()),
    };
    let kubeconfig = layout.kubeconfig();
    let kubeconfig = kubeconfig.display();
    let has_real_node = layout.load().ok().flatten().is_some_and(|state| state.addresses.network.is_some());
    let what = match (options.without_operator, has_real_node) {
        (true, false) => "The control plane is ready; no operator runs.".to_owned(),
        (true, true) => "The control plane and the real node are ready; no operator runs.".to_owned(),
        (false, false) if nodes == 1 => "1 node is Ready.".to_owned(),
        (false, false) => format!("{nodes} nodes are Ready."),
        (false, true) => format!("{} and the real one are Ready.", counted(nodes, "hollow node")),
    };
    // Without an operator there may be no such set, and nothing would make its nodes.
    let scale = if options.without_operator {
        String::new()
    } else {
        format!("  kubectl scale nodeset {NODE_SET} --replicas=20\n")
    };
    format!(
        "{what}\n\n  export KUBECONFIG={kubeconfig}\n\n  kubectl get nodes                                    (or kube-node kubectl{own} -- get nodes)\n{scale}  kube-node down{own}\n{}",
        if options.autoscaler_server { autoscaler_flags(layout) } else { String::new() }
    )
}

/// Command line of a cluster-autoscaler on this machine; docs/cluster-autoscaler.md explains each flag.
fn autoscaler_flags(layout: &Layout) -> String {
    let (kubeconfig, config) = (layout.kubeconfig(), layout.cloud_config());
    let (kubeconfig, config) = (kubeconfig.display(), config.display());
    format!(
        "\ncluster-autoscaler is served to NodeSets with spec.autoscaling:\n\n  cluster-autoscaler \\\n    --kubeconfig={kubeconfig} \\\n    --cloud-provider=externalgrpc \\\n    --cloud-config={config} \\\n    --startup-taint={TAINT_UNINITIALIZED} \\\n    --leader-elect=false\n"
    )
}

/// Requests to end this process.
struct Stop {
    /// Cancelled by SIGINT, SIGTERM, SIGHUP, or the end of the parent.
    token: CancellationToken,
    by: Arc<OnceLock<Interrupted>>,
}

impl Stop {
    /// Error of a start that was interrupted. Its exit code says by which signal.
    fn interrupted(&self) -> anyhow::Error {
        let by = self.by.get().copied().unwrap_or(Interrupted::BY_TERMINATION);
        anyhow::Error::new(by).context("the cluster was not started")
    }
}

fn stop_signals(parent: Option<i32>) -> anyhow::Result<Stop> {
    let failed = "cannot receive signals";
    let mut interrupt = signal(SignalKind::interrupt()).context(failed)?;
    let mut terminate = signal(SignalKind::terminate()).context(failed)?;
    let mut hangup = signal(SignalKind::hangup()).context(failed)?;
    let find = |parent| ProcessId::of(parent).with_context(|| format!("there is no process {parent}"));
    let parent = parent.map(find).transpose()?;
    let stop = Stop { token: CancellationToken::new(), by: Arc::default() };
    let (token, by) = (stop.token.clone(), Arc::clone(&stop.by));
    tokio::spawn(async move {
        while parent.is_none_or(ProcessId::is_alive) {
            let signal = async {
                tokio::select! {
                    _ = interrupt.recv() => Interrupted::BY_CTRL_C,
                    _ = terminate.recv() => Interrupted::BY_TERMINATION,
                    _ = hangup.recv() => Interrupted::BY_HANGUP,
                }
            };
            if let Ok(signal) = timeout(PARENT_POLL, signal).await {
                let _ = by.set(signal);
                break;
            }
        }
        token.cancel();
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use kube_node_controllers::kubernetes_version::{NEWEST, OLDEST};
    use local_cluster::{RELEASES, binaries::KUBERNETES_VERSION};

    #[test]
    fn the_newest_release_is_the_newest_that_is_tested() {
        let newest = RELEASES.last().unwrap().minor();
        assert_eq!(newest, format!("1.{NEWEST}"));
    }

    #[test]
    fn the_page_of_versions_has_every_release() {
        let page = include_str!("../../docs/versions.md");
        for release in &RELEASES {
            let is_default = if release.version() == KUBERNETES_VERSION { ", the default" } else { "" };
            let row = format!("| {}{is_default} | {release} | {} |", release.minor(), release.etcd());
            assert!(page.contains(&row), "docs/versions.md lacks {row}");
        }
        for row in [format!("| before 1.{OLDEST} |"), format!("| after 1.{NEWEST} |")] {
            assert!(page.contains(&row), "docs/versions.md lacks {row}");
        }
    }
}
