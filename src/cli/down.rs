//! `kube-node down`: stops a cluster of this machine, even if its supervisor was killed.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::Args;
use local_cluster::{Layout, layout::supervisor};
use nix::sys::signal::Signal;

/// Time limit for the supervisor to end: kube-apiserver alone drains for up to twenty seconds.
const LIMIT: Duration = Duration::from_secs(90);

/// Arguments of `down`.
#[derive(Debug, Args)]
pub struct Down {
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Delete the folder as well, with everything the cluster has stored
    #[arg(long)]
    delete: bool,
}

impl Down {
    /// Stops the cluster.
    pub async fn run(self) -> anyhow::Result<()> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        let Some(state) = layout.load()? else {
            super::print_line(format_args!("There is no cluster in {}.", layout.dir().display()));
            return Ok(());
        };
        let supervisor = supervisor(&state);
        if let Some(supervisor) = supervisor {
            supervisor.signal(Signal::SIGTERM).context("cannot stop the cluster")?;
            let log = layout.log("up");
            let is_gone = supervisor.wait_gone(LIMIT).await;
            ensure!(is_gone, "pid {} does not end: see {}", supervisor.pid, log.display());
        }
        let lock = layout.lock().await?;
        let leftovers = layout.stop_leftovers(&lock).await?;
        let dir = layout.dir().display();
        let state = if supervisor.is_some() || leftovers > 0 { "has ended" } else { "was not running" };
        super::print_line(format_args!("The cluster in {dir} {state}."));
        if self.delete {
            fs::remove_dir_all(layout.dir()).with_context(|| format!("cannot delete {dir}"))?;
        }
        Ok(())
    }
}
