//! Listen addresses of a cluster: ports of 127.0.0.1, further addresses, networks of the real node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::ports::Ports;

/// Range of Nodes' podCIDRs, which the operator assigns: 32,768 of /24. The real node's pods use a network outside it.
pub(super) const NODE_CIDRS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 128, 0, 0), 9);

/// Networks of the real node: a link to the host, and its pods behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Host's address on the link.
    pub host: Ipv4Addr,
    /// Node's address on the link, its `InternalIP`.
    pub node: Ipv4Addr,
    /// Range of pod addresses.
    pub pods: Ipv4Net,
}

impl Network {
    /// URL of the kubelet's server, HTTPS.
    pub fn kubelet(&self) -> String {
        format!("https://{}:10250", self.node)
    }

    /// Health endpoint of the kubelet: a base URL and a path.
    pub fn kubelet_health(&self) -> (String, &'static str) {
        (format!("http://{}:10248", self.node), "/healthz")
    }

    /// Health endpoint of kube-proxy: a base URL and a path.
    pub fn proxy_health(&self) -> (String, &'static str) {
        (format!("http://{}:10256", self.node), "/healthz")
    }
}

/// Listen addresses of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// Ports on 127.0.0.1.
    #[serde(default)]
    pub ports: Ports,
    /// Networks of the real node, if the cluster has one.
    pub network: Option<Network>,
    /// Further addresses of kube-apiserver, at the same port.
    #[serde(default, rename = "listenAddresses")]
    pub further: Vec<IpAddr>,
    /// True if the operator serves cluster-autoscaler.
    #[serde(skip)]
    pub autoscaler: bool,
    /// Address at which the kubelets of hollow machines are served.
    #[serde(skip)]
    pub kubelets: Option<IpAddr>,
}

impl Addresses {
    /// URL of kube-apiserver on 127.0.0.1.
    pub fn apiserver(&self) -> String {
        self.apiserver_at(Ipv4Addr::LOCALHOST.into())
    }

    /// URLs of kube-apiserver at its further addresses.
    pub fn further_urls(&self) -> Vec<String> {
        self.further.iter().map(|&address| self.apiserver_at(address)).collect()
    }

    /// URL of kube-apiserver for kubemark machines, where 127.0.0.1 is the pod itself: the first further
    /// address, which pods of this cluster's real node and pods of other clusters can reach, else the host's
    /// address on the real node's link.
    pub(super) fn for_machines(&self) -> Option<String> {
        let link = self.network.map(|network| network.host.into());
        self.further.first().copied().or(link).map(|address| self.apiserver_at(address))
    }

    fn apiserver_at(&self, address: IpAddr) -> String {
        format!("https://{}", SocketAddr::new(address, self.ports.apiserver))
    }
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
}
