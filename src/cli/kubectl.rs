//! `kube-node kubectl`: runs the kubectl of the cluster's version.
//!
//! The cluster is chosen as by all commands: `--data-dir`, else `KUBECONFIG`, which kubectl reads itself, else the user's
//! default folder.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, bail};
use clap::Args;
use local_cluster::Layout;

/// Arguments of `kubectl`.
#[derive(Debug, Args)]
pub struct Kubectl {
    /// Folder of the cluster; when absent the cluster that KUBECONFIG names, or that of the user's default folder
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Arguments for kubectl
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// The kubectl to run.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    /// Value of `KUBECONFIG`; `None` leaves the variable as it is.
    kubeconfig: Option<PathBuf>,
}

impl Kubectl {
    /// Replaces this process by kubectl; returns only an error.
    pub fn run(self) -> anyhow::Result<()> {
        let default = Layout::new(self.data_dir.as_deref());
        let variable = env::var_os("KUBECONFIG").filter(|_| self.data_dir.is_none()).unwrap_or_default();
        let Program { path, kubeconfig } =
            if variable.is_empty() { local(&default?)? } else { elsewhere(&variable, default.ok()) };
        let mut command = Command::new(&path);
        let error = command.args(self.args).envs(kubeconfig.map(|path| ("KUBECONFIG", path))).exec();
        Err(error).with_context(|| format!("cannot run {}", path.display()))
    }
}

/// kubectl for the cluster of a folder.
fn local(layout: &Layout) -> anyhow::Result<Program> {
    let Some(path) = kubectl_of(layout)? else {
        bail!(
            "there is no cluster in {}: start one with kube-node up, or name the folder of another one with --data-dir",
            layout.dir().display()
        );
    };
    Ok(Program { path, kubeconfig: Some(layout.kubeconfig()) })
}

/// kubectl for the clusters of a list of kubeconfigs: that of the data folder with the first of them, else of the default
/// folder, else the one on PATH.
fn elsewhere(kubeconfigs: &OsStr, default: Option<Layout>) -> Program {
    let folders = env::split_paths(kubeconfigs).filter_map(|path| Layout::new(path.parent()).ok());
    let found = folders.chain(default).find_map(|layout| kubectl_of(&layout).ok().flatten());
    Program { path: found.unwrap_or_else(|| "kubectl".into()), kubeconfig: None }
}

fn kubectl_of(layout: &Layout) -> anyhow::Result<Option<PathBuf>> {
    Ok(layout.load()?.and_then(|state| state.binaries).map(|binaries| binaries.join("kubectl")))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn kubectl_is_that_of_the_cluster_that_kubeconfig_names() {
        let root = env::temp_dir().join(format!("kube-node-kubectl-{}", std::process::id()));
        let folder = |name: &str| {
            let dir = root.join(name);
            fs::create_dir_all(&dir).unwrap();
            let state = format!(r#"{{"formatVersion": 1, "kubernetesVersion": "", "binaries": "/{name}"}}"#);
            fs::write(dir.join("cluster.json"), state).unwrap();
            Layout::new(Some(&dir)).unwrap()
        };
        let (default, other) = (folder("default"), folder("other"));
        let elsewhere = |list: &[&Path], default| elsewhere(&env::join_paths(list).unwrap(), default).path;
        let foreign = Path::new("/home/me/.kube/config");
        assert_eq!(local(&default).unwrap().path, Path::new("/default/kubectl"));
        assert_eq!(local(&default).unwrap().kubeconfig, Some(default.kubeconfig()));
        let kubeconfig = other.kubeconfig();
        assert_eq!(elsewhere(&[foreign, &kubeconfig], Some(default.clone())), Path::new("/other/kubectl"));
        assert_eq!(elsewhere(&[foreign], Some(default.clone())), Path::new("/default/kubectl"));
        assert_eq!(elsewhere(&[foreign], None), Path::new("kubectl"));
        assert_eq!(super::elsewhere(foreign.as_os_str(), Some(default)).kubeconfig, None);
        fs::remove_dir_all(&root).unwrap();
    }
}
