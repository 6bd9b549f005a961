//! `kube-node hollow-host`: a worker that runs hollow machines in the operator's place.

use std::net::SocketAddr;

use anyhow::ensure;
use clap::Args;
use kube_ext::{leader, telemetry};
use kube_node_api::names;
use kube_node_controllers::hosts::lease_name;
use kube_node_operator::host;

use super::process_args::{ProcessArgs, host_name, identity};

/// Arguments of `hollow-host`.
#[derive(Debug, Args)]
pub struct HollowHost {
    /// Group of this worker: it runs machines of the classes that name this group in hollow.hosts
    #[arg(long, value_name = "GROUP")]
    hosts: String,
    /// Name of this worker, unique in its group; that of the pod or the machine when absent
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Listen address of /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    admin_address: SocketAddr,
    #[command(flatten)]
    process: ProcessArgs,
}

impl HollowHost {
    /// Runs until SIGINT or SIGTERM.
    pub async fn run(self) -> anyhow::Result<()> {
        let Self { hosts: group, name, admin_address, process } = self;
        telemetry::start(process.log_format);
        let name = name.unwrap_or_else(host_name);
        check("--hosts", &group, 40)?;
        check("--name", &name, 63)?;
        let presence = leader::ElectionOptions {
            namespace: process.namespace.clone(),
            name: lease_name(&group, &name),
            labels: [(names::LABEL_HOLLOW_HOSTS.to_owned(), group.clone())].into(),
            identity: identity(&name),
            timing: leader::Timing::HOST,
        };
        let options = host::Options {
            client: process.access().await?,
            endpoints: process.endpoints(),
            max_machines: process.max_machines(),
            namespace: process.namespace,
            machine_namespace: process.machine_namespace,
            group,
            name,
            admin_address: Some(admin_address),
            presence,
        };
        Box::pin(host::run(options, kube_ext::process::signals()?)).await
    }
}

/// Checks a part of the name of a Lease.
fn check(flag: &str, name: &str, longest: usize) -> anyhow::Result<()> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = (1..=longest).contains(&name.len()) && name.chars().all(inner);
    ensure!(
        is_name && !name.starts_with('-') && !name.ends_with('-'),
        "{flag} is \"{name}\": write up to {longest} lower case letters, digits and hyphens, with a letter or digit at both ends"
    );
    Ok(())
}
