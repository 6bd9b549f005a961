//! The programs of the control plane, and where they come from: a folder named by the user, `KUBEBUILDER_ASSETS`, the
//! user's cache folder, or a build from the Go modules pinned here (see [`super::build`]).

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{build, files::FileError, progress::Progress};

/// The Kubernetes that is built, as pinned in modules/kubernetes/go.mod.
pub const KUBERNETES_VERSION: &str = "1.36.3";
/// The etcd that is built, as pinned in modules/etcd/go.mod.
pub const ETCD_VERSION: &str = "3.6.8";
/// What `up` needs.
pub const CONTROL_PLANE: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
/// What a real node needs besides.
pub const REAL_NODE: [&str; 2] = ["kubelet", "kube-proxy"];
/// What the image of upstream kubemark holds.
pub const KUBEMARK: [&str; 1] = ["kubemark"];
/// Where tests of other projects keep the same binaries.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Why there are no binaries.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// The folder named by the user lacks some.
    #[error("{} has no {}: put the binaries of Kubernetes there ({}), or leave {origin} away to have them built", dir.display(), missing.join(", "), wanted.join(", "))]
    Missing {
        /// The folder.
        dir: PathBuf,
        /// The binaries that are not there or not executable.
        missing: Vec<&'static str>,
        /// All that must be there.
        wanted: Vec<&'static str>,
        /// What named the folder.
        origin: &'static str,
    },
    /// There is no home folder.
    #[error(
        "no home folder to keep the built binaries in: set HOME or XDG_CACHE_HOME, or name binaries with --binaries"
    )]
    NoHome,
    /// There is no Go.
    #[error("Go is not installed: the control plane is built from source once, which needs Go {}.{} or later on PATH (https://go.dev/dl), or name ready binaries with --binaries", super::go::MINIMUM.0, super::go::MINIMUM.1)]
    NoGo(#[source] io::Error),
    /// The Go there is does not do.
    #[error("Go is too old: {found}; the control plane needs Go {}.{} or later (https://go.dev/dl), or name ready binaries with --binaries", super::go::MINIMUM.0, super::go::MINIMUM.1)]
    OldGo {
        /// What it says of itself.
        found: String,
    },
    /// The disk is full, or will be.
    #[error("not enough room on the disk: building the control plane needs {} GiB free in {}{}", build::NEEDED_BYTES >> 30, dir.display(), free.map(|free| format!(", there are {:.1}", free as f64 / f64::from(1 << 30))).unwrap_or_default())]
    DiskFull {
        /// Which folder.
        dir: PathBuf,
        /// Bytes free, where that was looked at.
        free: Option<u64>,
    },
    /// Modules could not be downloaded.
    #[error(
        "cannot download the Go modules of {program}: check the network and the variables GOPROXY and HTTPS_PROXY, then try again; what is built already is kept ({detail})"
    )]
    Network {
        /// What was being built.
        program: &'static str,
        /// The end of what Go said.
        detail: String,
    },
    /// The compiler was killed.
    #[error(
        "the build of {program} was killed, most likely because memory ran out: it needs about 2 GB free; what is built already is kept"
    )]
    Killed {
        /// What was being built.
        program: &'static str,
    },
    /// The build failed for another reason.
    #[error("the build of {program} failed: {detail}")]
    Build {
        /// What was being built.
        program: &'static str,
        /// The end of what Go said.
        detail: String,
    },
    /// A program could not be run or a file not be moved.
    #[error("cannot {action}")]
    Io {
        /// What was being done.
        action: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file of the cache could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A folder with every program that was asked for.
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
            return Self::in_dir(Path::new(&dir), names, ASSETS_VARIABLE);
        }
        let dir = Self::cache_dir()?;
        if !missing(&dir, names).is_empty() {
            build::build(&dir, names, progress).await?;
        }
        Ok(Self { dir })
    }

    /// Where built binaries are kept; the versions are part of the path, so that releases do not mix.
    pub fn cache_dir() -> Result<PathBuf, BinariesError> {
        let dirs = directories::ProjectDirs::from("", "", "kube-node").ok_or(BinariesError::NoHome)?;
        Ok(dirs.cache_dir().join(format!("kubernetes-{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}")))
    }

    /// The binaries of a folder, all of which must be there.
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

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// One program.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether the folder has a program that was not asked for.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        is_executable(&self.path(name))
    }
}

/// Which programs a folder lacks.
pub(super) fn missing(dir: &Path, names: &[&'static str]) -> Vec<&'static str> {
    names.iter().copied().filter(|name| !is_executable(&dir.join(name))).collect()
}

fn is_executable(path: &Path) -> bool {
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
    fn versions_are_those_of_the_modules() {
        assert!(build::KUBERNETES.go_mod.contains(&format!("k8s.io/kubernetes v{KUBERNETES_VERSION}")));
        assert!(build::ETCD.go_mod.contains(&format!("go.etcd.io/etcd/server/v3 v{ETCD_VERSION}")));
    }
}
