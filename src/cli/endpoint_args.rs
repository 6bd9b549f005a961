//! Arguments of the hollow kubelets' endpoints, shared by `operator` and `hollow-host`.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;
use hollow_kubelet::server::{Options, Ports};

/// Arguments of the kubelets' endpoints.
#[derive(Debug, Args)]
#[command(next_help_heading = "Endpoints of hollow kubelets")]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
pub(super) struct EndpointArgs {
    /// Serve the kubelets of hollow machines (kubectl logs, exec, port-forward and top) at this address of
    /// the process, which the API server must reach; no endpoints when absent
    #[arg(long, value_name = "IP", value_parser = reachable)]
    kubelet_address: Option<IpAddr>,
    /// Ports of the kubelets at --kubelet-address, one for each machine
    #[arg(long, value_name = "FIRST-LAST", default_value = "11000-29999")]
    kubelet_ports: Ports,
    /// Folder of tls.crt and tls.key, read again when they change; a certificate is made when absent
    #[arg(long, value_name = "DIR", requires = "kubelet_address")]
    kubelet_tls_dir: Option<PathBuf>,
}

/// Parses an address at which other machines reach this process: Nodes publish it.
fn reachable(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| "write an IP address, such as 10.0.0.7".to_owned())?;
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || is_broadcast {
        return Err(
            "Nodes show it, so give the one address of this machine that the API server reaches".to_owned()
        );
    }
    Ok(address)
}

impl EndpointArgs {
    /// Options of the endpoints; `None` without an address.
    pub(super) fn options(self) -> Option<Options> {
        let Self { kubelet_address, kubelet_ports: ports, kubelet_tls_dir: tls_dir } = self;
        kubelet_address.map(|address| Options { address, ports, tls_dir })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_this_machine() {
        for good in ["127.0.0.1", "10.0.0.7", "fd00::7"] {
            assert_eq!(reachable(good).unwrap().to_string(), good);
        }
        for bad in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "host", ""] {
            assert!(reachable(bad).is_err(), "{bad}");
        }
    }
}
