//! Configuration files of containerd, its CNI plugins, the kubelet and kube-proxy, beside the node's description. The
//! templates are in `config/`.

use std::path::Path;

use serde_json::{Value, json};

use super::description::{NAME, Node};
use crate::{
    files::{create_private_dir, write_public},
    images,
    template::fill,
};

/// containerd's socket, at its default path inside the node.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// File names in the node's folder.
pub(super) const CONTAINERD: &str = "containerd.toml";
pub(super) const KUBELET: &str = "kubelet.yaml";
pub(super) const PROXY: &str = "kube-proxy.yaml";
const CNI_DIR: &str = "cni";
/// Folder of settings for registries, which users fill.
const REGISTRIES_DIR: &str = "certs.d";

/// The files and their templates. In the CNI configuration there is no masquerading, since the host has a route to the pods and
/// sees their own addresses; addresses are kept in memory, since after a restart of the node no pod holds one; and portmap has
/// the packet filter of kube-proxy, where plugins before 1.6 do not know `backend` and call iptables.
const FILES: [(&str, &str); 4] = [
    (CONTAINERD, include_str!("config/containerd.toml")),
    ("cni/10-kube-node.conflist", include_str!("config/cni.conflist")),
    (KUBELET, include_str!("config/kubelet.yaml")),
    (PROXY, include_str!("config/kube-proxy.yaml")),
];

/// Writes the files. `snapshotter` is `overlayfs`, or `native` if the data folder itself is on an overlay.
pub(super) fn write(node: &Node, dir: &Path, cgroup_root: &str, snapshotter: &str) -> anyhow::Result<()> {
    create_private_dir(&dir.join(CNI_DIR))?;
    let values = values(node, dir, cgroup_root, snapshotter);
    FILES.into_iter().try_for_each(|(name, template)| write_public(&dir.join(name), &fill(template, &values)))
}

/// Values of the templates as JSON, which is also valid in YAML and TOML.
fn values(node: &Node, dir: &Path, cgroup_root: &str, snapshotter: &str) -> Vec<(&'static str, String)> {
    let Node { network, programs, .. } = node;
    let values: Vec<(&str, Value)> = vec![
        ("name", NAME.into()),
        ("node", json!(network.node)),
        ("pods", json!(network.pods)),
        ("proxy_healthz", format!("{}:10256", network.node).into()),
        ("ca", json!(dir.join("ca.crt"))),
        ("kubelet_cert", json!(dir.join("kubelet.crt"))),
        ("kubelet_key", json!(dir.join("kubelet.key"))),
        ("proxy_kubeconfig", json!(dir.join("kube-proxy.kubeconfig"))),
        ("cgroup_root", cgroup_root.into()),
        ("socket", SOCKET.into()),
        ("endpoint", format!("unix://{SOCKET}").into()),
        ("snapshotter", snapshotter.into()),
        ("registries", json!(dir.join(REGISTRIES_DIR))),
        ("sandbox", images::PAUSE.into()),
        ("restrict_oom_score", node.restrict_oom_score.into()),
        ("cni_bin_dir", json!(programs.cni_dir)),
        ("cni_conf_dir", json!(dir.join(CNI_DIR))),
        ("runc", json!(programs.runc)),
    ];
    values.into_iter().map(|(name, value)| (name, value.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_filled_in_and_the_files_are_read_back() {
        let node = Node::example();
        let values = values(&node, Path::new("/data/with \"quotes\""), "/kube-node-1", "native");
        for (file, template) in FILES {
            let text = fill(template, &values);
            assert!(values.iter().all(|(name, _)| !text.contains(&format!("{{{name}}}"))), "{text}");
            if file != CONTAINERD {
                let read: Value = serde_norway::from_str(&text).unwrap();
                assert!(read.is_object(), "{text}");
            }
        }
        let kubelet: Value = serde_norway::from_str(&fill(FILES[2].1, &values)).unwrap();
        assert_eq!(kubelet["tlsCertFile"], "/data/with \"quotes\"/kubelet.crt");
        assert_eq!(kubelet["podCIDR"], "10.126.7.0/24");
    }
}
