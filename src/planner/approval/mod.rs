//! Approval of the client certificates that machines request.
//!
//! A machine's first request uses a token of the machines' ServiceAccount that is bound to its Node: the API server
//! puts the Node's name and UID into the request's `extra` fields. Later requests use the certificate itself.
//!
//! Invariant: requests that are not from machines of this operator are ignored: other approvers may serve other Nodes.

mod subject;
#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use kube_node_api::machine_identity::{Account, GROUP, LIFETIME_MAX, SIGNER, USAGES, USER_PREFIX};

use subject::Subject;

/// `extra` keys of a token that is bound to a Node, or to a pod on a Node.
const EXTRA_NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const EXTRA_NODE_UID: &str = "authentication.kubernetes.io/node-uid";
/// `extra` key of a token that is bound to a pod.
const EXTRA_POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// The Node that a request refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// UID of the Node.
    pub uid: String,
    /// Provider that serves the Node.
    pub server: NodeServer,
    /// True if the Node has a machine that is not being deleted.
    pub has_machine: bool,
}

/// Provider that serves a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeServer {
    /// A provider in this process, for machines whose identity starts with a token of this `ServiceAccount`.
    Dedicated(Account),
    /// A provider in this process, for machines that share an identity.
    Shared,
    /// No provider in this process.
    Elsewhere,
}

/// Decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsrDecision {
    /// Approve: the request is valid.
    Approve,
    /// Deny: the request is invalid.
    Deny(Denial),
    /// Ignore: the request is left to other approvers.
    Ignore,
}

/// Reason why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Reason of the condition.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
}

/// Kind of requester.
enum Requester<'a> {
    /// A machine without a certificate: the token's account, and name and UID of the Node that it is bound to.
    Token(Account, Result<(&'a str, &'a str), Denial>),
    /// A node with its own certificate.
    Node(&'a str),
    Other,
}

/// The Node to read before [`decide`]; None if no Node would change the decision. `namespace` has the accounts of
/// machines.
pub fn node_of<'a>(request: &'a CertificateSigningRequestSpec, namespace: &str) -> Option<&'a str> {
    match requester(request, namespace) {
        Requester::Token(_, Ok((node, _))) | Requester::Node(node) => Some(node),
        Requester::Token(_, Err(_)) | Requester::Other => None,
    }
}

/// Decides on a request; `node` is the Node that [`node_of`] named, None if it does not exist.
pub fn decide(request: &CertificateSigningRequestSpec, namespace: &str, node: Option<&Node>) -> CsrDecision {
    let checked = match requester(request, namespace) {
        Requester::Other => return CsrDecision::Ignore,
        Requester::Token(account, binding) => {
            binding.and_then(|binding| begins(request, account, binding, node))
        }
        Requester::Node(name) => match node.filter(|node| matches!(node.server, NodeServer::Dedicated(_))) {
            Some(node) => asks_for(request, name).and_then(|()| has_machine(name, node)),
            None => return CsrDecision::Ignore,
        },
    };
    match (checked, node) {
        (Err(denial), _) => CsrDecision::Deny(denial),
        // Only the provider that serves the Node knows its machine.
        (Ok(()), Some(Node { server: NodeServer::Elsewhere, .. })) => CsrDecision::Ignore,
        (Ok(()), _) => CsrDecision::Approve,
    }
}

fn requester<'a>(request: &'a CertificateSigningRequestSpec, namespace: &str) -> Requester<'a> {
    let username = request.username.as_deref().unwrap_or_default();
    if request.signer_name != SIGNER {
        return Requester::Other;
    }
    if let Some(account) = Account::ALL.into_iter().find(|account| username == account.user(namespace)) {
        return Requester::Token(account, binding(request));
    }
    match username.strip_prefix(USER_PREFIX) {
        Some(node) if !node.is_empty() && request.groups.iter().flatten().any(|group| group == GROUP) => {
            Requester::Node(node)
        }
        _ => Requester::Other,
    }
}

/// Name and UID of the Node that the token is bound to.
fn binding(request: &CertificateSigningRequestSpec) -> Result<(&str, &str), Denial> {
    // A pod's token carries the Node that the pod runs on: any pod of that ServiceAccount could pose as its Node.
    let extra = |key| request.extra.as_ref().and_then(|extra| extra.get(key));
    deny_if(extra(EXTRA_POD_NAME).is_some(), "TokenOfPod", || {
        "the token is bound to a pod: only one that is bound to a Node counts".to_owned()
    })?;
    let one = |key| match extra(key).map(Vec::as_slice) {
        Some([value]) if !value.is_empty() => Ok(value.as_str()),
        _ => Err(denial("TokenNotBound", "the token is not bound to a Node")),
    };
    Ok((one(EXTRA_NODE_NAME)?, one(EXTRA_NODE_UID)?))
}

fn begins(
    request: &CertificateSigningRequestSpec,
    account: Account,
    (name, uid): (&str, &str),
    node: Option<&Node>,
) -> Result<(), Denial> {
    asks_for(request, name)?;
    let node = node.ok_or_else(|| denial("NodeNotFound", format!("there is no Node {name}: it is gone")))?;
    deny_if(node.uid != uid, "NodeReplaced", || {
        format!("Node {name} has another UID than the token: the one with {uid} is gone")
    })?;
    match node.server {
        NodeServer::Dedicated(own) => {
            deny_if(own != account, "OtherAccount", || {
                format!("the machine of Node {name} asks by a token of {}, and of no other", own.name())
            })?;
            has_machine(name, node)
        }
        NodeServer::Elsewhere => Ok(()),
        NodeServer::Shared => {
            Err(denial("NotAMachine", format!("the machine of Node {name} has no identity of its own")))
        }
    }
}

fn has_machine(name: &str, node: &Node) -> Result<(), Denial> {
    deny_if(!node.has_machine, "NoMachine", || {
        format!("Node {name} has no machine, or one that is being deleted")
    })
}

/// Checks that the request asks for no more than the certificate of `node`.
fn asks_for(request: &CertificateSigningRequestSpec, node: &str) -> Result<(), Denial> {
    let subject = Subject::of(&request.request.0)
        .map_err(|error| denial("Unreadable", format!("the request {error}")))?;
    let user = format!("{USER_PREFIX}{node}");
    deny_if(subject.common_names != [user.as_str()], "OtherName", || {
        format!("it asks for the name {}, where {user} asks", shown(&subject.common_names))
    })?;
    deny_if(subject.organizations != [GROUP], "OtherGroups", || {
        format!("it asks for the groups {}: only {GROUP} is granted", shown(&subject.organizations))
    })?;
    for (is_wrong, reason, message) in [
        (subject.has_others, "OtherAttributes", "its subject has more than CN and O"),
        (subject.has_alternatives, "AlternativeNames", "it asks for subject alternative names"),
        (subject.has_extensions, "Extensions", "it asks for extensions: usages belong into its spec"),
    ] {
        deny_if(is_wrong, reason, || message.to_owned())?;
    }
    let usages = request.usages.as_deref().unwrap_or_default();
    let is_exact =
        usages.len() == USAGES.len() && USAGES.iter().all(|usage| usages.iter().any(|own| own == usage));
    deny_if(!is_exact, "OtherUsages", || {
        format!("it asks for the usages {}: only {} are granted", shown(usages), shown(&USAGES))
    })?;
    // Without a lifetime, the signer would choose one.
    let lifetime = request.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let is_long = lifetime.is_none_or(|seconds| Duration::from_secs(seconds) > LIFETIME_MAX);
    deny_if(is_long, "TooLong", || {
        format!("it must ask for a life (expirationSeconds) of {} s at most", LIFETIME_MAX.as_secs())
    })
}

fn denial(reason: &'static str, message: impl Into<String>) -> Denial {
    Denial { reason, message: message.into() }
}

fn deny_if(wrong: bool, reason: &'static str, message: impl FnOnce() -> String) -> Result<(), Denial> {
    if wrong { Err(denial(reason, message())) } else { Ok(()) }
}

/// Some texts of the requester, for people; the requester chooses them, so they are truncated.
fn shown<T: AsRef<str>>(texts: &[T]) -> String {
    let shown = texts.iter().take(4).map(|text| text.as_ref().chars().take(64).collect());
    format!("{:?}", shown.collect::<Vec<String>>())
}
