//! Processes of a cluster: names, start order and flags.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::{layout::Layout, ports::Ports, real_node::Network};

/// Service range; the first address belongs to the Service `kubernetes`.
const SERVICE_RANGE: &str = "10.96.0.0/16";
/// Range of Nodes' podCIDRs, which the operator assigns: 32,768 of /24. The real node's pods use a network outside it.
pub(super) const NODE_CIDRS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 128, 0, 0), 9);
/// Client limits of kube-controller-manager and kube-scheduler. Their defaults, 20 and 50 requests a second, would
/// dominate the behaviour of a cluster with thousands of pods.
const CLIENT_QPS: [&str; 2] = ["--kube-api-qps=2000", "--kube-api-burst=4000"];
/// etcd refuses writes beyond this size. Node updates soon fill its default of 2 GiB; 8 GiB is its advised maximum.
const ETCD_QUOTA_BYTES: u64 = 8 << 30;

/// A process of the cluster. The order of the variants is the start order; the stop order is the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Component {
    /// The storage of kube-apiserver.
    #[serde(rename = "etcd")]
    Etcd,
    /// The API server.
    #[serde(rename = "kube-apiserver")]
    Apiserver,
    /// The controllers of Kubernetes.
    #[serde(rename = "kube-controller-manager")]
    ControllerManager,
    /// The scheduler.
    #[serde(rename = "kube-scheduler")]
    Scheduler,
    /// The operator of kube-node.
    #[serde(rename = "operator")]
    Operator,
    /// The real node, if the cluster has one; the node's own processes are its children.
    #[serde(rename = "real-node")]
    RealNode,
}

/// Listen addresses of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Ports on 127.0.0.1.
    pub ports: Ports,
    /// Networks of the real node, if the cluster has one.
    pub network: Option<Network>,
    /// Further addresses of kube-apiserver, at the same port.
    pub further: Vec<IpAddr>,
    /// True if the operator serves cluster-autoscaler.
    pub autoscaler: bool,
    /// Address at which the kubelets of hollow machines are served.
    pub kubelets: Option<IpAddr>,
}

impl Addresses {
    /// URLs of kube-apiserver at its further addresses.
    #[must_use]
    pub fn further_urls(&self) -> Vec<String> {
        self.further.iter().map(|&address| self.apiserver_at(address)).collect()
    }

    /// URL of kube-apiserver for machines that are pods, where 127.0.0.1 is the pod itself: the first further
    /// address, which pods of this cluster's real node and pods of other clusters can reach, else the host's
    /// address on the real node's link.
    fn for_machines(&self) -> Option<String> {
        let link = self.network.map(|network| network.host.into());
        self.further.first().copied().or(link).map(|address| self.apiserver_at(address))
    }

    fn apiserver_at(&self, address: IpAddr) -> String {
        format!("https://{}", SocketAddr::new(address, self.ports.apiserver))
    }
}

impl Component {
    /// All components in start order.
    pub const ALL: [Self; 6] = [
        Self::Etcd,
        Self::Apiserver,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Operator,
        Self::RealNode,
    ];

    /// Name of the binary, of the log file and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Operator => "operator",
            Self::RealNode => "real-node",
        }
    }

    /// URL at which the component listens; `None` for a real node that the cluster does not have.
    #[must_use]
    pub fn address(self, addresses: &Addresses) -> Option<String> {
        let ports = &addresses.ports;
        let (scheme, port) = match self {
            Self::Etcd => ("https", ports.etcd),
            Self::Apiserver => ("https", ports.apiserver),
            Self::ControllerManager => ("https", ports.controller_manager),
            Self::Scheduler => ("https", ports.scheduler),
            Self::Operator => ("http", ports.operator),
            Self::RealNode => return addresses.network.map(|network| network.kubelet()),
        };
        Some(format!("{scheme}://127.0.0.1:{port}"))
    }

    /// Health endpoint: a base URL and a path.
    #[must_use]
    pub fn health(self, addresses: &Addresses) -> Option<(String, &'static str)> {
        let path = match self {
            Self::Etcd => {
                return Some((format!("http://127.0.0.1:{}", addresses.ports.etcd_metrics), "/health"));
            }
            Self::RealNode => return addresses.network.map(|network| network.kubelet_health()),
            Self::Apiserver | Self::Operator => "/readyz",
            Self::ControllerManager | Self::Scheduler => "/healthz",
        };
        self.address(addresses).map(|address| (address, path))
    }

    /// Arguments of the process.
    pub(super) fn arguments(self, layout: &Layout, addresses: &Addresses) -> Vec<String> {
        let ports = &addresses.ports;
        match self {
            Self::Etcd => etcd(layout, ports),
            Self::Apiserver => apiserver(layout, addresses),
            Self::RealNode => real_node(layout),
            Self::ControllerManager => controller_manager(layout, ports),
            Self::Scheduler => scheduler(layout, ports),
            Self::Operator => operator(layout, addresses),
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An extra argument for a component, written `kube-apiserver=--v=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentArg {
    /// The component that gets the argument.
    pub component: Component,
    /// The argument in the syntax of the component.
    pub arg: String,
}

impl FromStr for ComponentArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The real node is configured by files, and its first process is kube-node itself.
        let open = || Component::ALL.into_iter().filter(|component| *component != Component::RealNode);
        let names = open().map(Component::name).collect::<Vec<_>>().join(", ");
        let (name, arg) =
            text.split_once('=').ok_or("write it as component=--flag=value, such as kube-apiserver=--v=4")?;
        let component = open()
            .find(|component| component.name() == name)
            .ok_or_else(|| format!("unknown component {name}: there are {names}"))?;
        Ok(Self { component, arg: arg.to_owned() })
    }
}

/// `--name=path`.
fn file(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn etcd(layout: &Layout, ports: &Ports) -> Vec<String> {
    let pki = |file: &str| layout.pki().join(file);
    let client = format!("https://127.0.0.1:{}", ports.etcd);
    let peer = format!("https://127.0.0.1:{}", ports.etcd_peer);
    vec![
        "--name=default".into(),
        file("data-dir", &layout.path("etcd")),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        format!("--listen-metrics-urls=http://127.0.0.1:{}", ports.etcd_metrics),
        "--client-cert-auth=true".into(),
        file("trusted-ca-file", &pki("etcd-ca.crt")),
        file("cert-file", &pki("etcd.crt")),
        file("key-file", &pki("etcd.key")),
        "--peer-client-cert-auth=true".into(),
        file("peer-trusted-ca-file", &pki("etcd-ca.crt")),
        file("peer-cert-file", &pki("etcd.crt")),
        file("peer-key-file", &pki("etcd.key")),
        // A test cluster may lose its last writes on a power failure. With an fsync for each write, every
        // measurement would measure the disk.
        "--unsafe-no-fsync=true".into(),
        format!("--quota-backend-bytes={ETCD_QUOTA_BYTES}"),
        "--log-level=warn".into(),
    ]
}

fn apiserver(layout: &Layout, addresses: &Addresses) -> Vec<String> {
    let pki = |file: &str| layout.pki().join(file);
    let ports = &addresses.ports;
    let advertise = addresses.network.map_or(Ipv4Addr::LOCALHOST, |network| network.host);
    // kube-apiserver refuses a loopback address as an endpoint of the Service `kubernetes`.
    let reconciler = if addresses.network.is_some() { "lease" } else { "none" };
    vec![
        format!("--secure-port={}", ports.apiserver),
        // Other machines and pods connect by a TCP proxy (see `tcp_proxy`). A server bound to every address
        // would be open to the machine's neighbours, and a real node's link, which its proxy is bound to,
        // appears and disappears with the node.
        "--bind-address=127.0.0.1".into(),
        format!("--advertise-address={advertise}"),
        format!("--endpoint-reconciler-type={reconciler}"),
        format!("--etcd-servers=https://127.0.0.1:{}", ports.etcd),
        file("etcd-cafile", &pki("etcd-ca.crt")),
        file("etcd-certfile", &pki("etcd-client.crt")),
        file("etcd-keyfile", &pki("etcd-client.key")),
        file("tls-cert-file", &pki("apiserver.crt")),
        file("tls-private-key-file", &pki("apiserver.key")),
        file("client-ca-file", &pki("ca.crt")),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        file("service-account-key-file", &pki("sa.pub")),
        file("service-account-signing-key-file", &pki("sa.key")),
        // The host names of hollow nodes do not resolve.
        "--kubelet-preferred-address-types=InternalIP,Hostname".into(),
        file("kubelet-client-certificate", &pki("kubelet-client.crt")),
        file("kubelet-client-key", &pki("kubelet-client.key")),
        file("requestheader-client-ca-file", &pki("front-proxy-ca.crt")),
        "--requestheader-allowed-names=front-proxy-client".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        file("proxy-client-cert-file", &pki("front-proxy-client.crt")),
        file("proxy-client-key-file", &pki("front-proxy-client.key")),
    ]
}

/// Flags that kube-controller-manager and kube-scheduler share.
fn controller(layout: &Layout, name: &str, kubeconfig: &Path, port: u16) -> Vec<String> {
    let mut args = vec![
        file("kubeconfig", kubeconfig),
        file("authentication-kubeconfig", kubeconfig),
        file("authorization-kubeconfig", kubeconfig),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        file("tls-cert-file", &layout.pki().join(format!("{name}.crt"))),
        file("tls-private-key-file", &layout.pki().join(format!("{name}.key"))),
        // Each has one instance; leader election would only slow the start down.
        "--leader-elect=false".into(),
    ];
    args.extend(CLIENT_QPS.map(String::from));
    args
}

fn controller_manager(layout: &Layout, ports: &Ports) -> Vec<String> {
    let pki = |file: &str| layout.pki().join(file);
    let kubeconfig = layout.path("controller-manager.kubeconfig");
    let mut args = controller(layout, "controller-manager", &kubeconfig, ports.controller_manager);
    args.extend([
        "--use-service-account-credentials=true".into(),
        file("service-account-private-key-file", &pki("sa.key")),
        file("root-ca-file", &pki("ca.crt")),
        file("cluster-signing-cert-file", &pki("ca.crt")),
        file("cluster-signing-key-file", &pki("ca.key")),
    ]);
    args
}

fn scheduler(layout: &Layout, ports: &Ports) -> Vec<String> {
    controller(layout, "scheduler", &layout.path("scheduler.kubeconfig"), ports.scheduler)
}

fn operator(layout: &Layout, addresses: &Addresses) -> Vec<String> {
    let path = |path: PathBuf| path.display().to_string();
    let mut args = vec![
        "operator".into(),
        "--kubeconfig".into(),
        path(layout.operator_kubeconfig()),
        "--hollow-kubeconfig".into(),
        path(layout.hollow_kubeconfig()),
        "--namespace".into(),
        super::NAMESPACE.into(),
        "--admin-address".into(),
        format!("127.0.0.1:{}", addresses.ports.operator),
        // The operator alone assigns podCIDRs: kube-controller-manager runs without --allocate-node-cidrs.
        format!("--cluster-cidr={NODE_CIDRS}"),
        // One instance, restarted at once when it dies: it must not wait for its own Lease to expire.
        "--leader-elect=false".into(),
    ];
    args.extend(addresses.for_machines().map(|url| format!("--machine-api-server={url}")));
    args.extend(addresses.kubelets.map(|address| format!("--kubelet-address={address}")));
    if addresses.autoscaler {
        let pki = layout.autoscaler_pki();
        args.push(format!("--autoscaler-address=127.0.0.1:{}", addresses.ports.autoscaler));
        args.push(file("autoscaler-cert", &pki.join("server.crt")));
        args.push(file("autoscaler-key", &pki.join("server.key")));
        args.push(file("autoscaler-client-ca", &pki.join("ca.crt")));
    }
    args
}

fn real_node(layout: &Layout) -> Vec<String> {
    vec!["real-node".into(), "host".into(), layout.real_node().display().to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_told_an_address_that_they_reach() {
        let ports = Ports { apiserver: 6443, ..Ports::default() };
        let mut addresses = Addresses { ports, ..Addresses::default() };
        assert_eq!(addresses.for_machines(), None);
        let (host, node) = (Ipv4Addr::new(10, 127, 0, 1), Ipv4Addr::new(10, 127, 0, 2));
        addresses.network = Some(Network { host, node, pods: "10.126.0.0/24".parse().unwrap() });
        assert_eq!(addresses.for_machines().as_deref(), Some("https://10.127.0.1:6443"));
        addresses.further = vec!["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
        assert_eq!(addresses.for_machines().as_deref(), Some("https://[2001:db8::1]:6443"));
        assert_eq!(addresses.further_urls()[1], "https://192.0.2.1:6443");
    }

    #[test]
    fn component_args() {
        let parsed: ComponentArg = "kube-apiserver=--v=4".parse().unwrap();
        assert_eq!(parsed, ComponentArg { component: Component::Apiserver, arg: "--v=4".into() });
        assert!("kubelet=--v=4".parse::<ComponentArg>().unwrap_err().contains("kube-scheduler"));
        assert!("kube-apiserver".parse::<ComponentArg>().is_err());
    }
}
