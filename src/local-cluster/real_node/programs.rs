//! Programs of a real node besides kubelet and kube-proxy: containerd, runc and CNI plugins, which are built
//! unless the user names them, and a few tools of the distribution.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use clap::Args;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::{
    binaries::{self, Binaries},
    build,
    executable::{is_executable, release_in},
    modules::RUNTIME,
    progress::Progress,
};

/// Remedy for missing tools.
const REMEDY: &str =
    "install them (on Debian and Ubuntu tests/real-node/install.sh of kube-node's repository does)";
/// Oldest containerd release that reads the node's configuration.
const MINIMUM: (u32, u32) = (2, 0);
/// Tools that kube-node, kube-proxy and the plugins call: name, the argument for the version, and the project in the answer.
/// Programs of these names of other projects, such as busybox, lack arguments that a node needs.
const TOOLS: [(&str, &str, &str); 4] = [
    ("ip", "-V", "iproute2"),
    ("nft", "--version", "nftables"),
    ("unshare", "--version", "util-linux"),
    ("nsenter", "--version", "util-linux"),
];
/// Folders of root's programs, some of which are not on a user's PATH.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Options of a real node, as arguments of a command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Real node")]
#[group(id = "RealNode")]
pub struct Options {
    /// Add a real node that runs containers: kubelet, containerd and kube-proxy in namespaces of their own; needs root
    #[arg(long = "real-node", id = "real_node")]
    pub enabled: bool,
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
    pub kubemark: bool,
}

/// Paths of a real node's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Programs {
    /// containerd. Its shim is beside it or on PATH.
    pub containerd: PathBuf,
    /// containerd's client.
    pub ctr: PathBuf,
    /// runc, which makes containers.
    pub runc: PathBuf,
    /// Folder of the CNI plugins.
    pub cni_dir: PathBuf,
    /// PATH variable of the node's processes.
    pub path: String,
}

impl Programs {
    /// Finds the tools and the programs named in the options. Other programs get the paths that
    /// [`Self::build`] fills.
    pub fn find(options: &Options) -> anyhow::Result<Self> {
        ensure!(
            geteuid().is_root(),
            "a real node needs root: start kube-node as root, or leave --real-node away"
        );
        let built = Binaries::runtime_cache_dir()?;
        let path = format!("{}:{ROOT_PATH}", env::var("PATH").unwrap_or_default());
        check_tools(&path)?;
        let (containerd, ctr, path) = match &options.containerd {
            Some(containerd) => {
                checked("--containerd", containerd)?;
                check_version(containerd)?;
                let path = match containerd.parent().filter(|beside| beside.is_absolute()) {
                    Some(beside) => format!("{}:{path}", beside.display()),
                    None => path,
                };
                let beside = |name: &str| {
                    search(name, &path)
                        .with_context(|| absent("--containerd", &containerd.with_file_name(name)))
                };
                beside("containerd-shim-runc-v2")?;
                (containerd.clone(), beside("ctr")?, path)
            }
            None => (built.join("containerd"), built.join("ctr"), format!("{}:{path}", built.display())),
        };
        let runc = match &options.runc {
            Some(runc) => checked("--runc", runc)?,
            None => built.join("runc"),
        };
        let cni_dir = match &options.cni_dir {
            Some(dir) => {
                for plugin in binaries::CNI_PLUGINS {
                    checked("--cni-dir", &dir.join(plugin))?;
                }
                dir.clone()
            }
            None => built,
        };
        Ok(Self { containerd, ctr, runc, cni_dir, path })
    }

    /// Builds the programs that the options do not name, once per user.
    pub async fn build(options: &Options, progress: &Progress) -> anyhow::Result<()> {
        build::build(&Binaries::runtime_cache_dir()?, &RUNTIME, &built_for(options), progress).await
    }
}

/// Programs that the user does not name.
fn built_for(options: &Options) -> Vec<&'static str> {
    let Options { containerd, runc, cni_dir, .. } = options;
    let programs: [(_, &[&str]); 3] = [
        (containerd, &binaries::CONTAINERD_PROGRAMS),
        (runc, &binaries::RUNC_PROGRAMS),
        (cni_dir, &binaries::CNI_PLUGINS),
    ];
    let unnamed = programs.into_iter().filter(|(named, _)| named.is_none());
    unnamed.flat_map(|(_, programs)| programs).copied().collect()
}

/// Path of a program named by a flag.
fn checked(flag: &str, path: &Path) -> anyhow::Result<PathBuf> {
    ensure!(is_executable(path), absent(flag, path));
    Ok(path.to_owned())
}

fn absent(flag: &str, path: &Path) -> String {
    format!("{flag}: there is no program {}", path.display())
}

/// Checks that each tool is on the PATH and is the one that a node needs.
fn check_tools(path: &str) -> anyhow::Result<()> {
    let missing: Vec<_> =
        TOOLS.iter().filter(|(name, ..)| search(name, path).is_none()).map(|(name, ..)| *name).collect();
    ensure!(
        missing.is_empty(),
        "a real node needs {}, which this machine lacks: {REMEDY}",
        missing.join(", ")
    );
    for (name, argument, project) in TOOLS {
        let Some(program) = search(name, path) else { continue };
        let output = Command::new(&program).arg(argument).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(
            String::from_utf8_lossy(&output.stdout).contains(project),
            "a real node needs {name} of {project}, and {} is another program, such as busybox: {REMEDY}",
            program.display()
        );
    }
    Ok(())
}

fn search(name: &str, path: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_absolute() && is_executable(file))
}

fn check_version(containerd: &Path) -> anyhow::Result<()> {
    let path = containerd.display();
    let output = Command::new(containerd).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {path}"))?;
    // A containerd without a version number was built by hand; it is tried.
    let (major, minor) = release_in(&String::from_utf8_lossy(&output.stdout)).unwrap_or(MINIMUM);
    ensure!(
        (major, minor) >= MINIMUM,
        "{path} is containerd {major}.{minor}, a real node needs {}.{} or later: leave --containerd away to have one built",
        MINIMUM.0,
        MINIMUM.1
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn what_is_named_is_not_built() {
        assert_eq!(built_for(&Options::default()).len(), 8);
        let options = Options {
            containerd: Some("/usr/bin/containerd".into()),
            cni_dir: Some("/usr/lib/cni".into()),
            ..Options::default()
        };
        assert_eq!(built_for(&options), ["runc"]);
    }

    #[test]
    fn tools_of_other_projects_are_refused_by_name() {
        let dir = env::temp_dir().join(format!("kube-node-tools-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.display().to_string();
        let write = |name: &str, answer: &str| {
            // Written beside: a program that is open for writing cannot run.
            let file = dir.join(format!("{name}.new"));
            fs::write(&file, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            fs::rename(&file, dir.join(name)).unwrap();
        };
        let error = || check_tools(&path).unwrap_err().to_string();
        assert!(error().starts_with("a real node needs ip, nft, unshare, nsenter, which this machine lacks"));
        write("ip", "ip utility, iproute2-6.15.0, libbpf 1.5.0");
        write("nft", "nftables v1.1.3 (Commodore Bullmoose #4)");
        write("nsenter", "nsenter from util-linux 2.41");
        write("unshare", "unshare: unrecognized option: version");
        let said = error();
        assert!(
            said.starts_with("a real node needs unshare of util-linux, and ") && said.contains("busybox"),
            "{said}"
        );
        write("unshare", "unshare from util-linux 2.41");
        check_tools(&path).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_named_program_that_is_missing_is_an_error() {
        let error = checked("--cni-dir", Path::new("/nonexistent/bridge")).unwrap_err().to_string();
        assert_eq!(error, "--cni-dir: there is no program /nonexistent/bridge");
    }
}
