//! `kube-node operator`: runs the controllers, the providers and the hollow kubelets in one process.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use anyhow::{Context, bail};
use clap::{ArgAction, Args};
use ipnet::IpNet;
use kube_ext::{leader, telemetry, tls::TlsFiles, traces::Traces};
use kube_node_api::{GoDuration, names};
use kube_node_controllers::{Access, ProviderIdPrefix, autoscaler};
use kube_node_operator::{Caches, Options};
use kube_node_planner::pod_cidrs::PodCidrRange;
use local_cluster::images;

use super::process_args::{ProcessArgs, host_name, identity};

/// Arguments of `operator`.
#[derive(Debug, Args)]
pub struct Operator {
    /// Kubeconfig of the hollow kubelets, which need fewer rights than the operator; the operator's when absent
    #[arg(long, value_name = "FILE")]
    hollow_kubeconfig: Option<PathBuf>,
    /// ServiceAccount in --namespace that the hollow kubelets impersonate; for a pod, which has only one identity
    #[arg(long, value_name = "NAME", conflicts_with = "hollow_kubeconfig")]
    hollow_service_account: Option<String>,
    /// Listen address of /healthz, /readyz, /leader and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    admin_address: SocketAddr,
    /// Prefix of providerIDs; the provider's name when absent, empty where a cloud-controller-manager sets them
    #[arg(long, value_name = "PREFIX")]
    provider_id_prefix: Option<String>,
    /// Image of kube-node for kubemark machines
    #[arg(long, value_name = "IMAGE", env = "KUBE_NODE_IMAGE", default_value = images::KUBE_NODE)]
    machine_image: String,
    /// URL of the API server for kubemark machines; the operator's own URL when absent
    #[arg(long, value_name = "URL")]
    machine_api_server: Option<String>,
    /// Accept credentials of a NodeClass whose kubeconfig has a server without TLS or skips its verification
    #[arg(long)]
    insecure_credentials: bool,
    #[command(flatten)]
    pod_cidrs: PodCidrArgs,
    #[command(flatten)]
    autoscaler: AutoscalerArgs,
    #[command(flatten)]
    election: ElectionArgs,
    #[command(flatten)]
    process: ProcessArgs,
}

/// Arguments for pod CIDRs, named as those of kube-controller-manager.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pod CIDRs of new Nodes")]
struct PodCidrArgs {
    /// IPv4 range of all pods, such as 10.128.0.0/9: each Node that a NodeSet creates gets a block of it as
    /// spec.podCIDR. Only for clusters without another source of pod CIDRs, such as kube-controller-manager
    /// or the IPAM of a network plugin
    #[arg(long, value_name = "CIDR")]
    cluster_cidr: Option<IpNet>,
    /// Prefix length of each Node's block
    #[arg(long, value_name = "BITS", default_value_t = 24, requires = "cluster_cidr")]
    node_cidr_mask_size: u8,
}

impl PodCidrArgs {
    fn range(self) -> anyhow::Result<Option<PodCidrRange>> {
        let range = self.cluster_cidr.map(|range| PodCidrRange::new(range, self.node_cidr_mask_size));
        range.transpose().context("--cluster-cidr and --node-cidr-mask-size do not fit")
    }
}

/// Arguments of the server for cluster-autoscaler.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server for cluster-autoscaler")]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
struct AutoscalerArgs {
    /// Listen address of the server for cluster-autoscaler: an address and a port, or `unix:///path`
    #[arg(long, value_name = "ADDRESS")]
    autoscaler_address: Option<autoscaler::Address>,
    /// Certificate of the server for cluster-autoscaler
    #[arg(long, value_name = "FILE", requires_all = ["autoscaler_address", "autoscaler_key", "autoscaler_client_ca"])]
    autoscaler_cert: Option<PathBuf>,
    /// Private key of the server for cluster-autoscaler
    #[arg(long, value_name = "FILE", requires = "autoscaler_cert")]
    autoscaler_key: Option<PathBuf>,
    /// CA of the allowed clients
    #[arg(long, value_name = "FILE", requires = "autoscaler_cert")]
    autoscaler_client_ca: Option<PathBuf>,
    /// Common name, DNS name or URI in the certificate of a client that may call; may be repeated
    #[arg(long, value_name = "NAME", requires = "autoscaler_cert", default_value = names::AUTOSCALER_CLIENT)]
    autoscaler_client_name: Vec<String>,
    /// Serve without TLS: every client that reaches the address may resize the cluster; only for loopback and
    /// unix sockets
    #[arg(long, requires = "autoscaler_address", conflicts_with = "autoscaler_cert")]
    autoscaler_plaintext: bool,
    /// Serve spec.autoscaling.options; only for a cluster-autoscaler that keeps its own node startup time
    /// with these options (1.36.1 does not)
    #[arg(long, requires = "autoscaler_address")]
    autoscaler_options: bool,
}

impl AutoscalerArgs {
    fn options(self) -> anyhow::Result<Option<autoscaler::Options>> {
        let Some(address) = self.autoscaler_address else { return Ok(None) };
        let tls = match (self.autoscaler_cert, self.autoscaler_key, self.autoscaler_client_ca) {
            (Some(cert), Some(key), Some(client_ca)) => Some(TlsFiles { cert, key, client_ca }),
            _ if !self.autoscaler_plaintext => bail!(
                "--autoscaler-address needs --autoscaler-cert, --autoscaler-key and --autoscaler-client-ca; on loopback or a unix socket --autoscaler-plaintext does without"
            ),
            _ if !address.is_local() => bail!(
                "--autoscaler-plaintext is for loopback addresses and unix sockets alone: {address} is neither"
            ),
            _ => None,
        };
        Ok(Some(autoscaler::Options {
            address,
            tls,
            client_names: self.autoscaler_client_name,
            options: self.autoscaler_options,
        }))
    }
}

/// Arguments of leader election, named as those of kube-controller-manager.
#[derive(Debug, Args)]
#[command(next_help_heading = "Leader election")]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
struct ElectionArgs {
    /// Work only while this operator leads; false only if no other operator ever runs
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: bool,
    /// Time after the leader's last renewal before another operator may take the Lease
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    leader_elect_lease_duration: GoDuration,
    /// Time after its last renewal until the leader stops its work
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    leader_elect_renew_deadline: GoDuration,
    /// Interval of renewals
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    leader_elect_retry_period: GoDuration,
    /// Name of the Lease in the operator's namespace
    #[arg(long, value_name = "NAME", default_value = names::OPERATOR_LEASE)]
    leader_elect_resource_name: String,
}

impl ElectionArgs {
    fn options(self, namespace: &str) -> anyhow::Result<Option<leader::ElectionOptions>> {
        let timing = leader::Timing::new(
            self.leader_elect_lease_duration.0,
            self.leader_elect_renew_deadline.0,
            self.leader_elect_retry_period.0,
        )?;
        Ok(self.leader_elect.then(|| leader::ElectionOptions {
            namespace: namespace.to_owned(),
            name: self.leader_elect_resource_name,
            labels: BTreeMap::new(),
            identity: identity(&host_name()),
            timing,
        }))
    }
}

impl Operator {
    /// Runs until SIGINT or SIGTERM.
    pub async fn run(self) -> anyhow::Result<()> {
        let pod_cidrs = self.pod_cidrs.range()?;
        let autoscaler = self.autoscaler.options()?;
        let process = self.process;
        let election = self.election.options(&process.namespace)?;
        let traces = Traces::from_environment()?;
        match &traces {
            Some(traces) => telemetry::start_with(process.log_format, traces),
            None => telemetry::start(process.log_format),
        }
        let client = process.access().await?;
        let hollow = match (&self.hollow_kubeconfig, self.hollow_service_account) {
            (Some(path), _) => Some(Access::new(Some(path), None).await?),
            (None, name) => name.map(|name| {
                client.clone().acting_as(format!("system:serviceaccount:{}:{name}", process.namespace))
            }),
        };
        let options = Options {
            client,
            hollow,
            endpoints: process.endpoints(),
            max_machines: process.max_machines(),
            namespace: process.namespace,
            machine_namespace: process.machine_namespace,
            admin_address: Some(self.admin_address),
            pod_cidrs,
            provider_id_prefix: match self.provider_id_prefix {
                None => ProviderIdPrefix::Provider,
                Some(prefix) if prefix.is_empty() => ProviderIdPrefix::None,
                Some(prefix) => ProviderIdPrefix::Text(prefix),
            },
            machine_image: self.machine_image,
            machine_api_server: self.machine_api_server,
            insecure_credentials: self.insecure_credentials,
            autoscaler,
            election,
            caches: Caches::default(),
        };
        let ended = Box::pin(kube_node_operator::run(options, kube_ext::process::signals()?)).await;
        if let Some(traces) = traces {
            traces.end().await;
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        pod_cidrs: PodCidrArgs,
    }

    /// The range that these flags result in, or the error.
    fn range(flags: &[&str]) -> Result<Option<String>, String> {
        let only = Only::try_parse_from(["operator"].iter().chain(flags)).map_err(|why| why.to_string())?;
        let range = only.pod_cidrs.range().map_err(|why| format!("{why:#}"))?;
        Ok(range.map(|range| range.to_string()))
    }

    #[test]
    fn pod_cidrs_are_none_unless_a_range_is_named_that_can_be_cut() {
        assert_eq!(range(&[]), Ok(None));
        let usual = Some("10.128.0.0/9 (/24 a Node)".to_owned());
        assert_eq!(range(&["--cluster-cidr=10.128.0.0/9"]), Ok(usual));
        for (flags, said) in [
            (&["--cluster-cidr=10.128.0.0"][..], "invalid value '10.128.0.0' for '--cluster-cidr <CIDR>'"),
            (&["--cluster-cidr=fd00::/48"], "is no range of IPv4 addresses"),
            (&["--cluster-cidr=10.128.0.0/9", "--node-cidr-mask-size=8"], "choose a length from 9 to 25"),
            (&["--node-cidr-mask-size=25"], "--cluster-cidr"),
        ] {
            let refused = range(flags).unwrap_err();
            assert!(refused.contains(said), "{flags:?}: {refused}");
        }
    }
}
