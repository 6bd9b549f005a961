//! Checks of the nodes, and of kubemark machines, in this cluster or in hosting clusters: pods, logs,
//! credentials, and their access to the API server.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, LogParams},
};
use kube_ext::{
    call::{ApiError, call},
    leader::Fence,
    objects,
};
use kube_node_api::{
    NodeClass,
    names::{ANNOTATION_NODE, LABEL_CLUSTER, LABEL_NODE_CONTROLLER},
};
use kube_node_controllers::kubemark::credentials::Credentials;

use super::{
    Namespaces,
    cluster::checks,
    findings::{
        Finding, age, failed_container, list, needed_secrets, node_of, reachability, refusal, trouble,
    },
};
use crate::hollow_nodes::{Row, row};

/// Label selector of kubemark machines.
const LABEL: &str = "name=hollow-node";
/// Number of log lines in a finding.
const LOG_LINES: i64 = 5;
/// Maximum number of pods whose logs are read.
const LOGS_MAX: usize = 3;
/// Time after its grace period within which a deleted pod may still exist; until then its deletion counts as normal.
const LEAVING_MAX: SignedDuration = SignedDuration::from_mins(1);

/// A cluster that runs pods of machines.
struct HostingCluster<'a> {
    client: Client,
    /// Namespace of the machines.
    namespace: &'a str,
    /// Suffix for messages; empty for this cluster.
    suffix: String,
    pods: Vec<Pod>,
}

/// Runs all checks of nodes and machines.
pub(super) async fn examine(client: &Client, namespaces: &Namespaces, now: Timestamp) -> Vec<Finding> {
    let mut found = vec![Finding::of("nodes", nodes(client).await)];
    let (mut clusters, count) = (Vec::new(), found.len());
    // Pods of machines of other clusters may run beside them; those do not connect to this cluster. Without the cluster's
    // ID, they are looked at as if they were of this one, and machines elsewhere cannot be told.
    let own = checks(client, namespaces).cluster_id().await;
    let own = own.map_err(|error| found.push(Finding::of("hosting", Err(error)))).ok();
    let namespace = namespaces.machine_namespace.as_str();
    match pods(client, namespace, LABEL).await {
        Ok(mut pods) => {
            // In this cluster a pod without the label may be one of its own machines, too.
            let is_own = |of: &String| own.as_ref().is_none_or(|own| of == own);
            pods.retain(|pod| pod.labels().get(LABEL_CLUSTER).is_none_or(is_own));
            clusters.push(HostingCluster { client: client.clone(), namespace, suffix: String::new(), pods });
        }
        Err(error) => found.push(Finding::of("pods", Err(error.into()))),
    }
    if let Some(own) = &own {
        let ours = format!("{LABEL},{LABEL_CLUSTER}={own}");
        let secrets = secrets_of_classes(client).await;
        let secrets = secrets.map_err(|error| found.push(Finding::of("hosting", Err(error.into()))));
        for secret in secrets.unwrap_or_default() {
            match hosted(client, namespaces, &secret, &ours).await {
                Ok(cluster) => clusters.push(cluster),
                Err(unreachable) => found.push(Finding::of("hosting", unreachable)),
            }
        }
    }
    clusters.retain_mut(|cluster| {
        cluster.pods.retain(|pod| !is_ending(pod, now));
        !cluster.pods.is_empty()
    });
    if clusters.is_empty() && found.len() == count {
        found.push(Finding::of("pods", Ok(Finding::good("no machine is a pod here"))));
    }
    for cluster in &clusters {
        found.extend(failing_pods(cluster).await.into_iter().map(|failing| Finding::of("pods", Ok(failing))));
        found.push(Finding::of("credentials", credentials(cluster).await));
    }
    let pods: Vec<&Pod> = clusters.iter().flat_map(|cluster| &cluster.pods).collect();
    if !pods.is_empty() {
        found.push(Finding::of("certificates", requests(client, &pods, now).await));
        found.push(Finding::of("network", leases(client, &pods, now).await));
    }
    found
}

/// Returns true if the pod is being deleted and still within its time.
fn is_ending(pod: &Pod, now: Timestamp) -> bool {
    let deleted = pod.metadata.deletion_timestamp.as_ref();
    deleted.is_some_and(|deleted| now.duration_since(deleted.0) < LEAVING_MAX)
}

/// Names of the Secrets that lead to the hosting clusters of NodeClasses; none if the CRDs are not installed, which
/// another finding reports.
async fn secrets_of_classes(client: &Client) -> Result<BTreeSet<String>, ApiError> {
    let api = Api::<NodeClass>::all(client.clone());
    let classes = match objects::list(&api, "NodeClasses", &ListParams::default()).await {
        Err(error) if error.is_not_found() => Vec::new(),
        classes => classes?,
    };
    let kubemark =
        classes.into_iter().map(|class| class.spec).filter(|spec| spec.node_controller == "kubemark");
    Ok(kubemark.filter_map(|spec| Some(spec.credentials_secret_ref?.name)).collect())
}

/// The machines in the hosting cluster that a Secret leads to; if it cannot be read, the result of the check.
async fn hosted<'a>(
    client: &Client,
    Namespaces { namespace, machine_namespace }: &'a Namespaces,
    secret: &str,
    ours: &str,
) -> Result<HostingCluster<'a>, anyhow::Result<Finding>> {
    let credentials = Credentials::new(client, namespace, secret, &Fence::open(), false);
    let there = credentials.connect().await.map_err(|error| {
        if error.is::<kube::Error>() { Err(error) } else { Ok(Finding::bad(error.to_string())) }
    })?;
    let there = there.client;
    let pods = pods(&there, machine_namespace, ours).await.map_err(|error| {
        Ok(Finding::bad(format!("the cluster of Secret {secret}: {}", error.chain()))
            .hint("its kubeconfig needs the rights of docs/hosting-cluster.yaml, and an address that is reached from here"))
    })?;
    let suffix = format!(" (cluster of Secret {secret})");
    Ok(HostingCluster { client: there, namespace: machine_namespace, suffix, pods })
}

async fn pods(client: &Client, namespace: &str, selector: &str) -> Result<Vec<Pod>, ApiError> {
    let (api, params) = (Api::namespaced(client.clone(), namespace), ListParams::default().labels(selector));
    objects::list(&api, &format!("pods in {namespace}"), &params).await
}

/// Checks that the Nodes of our providers are Ready; groups the others by reason.
async fn nodes(client: &Client) -> anyhow::Result<Finding> {
    let ours = ListParams::default().labels(&format!("{LABEL_NODE_CONTROLLER} in (hollow, kubemark)"));
    let nodes = objects::list(&Api::all(client.clone()), "Nodes", &ours).await?;
    let (ready, others): (Vec<Row>, Vec<Row>) = nodes.iter().map(row).partition(|row| row.ready);
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Row { name, reason, message, .. } in others {
        reasons.entry(format!("{reason}: {message}")).or_default().push(name);
    }
    let finding = if reasons.is_empty() { Finding::good } else { Finding::odd };
    Ok(finding(format!("{} of {} are Ready", ready.len(), nodes.len()))
        .hints(reasons.into_iter().map(|(reason, names)| format!("{reason} ({})", list(&names)))))
}

/// Findings about the pods that do not work, with the end of their logs.
async fn failing_pods(cluster: &HostingCluster<'_>) -> Vec<Finding> {
    let HostingCluster { client, namespace, suffix, pods } = cluster;
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let mut found = Vec::new();
    for (pod, why) in pods.iter().filter_map(|pod| Some((pod, trouble(pod)?))) {
        let name = pod.name_any();
        let mut finding = Finding::bad(format!("{name}{suffix}: {why}"));
        if let Some((container, previous)) = failed_container(pod).filter(|_| found.len() < LOGS_MAX) {
            let (container, tail_lines) = (Some(container), Some(LOG_LINES));
            let params = LogParams { container, previous, tail_lines, ..LogParams::default() };
            // A missing log is not worth a finding.
            let log = call(format_args!("read the log of {name}"), api.logs(&name, &params)).await;
            finding = finding.hints(log.unwrap_or_default().lines().map(|line| format!("| {line}")));
        }
        found.push(finding.hint(format!("kubectl -n {namespace} describe pod {name} says more{suffix}")));
    }
    if found.is_empty() {
        found.push(Finding::good(format!("{} carry a machine each{suffix}", pods.len())));
    }
    found
}

/// Checks that the Secrets that the pods need to start exist.
async fn credentials(cluster: &HostingCluster<'_>) -> anyhow::Result<Finding> {
    let HostingCluster { client, namespace, suffix, pods } = cluster;
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let all = ListParams::default();
    let secrets = call(format_args!("list Secrets in {namespace}"), api.list_metadata(&all)).await?;
    let existing: BTreeSet<String> = secrets.iter().map(ResourceExt::name_any).collect();
    let needed = pods.iter().flat_map(|pod| needed_secrets(pod).into_iter().map(move |secret| (secret, pod)));
    let missing = needed.filter(|(secret, _)| !existing.contains(secret));
    let missing: Vec<_> =
        missing.map(|(secret, pod)| format!("{secret} of pod {}", pod.name_any())).collect();
    if missing.is_empty() {
        return Ok(Finding::good(format!("every pod has the Secrets that it mounts{suffix}")));
    }
    Ok(Finding::bad(format!("missing Secrets{suffix}: {}", list(&missing)))
        .hint("the operator writes those of machines; those of provisioning.files are yours"))
}

/// Checks the certificate signing requests of the machines.
async fn requests(client: &Client, pods: &[&Pod], now: Timestamp) -> anyhow::Result<Finding> {
    let api = Api::<CertificateSigningRequest>::all(client.clone());
    let mut all = objects::list(&api, "CertificateSigningRequests", &ListParams::default()).await?;
    // Only the newest request of each Node counts.
    all.sort_by_key(|csr| csr.metadata.creation_timestamp.clone());
    let newest: BTreeMap<&str, &CertificateSigningRequest> =
        all.iter().filter_map(|csr| Some((node_of(csr)?, csr))).collect();
    let nodes = pods.iter().filter_map(|pod| node_name(pod));
    let refused = nodes.filter_map(|node| Some((node, refusal(newest.get(node)?, now)?)));
    let hints = refused.map(|(node, (why, hint))| [format!("{node}: {why}"), hint.to_owned()]);
    let hints: Vec<[String; 2]> = hints.collect();
    if hints.is_empty() {
        return Ok(Finding::good("no request of a machine waits or was refused"));
    }
    Ok(Finding::bad(format!("{} machines have none", hints.len()))
        .hints(hints.into_iter().take(LOGS_MAX).flatten()))
}

/// Checks that the machines with running pods renew their Leases.
async fn leases(client: &Client, pods: &[&Pod], now: Timestamp) -> anyhow::Result<Finding> {
    let api = Api::<Lease>::namespaced(client.clone(), "kube-node-lease");
    let leases = objects::list(&api, "Leases", &ListParams::default()).await?;
    let ages: BTreeMap<String, i64> =
        leases.iter().filter_map(|lease| Some((lease.name_any(), age(lease, now)?))).collect();
    let phase = |pod: &Pod| pod.status.as_ref()?.phase.clone();
    let is_running = |pod: &&&Pod| phase(pod).as_deref() == Some("Running") && trouble(pod).is_none();
    let machines = pods.iter().filter(is_running).filter_map(|pod| node_name(pod));
    let namespace = pods.first().and_then(|pod| pod.namespace()).unwrap_or_default();
    let ages = machines.map(|node| (node.to_owned(), ages.get(node).copied())).collect();
    Ok(reachability(&ages, &namespace))
}

/// Name of the Node of a pod.
fn node_name(pod: &Pod) -> Option<&str> {
    pod.annotations().get(ANNOTATION_NODE).map(String::as_str)
}
