//! A real node in the local cluster: containerd, kubelet and kube-proxy in namespaces of their own.
//!
//! Process tree, with the task of each process:
//!
//! ```text
//! up ── real-node host ── unshare ── init ── daemons ── containerd, kubelet, kube-proxy
//!       link, TCP proxy,             root,   restarts   (their shims are init's orphans)
//!       cgroups                      reaps
//! ```
//!
//! [`host`] stays in the host's namespaces; every process from `init` on has its own mount, PID, network, IPC
//! and UTS namespaces. The end of `init` therefore removes every process, mount, bridge, address and packet
//! filter, and several clusters run side by side. Outside the namespaces are the link ([`network`]), the
//! cgroups below one parent ([`cgroups`]) and the files of the data folder. Their names derive from the
//! folder's path, so [`remove`] finds the remains of a killed node without further input.

mod cgroups;
mod config;
mod daemons;
mod host;
mod init;
mod machine;
mod network;
mod programs;
mod ready;

use std::{
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use kube_ext::error;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use daemons::{DaemonsError, run as run_daemons};
pub use host::{HostError, run as run_host};
pub use init::{InitError, run as run_init};
pub use network::{Network, NetworkError};
pub use programs::{Programs, ProgramsError};
pub use ready::{ReadyError, forget, unknown, wait_ready};

use super::{
    binaries::Binaries,
    files::{FileError, create_private_dir, write_private, write_public},
    layout::Layout,
    pki::{Pki, PkiError},
    procs::ProcessId,
    progress::Progress,
};
use crate::images::{self, Contents, Image, ImageError, Layer, Program};
use cgroups::{CgroupError, Cgroups};

/// Name of the Node object.
pub const NAME: &str = "real-node";
/// File name of the node's description, in its folder.
const DESCRIPTION: &str = "node.json";
/// Bit of `CAP_SYS_RESOURCE` in the capability sets of `/proc/self/status`.
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// Options of a real node. Programs that are not named are built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Path of containerd; its shim and `ctr` are looked up beside it first.
    pub containerd: Option<PathBuf>,
    /// Path of runc.
    pub runc: Option<PathBuf>,
    /// Path of the folder of CNI plugins.
    pub cni_dir: Option<PathBuf>,
    /// True if the image of upstream kubemark is required; otherwise it is made only if kubemark was built before.
    pub kubemark: bool,
}

/// A process of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonName {
    /// The container runtime.
    Containerd,
    /// The kubelet.
    Kubelet,
    /// The Service proxy.
    KubeProxy,
}

impl DaemonName {
    /// All processes, in the order of `status`.
    pub const ALL: [Self; 3] = [Self::Containerd, Self::Kubelet, Self::KubeProxy];

    /// Name of the program and of its log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }

    /// Health endpoint that is reachable from the host: a base URL and a path. containerd has none.
    #[must_use]
    pub fn health(self, network: &Network) -> Option<(String, &'static str)> {
        match self {
            Self::Containerd => None,
            Self::Kubelet => Some(network.kubelet_health()),
            Self::KubeProxy => Some(network.proxy_health()),
        }
    }
}

/// Reason why the node's description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The description cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The description is damaged.
    #[error("{} is damaged: start the cluster again with kube-node up --real-node", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Parse error.
        source: serde_json::Error,
    },
}

/// Reason why a node cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The node's certificates cannot be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// No cgroups are available.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// An image cannot be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The state of this machine cannot be read.
    #[error("cannot {action}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Reason why a node's remains cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// Processes or cgroups remain.
    #[error("cannot remove what the real node has left")]
    Cgroups(#[from] CgroupError),
    /// The link remains.
    #[error("cannot remove what the real node has left")]
    Network(#[from] NetworkError),
}

/// An image archive for the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Archived {
    name: String,
    digest: String,
    path: PathBuf,
}

/// Description of the node: written by `up`, read by the node's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    id: String,
    network: Network,
    apiserver_port: u16,
    programs: Programs,
    /// Folder of kubelet and kube-proxy.
    binaries: PathBuf,
    logs: PathBuf,
    images: Vec<Archived>,
    restrict_oom_score: bool,
}

impl Node {
    fn load(dir: &Path) -> Result<Self, NodeError> {
        let path = dir.join(DESCRIPTION);
        let text = super::files::read(&path)?;
        serde_json::from_str(&text).map_err(|source| NodeError::Damaged { path, source })
    }

    /// Folders of this machine that the node's processes need.
    fn folders<'a>(&'a self, dir: &'a Path) -> Vec<&'a Path> {
        let programs =
            [&self.programs.containerd, &self.programs.runc].into_iter().filter_map(|path| path.parent());
        [dir, &self.binaries, &self.logs, &self.programs.cni_dir].into_iter().chain(programs).collect()
    }
}

/// Identifies a cluster on this machine: 8 hex digits of the hash of the data folder's path. The link is
/// named `kn-<id>`, the parent of the cgroups `kube-node-<id>`.
#[must_use]
pub fn id_of(data_dir: &Path) -> String {
    let hash = Sha256::digest(data_dir.as_os_str().as_bytes());
    format!("{:08x}", u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]))
}

/// Chooses and takes free networks for the node of a data folder; those of the last start if they are still free.
pub(super) fn claim(data_dir: &Path, last: Option<Network>) -> Result<Network, NetworkError> {
    network::claim(&id_of(data_dir), last)
}

/// Ends every process of a data folder's node and removes its cgroups and link. Returns true if something was left.
pub(super) async fn remove(data_dir: &Path) -> Result<bool, RemoveError> {
    remove_of(&id_of(data_dir)).await
}

async fn remove_of(id: &str) -> Result<bool, RemoveError> {
    let cgroups = match Cgroups::of(id) {
        Err(CgroupError::None) => None,
        other => Some(other?).filter(Cgroups::exist),
    };
    if let Some(cgroups) = &cgroups {
        cgroups.remove().await?;
    }
    let linked = network::exists(id) && network::unlink(id)?;
    Ok(cgroups.is_some() || linked)
}

/// Running processes of a data folder's node.
#[must_use]
pub fn daemons(data_dir: &Path) -> Vec<(DaemonName, ProcessId)> {
    let Ok(cgroups) = Cgroups::of(&id_of(data_dir)) else { return Vec::new() };
    let processes = cgroups.system_processes().into_iter().filter_map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let daemon = DaemonName::ALL.into_iter().find(|daemon| daemon.name() == name.trim())?;
        Some((daemon, ProcessId::of(pid)?))
    });
    processes.collect()
}

/// Inputs of [`prepare`].
pub(super) struct Ingredients<'a> {
    pub layout: &'a Layout,
    pub pki: &'a Pki,
    pub binaries: &'a Binaries,
    pub programs: Programs,
    pub network: Network,
    pub apiserver_port: u16,
    /// Path of the kube-node program.
    pub itself: &'a Path,
}

/// Writes the files that the node's processes read: description, configuration, identities and images.
pub(super) fn prepare(ingredients: &Ingredients<'_>, progress: &Progress) -> Result<(), PrepareError> {
    progress.step("Preparing the real node and its images");
    let Ingredients { layout, pki, binaries, programs, network, apiserver_port, itself } = ingredients;
    let dir = layout.real_node();
    create_private_dir(&dir.join(config::CNI))?;
    let id = id_of(layout.dir());
    let node = Node {
        images: archives(&dir.join("images"), itself, binaries, progress)?,
        restrict_oom_score: !may_lower_oom_score()?,
        network: *network,
        apiserver_port: *apiserver_port,
        programs: programs.clone(),
        binaries: binaries.dir().to_owned(),
        logs: layout.path("logs"),
        id,
    };
    let json = |value: serde_json::Value| format!("{value:#}\n");
    let write = |name: &str, text: &str| write_public(&dir.join(name), text);
    let snapshotter = if is_overlay(&dir)? { "native" } else { "overlayfs" };
    write(config::CONTAINERD, &config::containerd(&node, &dir, snapshotter))?;
    write(&format!("{}/10-kube-node.conflist", config::CNI), &json(config::cni(&node)))?;
    write(config::KUBELET, &json(config::kubelet(&node, &dir, &Cgroups::of(&node.id)?.root())))?;
    write(config::PROXY, &json(config::proxy(&node, &dir.join("kube-proxy.kubeconfig"))))?;

    let ca = pki.ca()?;
    let server = format!("https://{}:{apiserver_port}", network.host);
    for (file, user, groups) in [
        ("kubelet.kubeconfig", format!("system:node:{NAME}"), &["system:nodes"][..]),
        ("kube-proxy.kubeconfig", "system:kube-proxy".to_owned(), &[]),
    ] {
        let identity = pki.client(&user, groups)?;
        super::kubeconfig::write(&dir.join(file), &server, &ca, &user, &identity)?;
    }
    let serving = pki.server(NAME, &[network.node.into()])?;
    write("ca.crt", &ca)?;
    write("kubelet.crt", &serving.certificate)?;
    write_private(&dir.join("kubelet.key"), &serving.key)?;
    let description = serde_json::to_value(&node)
        .map_err(|error| PrepareError::Io { action: "describe the real node", source: error.into() })?;
    Ok(write(DESCRIPTION, &json(description))?)
}

/// Image archives of the given programs. Existing archives of the same programs are reused.
fn archives(
    dir: &Path,
    itself: &Path,
    binaries: &Binaries,
    progress: &Progress,
) -> Result<Vec<Archived>, PrepareError> {
    create_private_dir(dir)?;
    let own = Program::check(
        itself,
        "build kube-node in its own folder, whose .cargo/config.toml links statically",
    )?;
    let machine = images::machine_beside(itself).map_err(|why| progress.line(&error::chain(&why))).ok();
    let mut wanted = vec![(own, machine, &[Image::Pause, Image::KubeNode][..])];
    if binaries.has("kubemark") {
        let kubemark = Program::check(&binaries.path("kubemark"), "build it with CGO_ENABLED=0")?;
        wanted.push((kubemark, None, &[Image::Kubemark]));
    }
    let mut archives = Vec::new();
    for (program, machine, images_of_it) in wanted {
        let contents = Contents { program: &program, machine: machine.as_ref(), shell: None };
        let fingerprint = contents.fingerprint()?;
        // Packing a program takes seconds; all images of one program share the layer.
        let mut layer = None;
        for &image in images_of_it {
            let path = dir.join(format!("{}-{fingerprint}.tar", image.stem()));
            let digest = if path.exists() {
                images::manifest_digest(&path)?
            } else {
                let layer = match &mut layer {
                    Some(layer) => layer,
                    none => none.insert(Layer::build(image, contents)?),
                };
                images::write(image, None, layer, &path)?.digest
            };
            archives.push(Archived { name: image.name().to_owned(), digest, path });
        }
    }
    // Remove archives of older programs.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if archives.iter().all(|archive| archive.path != entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(archives)
}

/// Returns true if this process may give other processes a lower OOM score than its own, as containerd does
/// for every sandbox.
fn may_lower_oom_score() -> Result<bool, PrepareError> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|source| PrepareError::Io { action: "read the capabilities of this process", source })?;
    Ok(has_capability(&status, CAP_SYS_RESOURCE))
}

fn has_capability(status: &str, bit: u64) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & bit != 0)
}

/// Returns true if the folder is on an overlay, as in a container without a volume. An overlay cannot lie on
/// another one.
fn is_overlay(dir: &Path) -> Result<bool, PrepareError> {
    let action = "look at the file system of the data folder";
    let stat = statfs(dir).map_err(|error| PrepareError::Io { action, source: error.into() })?;
    Ok(stat.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_names_of_their_own() {
        let one = id_of(Path::new("/root/.local/share/kube-node/default"));
        assert_eq!(one.len(), 8);
        assert_ne!(one, id_of(Path::new("/root/.local/share/kube-node/other")));
    }

    #[test]
    fn capabilities() {
        let status = |set: &str| format!("Name:\tx\nCapInh:\tffffffffffffffff\nCapEff:\t{set}\n");
        assert!(has_capability(&status("000001ffffffffff"), CAP_SYS_RESOURCE));
        assert!(!has_capability(&status("000001fffeffffff"), CAP_SYS_RESOURCE));
        assert!(!has_capability("", CAP_SYS_RESOURCE));
    }
}
