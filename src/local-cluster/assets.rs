//! Completes a folder of binaries as envtest makes it (etcd, kube-apiserver and kubectl only).
//!
//! Invariant: all programs of a cluster are of one minor release, so no kube-controller-manager or kube-scheduler is
//! newer than its kube-apiserver.

use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
};

use anyhow::Context;
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::{
    executable::{is_executable, release_in, reported_version},
    files::create_private_dir,
    modules::{CONTROL_PLANE, KUBEMARK, REAL_NODE},
    release::Release,
};

/// Programs of the control plane in a folder: those of a release, and those of other releases, each with its release.
pub(super) fn sort(dir: &Path, release: &Release) -> (Vec<&'static str>, Vec<String>) {
    let (mut fit, mut unfit) = (Vec::new(), Vec::new());
    for name in CONTROL_PLANE.into_iter().filter(|name| is_executable(&dir.join(name))) {
        let wanted = if name == "etcd" { release.etcd() } else { release.version() };
        match reported_version(&dir.join(name)).as_deref().and_then(release_in) {
            found if found.is_some() && found == release_in(wanted) => fit.push(name),
            Some((major, minor)) => unfit.push(format!("{name} {major}.{minor}")),
            None => unfit.push(format!("{name} of no known release")),
        }
    }
    (fit, unfit)
}

/// Makes a folder with links to the fitting programs of `dir` and to those of the folder `built`. Returns its path.
pub(super) fn link(dir: &Path, fit: &[&str], built: &Path) -> anyhow::Result<PathBuf> {
    let dir = std::path::absolute(dir).with_context(|| format!("cannot find {}", dir.display()))?;
    let hash = Sha256::digest(dir.as_os_str().as_bytes());
    let links = built.join(format!("assets-{}", HEXLOWER.encode(&hash[..4])));
    create_private_dir(&links)?;
    for name in [&CONTROL_PLANE[..], &REAL_NODE, &KUBEMARK].concat() {
        let program = if fit.contains(&name) { dir.join(name) } else { built.join(name) };
        if is_executable(&program) {
            // Renamed into place: another process may be starting a cluster from the same links.
            let new = links.join(format!("{name}.{}", std::process::id()));
            symlink(&program, &new)
                .and_then(|()| fs::rename(&new, links.join(name)))
                .with_context(|| format!("cannot link {}", program.display()))?;
        }
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_of_another_release_do_not_fit() {
        let dir = std::env::temp_dir().join(format!("kube-node-assets-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (name, output) in [
            ("etcd", "etcd Version: 3.6.1"),
            ("kube-apiserver", "Kubernetes v1.35.2"),
            ("kubectl", "Client Version: v1.36.0"),
            ("kube-scheduler", "no version"),
        ] {
            fs::write(dir.join(name), format!("#!/bin/sh\necho '{output}'\n")).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let (fit, unfit) = sort(&dir, <&Release>::default());
        assert_eq!(fit, ["etcd", "kubectl"]);
        assert_eq!(unfit, ["kube-apiserver 1.35", "kube-scheduler of no known release"]);
        let (fit, _) = sort(&dir, Release::parse("1.35").unwrap());
        assert_eq!(fit, ["etcd", "kube-apiserver"]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
