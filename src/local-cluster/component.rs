//! Components: the processes of a cluster, by name, in start order.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr, VariantArray};

use super::addresses::Addresses;

/// A process of the cluster. The order of the variants is the start order; the stop order is the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(Display, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Component {
    /// The storage of kube-apiserver.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// The controllers of Kubernetes.
    KubeControllerManager,
    /// The scheduler.
    KubeScheduler,
    /// The operator of kube-node.
    Operator,
    /// The real node, if the cluster has one; the node's own processes are its children.
    RealNode,
}

impl Component {
    /// All components in start order.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Name of the binary, of the log file, on the command line and in `cluster.json`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// URL at which the component listens; `None` for a real node that the cluster does not have.
    pub fn address(self, addresses: &Addresses) -> Option<String> {
        let ports = &addresses.ports;
        let (scheme, port) = match self {
            Self::Etcd => ("https", ports.etcd),
            Self::KubeApiserver => ("https", ports.apiserver),
            Self::KubeControllerManager => ("https", ports.controller_manager),
            Self::KubeScheduler => ("https", ports.scheduler),
            Self::Operator => ("http", ports.operator),
            Self::RealNode => return addresses.network.map(|network| network.kubelet()),
        };
        Some(format!("{scheme}://127.0.0.1:{port}"))
    }

    /// Health endpoint: a base URL and a path.
    pub fn health(self, addresses: &Addresses) -> Option<(String, &'static str)> {
        let etcd = addresses.ports.etcd_metrics;
        let path = match self {
            Self::Etcd => return Some((format!("http://127.0.0.1:{etcd}"), "/health")),
            Self::RealNode => return addresses.network.map(|network| network.kubelet_health()),
            Self::KubeApiserver | Self::Operator => "/readyz",
            Self::KubeControllerManager | Self::KubeScheduler => "/healthz",
        };
        self.address(addresses).map(|address| (address, path))
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
        let open = || Component::ALL.iter().copied().filter(|component| *component != Component::RealNode);
        let names = open().map(Component::name).collect::<Vec<_>>().join(", ");
        let (name, arg) =
            text.split_once('=').ok_or("write it as component=--flag=value, such as kube-apiserver=--v=4")?;
        let component = open()
            .find(|component| component.name() == name)
            .ok_or_else(|| format!("unknown component {name}: there are {names}"))?;
        Ok(Self { component, arg: arg.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_args() {
        let parsed: ComponentArg = "kube-apiserver=--v=4".parse().unwrap();
        assert_eq!(parsed, ComponentArg { component: Component::KubeApiserver, arg: "--v=4".into() });
        assert!("kubelet=--v=4".parse::<ComponentArg>().unwrap_err().contains("kube-scheduler"));
        assert!("kube-apiserver".parse::<ComponentArg>().is_err());
    }

    #[test]
    fn the_state_file_has_the_names() {
        for &component in Component::ALL {
            assert_eq!(serde_json::to_value(component).unwrap(), component.name());
        }
    }
}
