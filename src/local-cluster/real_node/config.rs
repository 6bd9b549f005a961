//! Configuration files of containerd, its CNI plugins, the kubelet and kube-proxy, beside the node's description.

use std::path::Path;

use serde_json::{Value, json};

use super::{NAME, Node};
use crate::images;

/// containerd's socket, at its default path inside the node.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";
/// Maximum number of pods; the /24 of pod addresses has room for them.
const MAX_PODS: u32 = 240;

/// File names in the node's folder.
pub(super) const CONTAINERD: &str = "containerd.toml";
pub(super) const CNI: &str = "cni";
pub(super) const KUBELET: &str = "kubelet.json";
pub(super) const PROXY: &str = "kube-proxy.json";

/// containerd's configuration. `snapshotter` is `overlayfs`, or `native` if the data folder itself is on an overlay.
pub(super) fn containerd(node: &Node, dir: &Path, snapshotter: &str) -> String {
    let Node { programs, restrict_oom_score, .. } = node;
    let quoted = |path: &Path| Value::from(path.display().to_string());
    format!(
        r#"version = 3
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox}"

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE a score below one's own cannot be given, and every sandbox would fail.
restrict_oom_score_adj = {restrict_oom_score}

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{bin_dir}]
conf_dir = {conf_dir}

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {runc}
SystemdCgroup = false
"#,
        sandbox = images::PAUSE,
        bin_dir = quoted(&programs.cni_dir),
        conf_dir = quoted(&dir.join(CNI)),
        runc = quoted(&programs.runc),
    )
}

pub(super) fn cni(node: &Node) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "kube-node",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "hairpinMode": true,
                // No masquerading: the host has a route to the pods and sees their own addresses.
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": node.network.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    // In memory: after a restart of the node no pod holds an address.
                    "dataDir": "/run/cni",
                },
            },
            // The same packet filter as kube-proxy's. Plugins before 1.6 do not know `backend` and call iptables.
            {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"},
        ],
    })
}

pub(super) fn kubelet(node: &Node, dir: &Path, cgroup_root: &str) -> Value {
    let address = node.network.node;
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        // `up` and `status` probe the kubelet from outside the node.
        "healthzBindAddress": address,
        "tlsCertFile": dir.join("kubelet.crt"),
        "tlsPrivateKeyFile": dir.join("kubelet.key"),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": dir.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        // Version 1 is still supported, and the machine decides the version.
        "failCgroupV1": false,
        // No limit: a registry that the node reaches is on this machine, and pods created together must not
        // wait for each other's images.
        "registryPullQPS": 0,
        "failSwapOn": false,
        "podCIDR": node.network.pods,
        "maxPods": MAX_PODS,
        // Empty: this machine's DNS resolvers are unreachable from a network that ends at the host.
        "resolvConf": "",
        // The user's disk is shared with everything else: its usage says nothing about the node.
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
            "imagefs.inodesFree": "1%",
        },
        // No image garbage collection: the images of kube-node cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // The kernel's default: the kubelet needs no protection when this machine runs out of memory.
        "oomScoreAdj": 0,
    })
}

pub(super) fn proxy(node: &Node, kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "mode": "nftables",
        "clusterCIDR": node.network.pods,
        "hostnameOverride": NAME,
        "healthzBindAddress": format!("{}:10256", node.network.node),
        "metricsBindAddress": "127.0.0.1:10249",
        // 0 leaves connection tracking unchanged: its limits are the machine's, and only the host's namespace
        // may set them.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
    })
}
