//! Checks of the nodes, and of machines that are pods, in this cluster or in hosting clusters: pods, logs,
//! credentials, and their access to the API server.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{Node, Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, LogParams},
};
use kube_ext::{
    call::{ApiError, call},
    error::chain,
    leader::Fence,
};
use kube_node_api::{
    NodeClass,
    names::{ANNOTATION_NODE, LABEL_CLUSTER, LABEL_NODE_CONTROLLER, MACHINE_NAMESPACE},
};
use kube_node_operator::providers::kubemark::credentials::{Credentials, CredentialsError};
use local_cluster::NAMESPACE as OPERATOR_NAMESPACE;

use super::cluster::checks;
use super::findings::{
    Finding, Verdict, age, list, node_of, reachability, refusal, secrets, speaker, trouble,
};
use crate::fleet::{Row, row};

/// Namespace of machines that are pods.
const NAMESPACE: &str = MACHINE_NAMESPACE;
/// Label selector of machines that are pods.
const LABEL: &str = "name=hollow-node";
/// Number of log lines in a finding.
const LOG_LINES: i64 = 5;
/// Maximum number of pods whose logs are read.
const LOGS_MAX: usize = 3;
/// Time after its grace period within which a deleted pod may still exist; until then its deletion counts as normal.
const LEAVING_MAX: SignedDuration = SignedDuration::from_mins(1);

/// A cluster that runs pods of machines.
struct Place {
    client: Client,
    /// Suffix for messages; empty for this cluster.
    whose: String,
    pods: Vec<Pod>,
}

/// Runs all checks of nodes and machines.
pub(super) async fn examine(client: &Client, now: Timestamp) -> Vec<Finding> {
    let mut found = vec![nodes(client).await];
    let (places, unseen) = places(client, now).await;
    let is_all = unseen.is_empty();
    found.extend(unseen);
    if places.is_empty() {
        found.extend(is_all.then(|| Finding::new(Verdict::Good, "pods", "no machine is a pod here")));
        return found;
    }
    for place in &places {
        found.extend(pods_in_trouble(place).await);
        found.push(credentials(place).await.unwrap_or_else(|error| Finding::unknown("credentials", error)));
    }
    let pods: Vec<&Pod> = places.iter().flat_map(|place| &place.pods).collect();
    found.push(
        requests(client, &pods, now).await.unwrap_or_else(|error| Finding::unknown("certificates", error)),
    );
    found.push(leases(client, &pods, now).await.unwrap_or_else(|error| Finding::unknown("network", error)));
    found
}

/// Returns true if the pod is being deleted and still within its time.
fn is_ending(pod: &Pod, now: Timestamp) -> bool {
    let deleted = pod.metadata.deletion_timestamp.as_ref();
    deleted.is_some_and(|deleted| now.duration_since(deleted.0) < LEAVING_MAX)
}

/// Clusters that run machines of this cluster as pods, and findings about those that cannot be read.
async fn places(client: &Client, now: Timestamp) -> (Vec<Place>, Vec<Finding>) {
    // Pods of machines of other clusters may run beside them; those do not connect to this cluster.
    let cluster = match checks(client).cluster_id().await {
        Ok(cluster) => cluster,
        Err(error) => return (Vec::new(), vec![Finding::unknown("pods", error)]),
    };
    let all = ListParams::default().labels(LABEL);
    let ours = ListParams::default().labels(&format!("{LABEL},{LABEL_CLUSTER}={cluster}"));
    let (mut places, mut unseen) = (Vec::new(), Vec::new());
    match pods(client, &all).await {
        Ok(mut pods) => {
            // In this cluster a pod without the label may be one of its own machines, too.
            pods.retain(|pod| pod.labels().get(LABEL_CLUSTER).is_none_or(|of| *of == cluster));
            places.push(Place { client: client.clone(), whose: String::new(), pods });
        }
        Err(error) => unseen.push(Finding::unknown("pods", error)),
    }
    let classes = Api::<NodeClass>::all(client.clone());
    let classes = match call("list NodeClasses", classes.list(&ListParams::default())).await {
        Ok(classes) => classes.items,
        // The CRDs are not installed, which another finding reports.
        Err(error) if error.is(404) => Vec::new(),
        Err(error) => {
            unseen.push(Finding::unknown("hosting", error));
            Vec::new()
        }
    };
    let named = classes.into_iter().filter(|class| class.spec.node_controller == "kubemark");
    let named = named.filter_map(|class| class.spec.credentials_secret_ref).map(|secret| secret.name);
    for name in named.collect::<BTreeSet<_>>() {
        match hosted(client, &name, &ours).await {
            Ok(place) => places.push(place),
            Err(finding) => unseen.push(finding),
        }
    }
    for place in &mut places {
        place.pods.retain(|pod| !is_ending(pod, now));
    }
    places.retain(|place| !place.pods.is_empty());
    (places, unseen)
}

/// The machines in the hosting cluster that a Secret leads to.
async fn hosted(client: &Client, secret: &str, ours: &ListParams) -> Result<Place, Finding> {
    const TOPIC: &str = "hosting";
    let credentials = Credentials::new(client, OPERATOR_NAMESPACE, secret, &Fence::open(), false);
    let (there, _) = credentials.connect().await.map_err(|error| match error {
        CredentialsError::Read { .. } => Finding::unknown(TOPIC, error),
        error => Finding::new(Verdict::Bad, TOPIC, chain(&error)),
    })?;
    let pods = pods(&there, ours).await.map_err(|error| {
        Finding::new(Verdict::Bad, TOPIC, format!("the cluster of Secret {secret}: {}", chain(&error)))
            .hint("its kubeconfig needs the rights of docs/hosting-cluster.yaml, and an address that is reached from here")
    })?;
    Ok(Place { client: there, whose: format!(" (cluster of Secret {secret})"), pods })
}

async fn pods(client: &Client, ours: &ListParams) -> Result<Vec<Pod>, ApiError> {
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    Ok(call(format_args!("list pods in {NAMESPACE}"), api.list(ours)).await?.items)
}

/// Checks that the Nodes of our providers are Ready; groups the others by reason.
async fn nodes(client: &Client) -> Finding {
    const TOPIC: &str = "nodes";
    let api = Api::<Node>::all(client.clone());
    let ours = ListParams::default().labels(&format!("{LABEL_NODE_CONTROLLER} in (hollow, kubemark)"));
    let rows: Vec<Row> = match call("list Nodes", api.list(&ours)).await {
        Ok(nodes) => nodes.items.iter().map(row).collect(),
        Err(error) => return Finding::unknown(TOPIC, error),
    };
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Row { name, reason, message, .. } in rows.iter().filter(|row| !row.ready) {
        reasons.entry(format!("{reason}: {message}")).or_default().push(name.clone());
    }
    let ready = rows.iter().filter(|row| row.ready).count();
    let verdict = if reasons.is_empty() { Verdict::Good } else { Verdict::Odd };
    let finding = Finding::new(verdict, TOPIC, format!("{ready} of {} are Ready", rows.len()));
    reasons
        .into_iter()
        .fold(finding, |finding, (reason, names)| finding.hint(format!("{reason} ({})", list(&names))))
}

/// Findings about the pods that do not work, with the end of their logs.
async fn pods_in_trouble(Place { client, whose, pods }: &Place) -> Vec<Finding> {
    const TOPIC: &str = "pods";
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let troubled: Vec<(&Pod, String)> = pods.iter().filter_map(|pod| Some((pod, trouble(pod)?))).collect();
    if troubled.is_empty() {
        return vec![Finding::new(
            Verdict::Good,
            TOPIC,
            format!("{} carry a machine each{whose}", pods.len()),
        )];
    }
    let mut found = Vec::new();
    for (at, (pod, why)) in troubled.into_iter().enumerate() {
        let name = pod.name_any();
        let mut finding = Finding::new(Verdict::Bad, TOPIC, format!("{name}{whose}: {why}"));
        if let Some((container, previous)) = speaker(pod).filter(|_| at < LOGS_MAX) {
            let params = LogParams {
                container: Some(container),
                previous,
                tail_lines: Some(LOG_LINES),
                ..LogParams::default()
            };
            // A missing log is not worth a finding.
            if let Ok(log) = call(format_args!("read the log of {name}"), api.logs(&name, &params)).await {
                finding = log.lines().fold(finding, |finding, line| finding.hint(format!("| {line}")));
            }
        }
        found.push(finding.hint(format!("kubectl -n {NAMESPACE} describe pod {name} says more{whose}")));
    }
    found
}

/// Checks that the Secrets that the pods need to start exist.
async fn credentials(Place { client, whose, pods }: &Place) -> Result<Finding, ApiError> {
    const TOPIC: &str = "credentials";
    let api = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let there =
        call(format_args!("list Secrets in {NAMESPACE}"), api.list_metadata(&ListParams::default())).await?;
    let there: Vec<String> = there.iter().map(ResourceExt::name_any).collect();
    let mut missing: Vec<String> = Vec::new();
    for pod in pods {
        let absent = secrets(pod).into_iter().filter(|secret| !there.contains(secret));
        missing.extend(absent.map(|secret| format!("{secret} of pod {}", pod.name_any())));
    }
    Ok(if missing.is_empty() {
        Finding::new(Verdict::Good, TOPIC, format!("every pod has the Secrets that it mounts{whose}"))
    } else {
        Finding::new(Verdict::Bad, TOPIC, format!("missing Secrets{whose}: {}", list(&missing)))
            .hint("the operator writes those of machines; those of provisioning.files are yours")
    })
}

/// Checks the certificate signing requests of the machines.
async fn requests(client: &Client, pods: &[&Pod], now: Timestamp) -> Result<Finding, ApiError> {
    const TOPIC: &str = "certificates";
    let api = Api::<CertificateSigningRequest>::all(client.clone());
    let all = call("list CertificateSigningRequests", api.list(&ListParams::default())).await?.items;
    // Only the newest request of each Node counts.
    let mut newest: BTreeMap<&str, &CertificateSigningRequest> = BTreeMap::new();
    for csr in &all {
        let Some(node) = node_of(csr) else { continue };
        let before = newest.entry(node).or_insert(csr);
        if csr.metadata.creation_timestamp > before.metadata.creation_timestamp {
            *before = csr;
        }
    }
    let nodes: Vec<String> = pods.iter().copied().filter_map(machine).collect();
    let stuck: Vec<(String, (String, &str))> =
        nodes.iter().filter_map(|node| Some((node.clone(), refusal(newest.get(&**node)?, now)?))).collect();
    if stuck.is_empty() {
        return Ok(Finding::new(Verdict::Good, TOPIC, "no request of a machine waits or was refused"));
    }
    let finding = Finding::new(Verdict::Bad, TOPIC, format!("{} machines have none", stuck.len()));
    Ok(stuck
        .into_iter()
        .take(LOGS_MAX)
        .fold(finding, |finding, (node, (says, hint))| finding.hint(format!("{node}: {says}")).hint(hint)))
}

/// Checks that the machines with running pods renew their Leases.
async fn leases(client: &Client, pods: &[&Pod], now: Timestamp) -> Result<Finding, ApiError> {
    let api = Api::<Lease>::namespaced(client.clone(), "kube-node-lease");
    let leases = call("list Leases", api.list(&ListParams::default())).await?.items;
    let ages: BTreeMap<String, Option<i64>> =
        leases.iter().map(|lease| (lease.name_any(), age(lease, now))).collect();
    let is_running =
        |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let machines =
        pods.iter().copied().filter(is_running).filter(|pod| trouble(pod).is_none()).filter_map(machine);
    Ok(reachability(&machines.map(|node| (node.clone(), ages.get(&node).copied().flatten())).collect()))
}

/// Name of the Node of a pod.
fn machine(pod: &Pod) -> Option<String> {
    pod.annotations().get(ANNOTATION_NODE).cloned()
}
