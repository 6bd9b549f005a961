//! What a node has outside its namespaces, found by the path of the data folder: processes, cgroups, link.

use std::{fs, os::unix::ffi::OsStrExt, path::Path};

use anyhow::Context;
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::{cgroups::Cgroups, daemons::DaemonName, network};
use crate::procs::ProcessId;

/// Identifies a cluster on this machine: 8 hex digits of the hash of the data folder's path. The link is
/// named `kn-<id>`, the parent of the cgroups `kube-node-<id>`.
pub fn id_of(data_dir: &Path) -> String {
    HEXLOWER.encode(&Sha256::digest(data_dir.as_os_str().as_bytes())[..4])
}

/// Ends every process of a node and removes its cgroups and link. Returns true if something was left.
pub(crate) async fn remove(id: &str) -> anyhow::Result<bool> {
    let failed = "cannot remove what the real node has left";
    let cgroups = Cgroups::of(id).context(failed)?;
    let exist = cgroups.exist();
    if exist {
        cgroups.remove().await.context(failed)?;
    }
    Ok(network::unlink(id).context(failed)? || exist)
}

/// Running processes of a data folder's node.
pub fn daemons(data_dir: &Path) -> Vec<(DaemonName, ProcessId)> {
    let Ok(cgroups) = Cgroups::of(&id_of(data_dir)) else { return Vec::new() };
    let processes = cgroups.system_processes().into_iter().filter_map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let daemon = DaemonName::ALL.into_iter().find(|daemon| daemon.name() == name.trim())?;
        Some((daemon, ProcessId::of(pid)?))
    });
    processes.collect()
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
}
