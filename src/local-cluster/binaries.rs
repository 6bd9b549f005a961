//! Locates the programs of a cluster: a folder named by the user, `KUBEBUILDER_ASSETS`, the user's cache
//! folder, a download of the published programs (see [`super::download`]), or a build from the pinned Go modules
//! (see [`super::build`]).

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;

pub use super::modules::{
    CNI_PLUGINS, CNI_VERSION, CONTAINERD_PROGRAMS, CONTAINERD_VERSION, CONTROL_PLANE, KUBEMARK,
    KUBERNETES_VERSION, REAL_NODE, RUNC_PROGRAMS, RUNC_VERSION,
};
use super::{
    assets, build,
    download::{self, Source},
    executable::{missing, reported_version},
    progress::Progress,
    release::Release,
    state::State,
};

/// Environment variable by which envtest names its folder of binaries.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// The programs that a cluster runs, as arguments of a command.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "Binaries")]
pub struct Options {
    /// Kubernetes release to run, such as 1.37; that of the last start when absent, or 1.36
    #[arg(long, value_name = "VERSION", value_parser = Release::parse, conflicts_with = "binaries")]
    kubernetes_version: Option<&'static Release>,
    /// Folder of etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, and for a real
    /// node of kubelet and kube-proxy; located or built when absent
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// Download the published programs, with their pinned checksums, instead of building them
    #[arg(long, conflicts_with = "binaries")]
    download: bool,
    /// Mirror to download from: URL/v1.36.3/bin/linux/amd64/kubectl and URL/v3.6.8/etcd-v3.6.8-linux-amd64.tar.gz
    #[arg(long, value_name = "URL", requires = "download", value_parser = download::mirror)]
    download_from: Option<String>,
}

impl Options {
    /// Checks that a data folder with this state may run the release that is asked for.
    pub(super) fn check(&self, state: &State) -> anyhow::Result<()> {
        self.kubernetes_version.map_or(Ok(()), |asked| state.check_kubernetes(asked.version()))
    }

    /// Finds the programs for a data folder with this state, or makes them.
    pub(super) async fn locate(
        &self,
        state: &State,
        names: &[&'static str],
        progress: &Progress,
    ) -> anyhow::Result<Binaries> {
        let found = if let Some(dir) = &self.binaries {
            Binaries::in_dir(dir, names, "--binaries")?
        } else if let Some(dir) = std::env::var_os(ASSETS_VARIABLE).filter(|dir| !dir.is_empty()) {
            self.complete_assets(Path::new(&dir), state, names, progress).await?
        } else {
            self.made(state.release(self.kubernetes_version)?, names, progress).await?
        };
        // The user's own programs may be of any release.
        state.check_kubernetes(&found.version)?;
        Ok(found)
    }

    /// Uses a complete folder as it is, unless it is of another release than the one that is asked for. Programs that an
    /// incomplete folder lacks, or has of another release, are made.
    async fn complete_assets(
        &self,
        dir: &Path,
        state: &State,
        names: &[&'static str],
        progress: &Progress,
    ) -> anyhow::Result<Binaries> {
        let complete = Binaries::in_dir(dir, names, ASSETS_VARIABLE);
        let fits = complete.is_ok() && self.kubernetes_version.is_none();
        if fits || missing(dir, &CONTROL_PLANE).len() == CONTROL_PLANE.len() {
            return complete;
        }
        let release = state.release(self.kubernetes_version)?;
        let (fit, unfit) = assets::sort(dir, release);
        if !unfit.is_empty() {
            progress.line(&format!(
                "{ASSETS_VARIABLE}: {} not used, since a cluster mixes no releases: the rest would be of Kubernetes {release} and etcd {}",
                unfit.join(", "),
                release.etcd()
            ));
        }
        let rest: Vec<_> = names.iter().copied().filter(|name| !fit.contains(name)).collect();
        let made = self.made(release, &rest, progress).await?;
        if fit.is_empty() {
            return Ok(made);
        }
        Ok(Binaries { dir: assets::link(dir, &fit, &made.dir)?, ..made })
    }

    /// Programs in the cache. Those that it lacks are downloaded if the user wishes, and built otherwise, as is what nobody
    /// publishes.
    async fn made(
        &self,
        release: &'static Release,
        names: &[&'static str],
        progress: &Progress,
    ) -> anyhow::Result<Binaries> {
        let dir = Binaries::cache_dir(release)?;
        if self.download {
            let source = Source::new(self.download_from.as_deref());
            source.download(release, &dir, names, progress).await?;
        }
        build::build(&dir, &release.modules(), names, progress).await?;
        Ok(Binaries { dir, version: release.version().to_owned() })
    }
}

/// A folder that holds every requested program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
    version: String,
}

impl Binaries {
    /// Finds programs of the default release, or builds them.
    pub async fn locate(
        explicit: Option<&Path>,
        names: &[&'static str],
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let options = Options { binaries: explicit.map(Path::to_owned), ..Options::default() };
        options.locate(&State::default(), names, progress).await
    }

    /// Programs of a release in the cache, built if they are not there.
    pub async fn of(
        release: &'static Release,
        names: &[&'static str],
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        Options::default().made(release, names, progress).await
    }

    /// Cache folder of a release's programs. Its path contains the versions, so that releases do not mix.
    fn cache_dir(release: &Release) -> anyhow::Result<PathBuf> {
        Ok(Self::cache_root()?.join(format!("kubernetes-{release}-etcd-{}", release.etcd())))
    }

    /// Cache folder of containerd, runc and the CNI plugins, which a real node needs.
    pub fn runtime_cache_dir() -> anyhow::Result<PathBuf> {
        let name = format!("containerd-{CONTAINERD_VERSION}-runc-{RUNC_VERSION}-cni-{CNI_VERSION}");
        Ok(Self::cache_root()?.join(name))
    }

    /// Folder of all cache folders.
    pub fn cache_root() -> anyhow::Result<PathBuf> {
        let dirs = directories::ProjectDirs::from("", "", "kube-node").context(
            "no home folder to keep the built binaries in: set HOME or XDG_CACHE_HOME, or name binaries with --binaries",
        )?;
        Ok(dirs.cache_dir().to_owned())
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
        let version = reported_version(&dir.join("kube-apiserver"));
        Ok(Self { version: version.unwrap_or_else(|| KUBERNETES_VERSION.to_owned()), dir })
    }

    /// Path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of one program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Version of Kubernetes, such as `1.36.3`.
    pub fn version(&self) -> &str {
        &self.version
    }
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
