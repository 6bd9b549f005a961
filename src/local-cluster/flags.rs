//! Command lines of the components, from the files in `flags/`.

use std::net::Ipv4Addr;

use super::{
    NAMESPACE,
    addresses::{Addresses, NODE_CIDRS},
    component::Component,
    layout::Layout,
    template::fill,
};

/// Arguments of a component's process.
pub(super) fn of(component: Component, layout: &Layout, addresses: &Addresses) -> Vec<String> {
    let values = values(layout, addresses);
    let lines = |template: &str| -> Vec<String> {
        let lines = template.lines().filter(|line| !line.starts_with('#'));
        // Filled line by line: a path with a line break stays one argument.
        lines.map(|line| fill(line, &values)).collect()
    };
    let mut flags = lines(match component {
        Component::Etcd => include_str!("flags/etcd"),
        Component::KubeApiserver => include_str!("flags/kube-apiserver"),
        Component::KubeControllerManager => include_str!("flags/kube-controller-manager"),
        Component::KubeScheduler => include_str!("flags/kube-scheduler"),
        Component::Operator => include_str!("flags/operator"),
        Component::RealNode => include_str!("flags/real-node"),
    });
    if component == Component::Operator {
        flags.extend(addresses.for_machines().map(|url| format!("--machine-api-server={url}")));
        flags.extend(addresses.kubelets.map(|address| format!("--kubelet-address={address}")));
        if addresses.autoscaler {
            flags.extend(lines(include_str!("flags/operator-autoscaler")));
        }
    }
    flags
}

fn values(layout: &Layout, addresses: &Addresses) -> Vec<(&'static str, String)> {
    let Addresses { ports, network, .. } = addresses;
    // kube-apiserver refuses a loopback address as an endpoint of the Service `kubernetes`.
    let (advertise, reconciler) =
        network.map_or((Ipv4Addr::LOCALHOST, "none"), |network| (network.host, "lease"));
    vec![
        ("apiserver", ports.apiserver.to_string()),
        ("etcd", ports.etcd.to_string()),
        ("etcd_peer", ports.etcd_peer.to_string()),
        ("etcd_metrics", ports.etcd_metrics.to_string()),
        ("controller_manager", ports.controller_manager.to_string()),
        ("scheduler", ports.scheduler.to_string()),
        ("operator", ports.operator.to_string()),
        ("autoscaler", ports.autoscaler.to_string()),
        ("advertise", advertise.to_string()),
        ("reconciler", reconciler.to_owned()),
        ("namespace", NAMESPACE.to_owned()),
        ("node_cidrs", NODE_CIDRS.to_string()),
        ("pki", layout.path("pki").display().to_string()),
        ("dir", layout.dir().display().to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_value_is_filled_in() {
        let layout = Layout::new(Some(Path::new("/data"))).unwrap();
        let addresses = Addresses { autoscaler: true, ..Addresses::default() };
        for &component in Component::ALL {
            let flags = of(component, &layout, &addresses);
            assert!(flags.iter().all(|flag| !flag.is_empty() && !flag.contains(['{', '}'])), "{flags:?}");
        }
        let operator = of(Component::Operator, &layout, &addresses);
        assert!(operator.contains(&"--autoscaler-cert=/data/autoscaler-pki/server.crt".to_owned()));
        assert_eq!(of(Component::RealNode, &layout, &addresses), ["real-node", "host", "/data/real-node"]);
    }
}
