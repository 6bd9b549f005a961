//! Files that the node's processes read, made by `up`: description, configuration, identities and images.

use std::{fs, path::Path};

use anyhow::Context;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};

use super::{
    cgroups::Cgroups,
    cleanup::id_of,
    config,
    description::{ImageArchive, NAME, Node},
    programs::Programs,
};
use crate::{
    addresses::Network,
    binaries::Binaries,
    executable::{is_executable, own_program},
    files::{create_private_dir, write_private, write_public},
    images::{self, Contents, Image, Layer, Program},
    kubeconfig,
    pki::Pki,
    progress::Progress,
};

/// Bit of `CAP_SYS_RESOURCE` in the capability sets of `/proc/self/status`.
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// Writes the files into the node's folder, which lies in the data folder.
pub(crate) fn prepare(
    data_dir: &Path,
    pki: &Pki,
    binaries: &Binaries,
    programs: Programs,
    network: Network,
    apiserver_port: u16,
    progress: &Progress,
) -> anyhow::Result<()> {
    progress.step("Preparing the real node and its images");
    let dir = data_dir.join("real-node");
    create_private_dir(&dir)?;
    let node = Node {
        id: id_of(data_dir),
        images: archives(&dir.join("images"), binaries, progress)?,
        restrict_oom_score: !may_lower_oom_score()?,
        network,
        apiserver_port,
        programs,
        binaries: binaries.dir().to_owned(),
        logs: data_dir.join("logs"),
    };
    let snapshotter = if is_overlay(&dir)? { "native" } else { "overlayfs" };
    config::write(&node, &dir, &Cgroups::of(&node.id)?.root()?, snapshotter)?;

    let ca = pki.ca()?;
    let server = format!("https://{}:{apiserver_port}", network.host);
    for (file, user, groups) in [
        ("kubelet.kubeconfig", format!("system:node:{NAME}"), &["system:nodes"][..]),
        ("kube-proxy.kubeconfig", "system:kube-proxy".to_owned(), &[]),
    ] {
        let identity = pki.client(&user, groups)?;
        write_private(&dir.join(file), &kubeconfig::render(&server, &ca, &user, &identity))?;
    }
    let serving = pki.server(NAME, network.node.into())?;
    write_public(&dir.join("ca.crt"), &ca)?;
    write_public(&dir.join("kubelet.crt"), &serving.certificate)?;
    write_private(&dir.join("kubelet.key"), &serving.key)?;
    node.save(&dir)
}

/// Image archives of the given programs. Existing archives of the same programs are reused.
fn archives(dir: &Path, binaries: &Binaries, progress: &Progress) -> anyhow::Result<Vec<ImageArchive>> {
    create_private_dir(dir)?;
    let itself = own_program()?;
    let own = Program::check(
        &itself,
        "build kube-node in its own folder, whose .cargo/config.toml links statically",
    )?;
    let machine = images::machine_beside(&itself).map_err(|error| progress.line(&format!("{error:#}"))).ok();
    let mut packed = vec![(own, machine, &[Image::Pause, Image::KubeNode][..])];
    if is_executable(&binaries.path("kubemark")) {
        let kubemark = Program::check(&binaries.path("kubemark"), "build it with CGO_ENABLED=0")?;
        packed.push((kubemark, None, &[Image::Kubemark]));
    }
    let mut archives = Vec::new();
    for (program, machine, images_of_it) in packed {
        let contents = Contents { program: &program, machine: machine.as_ref(), shell: None };
        let fingerprint = contents.fingerprint()?;
        // Packing a program takes seconds; all images of one program share the layer.
        let mut layer = None;
        for &image in images_of_it {
            // Upstream's image is tagged by the release that the cluster runs.
            let tag =
                (image == Image::Kubemark).then(|| format!("v{}", binaries.version().replace('+', "_")));
            let path = dir.join(format!("{}-{fingerprint}.tar", image.stem()));
            let digest = if path.exists() {
                images::manifest_digest(&path)?
            } else {
                let layer = match &mut layer {
                    Some(layer) => layer,
                    none => none.insert(Layer::build(image, contents)?),
                };
                images::write(image, tag.as_deref(), layer, &path)?.digest
            };
            archives.push(ImageArchive { name: image.tagged(tag.as_deref()), digest, path });
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
fn may_lower_oom_score() -> anyhow::Result<bool> {
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read the capabilities of this process")?;
    Ok(has_capability(&status, CAP_SYS_RESOURCE))
}

fn has_capability(status: &str, bit: u64) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & bit != 0)
}

/// Returns true if the folder is on an overlay, as in a container without a volume. An overlay cannot lie on
/// another one.
fn is_overlay(dir: &Path) -> anyhow::Result<bool> {
    let stat = statfs(dir).context("cannot read the file system of the data folder")?;
    Ok(stat.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities() {
        let status = |set: &str| format!("Name:\tx\nCapInh:\tffffffffffffffff\nCapEff:\t{set}\n");
        assert!(has_capability(&status("000001ffffffffff"), CAP_SYS_RESOURCE));
        assert!(!has_capability(&status("000001fffeffffff"), CAP_SYS_RESOURCE));
        assert!(!has_capability("", CAP_SYS_RESOURCE));
    }
}
