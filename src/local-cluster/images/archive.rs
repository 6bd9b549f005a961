//! Archive of one image: an OCI layout (`oci-layout`, `index.json`, `blobs/sha256/…`) plus Docker's
//! `manifest.json`, which names the same blobs.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tar::{Archive, Builder, EntryType};

use super::{
    Image,
    layer::{Layer, folder, header},
    packed::{self, Blob, Packed},
};

const INDEX: &str = "index.json";

/// A written archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Name and tag of the image.
    pub name: String,
    /// Digest of the image's manifest, as runtimes show it.
    pub digest: String,
    /// The archive.
    pub path: PathBuf,
    /// Size of the archive, in bytes.
    pub bytes: u64,
}

/// Writes the archive of an image to `path` atomically. With another `tag` the image can be loaded beside the
/// one that a local cluster uses.
pub fn write(image: Image, tag: Option<&str>, layer: &Layer, path: &Path) -> anyhow::Result<Written> {
    let packed = Packed::new(image, tag.unwrap_or(image.tag()), layer);
    write_tar(image.tagged(tag), packed, path).with_context(|| format!("cannot write {}", path.display()))
}

fn write_tar(name: String, image: Packed, path: &Path) -> io::Result<Written> {
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    let mut described = image.descriptor();
    // The first annotation is read by containerd, the second is the OCI standard.
    described["annotations"] =
        json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
    let index = json!({"schemaVersion": 2, "mediaType": packed::INDEX, "manifests": [described]});
    let Packed { config, layer, manifest, .. } = image;
    let in_tar = |blob: &Blob| format!("blobs/{}", blob.digest.replace(':', "/"));
    let docker = json!([{"Config": in_tar(&config), "RepoTags": [name], "Layers": [in_tar(&layer)]}]);

    let digest = manifest.digest.clone();
    let mut files: Vec<(String, Vec<u8>)> =
        [config, layer, manifest].into_iter().map(|blob| (in_tar(&blob), blob.bytes)).collect();
    files.sort();
    files.push((INDEX.into(), index.to_string().into_bytes()));
    files.push(("manifest.json".into(), docker.to_string().into_bytes()));
    files.push(("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));

    let beside = path.with_extension("tmp");
    let mut tar = Builder::new(BufWriter::new(File::create(&beside)?));
    folder(&mut tar, "blobs/", 0o755)?;
    folder(&mut tar, "blobs/sha256/", 0o755)?;
    for (path, bytes) in &files {
        tar.append_data(&mut header(EntryType::Regular, 0o644, bytes.len() as u64), path, bytes.as_slice())?;
    }
    tar.into_inner()?.flush()?;
    fs::rename(&beside, path)?;
    Ok(Written { name, digest, path: path.to_owned(), bytes: path.metadata()?.len() })
}

/// Digest of the image in an archive of ours, such as `sha256:9f…`.
pub fn manifest_digest(path: &Path) -> anyhow::Result<String> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = || -> anyhow::Result<String> {
        for entry in Archive::new(file).entries_with_seek()? {
            let entry = entry?;
            if entry.path()?.as_os_str() == INDEX {
                let index: Value = serde_json::from_reader(entry)?;
                let digest = index["manifests"][0]["digest"].as_str();
                return Ok(digest.context("its index names no image")?.to_owned());
            }
        }
        bail!("it has no index")
    };
    read().with_context(|| format!("{} is no image archive: delete it", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read};

    use data_encoding::HEXLOWER;
    use flate2::read::GzDecoder;
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::images::{Contents, KUBE_NODE, PAUSE, Program};

    /// Content of a tar: path → (mode, content); a link has the content of its target. Fails on a tar that is not
    /// reproducible.
    fn unpack(tar: impl Read) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut files: BTreeMap<String, (u32, Vec<u8>)> = BTreeMap::new();
        let mut order = Vec::new();
        for entry in Archive::new(tar).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let header = entry.header().clone();
            assert_eq!(
                (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()),
                (0, 0, 0),
                "{path}"
            );
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if let Some(target) = entry.link_name().unwrap() {
                content.clone_from(&files[target.to_str().unwrap()].1);
            }
            order.push(path.clone());
            files.insert(path, (header.mode().unwrap(), content));
        }
        assert!(order.is_sorted(), "{order:?}");
        files
    }

    fn build(image: Image, contents: Contents<'_>, path: &Path) -> anyhow::Result<Written> {
        write(image, None, &Layer::build(image, contents)?, path)
    }

    /// Contents with one program only.
    fn only(program: &Program) -> Contents<'_> {
        Contents { program, machine: None, shell: None }
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kube-node-image-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// A small static program: the header of an ELF file is enough.
    fn program(dir: &Path, name: &str) -> Program {
        let path = dir.join(name);
        let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        elf.resize(16, 0);
        elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        elf.resize(64, 0);
        elf[52] = 64;
        elf.extend(name.as_bytes());
        fs::write(&path, elf).unwrap();
        Program::check(&path, "").unwrap()
    }

    /// Follows an archive from its index to the files in its layer, and checks every digest and size on the way.
    fn check(written: &Written) -> (Value, BTreeMap<String, (u32, Vec<u8>)>) {
        let archive = unpack(File::open(&written.path).unwrap());
        let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        for (path, (_, content)) in &archive {
            if let Some(digest) = path.strip_prefix("blobs/sha256/").filter(|digest| !digest.is_empty()) {
                assert_eq!(digest, HEXLOWER.encode(&Sha256::digest(content)), "{path}");
            }
        }
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
            let (_, content) = &archive[&format!("blobs/{digest}")];
            assert_eq!(descriptor["size"].as_u64().unwrap(), content.len() as u64);
            content.clone()
        };
        assert_eq!(parse(&archive["oci-layout"].1)["imageLayoutVersion"], "1.0.0");
        let index = parse(&archive["index.json"].1);
        let top = &index["manifests"][0];
        assert_eq!(top["annotations"]["io.containerd.image.name"], written.name);
        assert_eq!(top["digest"], written.digest.as_str());
        let manifest = parse(&blob(top));
        let config = parse(&blob(&manifest["config"]));
        let layer = blob(&manifest["layers"][0]);
        let mut tar = Vec::new();
        GzDecoder::new(layer.as_slice()).read_to_end(&mut tar).unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(&tar)))
        );
        let docker = &parse(&archive["manifest.json"].1)[0];
        assert_eq!(docker["RepoTags"], json!([written.name]));
        assert!(archive[docker["Config"].as_str().unwrap()].1 == blob(&manifest["config"]));
        assert!(archive[docker["Layers"][0].as_str().unwrap()].1 == layer);
        (config, unpack(tar.as_slice()))
    }

    #[test]
    fn every_digest_size_and_path_is_right() {
        let dir = scratch("whole");
        let (own, machine, shell) = (program(&dir, "own"), program(&dir, "machine"), program(&dir, "shell"));
        let contents = Contents { program: &own, machine: Some(&machine), shell: Some(&shell) };
        let written = build(Image::KubeNode, contents, &dir.join("kube-node.tar")).unwrap();
        assert_eq!(written.name, KUBE_NODE);
        assert_eq!(written.bytes, fs::metadata(&written.path).unwrap().len());
        let (config, files) = check(&written);
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/kube-node"]));
        assert_eq!(config["architecture"], "amd64");
        let modes: Vec<(&str, u32)> = files.iter().map(|(path, (mode, _))| (path.as_str(), *mode)).collect();
        assert_eq!(
            modes,
            [
                ("bin/", 0o755),
                ("bin/sh", 0o755),
                ("etc/", 0o755),
                ("etc/group", 0o644),
                ("etc/nsswitch.conf", 0o644),
                ("etc/passwd", 0o644),
                ("kube-node", 0o755),
                ("kube-node-machine", 0o755),
                ("tmp/", 0o1777),
            ]
        );
        assert_eq!(files["kube-node"].1, fs::read(own.path()).unwrap());
        assert_eq!(files["kube-node-machine"].1, fs::read(machine.path()).unwrap());
        assert_eq!(files["bin/sh"].1, fs::read(shell.path()).unwrap());
        let passwd = String::from_utf8(files["etc/passwd"].1.clone()).unwrap();
        assert!(passwd.starts_with("root:x:0:0:") && passwd.contains(":65532:65532:"), "{passwd}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_same_input_makes_the_same_bytes() {
        let dir = scratch("same");
        let own = program(&dir, "own");
        let [first, second] =
            ["a.tar", "b.tar"].map(|file| build(Image::Pause, only(&own), &dir.join(file)).unwrap());
        assert!(fs::read(&first.path).unwrap() == fs::read(&second.path).unwrap());
        assert_eq!(manifest_digest(&first.path).unwrap(), second.digest);
        let other = build(Image::Pause, only(&program(&dir, "other")), &dir.join("c.tar")).unwrap();
        assert_ne!(other.digest, first.digest);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_sandbox_shares_the_layer() {
        let dir = scratch("shared");
        let own = program(&dir, "own");
        let layer_of = |image: Image| {
            let written = build(image, only(&own), &dir.join(image.stem())).unwrap();
            let (config, _) = check(&written);
            (config["rootfs"].clone(), config["config"]["Entrypoint"].clone())
        };
        let ((own_layer, _), (sandbox_layer, entrypoint)) =
            (layer_of(Image::KubeNode), layer_of(Image::Pause));
        assert_eq!(own_layer, sandbox_layer);
        assert_eq!(entrypoint, json!(["/kube-node", "pause"]));
        assert!(PAUSE.starts_with("localhost/"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn machines_have_the_whole_program_where_there_is_no_other() {
        let dir = scratch("link");
        let own = program(&dir, "own");
        let files = |image: Image| check(&build(image, only(&own), &dir.join(image.stem())).unwrap()).1;
        let whole = files(Image::KubeNode);
        assert_eq!(whole["kube-node-machine"], whole["kube-node"]);
        assert!(!files(Image::Kubemark).contains_key("kube-node-machine"));
        let other = program(&dir, "machine");
        let with = Contents { machine: Some(&other), ..only(&own) };
        assert_ne!(with.fingerprint().unwrap(), only(&own).fingerprint().unwrap());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_damaged_archive_is_named() {
        let dir = scratch("damaged");
        let path = dir.join("x.tar");
        fs::write(&path, "x").unwrap();
        let error = |path: &Path| manifest_digest(path).unwrap_err().to_string();
        assert!(error(&path).ends_with("x.tar is no image archive: delete it"));
        assert!(error(&dir.join("y")).starts_with("cannot read "));
        fs::remove_dir_all(&dir).unwrap();
    }
}
