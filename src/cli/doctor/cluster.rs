//! Checks of the cluster: API server, CRDs, objects of `setup`, rights, operator and NodeSets.

use kube::{Api, Client, ResourceExt, api::ListParams};
use kube_ext::call::call;
use kube_node_api::NodeSet;
use kube_node_operator::preflight::{Preflight, PreflightError, Right};
use local_cluster::{NAMESPACE, absent};

use super::findings::{Finding, Verdict, list};
use crate::{
    explain::hint,
    fleet::{Goal, stand},
    operator_probe::{Answer, ask},
};

/// First minor version of Kubernetes with every feature that the admission policies need.
const MINOR_MIN: u32 = 30;
/// Rights that the commands need. For rights in our namespace, `.` stands for the namespace.
const COMMANDS: &[Right] = &[
    ("create", "kube-node.io", "nodeclasses", ""),
    ("patch", "kube-node.io", "nodeclasses", ""),
    ("delete", "kube-node.io", "nodeclasses", ""),
    ("patch", "kube-node.io", "nodesets", ""),
    ("patch", "kube-node.io", "nodesets/scale", ""),
    ("delete", "kube-node.io", "nodesets", ""),
    ("list", "", "nodes", ""),
    ("list", "", "pods", "kubemark"),
    ("get", "", "pods/log", "kubemark"),
    ("list", "certificates.k8s.io", "certificatesigningrequests", ""),
    ("list", "coordination.k8s.io", "leases", "kube-node-lease"),
];

/// The operator's checks, for the user of this command.
pub(super) fn checks(client: &Client) -> Preflight<'_> {
    Preflight { client, who: "this identity", url: "this cluster", namespace: NAMESPACE }
}

/// Checks the version of the API server.
pub(super) async fn server(client: &Client) -> Finding {
    const TOPIC: &str = "API server";
    match call("ask the API server for its version", client.apiserver_version()).await {
        Err(error) => Finding::unknown(TOPIC, error),
        Ok(version) => {
            let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
            if digits.parse::<u32>().is_ok_and(|minor| minor < MINOR_MIN) {
                Finding::new(Verdict::Bad, TOPIC, format!("{} is too old", version.git_version))
                    .hint(format!("the admission policies need Kubernetes 1.{MINOR_MIN} or later"))
            } else {
                Finding::new(Verdict::Good, TOPIC, version.git_version)
            }
        }
    }
}

/// Checks the CRDs.
pub(super) async fn kinds(client: &Client) -> Finding {
    const TOPIC: &str = "kinds";
    match checks(client).compare().await {
        Ok(()) => Finding::new(Verdict::Good, TOPIC, "NodeClass and NodeSet are those of this version"),
        Err(error @ (PreflightError::NotInstalled | PreflightError::Older { .. })) => {
            Finding::new(Verdict::Bad, TOPIC, error.to_string()).hint("kube-node setup installs them, too")
        }
        Err(error) => Finding::unknown(TOPIC, error),
    }
}

/// Checks the other objects that `setup` installs.
pub(super) async fn manifests(client: &Client) -> Finding {
    const TOPIC: &str = "setup";
    match absent(client).await {
        Ok(absent) if absent.is_empty() => {
            Finding::new(Verdict::Good, TOPIC, "namespaces, roles and admission policies are there")
        }
        Ok(absent) => Finding::new(Verdict::Bad, TOPIC, format!("missing: {}", list(&absent)))
            .hint("kube-node setup installs them"),
        Err(error) => Finding::unknown(TOPIC, error),
    }
}

/// Checks the rights of this user.
pub(super) async fn rights(client: &Client) -> Finding {
    const TOPIC: &str = "rights";
    match checks(client).rights(COMMANDS).await {
        Ok(()) => Finding::new(Verdict::Good, TOPIC, "this identity may use all commands"),
        Err(PreflightError::Rights { missing, .. }) => {
            Finding::new(Verdict::Odd, TOPIC, format!("this identity may not: {}", missing.join(", ")))
                .hint("the ClusterRole kube-node-admin and the Roles of that name have what people need")
        }
        Err(error) => Finding::unknown(TOPIC, error),
    }
}

/// Checks that an operator runs.
pub(super) async fn operator(client: &Client) -> Finding {
    const TOPIC: &str = "operator";
    match ask(client).await {
        Answer::Runs => Finding::new(Verdict::Good, TOPIC, "it answers"),
        Answer::Silent => Finding::new(
            Verdict::Bad,
            TOPIC,
            "none answers: a NodeClass that was made to ask with was not looked at",
        )
        .hint("start one, in the cluster or beside it: kube-node operator --kubeconfig FILE")
        .hint(format!("where it runs as a pod: kubectl -n {NAMESPACE} get pods, and the logs of that pod")),
        Answer::Unknown(why) => Finding::new(Verdict::Odd, TOPIC, format!("not known: {why}")),
    }
}

/// Findings about the NodeSets that have not reached their goal.
pub(super) async fn sets(client: &Client) -> Vec<Finding> {
    const TOPIC: &str = "NodeSets";
    let api = Api::<NodeSet>::all(client.clone());
    let sets = match call("list NodeSets", api.list(&ListParams::default())).await {
        Ok(sets) => sets.items,
        Err(error) => return vec![Finding::unknown(TOPIC, error)],
    };
    let found: Vec<Finding> = sets.iter().filter_map(set).collect();
    if found.is_empty() {
        return vec![Finding::new(
            Verdict::Good,
            TOPIC,
            format!("{} of {} have all their nodes", sets.len(), sets.len()),
        )];
    }
    found
}

fn set(set: &NodeSet) -> Option<Finding> {
    let name = set.name_any();
    let stand = stand(Goal::Ready, Some(set));
    if stand.is_done {
        return None;
    }
    let mut finding = Finding::new(Verdict::Bad, "NodeSets", format!("{name}: {}", stand.counts));
    if !stand.is_seen {
        finding = finding.hint("the operator has not looked at it as it is now");
    }
    if let Some(why) = &stand.why {
        finding = finding.hint(why);
        let reason = why.split(':').next().unwrap_or_default();
        if let Some(hint) = hint(reason) {
            finding = finding.hint(hint.replace("NODESET", &name));
        }
    }
    Some(finding.hint(format!("kube-node explain {name} says more")))
}
