//! An image as archives and registries hold it: layer and config, and the manifest that names both by digest.
//!
//! The documents are written as JSON; a crate of builders would add little. The same layer and tag make the same
//! digests.

use data_encoding::HEXLOWER;
use kube_ext::memory;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Image, NON_ROOT, layer::Layer};

/// Media types of manifests.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Fixed creation time of every image, so that builds are reproducible.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// One content-addressed file.
#[derive(Clone)]
pub(super) struct Blob {
    /// Such as `sha256:9f…`.
    pub digest: String,
    pub bytes: Vec<u8>,
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        Self { digest: format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(&bytes))), bytes }
    }

    fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.bytes.len()})
    }
}

/// An image for one architecture.
pub struct Packed {
    pub(super) architecture: &'static str,
    pub(super) config: Blob,
    pub(super) layer: Blob,
    pub(super) manifest: Blob,
}

impl Packed {
    /// Packs a layer as an image. The tag is also a label of the image.
    pub fn new(image: Image, tag: &str, layer: &Layer) -> Self {
        let architecture = layer.architecture;
        let config = Blob::json(&json!({
            "architecture": architecture,
            "os": "linux",
            "created": CREATED,
            "config": {
                "User": format!("{NON_ROOT}:{NON_ROOT}"),
                "Entrypoint": image.entrypoint(),
                // With / on PATH, `exec kube-node` finds the program.
                "Env": ["PATH=/:/bin", format!("{}={}", memory::VARIABLE, memory::VALUE)],
                "WorkingDir": "/tmp",
                "Labels": {
                    "org.opencontainers.image.title": image.stem(),
                    "org.opencontainers.image.version": tag,
                    "org.opencontainers.image.licenses": "Apache-2.0",
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        }));
        let layer = Blob::new(layer.blob.clone());
        let manifest = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": [layer.descriptor(LAYER)],
        }));
        Self { architecture, config, layer, manifest }
    }

    /// Architecture in OCI's naming.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Digest of the manifest, as runtimes show it.
    pub fn digest(&self) -> &str {
        &self.manifest.digest
    }

    /// Size of layer, config and manifest, in bytes.
    pub fn size(&self) -> u64 {
        [&self.layer, &self.config, &self.manifest].map(|blob| blob.bytes.len() as u64).iter().sum()
    }

    /// Descriptor of the manifest, with its platform.
    pub(super) fn descriptor(&self) -> Value {
        let mut descriptor = self.manifest.descriptor(MANIFEST);
        descriptor["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        descriptor
    }
}

/// The index of images for several architectures.
pub(super) fn index(images: &[Packed]) -> Blob {
    let manifests: Vec<Value> = images.iter().map(Packed::descriptor).collect();
    Blob::json(&json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))
}
