//! A registry with two images, which are a shell, in the real node's network: what a kubelet pulls is pulled for real, by
//! its digest, and what is not there is not found. Files that busybox serves: a registry needs no more to be read from.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::CLUSTER;
use kube_node_testing::real_node::in_its_network;

/// Static, so that it runs from an image that has nothing else; tests/real-node/install.sh installs it.
const BUSYBOX: &str = "/bin/busybox";
/// What of it the containers call by name.
const APPLETS: [&str; 4] = ["sh", "sleep", "tail", "true"];
/// Registries at this address are spoken to without TLS.
const ADDRESS: &str = "127.0.0.1:5000";
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The image. busybox tells the media type of its manifest by the ending of the tag.
pub const IMAGE: &str = "127.0.0.1:5000/box:v1.manifest";
/// Another one, of the same programs.
pub const OTHER: &str = "127.0.0.1:5000/box:v2.manifest";
/// One that is not there.
pub const MISSING: &str = "127.0.0.1:5000/none:v1.manifest";

/// Serves until it is dropped.
pub struct Registry {
    server: Child,
}

impl Registry {
    /// Writes the images into `dir` and serves them.
    pub fn start(dir: &Path) -> Self {
        write(dir);
        let server = in_its_network(&CLUSTER, BUSYBOX)
            .args(["httpd", "-f", "-p", ADDRESS, "-c"])
            .arg(dir.join("httpd.conf"))
            .arg("-h")
            .arg(dir)
            .stdout(Stdio::null())
            .spawn()
            .expect("nsenter runs");
        Self { server }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn write(dir: &Path) {
    let blobs = dir.join("v2/box/blobs");
    let manifests = dir.join("v2/box/manifests");
    for folder in [&blobs, &manifests] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(dir.join("httpd.conf"), format!(".manifest:{MANIFEST}\n")).unwrap();
    let tar = layer();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut packed, &tar).unwrap();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let packed = packed.finish().unwrap();
    let store = |media_type: &str, bytes: &[u8]| -> Value {
        fs::write(blobs.join(digest(bytes)), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
    };
    for version in ["v1", "v2"] {
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Labels": {"version": version}},
            "rootfs": {"type": "layers", "diff_ids": [digest(&tar)]},
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": store("application/vnd.docker.container.image.v1+json", config.to_string().as_bytes()),
            "layers": [store("application/vnd.docker.image.rootfs.diff.tar.gzip", &packed)],
        });
        let manifest = manifest.to_string();
        let by_digest: PathBuf = manifests.join(digest(manifest.as_bytes()));
        for path in [manifests.join(format!("{version}.manifest")), by_digest] {
            fs::write(path, &manifest).unwrap();
        }
    }
}

fn layer() -> Vec<u8> {
    let program = fs::read(BUSYBOX).expect("tests/real-node/install.sh installs busybox-static");
    let mut tar = Builder::new(Vec::new());
    let header = |kind: EntryType, size: usize| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(size as u64);
        header
    };
    tar.append_data(&mut header(EntryType::Directory, 0), "bin/", &[][..]).unwrap();
    tar.append_data(&mut header(EntryType::Regular, program.len()), "bin/busybox", &program[..]).unwrap();
    for applet in APPLETS {
        let mut link = header(EntryType::Symlink, 0);
        tar.append_link(&mut link, format!("bin/{applet}"), "busybox").unwrap();
    }
    tar.into_inner().unwrap()
}

fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
