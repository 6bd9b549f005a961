//! `kube-node down`: stops a cluster of this machine, even if its supervisor was killed or its state is gone.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use local_cluster::{Layout, files::create_private_dir, layout::STOP_LIMIT};
use nix::sys::signal::Signal;

/// Arguments of `down`.
#[derive(Debug, Args)]
pub struct Down {
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Delete the folder as well, with everything the cluster has stored
    ///
    /// Of a symbolic link only the content of the folder is deleted.
    #[arg(long)]
    delete: bool,
}

impl Down {
    /// Stops the cluster.
    pub async fn run(self) -> anyhow::Result<()> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        let dir = layout.dir().display();
        layout.load_undamaged()?;
        if !layout.is_used() {
            super::print_line(format_args!("There is no cluster in {dir}."));
            return Ok(());
        }
        let supervisor = layout.supervisor();
        if let Some(supervisor) = supervisor {
            supervisor.signal(Signal::SIGTERM).context("cannot stop the cluster")?;
            let log = layout.log("up");
            let is_gone = supervisor.wait_gone(STOP_LIMIT).await;
            ensure!(is_gone, "pid {} does not end: see {}", supervisor.pid, log.display());
        }
        // Processes may outlive their folder.
        let is_gone = !layout.dir().exists();
        create_private_dir(layout.dir())?;
        let lock = layout.lock().await?;
        let leftovers = layout.stop_leftovers(&lock).await?;
        let state = if supervisor.is_some() || leftovers > 0 { "has ended" } else { "was not running" };
        super::print_line(format_args!("The cluster in {dir} {state}."));
        if self.delete || is_gone {
            // Without a write before: the disk may be full.
            return layout.delete(lock);
        }
        layout.forget_processes(&lock)
    }
}
