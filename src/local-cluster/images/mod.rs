//! Container images without an engine: archives that `ctr -n k8s.io images import`, `docker load` and `podman load` read.
//!
//! An image is one layer from scratch ([`layer`]): a static program ([`machine`] says which second one kube-node's has),
//! users, a writable /tmp, and a shell where one is asked for. The archive ([`archive`]) is an OCI layout with Docker's
//! manifest beside it. The same input makes the same bytes, so a digest says whether something changed.

mod archive;
mod layer;
mod machine;
mod program;

use kube_node_api::names::MACHINE_PROGRAM;
use std::{io, path::PathBuf};

pub use archive::{Written, manifest_digest, write};
pub use layer::{Contents, Layer};
pub use machine::{NoMachineProgram, Why, machine_beside, set_build};
pub use program::Program;

/// Name of the image of kube-node itself: operator, hollow kubelet and guard, by subcommand.
pub const KUBE_NODE: &str = concat!("localhost/kube-node:", env!("CARGO_PKG_VERSION"));
/// Name of the sandbox image: holds the namespaces of a pod.
pub const PAUSE: &str = concat!("localhost/kube-node-pause:", env!("CARGO_PKG_VERSION"));
/// Name of the image of upstream kubemark, of the Kubernetes release that is built here.
pub const KUBEMARK: &str = "localhost/kubemark:v1.36.3";

/// User and group that the programs run as unless a pod says otherwise.
pub const NON_ROOT: u32 = 65_532;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A program or a shell cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A program is no ELF file.
    #[error("{} is no program for Linux", path.display())]
    NotAProgram {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: elf::ParseError,
    },
    /// A program needs a loader and libraries, which an image from scratch has not.
    #[error("{} is linked dynamically and would not run from scratch: {remedy}", path.display())]
    Dynamic {
        /// The file.
        path: PathBuf,
        /// How to get a static one.
        remedy: &'static str,
    },
    /// A program is for a machine that images here are not made for.
    #[error("{} is for a machine of ELF number {machine}: images are made for amd64 and arm64", path.display())]
    Machine {
        /// The file.
        path: PathBuf,
        /// `e_machine` of its header.
        machine: u16,
    },
    /// The archive cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The archive.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// An archive is none, or is damaged.
    #[error("{} is no image archive: delete it", path.display())]
    Damaged {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
}

/// The images that are made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// [`KUBE_NODE`].
    KubeNode,
    /// [`PAUSE`].
    Pause,
    /// [`KUBEMARK`].
    Kubemark,
}

impl Image {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::KubeNode, Self::Pause, Self::Kubemark];

    /// Name and tag.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeNode => KUBE_NODE,
            Self::Pause => PAUSE,
            Self::Kubemark => KUBEMARK,
        }
    }

    /// The same with another tag.
    #[must_use]
    pub fn tagged(self, tag: Option<&str>) -> String {
        match (tag, self.name().rsplit_once(':')) {
            (Some(tag), Some((image, _))) => format!("{image}:{tag}"),
            _ => self.name().to_owned(),
        }
    }

    /// The archive's name without its ending.
    #[must_use]
    pub fn stem(self) -> &'static str {
        match self {
            Self::KubeNode => "kube-node",
            Self::Pause => "pause",
            Self::Kubemark => "kubemark",
        }
    }

    /// Where its program lies inside.
    fn program_path(self) -> &'static str {
        match self {
            Self::KubeNode | Self::Pause => "kube-node",
            Self::Kubemark => "kubemark",
        }
    }

    /// Where the program of machines lies inside.
    fn machine_path(self) -> Option<&'static str> {
        match self {
            Self::KubeNode | Self::Pause => Some(MACHINE_PROGRAM),
            Self::Kubemark => None,
        }
    }

    fn entrypoint(self) -> &'static [&'static str] {
        match self {
            Self::KubeNode => &["/kube-node"],
            Self::Pause => &["/kube-node", "pause"],
            Self::Kubemark => &["/kubemark"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubemark_is_of_the_release_that_is_built() {
        assert!(KUBEMARK.ends_with(&format!(":v{}", crate::binaries::KUBERNETES_VERSION)));
    }
}
