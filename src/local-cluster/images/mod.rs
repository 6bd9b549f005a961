//! Container images without Docker: archives for `ctr -n k8s.io images import`, `docker load` and `podman load`, and
//! pushes to registries.
//!
//! An image has one layer, built from scratch ([`layer`]): a static program (kube-node's image has a second
//! one, see [`machine`]), users, a writable /tmp, and a shell if requested. The archive ([`archive`]) is an
//! OCI layout plus Docker's manifest; a registry ([`registry`]) gets the same blobs. The same input makes the same
//! bytes, so equal digests mean equal contents.

mod archive;
mod hash;
mod layer;
mod machine;
mod packed;
mod program;
pub mod registry;

use kube_node_api::names::MACHINE_PROGRAM;
use strum::IntoStaticStr;

pub use archive::{Written, manifest_digest, write};
pub use layer::{Contents, Layer};
pub use machine::{machine_beside, set_build};
pub use packed::Packed;
pub use program::Program;

/// Name of the image of kube-node itself: operator, hollow kubelet and kubemark proxy, by subcommand.
pub const KUBE_NODE: &str = concat!("localhost/kube-node:", env!("CARGO_PKG_VERSION"));
/// Name of the sandbox image, whose container holds the namespaces of a pod.
pub const PAUSE: &str = concat!("localhost/kube-node-pause:", env!("CARGO_PKG_VERSION"));
/// Name of the image of upstream kubemark, of the Kubernetes release built here.
pub const KUBEMARK: &str = "localhost/kubemark:v1.36.3";

/// User and group ID of the programs, unless a pod sets another.
pub const NON_ROOT: u32 = 65_532;

/// The images that kube-node makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Image {
    /// [`KUBE_NODE`].
    KubeNode,
    /// [`PAUSE`].
    Pause,
    /// [`KUBEMARK`].
    Kubemark,
}

impl Image {
    /// All images.
    pub const ALL: [Self; 3] = [Self::KubeNode, Self::Pause, Self::Kubemark];

    /// Name and tag.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeNode => KUBE_NODE,
            Self::Pause => PAUSE,
            Self::Kubemark => KUBEMARK,
        }
    }

    /// Tag: the version of the program.
    pub fn tag(self) -> &'static str {
        self.name().rsplit_once(':').map_or("latest", |(_, tag)| tag)
    }

    /// Name of the image with another tag.
    pub fn tagged(self, tag: Option<&str>) -> String {
        match (tag, self.name().rsplit_once(':')) {
            (Some(tag), Some((image, _))) => format!("{image}:{tag}"),
            _ => self.name().to_owned(),
        }
    }

    /// File name of the archive without its extension.
    pub fn stem(self) -> &'static str {
        self.into()
    }

    /// Path of the machine program inside the image.
    fn machine_path(self) -> Option<&'static str> {
        (self != Self::Kubemark).then_some(MACHINE_PROGRAM)
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
