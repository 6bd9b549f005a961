//! Description of the node: written by `up`, read by the node's processes.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::programs::Programs;
use crate::{addresses::Network, files};

/// Name of the Node object.
pub const NAME: &str = "real-node";
/// File name of the description, in the node's folder.
const FILE: &str = "node.json";

/// An image archive for the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageArchive {
    pub name: String,
    pub digest: String,
    pub path: PathBuf,
}

/// What the node's processes know of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    pub id: String,
    pub network: Network,
    pub apiserver_port: u16,
    pub programs: Programs,
    /// Folder of kubelet and kube-proxy.
    pub binaries: PathBuf,
    pub logs: PathBuf,
    pub images: Vec<ImageArchive>,
    pub restrict_oom_score: bool,
}

impl Node {
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(FILE);
        serde_json::from_str(&files::read(&path)?).with_context(|| {
            format!("{} is damaged: start the cluster again with kube-node up --real-node", path.display())
        })
    }

    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        files::write_public(&dir.join(FILE), &(serde_json::to_string_pretty(self)? + "\n"))
    }

    /// Folders of this machine that the node's processes need.
    pub fn folders<'a>(&'a self, dir: &'a Path) -> Vec<&'a Path> {
        let programs =
            [&self.programs.containerd, &self.programs.runc].into_iter().filter_map(|path| path.parent());
        [dir, &self.binaries, &self.logs, &self.programs.cni_dir].into_iter().chain(programs).collect()
    }

    #[cfg(test)]
    pub fn example() -> Self {
        let network =
            serde_json::json!({"host": "10.127.7.1", "node": "10.127.7.2", "pods": "10.126.7.0/24"});
        Self {
            id: "00000001".to_owned(),
            network: serde_json::from_value(network).unwrap(),
            apiserver_port: 6443,
            programs: Programs::default(),
            binaries: "/binaries".into(),
            logs: "/logs".into(),
            images: Vec::new(),
            restrict_oom_score: false,
        }
    }
}
