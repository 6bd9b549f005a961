//! Locates the programs of a cluster: a folder named by the user, `KUBEBUILDER_ASSETS`, the user's cache
//! folder, or a build from the pinned Go modules (see [`super::build`]).

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{assets, build, files::FileError, progress::Progress};

/// Kubernetes version that is built, as pinned in modules/kubernetes/go.mod.
pub const KUBERNETES_VERSION: &str = "1.36.3";
/// etcd version that is built, as pinned in modules/etcd/go.mod.
pub const ETCD_VERSION: &str = "3.6.8";
/// Programs that `up` needs.
pub const CONTROL_PLANE: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
/// Programs that a real node needs in addition.
pub const REAL_NODE: [&str; 2] = ["kubelet", "kube-proxy"];
/// Program in the image of upstream kubemark.
pub const KUBEMARK: [&str; 1] = ["kubemark"];
/// containerd version that is built, as pinned in modules/containerd/go.mod.
pub const CONTAINERD_VERSION: &str = "2.2.9";
/// runc version that is built, as pinned in modules/runc/go.mod.
pub const RUNC_VERSION: &str = "1.5.2";
/// Version of the CNI plugins that are built, as pinned in modules/cni/go.mod.
pub const CNI_VERSION: &str = "1.9.1";
/// containerd, its shim and its client.
pub const CONTAINERD: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];
/// The OCI runtime that containerd's shim calls.
pub const RUNC: [&str; 1] = ["runc"];
/// CNI plugins of the real node's network.
pub const CNI_PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
/// Environment variable by which envtest names its folder of binaries.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Reason why the binaries are not available.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// The folder named by the user lacks programs.
    #[error("{} has no {}: put the binaries of Kubernetes there ({}), or leave {origin} away to have them built", dir.display(), missing.join(", "), wanted.join(", "))]
    Missing {
        /// The folder.
        dir: PathBuf,
        /// Programs that are missing or not executable.
        missing: Vec<&'static str>,
        /// All required programs.
        wanted: Vec<&'static str>,
        /// The flag or variable that named the folder.
        origin: &'static str,
    },
    /// The home folder is unknown.
    #[error(
        "no home folder to keep the built binaries in: set HOME or XDG_CACHE_HOME, or name binaries with --binaries"
    )]
    NoHome,
    /// Go is not installed.
    #[error("Go is not installed: the programs of a cluster are built from source once, which needs Go {}.{} or later on PATH (https://go.dev/dl), or name ready binaries with --binaries", super::go::MINIMUM.0, super::go::MINIMUM.1)]
    NoGo(#[source] io::Error),
    /// The installed Go is too old.
    #[error("Go is too old: {found}; the programs of a cluster need Go {}.{} or later (https://go.dev/dl), or name ready binaries with --binaries", super::go::MINIMUM.0, super::go::MINIMUM.1)]
    OldGo {
        /// Version that Go reports.
        found: String,
    },
    /// The disk is full, or too full for a build.
    #[error("not enough room on the disk: building needs {} GiB free in {}{}", build::NEEDED_BYTES >> 30, dir.display(), free.map(|free| format!(", there are {:.1}", free as f64 / f64::from(1 << 30))).unwrap_or_default())]
    DiskFull {
        /// Folder on the full disk.
        dir: PathBuf,
        /// Free bytes, if they were read.
        free: Option<u64>,
    },
    /// Modules could not be downloaded.
    #[error(
        "cannot download the Go modules of {programs}: check the network and the variables GOPROXY and HTTPS_PROXY, then try again; what is built already is kept ({detail})"
    )]
    Network {
        /// Names of the programs being built.
        programs: String,
        /// End of the output of Go.
        detail: String,
    },
    /// The compiler was killed, most likely for lack of memory.
    #[error(
        "the build of {programs} was killed, most likely because memory ran out: it needs about 2 GB free; what is built already is kept"
    )]
    Killed {
        /// Names of the programs being built.
        programs: String,
    },
    /// No C compiler is installed.
    #[error(
        "no C compiler: {programs} is partly C; install one (on Debian and Ubuntu gcc and libc6-dev), or name a ready one with --runc ({detail})"
    )]
    NoCompiler {
        /// Names of the programs being built.
        programs: String,
        /// Error message of Go.
        detail: String,
    },
    /// The build failed for another reason.
    #[error("the build of {programs} failed: {detail}")]
    Build {
        /// Names of the programs being built.
        programs: String,
        /// End of the output of Go.
        detail: String,
    },
    /// A program could not be run or a file could not be moved.
    #[error("cannot {action}")]
    Io {
        /// The failed action.
        action: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file of the cache could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A folder that holds every requested program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// Finds the binaries, or builds them.
    pub async fn locate(
        explicit: Option<&Path>,
        names: &[&'static str],
        progress: &Progress,
    ) -> Result<Self, BinariesError> {
        if let Some(dir) = explicit {
            return Self::in_dir(dir, names, "--binaries");
        }
        if let Some(dir) = std::env::var_os(ASSETS_VARIABLE).filter(|dir| !dir.is_empty()) {
            return Self::from_assets(Path::new(&dir), names, progress).await;
        }
        Self::cached(names, progress).await
    }

    /// Uses a complete folder as it is. Programs that an incomplete folder lacks, or has of another release,
    /// are built.
    async fn from_assets(
        dir: &Path,
        names: &[&'static str],
        progress: &Progress,
    ) -> Result<Self, BinariesError> {
        let complete = Self::in_dir(dir, names, ASSETS_VARIABLE);
        if complete.is_ok() || missing(dir, &CONTROL_PLANE).len() == CONTROL_PLANE.len() {
            return complete;
        }
        let assets::Sorted { fit, unfit } = assets::sort(dir);
        if !unfit.is_empty() {
            progress.line(&format!(
                "{ASSETS_VARIABLE}: {} not used, since a cluster mixes no releases: the rest would be built of Kubernetes {KUBERNETES_VERSION} and etcd {ETCD_VERSION}",
                unfit.join(", ")
            ));
        }
        let rest: Vec<_> = names.iter().copied().filter(|name| !fit.contains(name)).collect();
        let built = Self::cached(&rest, progress).await?;
        if fit.is_empty() { Ok(built) } else { Ok(Self { dir: assets::link(dir, &fit, &built)? }) }
    }

    async fn cached(names: &[&'static str], progress: &Progress) -> Result<Self, BinariesError> {
        let dir = Self::cache_dir()?;
        if !missing(&dir, names).is_empty() {
            build::build(&dir, names, progress).await?;
        }
        Ok(Self { dir })
    }

    /// Cache folder of the built control plane. Its path contains the versions, so that releases do not mix.
    pub fn cache_dir() -> Result<PathBuf, BinariesError> {
        cache(&format!("kubernetes-{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}"))
    }

    /// Cache folder of containerd, runc and the CNI plugins, which a real node needs.
    pub fn runtime_cache_dir() -> Result<PathBuf, BinariesError> {
        cache(&format!("containerd-{CONTAINERD_VERSION}-runc-{RUNC_VERSION}-cni-{CNI_VERSION}"))
    }

    /// Uses a folder in which every named program must exist.
    fn in_dir(dir: &Path, names: &[&'static str], origin: &'static str) -> Result<Self, BinariesError> {
        let missing = missing(dir, names);
        if !missing.is_empty() {
            let wanted = names.to_vec();
            return Err(BinariesError::Missing { dir: dir.to_owned(), missing, wanted, origin });
        }
        let dir = std::path::absolute(dir)
            .map_err(|source| BinariesError::Io { action: format!("find {}", dir.display()), source })?;
        Ok(Self { dir })
    }

    /// Path of the folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of one program.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns true if the folder holds this program, requested or not.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        is_executable(&self.path(name))
    }
}

fn cache(name: &str) -> Result<PathBuf, BinariesError> {
    let dirs = directories::ProjectDirs::from("", "", "kube-node").ok_or(BinariesError::NoHome)?;
    Ok(dirs.cache_dir().join(name))
}

/// Major and minor release as a program reports it: `Kubernetes v1.36.3`, `etcd Version: 3.6.8`, and
/// `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1`.
pub(super) fn release_in(text: &str) -> Option<(u32, u32)> {
    text.split_ascii_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

/// Programs that a folder lacks.
pub(super) fn missing(dir: &Path, names: &[&'static str]) -> Vec<&'static str> {
    names.iter().copied().filter(|name| !is_executable(&dir.join(name))).collect()
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_missing_binary_is_named() {
        let dir = std::env::temp_dir().join(format!("kube-node-binaries-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for name in CONTROL_PLANE {
            fs::write(dir.join(name), "x").unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert!(Binaries::in_dir(&dir, &CONTROL_PLANE, "--binaries").is_ok());
        fs::remove_file(dir.join("etcd")).unwrap();
        fs::set_permissions(dir.join("kubectl"), fs::Permissions::from_mode(0o644)).unwrap();
        let error = Binaries::in_dir(&dir, &CONTROL_PLANE, "--binaries").unwrap_err().to_string();
        assert!(error.contains("has no etcd, kubectl:"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn releases() {
        let debian = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1";
        assert_eq!(release_in(debian), Some((1, 6)));
        let upstream =
            "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376";
        assert_eq!(release_in(upstream), Some((2, 1)));
        assert_eq!(release_in("containerd devel"), None);
        assert_eq!(release_in("Client Version: v1.36.3\nKustomize Version: v5.7.1"), Some((1, 36)));
        assert_eq!(release_in("etcd Version: 3.6.8\nGit SHA: abc\nGo Version: go1.26"), Some((3, 6)));
    }
}
