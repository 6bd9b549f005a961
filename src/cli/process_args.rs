//! Arguments and identity of processes that run hollow machines, shared by `operator` and `hollow-host`.

use std::{net::IpAddr, num::NonZeroUsize, path::PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use hollow_kubelet::{capacity, server};
use kube_ext::{connection::preferred_address, telemetry::LogFormat};
use kube_node_api::names;
use kube_node_controllers::Access;
use tracing::{info, warn};

/// Arguments of a process that runs hollow machines.
#[derive(Debug, Args)]
pub(super) struct ProcessArgs {
    /// Kubeconfig of this process; KUBECONFIG or the pod's own identity when absent
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; its current one when absent
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of the operator, which holds the revisions and the Leases of workers
    #[arg(long, default_value = names::OPERATOR_NAMESPACE, env = "POD_NAMESPACE")]
    pub(super) namespace: String,
    /// Namespace of kubemark machines and of the ServiceAccounts that machines start with
    #[arg(long, value_name = "NAMESPACE", default_value = names::MACHINE_NAMESPACE)]
    pub(super) machine_namespace: String,
    /// Format of the logs
    #[arg(long, value_enum, default_value_t)]
    pub(super) log_format: LogFormat,
    /// Maximum number of hollow machines in this process; computed from its memory limit when absent, 20480
    /// for 512Mi. A machine with hollow.load counts as ten
    #[arg(long, value_name = "COUNT", help_heading = "Hollow machines of this process")]
    max_machines: Option<NonZeroUsize>,
    #[command(flatten)]
    endpoints: EndpointArgs,
}

impl ProcessArgs {
    pub(super) async fn access(&self) -> anyhow::Result<Access> {
        Access::new(self.kubeconfig.as_deref(), self.context.as_deref()).await
    }

    /// Options of the kubelets' endpoints; `None` without an address.
    pub(super) fn endpoints(&self) -> Option<server::ServerOptions> {
        let EndpointArgs { kubelet_address, kubelet_ports, kubelet_tls_dir } = &self.endpoints;
        let (ports, tls_dir) = (*kubelet_ports, kubelet_tls_dir.clone());
        kubelet_address.map(|address| server::ServerOptions { address, ports, tls_dir })
    }

    /// The given maximum of hollow machines, else the maximum that the memory limit allows.
    pub(super) fn max_machines(&self) -> usize {
        if let Some(max) = self.max_machines {
            return max.get();
        }
        let limit = capacity::memory_limit();
        let max = capacity::machines(limit.unwrap_or_default());
        if let Some(limit) = limit {
            info!(limit, max, "carries as many hollow machines as its memory limit is good for");
        } else {
            warn!(max, "no memory limit can be read: carries few hollow machines; give --max-machines");
        }
        max
    }
}

/// Arguments of the kubelets' endpoints.
#[derive(Debug, Args)]
#[command(next_help_heading = "Endpoints of hollow kubelets")]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
struct EndpointArgs {
    /// Serve the kubelets of hollow machines (kubectl logs, exec, port-forward and top) at this address of
    /// the process, which the API server must reach; of several, separated by commas, the first IPv4 one; no
    /// endpoints when absent
    #[arg(long, value_name = "IP", value_parser = reachable)]
    kubelet_address: Option<IpAddr>,
    /// Ports of the kubelets at --kubelet-address, one for each machine
    #[arg(long, value_name = "FIRST-LAST", default_value = "11000-29999")]
    kubelet_ports: server::Ports,
    /// Folder of tls.crt and tls.key, read again when they change; a certificate is made when absent
    #[arg(long, value_name = "DIR", requires = "kubelet_address")]
    kubelet_tls_dir: Option<PathBuf>,
}

/// Parses an address at which other machines reach this process: Nodes publish it.
fn reachable(text: &str) -> anyhow::Result<IpAddr> {
    let address = preferred_address(text).context("write an IP address, such as 10.0.0.7")?;
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || is_broadcast {
        bail!("Nodes show it, so give the one address of this machine that the API server reaches");
    }
    Ok(address)
}

/// Name of the pod or the machine that runs this process.
pub(super) fn host_name() -> String {
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    std::env::var("POD_NAME").ok().or_else(host).unwrap_or_default()
}

/// Unique identity of this process: a readable name and a random part.
pub(super) fn identity(name: &str) -> String {
    format!("{name}_{}", uuid::Uuid::new_v4())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        process: ProcessArgs,
    }

    #[test]
    fn the_memory_decides_unless_somebody_does() {
        let of =
            |flags: &[&str]| Only::try_parse_from(["operator"].iter().chain(flags)).map(|only| only.process);
        assert_eq!(of(&["--max-machines=7"]).unwrap().max_machines(), 7);
        let by_memory = capacity::machines(capacity::memory_limit().unwrap());
        assert_eq!(of(&[]).unwrap().max_machines(), by_memory);
        assert!(of(&["--max-machines=0"]).is_err());
    }

    #[test]
    fn ports_of_hollow_kubelets_are_none_of_a_local_cluster() {
        let process = Only::try_parse_from(["operator"]).unwrap().process;
        let last =
            process.endpoints.kubelet_ports.to_string().split_once('-').unwrap().1.parse::<u16>().unwrap();
        assert!(last < local_cluster::PORTS.start, "{last}");
    }

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
