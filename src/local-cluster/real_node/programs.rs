//! Programs of a real node besides kubelet and kube-proxy: containerd, runc and CNI plugins, which are built
//! unless the user names them, and a few tools of the distribution.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::Command,
};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::Options;
use crate::{
    binaries::{self, Binaries, BinariesError, is_executable, missing},
    build,
    progress::Progress,
};

/// Remedy for missing tools.
const REMEDY: &str =
    "install them (on Debian and Ubuntu tests/real-node/install.sh of kube-node's repository does)";
/// Oldest containerd release that reads the node's configuration.
const MINIMUM: (u32, u32) = (2, 0);
/// Tools that kube-node, kube-proxy and the plugins call.
const TOOLS: [&str; 4] = ["ip", "nft", "unshare", "nsenter"];
/// Folders of root's programs, some of which are not on a user's PATH.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Reason why a real node cannot run on this machine.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// kube-node does not run as root, which namespaces and mounts require.
    #[error("a real node needs root: start kube-node as root, or leave --real-node away")]
    NotRoot,
    /// A tool is not installed.
    #[error("a real node needs {}, which this machine lacks: {REMEDY}", missing.join(", "))]
    Missing {
        /// The tools.
        missing: Vec<&'static str>,
    },
    /// A flag names a missing program.
    #[error("{flag}: there is no program {}", path.display())]
    NotThere {
        /// The flag.
        flag: &'static str,
        /// The program that is missing.
        path: PathBuf,
    },
    /// The cache folder of built programs is unknown, or the build failed.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// The containerd that the user names is too old.
    #[error("{} is containerd {found}, a real node needs {}.{} or later: leave --containerd away to have one built", path.display(), MINIMUM.0, MINIMUM.1)]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Version that the program reports.
        found: String,
    },
    /// A program cannot be run.
    #[error("cannot run {}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Paths of a real node's programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    pub fn find(options: &Options) -> Result<Self, ProgramsError> {
        if !geteuid().is_root() {
            return Err(ProgramsError::NotRoot);
        }
        let built = Binaries::runtime_cache_dir()?;
        let path = format!("{}:{ROOT_PATH}", env::var("PATH").unwrap_or_default());
        let missing: Vec<_> = TOOLS.into_iter().filter(|tool| search(tool, &path).is_none()).collect();
        if !missing.is_empty() {
            return Err(ProgramsError::Missing { missing });
        }
        let (containerd, ctr, path) = match &options.containerd {
            Some(containerd) => {
                named("--containerd", containerd)?;
                check_version(containerd)?;
                let path = match containerd.parent().filter(|beside| beside.is_absolute()) {
                    Some(beside) => format!("{}:{path}", beside.display()),
                    None => path,
                };
                let beside = |name: &str| {
                    let missing = || ProgramsError::NotThere {
                        flag: "--containerd",
                        path: containerd.with_file_name(name),
                    };
                    search(name, &path).ok_or_else(missing)
                };
                beside("containerd-shim-runc-v2")?;
                (containerd.clone(), beside("ctr")?, path)
            }
            None => (built.join("containerd"), built.join("ctr"), format!("{}:{path}", built.display())),
        };
        let runc = match &options.runc {
            Some(runc) => named("--runc", runc)?,
            None => built.join("runc"),
        };
        let cni_dir = match &options.cni_dir {
            Some(dir) => {
                for plugin in binaries::CNI_PLUGINS {
                    named("--cni-dir", &dir.join(plugin))?;
                }
                dir.clone()
            }
            None => built,
        };
        Ok(Self { containerd, ctr, runc, cni_dir, path })
    }

    /// Builds the programs that the options do not name, once per user.
    pub async fn build(options: &Options, progress: &Progress) -> Result<(), ProgramsError> {
        let names = built_for(options);
        let dir = Binaries::runtime_cache_dir()?;
        if !missing(&dir, &names).is_empty() {
            build::build(&dir, &names, progress).await?;
        }
        Ok(())
    }
}

/// Programs that the user does not name.
fn built_for(options: &Options) -> Vec<&'static str> {
    let Options { containerd, runc, cni_dir, kubemark: _ } = options;
    let mut names = Vec::new();
    if containerd.is_none() {
        names.extend(binaries::CONTAINERD);
    }
    if runc.is_none() {
        names.extend(binaries::RUNC);
    }
    if cni_dir.is_none() {
        names.extend(binaries::CNI_PLUGINS);
    }
    names
}

/// Path of a program named by a flag.
fn named(flag: &'static str, path: &Path) -> Result<PathBuf, ProgramsError> {
    if is_executable(path) {
        return Ok(path.to_owned());
    }
    Err(ProgramsError::NotThere { flag, path: path.to_owned() })
}

fn search(name: &str, path: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_absolute() && is_executable(file))
}

fn check_version(containerd: &Path) -> Result<(), ProgramsError> {
    let output = Command::new(containerd).arg("--version").output();
    let output = output.map_err(|source| ProgramsError::Run { path: containerd.to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    match binaries::release_in(&text) {
        Some(version) if version < MINIMUM => Err(ProgramsError::TooOld {
            path: containerd.to_owned(),
            found: format!("{}.{}", version.0, version.1),
        }),
        // A containerd without a version number was built by hand; it is tried.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
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
    fn a_named_program_that_is_missing_is_an_error() {
        let error = named("--cni-dir", Path::new("/nonexistent/bridge")).unwrap_err().to_string();
        assert_eq!(error, "--cni-dir: there is no program /nonexistent/bridge");
    }
}
