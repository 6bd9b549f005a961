//! Findings of the checks as text. No I/O.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{ContainerState, ContainerStatus, Pod},
};
use kube_node_api::{machine_identity::USER_PREFIX, node_lease};
use kube_node_controllers::kubemark::health::{self, Health};
use serde::Serialize;

/// Time limit for a certificate to be approved and signed, in seconds.
const SIGNED_WITHIN: i64 = 15;
/// Topics without which nobody knows whether nodes work.
const ESSENTIAL: [&str; 5] = ["API server", "kinds", "operator", "NodeSets", "nodes"];
/// Maximum number of names in a line.
const NAMES_MAX: usize = 5;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Severity {
    Good,
    /// A possible problem.
    Odd,
    /// A check without a result, such as one without the right to read the objects.
    Unknown,
    /// A problem that keeps nodes from working.
    Bad,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    #[serde(rename = "verdict")]
    pub(super) severity: Severity,
    /// Subject of the check, in a word or two.
    pub(super) topic: &'static str,
    #[serde(rename = "says")]
    pub(super) message: String,
    /// Advice and further lines of evidence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) hints: Vec<String>,
}

impl Finding {
    pub(super) fn good(message: impl Into<String>) -> Self {
        Self { severity: Severity::Good, topic: "", message: message.into(), hints: Vec::new() }
    }

    pub(super) fn odd(message: impl Into<String>) -> Self {
        Self { severity: Severity::Odd, ..Self::good(message) }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { severity: Severity::Bad, ..Self::good(message) }
    }

    /// Result of a check under its topic. A check that could not be made is a finding, too.
    pub(super) fn of(topic: &'static str, checked: anyhow::Result<Self>) -> Self {
        let unknown =
            |error| Self { severity: Severity::Unknown, ..Self::good(format!("not known: {error:#}")) };
        Self { topic, ..checked.unwrap_or_else(unknown) }
    }

    /// Returns true if nodes do not work, or if that is not known. The other checks only look for causes.
    pub(super) fn is_failure(&self) -> bool {
        match self.severity {
            Severity::Bad => true,
            Severity::Unknown => ESSENTIAL.contains(&self.topic),
            Severity::Good | Severity::Odd => false,
        }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        self.hints([hint.into()])
    }

    pub(super) fn hints(mut self, hints: impl IntoIterator<Item = String>) -> Self {
        self.hints.extend(hints);
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.severity {
            Severity::Good => "ok",
            Severity::Odd => "note",
            Severity::Unknown => "?",
            Severity::Bad => "BAD",
        };
        write!(f, "{mark:<5}{:<13}{}", self.topic, self.message)?;
        let mut lines = self.hints.iter().flat_map(|hint| hint.lines());
        lines.try_for_each(|line| write!(f, "\n{:<18}{line}", ""))
    }
}

/// Reason why a pod does not work; `None` if the pod works or is still starting.
pub(super) fn trouble(pod: &Pod) -> Option<String> {
    match health::of(pod) {
        Health::Troubled(own) | Health::Dead(own) => Some(format!("{}: {}", own.reason, own.message)),
        Health::Starting | Health::Running => None,
    }
}

/// The failed container of a pod, and true if the log of its previous run is the one to read.
pub(super) fn failed_container(pod: &Pod) -> Option<(String, bool)> {
    let status = pod.status.as_ref()?;
    let containers = status.init_container_statuses.iter().flatten();
    let mut containers = containers.chain(status.container_statuses.iter().flatten());
    containers.find_map(|ContainerStatus { name, state, last_state, .. }| {
        let state = state.as_ref()?;
        let has_ended =
            |state: &ContainerState| state.terminated.as_ref().is_some_and(|end| end.exit_code != 0);
        let previous = state.running.is_none() && last_state.as_ref().is_some_and(has_ended);
        (previous || has_ended(state)).then(|| (name.clone(), previous))
    })
}

/// Secrets that a pod mounts and cannot start without.
pub(super) fn needed_secrets(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let secrets = volumes.flat_map(|volume| {
        let whole = volume.secret.iter().map(|secret| (secret.secret_name.as_ref(), secret.optional));
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        let parts = sources.filter_map(|source| source.secret.as_ref());
        whole.chain(parts.map(|secret| (Some(&secret.name), secret.optional)))
    });
    secrets.filter(|(_, optional)| *optional != Some(true)).filter_map(|(name, _)| name.cloned()).collect()
}

/// Node of a certificate signing request; `None` for requests that are not of a node.
pub(super) fn node_of(csr: &CertificateSigningRequest) -> Option<&str> {
    let own = csr.spec.username.as_deref().and_then(|user| user.strip_prefix(USER_PREFIX));
    let bound = || csr.spec.extra.as_ref()?.get("authentication.kubernetes.io/node-name")?.first();
    own.or_else(|| bound().map(String::as_str))
}

/// Reason why a certificate signing request gets no certificate, with advice; `None` if it has one or may soon get
/// one.
pub(super) fn refusal(csr: &CertificateSigningRequest, now: Timestamp) -> Option<(String, &'static str)> {
    let status = csr.status.clone().unwrap_or_default();
    let condition = |r#type: &str| {
        let found = status.conditions.iter().flatten().find(|own| own.type_ == r#type)?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(format!("{}: {}", text(&found.reason), text(&found.message)))
    };
    if let Some(why) = condition("Denied") {
        let advice = "the approver compares it with the Node: delete the pod to begin anew";
        return Some((format!("denied: {why}"), advice));
    }
    if let Some(why) = condition("Failed") {
        return Some((format!("the signer failed: {why}"), "read the logs of kube-controller-manager"));
    }
    let age = csr.metadata.creation_timestamp.as_ref().map_or(0, |time| now.duration_since(time.0).as_secs());
    if status.certificate.is_some() || age < SIGNED_WITHIN {
        return None;
    }
    if condition("Approved").is_some() {
        let advice = "kube-controller-manager signs: it needs --cluster-signing-cert-file and --cluster-signing-key-file";
        return Some((format!("approved, and not signed for {age} s"), advice));
    }
    let advice = "the operator approves: it must run, and serve the provider kubemark";
    Some((format!("not approved for {age} s"), advice))
}

/// Age of a Lease's last renewal, in seconds; `None` if it was never renewed.
pub(super) fn age(lease: &Lease, now: Timestamp) -> Option<i64> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(now.duration_since(renewed.0).as_secs())
}

/// Checks that machines with running pods, in this namespace, reach the API server, where each renews its Lease.
pub(super) fn reachability(ages: &BTreeMap<String, Option<i64>>, namespace: &str) -> Finding {
    let stale = ages.iter().filter_map(|(node, age)| match age {
        Some(age) if u64::try_from(*age).unwrap_or_default() < node_lease::SECONDS => None,
        Some(age) => Some(format!("{node} (Lease {age} s old)")),
        None => Some(format!("{node} (no Lease)")),
    });
    let (all, stale) = (ages.len(), stale.collect::<Vec<_>>());
    let (count, names) = (stale.len(), list(&stale));
    if count == 0 {
        return Finding::good(format!(
            "the machines of {all} pods renew their Leases: they reach the API server"
        ));
    }
    Finding::bad(format!("{count} of {all} machines whose pods run do not reach the API server: {names}"))
        .hint(format!("see the logs of their pods: kubectl logs -n {namespace} -l name=hollow-node --tail=50"))
        .hint("a NetworkPolicy, a DNS name or a certificate without the server's in-cluster address can be the cause; a machine in a silent phase (spec.failures.mode) looks the same")
}

/// Some of the names, and the number of the others.
pub(super) fn list(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_MAX { format!("{shown} and {} more", names.len() - NAMES_MAX) } else { shown }
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
