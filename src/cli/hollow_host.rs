//! `kube-node hollow-host`: a worker that runs hollow machines in the operator's place.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::bail;
use clap::Args;
use kube_ext::{
    leader::{self, Timing},
    telemetry::{self, LogFormat},
};
use kube_node_api::names;
use kube_node_operator::{Access, host, hosts::lease_name};

use super::{
    endpoint_args::EndpointArgs,
    operator::{identity, place},
    room_args::RoomArgs,
};

/// Arguments of `hollow-host`.
#[derive(Debug, Args)]
pub struct HollowHost {
    /// Group of this worker: it runs machines of the classes that name this group in hollow.hosts
    #[arg(long, value_name = "GROUP")]
    hosts: String,
    /// Name of this worker, unique in its group; that of the pod or the machine when absent
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Kubeconfig of the worker; KUBECONFIG or the pod's own identity when absent
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the operator, which holds the revisions and the Leases that announce workers
    #[arg(long, default_value = "kube-node-system", env = "POD_NAMESPACE")]
    namespace: String,
    /// Listen address of /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    admin_address: SocketAddr,
    /// Format of the logs
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    room: RoomArgs,
    #[command(flatten)]
    endpoints: EndpointArgs,
}

impl HollowHost {
    /// Runs until SIGINT or SIGTERM.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        telemetry::start(self.log_format);
        let name = self.name.unwrap_or_else(place);
        check("--hosts", &self.hosts, 40)?;
        check("--name", &name, 63)?;
        super::block_on(async {
            let presence = leader::ElectionOptions {
                namespace: self.namespace.clone(),
                name: lease_name(&self.hosts, &name),
                labels: [(names::LABEL_HOLLOW_HOSTS.to_owned(), self.hosts.clone())].into(),
                identity: identity(&name),
                timing: Timing::HOST,
            };
            let options = host::Options {
                client: Access::new(self.kubeconfig.as_deref()).await?,
                endpoints: self.endpoints.options(),
                max_machines: self.room.max_machines(),
                namespace: self.namespace,
                group: self.hosts,
                name,
                admin_address: self.admin_address,
                presence,
            };
            Box::pin(host::run(options, kube_ext::process::signals()?)).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Checks a part of the name of a Lease.
fn check(flag: &str, name: &str, longest: usize) -> anyhow::Result<()> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty()
        || name.len() > longest
        || !name.chars().all(inner)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        bail!(
            "{flag} is \"{name}\": write up to {longest} lower case letters, digits and hyphens, with a letter or digit at both ends"
        );
    }
    Ok(())
}
