//! Checks of the cluster: API server, CRDs, objects of `setup`, rights, operator and NodeSets.

use kube::{Api, Client, api::ListParams};
use kube_ext::{call::call, objects};
use kube_node_api::{NodeSet, names::MACHINE_NAMESPACE};
use kube_node_controllers::{
    kubernetes_version::{self, Support},
    preflight::{Preflight, Rights},
};
use local_cluster::{absent, helm_release};

use super::{
    Namespaces,
    findings::{Finding, list},
};
use crate::{
    explain::hint,
    hollow_nodes::{Goal, progress},
    operator_probe::probe,
    progress::Progress,
    set_status::name,
};

/// Rights that the commands need; [`MACHINE_NAMESPACE`] stands for the machines' namespace.
const COMMANDS: &[Rights] = &[
    ("create patch delete", "kube-node.io", "nodeclasses", ""),
    ("patch delete", "kube-node.io", "nodesets", ""),
    ("patch", "kube-node.io", "nodesets/scale", ""),
    ("list", "", "nodes", ""),
    ("list", "", "pods", MACHINE_NAMESPACE),
    ("get", "", "pods/log", MACHINE_NAMESPACE),
    ("list", "certificates.k8s.io", "certificatesigningrequests", ""),
    ("list", "coordination.k8s.io", "leases", "kube-node-lease"),
];

/// The operator's checks, for the user of this command.
pub(super) fn checks<'a>(client: &'a Client, namespaces: &'a Namespaces) -> Preflight<'a> {
    let Namespaces { namespace, machine_namespace } = namespaces;
    Preflight { client, who: "this identity", url: "this cluster", namespace, machine_namespace }
}

/// Checks the version of the API server.
pub(super) async fn server(client: &Client) -> anyhow::Result<Finding> {
    let version = call("ask the API server for its version", client.apiserver_version()).await?;
    Ok(match Support::of(&version) {
        Support::TooOld => {
            Finding::bad(format!("{} is too old", version.git_version)).hint(kubernetes_version::needed())
        }
        Support::Newer => Finding::odd(kubernetes_version::newer(&version)),
        Support::Supported => Finding::good(version.git_version),
    })
}

/// Checks the CRDs.
pub(super) async fn crds(client: &Client, namespaces: &Namespaces) -> anyhow::Result<Finding> {
    Ok(match checks(client, namespaces).outdated_definition().await? {
        Some(problem) => Finding::bad(problem).hint("kube-node setup installs them, too"),
        None => Finding::good("NodeClass and NodeSet are those of this version"),
    })
}

/// Checks the other objects that `setup` installs.
pub(super) async fn manifests(client: &Client, namespaces: &Namespaces) -> anyhow::Result<Finding> {
    let absent = absent(client, &namespaces.namespace, &namespaces.machine_namespace).await?;
    if absent.is_empty() {
        return Ok(Finding::good("namespaces, roles and admission policies are there"));
    }
    let hint = match helm_release(client).await? {
        Some((release, namespace)) => {
            format!("helm upgrade of release {release} in namespace {namespace} installs them")
        }
        None => "kube-node setup installs them".to_owned(),
    };
    Ok(Finding::bad(format!("missing: {}", list(&absent))).hint(hint))
}

/// Checks the rights of this user.
pub(super) async fn rights(client: &Client, namespaces: &Namespaces) -> anyhow::Result<Finding> {
    let missing = checks(client, namespaces).missing(COMMANDS).await?;
    if missing.is_empty() {
        return Ok(Finding::good("this identity may use all commands"));
    }
    Ok(Finding::odd(format!("this identity may not: {}", missing.join(", ")))
        .hint("the ClusterRole kube-node-admin and the Roles of that name have what people need"))
}

/// Checks that an operator runs.
pub(super) async fn operator(client: &Client, namespaces: &Namespaces) -> anyhow::Result<Finding> {
    if probe(client).await? {
        return Ok(Finding::good("it answers"));
    }
    Ok(Finding::bad("none answers: a NodeClass that was created to ask with got no condition")
        .hint("start one, in the cluster (kube-node setup --operator) or beside it: kube-node operator --kubeconfig FILE")
        .hint(format!(
            "where it runs as a pod: kubectl -n {} get pods, and the logs of that pod",
            namespaces.namespace
        )))
}

/// Findings about the NodeSets that have not reached their goal.
pub(super) async fn sets(client: &Client) -> anyhow::Result<Vec<anyhow::Result<Finding>>> {
    let sets = objects::list(&Api::all(client.clone()), "NodeSets", &ListParams::default()).await?;
    let mut found: Vec<_> = sets.iter().filter_map(set).map(Ok).collect();
    if found.is_empty() {
        found.push(Ok(Finding::good(format!("{0} of {0} have all their nodes", sets.len()))));
    }
    Ok(found)
}

fn set(set: &NodeSet) -> Option<Finding> {
    let name = name(set);
    let Progress::Waiting(waiting) = progress(Goal::Ready, name, Some(set)) else { return None };
    let mut finding = Finding::bad(format!("{name}: {}", waiting.line));
    if !waiting.is_observed {
        finding = finding.hint("the operator has not observed its last change");
    }
    if let Some(delay) = waiting.delay {
        let advice = hint(delay.split(':').next().unwrap_or_default());
        finding = finding.hint(delay).hints(advice.map(|advice| advice.replace("NODESET", name)));
    }
    Some(finding.hint(format!("kube-node explain {name} says more")))
}
