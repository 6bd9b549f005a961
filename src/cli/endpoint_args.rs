//! Where the kubelets of hollow machines are reached: what `operator` and `hollow-host` have in common.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use crate::hollow::server::{Options, Ports};

/// Arguments of the kubelets' endpoints.
#[derive(Debug, Args)]
#[command(next_help_heading = "Endpoints of hollow kubelets")]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
pub(super) struct EndpointArgs {
    /// Serve the kubelets of hollow machines, for kubectl logs, exec, port-forward and top, at this address of the process,
    /// which the API server reaches; they have no endpoints when absent
    #[arg(long, value_name = "IP")]
    kubelet_address: Option<IpAddr>,
    /// Ports there, of which each machine gets one
    #[arg(long, value_name = "FIRST-LAST", default_value = "11000-29999")]
    kubelet_ports: Ports,
    /// Folder of tls.crt and tls.key, which are read again when they change; a certificate is made when absent
    #[arg(long, value_name = "DIR", requires = "kubelet_address")]
    kubelet_tls_dir: Option<PathBuf>,
}

impl EndpointArgs {
    /// None where there are to be no endpoints.
    pub(super) fn options(self) -> Option<Options> {
        let Self { kubelet_address, kubelet_ports: ports, kubelet_tls_dir: tls_dir } = self;
        kubelet_address.map(|address| Options { address, ports, tls_dir })
    }
}
