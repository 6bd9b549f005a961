//! What a real node is run with and what the distribution has to bring: containerd, runc, CNI plugins and a few tools.

use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::Options;

/// What the script of this repository installs, said where something is missing.
const REMEDY: &str = "install them (on Debian and Ubuntu tests/real-node/install.sh of kube-node's repository does), or say where they are with --containerd, --runc and --cni-dir";
/// The oldest containerd that a kubelet of this release talks to.
const MINIMUM: (u32, u32) = (1, 6);
/// Where distributions and upstream put CNI plugins.
const CNI_DIRS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// The plugins that the node's network is made of.
const PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
/// Tools that kube-node, kube-proxy and the plugins call.
const TOOLS: [&str; 5] = ["ip", "nft", "iptables", "unshare", "nsenter"];
/// Where root finds programs that are not on everybody's PATH.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a real node cannot run on this machine.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// Namespaces and mounts are root's.
    #[error("a real node needs root: start kube-node as root, or leave --real-node away")]
    NotRoot,
    /// Something is not installed.
    #[error("a real node needs {}, which this machine lacks: {REMEDY}", missing.join(", "))]
    Missing {
        /// What is not there.
        missing: Vec<String>,
    },
    /// The containerd there is does not do.
    #[error("{} is containerd {found}, a real node needs {}.{} or later: {REMEDY}", path.display(), MINIMUM.0, MINIMUM.1)]
    TooOld {
        /// The program.
        path: PathBuf,
        /// What it says of itself.
        found: String,
    },
    /// A program does not run.
    #[error("cannot run {}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Paths of what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Programs {
    /// The runtime. Its shim and its client lie beside it or on PATH.
    pub containerd: PathBuf,
    /// containerd's client.
    pub ctr: PathBuf,
    /// What makes containers.
    pub runc: PathBuf,
    /// Folder of the CNI plugins.
    pub cni_dir: PathBuf,
    /// PATH of the node's processes.
    pub path: String,
}

impl Programs {
    /// Looks for everything, and names all that is missing at once.
    pub fn find(options: &Options) -> Result<Self, ProgramsError> {
        if !geteuid().is_root() {
            return Err(ProgramsError::NotRoot);
        }
        let mut missing = Vec::new();
        let mut path = format!("{}:{ROOT_PATH}", env::var("PATH").unwrap_or_default());
        let mut find = |name: &str, said: Option<&Path>, path: &str| {
            let found = match said {
                Some(said) => Some(said.to_owned()).filter(|said| is_executable(said)),
                None => search(name, path),
            };
            found.unwrap_or_else(|| {
                missing.push(
                    said.map_or_else(|| name.to_owned(), |said| format!("{name} at {}", said.display())),
                );
                PathBuf::new()
            })
        };
        let containerd = find("containerd", options.containerd.as_deref(), &path);
        if let Some(beside) = containerd.parent().filter(|_| options.containerd.is_some()) {
            path = format!("{}:{path}", beside.display());
        }
        let ctr = find("ctr", None, &path);
        find("containerd-shim-runc-v2", None, &path);
        let runc = find("runc", options.runc.as_deref(), &path);
        for tool in TOOLS {
            find(tool, None, &path);
        }
        let cni_dir = cni_dir(options.cni_dir.as_deref(), &mut missing);
        if !missing.is_empty() {
            return Err(ProgramsError::Missing { missing });
        }
        check_version(&containerd)?;
        Ok(Self { containerd, ctr, runc, cni_dir, path })
    }
}

/// The folder that has most of the plugins; what it lacks is noted.
fn cni_dir(said: Option<&Path>, missing: &mut Vec<String>) -> PathBuf {
    let lacks = |dir: &Path| -> Vec<&str> {
        PLUGINS.into_iter().filter(|plugin| !is_executable(&dir.join(plugin))).collect()
    };
    let candidates: Vec<PathBuf> =
        said.map_or_else(|| CNI_DIRS.map(PathBuf::from).to_vec(), |said| vec![said.to_owned()]);
    let best = candidates.into_iter().min_by_key(|dir| lacks(dir).len()).unwrap_or_default();
    missing
        .extend(lacks(&best).iter().map(|plugin| format!("the CNI plugin {plugin} in {}", best.display())));
    best
}

fn search(name: &str, path: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_absolute() && is_executable(file))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn check_version(containerd: &Path) -> Result<(), ProgramsError> {
    let output = Command::new(containerd).arg("--version").output();
    let output = output.map_err(|source| ProgramsError::Run { path: containerd.to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    match parse_version(&text) {
        Some(version) if version < MINIMUM => Err(ProgramsError::TooOld {
            path: containerd.to_owned(),
            found: format!("{}.{}", version.0, version.1),
        }),
        // One without a number was built by hand: let it try.
        _ => Ok(()),
    }
}

/// Major and minor release out of `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    text.split_ascii_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let debian = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1";
        assert_eq!(parse_version(debian), Some((1, 6)));
        let upstream =
            "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376";
        assert_eq!(parse_version(upstream), Some((2, 1)));
        assert_eq!(parse_version("containerd devel"), None);
        assert!(parse_version("containerd x 1.5.18").unwrap() < MINIMUM);
    }

    #[test]
    fn a_folder_without_plugins_is_named() {
        let mut missing = Vec::new();
        cni_dir(Some(Path::new("/nonexistent")), &mut missing);
        assert_eq!(missing.len(), PLUGINS.len());
        assert_eq!(missing[0], "the CNI plugin bridge in /nonexistent");
    }
}
