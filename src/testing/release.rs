//! The Kubernetes release that test clusters run: the default one, or another by `KUBE_NODE_VERSION=1.37`.

use local_cluster::{Release, images::Image};

/// The release.
pub fn release() -> &'static Release {
    std::env::var("KUBE_NODE_VERSION").map_or_else(
        |_| Default::default(),
        |named| Release::parse(&named).unwrap_or_else(|error| panic!("KUBE_NODE_VERSION={named}: {error}")),
    )
}

/// Its version as programs report it, such as `v1.36.3`.
pub fn git_version() -> String {
    format!("v{}", release())
}

/// The image of upstream kubemark on a real node.
pub fn kubemark_image() -> String {
    Image::Kubemark.tagged(Some(&git_version()))
}
