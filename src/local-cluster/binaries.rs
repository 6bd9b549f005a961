//! Locates the programs of a cluster: a folder named by the user, `KUBEBUILDER_ASSETS`, the user's cache
//! folder, or a build from the pinned Go modules (see [`super::build`]).

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

pub use super::modules::{
    CNI_PLUGINS, CNI_VERSION, CONTAINERD_PROGRAMS, CONTAINERD_VERSION, CONTROL_PLANE, ETCD_VERSION, KUBEMARK,
    KUBERNETES_VERSION, REAL_NODE, RUNC_PROGRAMS, RUNC_VERSION,
};
use super::{assets, build, executable::missing, progress::Progress};

/// Environment variable by which envtest names its folder of binaries.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

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
    ) -> anyhow::Result<Self> {
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
    async fn from_assets(dir: &Path, names: &[&'static str], progress: &Progress) -> anyhow::Result<Self> {
        let complete = Self::in_dir(dir, names, ASSETS_VARIABLE);
        if complete.is_ok() || missing(dir, &CONTROL_PLANE).len() == CONTROL_PLANE.len() {
            return complete;
        }
        let (fit, unfit) = assets::sort(dir);
        if !unfit.is_empty() {
            progress.line(&format!(
                "{ASSETS_VARIABLE}: {} not used, since a cluster mixes no releases: the rest would be built of Kubernetes {KUBERNETES_VERSION} and etcd {ETCD_VERSION}",
                unfit.join(", ")
            ));
        }
        let rest: Vec<_> = names.iter().copied().filter(|name| !fit.contains(name)).collect();
        let built = Self::cached(&rest, progress).await?;
        if fit.is_empty() { Ok(built) } else { Ok(Self { dir: assets::link(dir, &fit, &built.dir)? }) }
    }

    async fn cached(names: &[&'static str], progress: &Progress) -> anyhow::Result<Self> {
        let dir = Self::cache_dir()?;
        build::build(&dir, names, progress).await?;
        Ok(Self { dir })
    }

    /// Cache folder of the built control plane. Its path contains the versions, so that releases do not mix.
    pub fn cache_dir() -> anyhow::Result<PathBuf> {
        cache(&format!("kubernetes-{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}"))
    }

    /// Cache folder of containerd, runc and the CNI plugins, which a real node needs.
    pub fn runtime_cache_dir() -> anyhow::Result<PathBuf> {
        cache(&format!("containerd-{CONTAINERD_VERSION}-runc-{RUNC_VERSION}-cni-{CNI_VERSION}"))
    }

    /// Uses a folder in which every named program must exist.
    fn in_dir(dir: &Path, names: &[&'static str], origin: &'static str) -> anyhow::Result<Self> {
        let missing = missing(dir, names);
        ensure!(
            missing.is_empty(),
            "{} has no {}: put the binaries of Kubernetes there ({}), or leave {origin} away to have them built",
            dir.display(),
            missing.join(", "),
            names.join(", ")
        );
        let dir = std::path::absolute(dir).with_context(|| format!("cannot find {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// Path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of one program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn cache(name: &str) -> anyhow::Result<PathBuf> {
    let dirs = directories::ProjectDirs::from("", "", "kube-node").context(
        "no home folder to keep the built binaries in: set HOME or XDG_CACHE_HOME, or name binaries with --binaries",
    )?;
    Ok(dirs.cache_dir().join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

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
}
