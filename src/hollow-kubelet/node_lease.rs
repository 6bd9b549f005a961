//! Node Lease of a machine: renews it, with the request that fits the known state of the API server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as ApiLease;
use k8s_pb::{
    api::coordination::v1::{Lease as PbLease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, MicroTime, ObjectMeta, OwnerReference},
};
use kube::{Api, Client, api::ListParams};
use kube_ext::{
    call::ApiError,
    objects::list_pages,
    transport::{Body, TransportError, envelope},
};
use kube_node_api::{names, node_lease, time};
use serde_json::json;

use super::{
    clock::Clock,
    machine::Machine,
    request::{FailureCount, Request, owned_by, spread},
    schedule::{Priority, RENEW_INTERVAL, Schedule},
};

/// Namespace of all node Leases.
const NAMESPACE: &str = "kube-node-lease";
/// Label of a Lease written by the shared identity.
const LABEL: (&str, &str) = (names::LABEL_NODE_CONTROLLER, "hollow");

/// Node Lease of a machine.
#[derive(Debug, Default)]
pub struct NodeLease {
    known: Known,
    /// Time of the last renewal; None before the first.
    pub renewed: Option<Timestamp>,
    /// True if the last write failed.
    failed: bool,
    /// True if writes leave the owner references to others: somebody has removed them, and only who may delete the Lease may
    /// set them again.
    unowned: bool,
    failures: FailureCount,
}

#[derive(Clone, Debug, Default)]
enum Known {
    /// The server has no Lease, since the machine is new.
    #[default]
    Absent,
    /// The server has no Lease, although the machine has worked before: the Node's grace period is running out.
    Lost,
    /// The server has a Lease of unknown version: by an earlier process, or by a write whose answer was lost.
    Present,
    /// The server has this version. `bare`: the server keeps no `managedFields` of it any more.
    Version { version: Box<str>, bare: bool },
}

impl Known {
    const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent | Self::Lost)
    }
}

impl NodeLease {
    /// A Lease that an earlier process may have left, last renewed at `renewed`.
    pub fn taken_over(renewed: Option<Timestamp>) -> Self {
        Self { known: Known::Present, renewed, ..Self::default() }
    }

    /// Queues the next renewal for its due time, or for now if that is unknown.
    pub fn enqueue(&self, uid: &Arc<str>, machine: &Machine, schedule: &mut Schedule, now: Clock) {
        let renewed = self.renewed.map(|renewed| now.since(time::after(renewed, RENEW_INTERVAL)));
        schedule.enqueue(self.priority_of(machine), uid, renewed.unwrap_or(now.at));
    }

    /// The request that renews the Lease now; None without a Node, and for a silent machine.
    pub fn prepare(
        &self,
        uid: &Arc<str>,
        machine: &Machine,
        schedule: &mut Schedule,
        now: Clock,
    ) -> Option<Request> {
        // A machine without its Node needs no Lease.
        let view = machine.view.as_ref()?;
        let phase = machine.phase(now);
        if machine.is_silent_in(phase) {
            if let Some(left) = phase.changes_in {
                schedule.enqueue(self.priority_of(machine), uid, now.at + left);
            }
            return None;
        }
        // A kubemark machine, which is a pod, runs this code too, but with its own identity.
        let is_shared = machine.dedicated.is_none() && view.label(LABEL.0) == Some(LABEL.1);
        Some(self.request(&machine.node, uid, is_shared, now.wall))
    }

    /// Applies the answer to a request made at `sent`, and queues the next one. Returns true after the first
    /// renewal by this process.
    pub fn conclude(
        &mut self,
        uid: &Arc<str>,
        machine: &Machine,
        schedule: &mut Schedule,
        (answer, sent): (Result<&str, &TransportError>, Timestamp),
        now: Clock,
    ) -> bool {
        let is_first = !matches!(self.known, Known::Version { .. });
        let at_once = self.answered(answer, sent);
        let at = match answer {
            Ok(_) => {
                self.failures = FailureCount::default();
                // The spread keeps machines created together apart. No renewal is due later than the interval:
                // a due renewal gives way to other jobs until its Lease has reached the maximum age.
                now.since(sent) + spread(RENEW_INTERVAL, if is_first { 0.5 } else { 0.96 })
            }
            Err(_) if at_once => now.at,
            Err(error) => now.at + self.failures.add_logged(&machine.node, "Lease", error),
        };
        if machine.view.is_some() {
            schedule.enqueue(self.priority_of(machine), uid, at);
        }
        is_first && answer.is_ok()
    }

    /// Priority of the next write. A machine with a dedicated client renews as a kubelet does: unbatched, and
    /// without giving way to other jobs.
    fn priority_of(&self, machine: &Machine) -> Priority {
        if machine.dedicated.is_some() { Priority::Prompt } else { self.priority() }
    }

    /// Priority of the next write with the shared client. A Lease of unknown age or after a failure is prompt:
    /// it may have waited long already.
    fn priority(&self) -> Priority {
        match (self.renewed, &self.known) {
            (_, Known::Absent) => Priority::Lease,
            (Some(_), _) if !self.failed => Priority::Renewal,
            _ => Priority::Prompt,
        }
    }

    /// The request that renews the Lease.
    ///
    /// The Lease has no other writer, so a PUT needs no GET before. One PUT empties `managedFields`, after
    /// which the server stops keeping them and each renewal costs it a third less. (The server ignores the
    /// empty field in a POST.)
    ///
    /// `labelled`: the identity shared by all hollow kubelets writes this Lease. The label exempts each
    /// renewal from an admission policy.
    fn request(&self, node: &Arc<str>, uid: &Arc<str>, labelled: bool, now: Timestamp) -> Request {
        let labels: BTreeMap<String, String> =
            labelled.then(|| (LABEL.0.to_owned(), LABEL.1.to_owned())).into_iter().collect();
        let owner = (!self.unowned || self.known.is_absent()).then(|| owned_by(node, uid));
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
        let own = format!("{all}/{node}");
        let (method, path, version, empty_fields) = match &self.known {
            Known::Absent | Known::Lost => (Method::POST, all, None, false),
            Known::Present => {
                let body = Body::MergePatch(take_over(node, owner, &labels, now));
                return Request { method: Method::PATCH, path: own, body };
            }
            Known::Version { version, bare } => (Method::PUT, own, Some(version.to_string()), !bare),
        };
        let lease = PbLease {
            metadata: Some(ObjectMeta {
                name: Some(node.to_string()),
                namespace: Some(NAMESPACE.to_owned()),
                labels,
                resource_version: version,
                owner_references: owner.into_iter().collect(),
                managed_fields: if empty_fields { vec![ManagedFieldsEntry::default()] } else { vec![] },
                ..ObjectMeta::default()
            }),
            spec: Some(LeaseSpec {
                holder_identity: Some(node.to_string()),
                lease_duration_seconds: i32::try_from(node_lease::SECONDS).ok(),
                renew_time: Some(MicroTime {
                    seconds: Some(now.as_second()),
                    nanos: Some(now.subsec_nanosecond()),
                }),
                ..LeaseSpec::default()
            }),
        };
        Request { method, path, body: Body::Object(envelope("coordination.k8s.io/v1", "Lease", &lease)) }
    }

    /// Records the answer to a request made at `sent`. Returns true if a better request should follow now.
    fn answered(&mut self, answer: Result<&str, &TransportError>, sent: Timestamp) -> bool {
        let before = std::mem::take(&mut self.known);
        let had_failed = std::mem::replace(&mut self.failed, answer.is_err());
        match answer {
            Ok(version) => {
                self.renewed = Some(sent);
                self.known = Known::Version { version: version.into(), bare: !before.is_absent() };
                false
            }
            Err(error) => {
                // A write that changes owner references is forbidden; whether another cause forbade it the next attempt tells.
                self.unowned ^= error.code() == Some(403) && !before.is_absent();
                self.known = match error.code() {
                    Some(403) if !before.is_absent() => Known::Present,
                    Some(404) if !matches!(before, Known::Absent) => Known::Lost,
                    // Created or changed by a write whose answer was lost, or by an earlier process.
                    Some(409) => Known::Present,
                    _ => before.clone(),
                };
                // A POST without a namespace and a conflicting patch gain nothing from an immediate retry.
                match error.code() {
                    Some(403) => !had_failed && !before.is_absent(),
                    Some(404) => !before.is_absent(),
                    Some(409) => !matches!(before, Known::Present),
                    _ => false,
                }
            }
        }
    }
}

/// Last renewal time of each Lease, by Node name.
pub async fn renewals(client: &Client) -> Result<HashMap<String, Timestamp>, ApiError> {
    let leases: Api<ApiLease> = Api::namespaced(client.clone(), NAMESPACE);
    let mut renewals = HashMap::new();
    let renewed = |lease: ApiLease| Some((lease.metadata.name?, lease.spec?.renew_time?.0));
    list_pages(&leases, "Leases", ListParams::default(), |lease| renewals.extend(renewed(lease))).await?;
    Ok(renewals)
}

/// Merge patch that takes over any Lease; without an owner the references stay as they are.
fn take_over(
    node: &str,
    owner: Option<OwnerReference>,
    labels: &BTreeMap<String, String>,
    now: Timestamp,
) -> Vec<u8> {
    let mut metadata = json!({ "labels": labels, "managedFields": [{}] });
    if let Some(OwnerReference { api_version, kind, name, uid, .. }) = owner {
        metadata["ownerReferences"] =
            json!([{ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid }]);
    }
    json!({
        "metadata": metadata,
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": node_lease::SECONDS,
            // The server requires six fractional digits.
            "renewTime": format!("{now:.6}"),
        },
    })
    .to_string()
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> TransportError {
        TransportError::Refused(kube::core::Status::default().with_code(code).boxed())
    }

    fn method(lease: &NodeLease) -> Method {
        lease.request(&"a".into(), &"u".into(), true, Timestamp::UNIX_EPOCH).method
    }

    #[test]
    fn created_then_put_blindly() {
        let mut lease = NodeLease::default();
        assert_eq!(method(&lease), Method::POST);
        assert!(!lease.answered(Ok("1"), Timestamp::UNIX_EPOCH));
        assert_eq!(method(&lease), Method::PUT);
        assert!(matches!(lease.known, Known::Version { bare: false, .. }));
        assert!(!lease.answered(Ok("2"), Timestamp::UNIX_EPOCH));
        assert!(matches!(lease.known, Known::Version { bare: true, .. }));
        assert_eq!(lease.renewed, Some(Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn only_what_went_well_has_time() {
        let mut lease = NodeLease::default();
        assert_eq!(lease.priority(), Priority::Lease);
        lease.answered(Err(&refused(503)), Timestamp::UNIX_EPOCH);
        assert_eq!(lease.priority(), Priority::Lease, "none is there that could run out");
        lease.answered(Err(&refused(409)), Timestamp::UNIX_EPOCH);
        assert_eq!(lease.priority(), Priority::Prompt, "of whatever age");
        for (answer, priority) in [
            (Ok("1"), Priority::Renewal),
            (Err(503), Priority::Prompt),
            (Err(404), Priority::Prompt),
            (Err(503), Priority::Prompt),
            (Ok("2"), Priority::Renewal),
        ] {
            let answer = answer.map_err(refused);
            lease.answered(answer.as_ref().map(|version| *version), Timestamp::UNIX_EPOCH);
            assert_eq!(lease.priority(), priority, "{answer:?}");
        }
        let mut lease = NodeLease::taken_over(None);
        assert_eq!(lease.priority(), Priority::Prompt);
        lease.answered(Err(&refused(404)), Timestamp::UNIX_EPOCH);
        assert_eq!(lease.priority(), Priority::Prompt, "nobody has renewed for a Node that has been Ready");
        assert_eq!(NodeLease::taken_over(Some(Timestamp::UNIX_EPOCH)).priority(), Priority::Renewal);
    }

    #[test]
    fn surprises_lead_to_the_request_that_fits() {
        let mut lease = NodeLease::default();
        assert!(lease.answered(Err(&refused(409)), Timestamp::UNIX_EPOCH));
        assert_eq!(method(&lease), Method::PATCH);
        assert!(!lease.answered(Err(&refused(409)), Timestamp::UNIX_EPOCH));
        assert!(!lease.answered(Ok("7"), Timestamp::UNIX_EPOCH));
        assert!(lease.answered(Err(&refused(404)), Timestamp::UNIX_EPOCH));
        assert_eq!(method(&lease), Method::POST);
        assert!(!lease.answered(Err(&refused(404)), Timestamp::UNIX_EPOCH), "no namespace: no haste");
        assert!(!lease.answered(Ok("8"), Timestamp::UNIX_EPOCH));
        assert!(!lease.answered(Err(&refused(503)), Timestamp::UNIX_EPOCH));
        assert_eq!(method(&lease), Method::PUT);
    }

    #[test]
    fn a_lease_is_renewed_without_an_owner_after_the_owner_was_refused() {
        let names_owner = |lease: &NodeLease| {
            let (Body::Object(bytes) | Body::MergePatch(bytes)) =
                lease.request(&"a".into(), &"the-uid".into(), true, Timestamp::UNIX_EPOCH).body
            else {
                panic!("another body")
            };
            bytes.windows(7).any(|part| part == b"the-uid")
        };
        let mut lease = NodeLease::default();
        assert!(!lease.answered(Ok("1"), Timestamp::UNIX_EPOCH) && names_owner(&lease));
        assert!(lease.answered(Err(&refused(403)), Timestamp::UNIX_EPOCH), "at once");
        assert_eq!((method(&lease), names_owner(&lease)), (Method::PATCH, false));
        assert!(!lease.answered(Ok("2"), Timestamp::UNIX_EPOCH));
        assert_eq!((method(&lease), names_owner(&lease)), (Method::PUT, false));
        // A Lease that somebody has deleted is a new one.
        assert!(lease.answered(Err(&refused(404)), Timestamp::UNIX_EPOCH));
        assert_eq!((method(&lease), names_owner(&lease)), (Method::POST, true));
        assert!(!lease.answered(Ok("3"), Timestamp::UNIX_EPOCH));
        // Somebody has set the owner again.
        assert!(lease.answered(Err(&refused(403)), Timestamp::UNIX_EPOCH));
        assert_eq!((method(&lease), names_owner(&lease)), (Method::PATCH, true));
        assert!(!lease.answered(Err(&refused(403)), Timestamp::UNIX_EPOCH), "another cause: no haste");
        let mut lease = NodeLease::default();
        assert!(!lease.answered(Err(&refused(403)), Timestamp::UNIX_EPOCH));
        assert!(names_owner(&lease), "a new Lease always has its owner");
    }

    #[test]
    fn a_lease_of_the_shared_identity_is_labelled_by_each_write() {
        let label = b"kube-node.io/node-controller";
        for known in [Known::Absent, Known::Present, Known::Version { version: "1".into(), bare: true }] {
            let lease = NodeLease { known, ..NodeLease::default() };
            for labelled in [true, false] {
                let (Body::Object(bytes) | Body::MergePatch(bytes)) =
                    lease.request(&"a".into(), &"u".into(), labelled, Timestamp::UNIX_EPOCH).body
                else {
                    panic!("another body")
                };
                assert_eq!(
                    bytes.windows(label.len()).any(|part| part == label),
                    labelled,
                    "{:?}",
                    lease.known
                );
            }
        }
    }

    #[test]
    fn a_renewal_time_has_six_digits() {
        let patch = String::from_utf8(take_over("a", None, &BTreeMap::new(), Timestamp::UNIX_EPOCH)).unwrap();
        assert!(patch.contains("1970-01-01T00:00:00.000000Z"), "{patch}");
    }
}
