//! `kube-node kubectl`: runs the kubectl of the cluster's version with the cluster's kubeconfig.

use std::{ffi::OsString, os::unix::process::CommandExt, path::PathBuf, process::Command};

use anyhow::{Context, bail};
use clap::Args;
use local_cluster::Layout;

/// Arguments of `kubectl`.
#[derive(Debug, Args)]
pub struct Kubectl {
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Arguments for kubectl
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Kubectl {
    /// Replaces this process by kubectl; returns only an error.
    pub fn run(self) -> anyhow::Result<()> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        let Some(binaries) = layout.load()?.and_then(|state| state.binaries) else {
            bail!(
                "there is no cluster in {}: start one with kube-node up, or name the folder of another one with --data-dir",
                layout.dir().display()
            );
        };
        let kubectl = binaries.join("kubectl");
        let error = Command::new(&kubectl).args(self.args).env("KUBECONFIG", layout.kubeconfig()).exec();
        Err(error).with_context(|| format!("cannot run {}", kubectl.display()))
    }
}
