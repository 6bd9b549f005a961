//! `kube-node kubectl`: the cluster's own kubectl, of its own version, with its own kubeconfig.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context, bail};
use clap::Args;
use local_cluster::Layout;

/// Arguments of `kubectl`.
#[derive(Debug, Args)]
pub struct Kubectl {
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// What kubectl is to do
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Kubectl {
    /// Becomes kubectl; comes back only when that fails.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        let Some(binaries) = layout.load()?.and_then(|state| state.binaries) else {
            bail!("there is no cluster in {}: start one with kube-node up", layout.dir().display());
        };
        let kubectl = binaries.join("kubectl");
        let error = Command::new(&kubectl).args(self.args).env("KUBECONFIG", layout.kubeconfig()).exec();
        Err(error).with_context(|| format!("cannot run {}", kubectl.display()))
    }
}
