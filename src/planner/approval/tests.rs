//! Forged certificate requests, none of which is approved.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};

use super::*;

const NODE: &str = "workers-bcd234";
/// Namespace of the machines' accounts.
const NAMESPACE: &str = "machines";
const UID: &str = "0b8f6f0e-0000-4000-8000-000000000001";

/// Forges an honest request.
type Change = fn(&mut CertificateSigningRequestSpec);

/// A request in PEM with this subject, modified by `change`.
fn pem(name: &str, group: &str, change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, name);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap().into_bytes()
}

fn error(pem: &[u8]) -> String {
    Subject::of(pem).unwrap_err().to_string()
}

fn encoded(name: &str, group: &str) -> ByteString {
    ByteString(pem(name, group, |_| {}))
}

fn lifetime_max() -> i32 {
    LIFETIME_MAX.as_secs().try_into().unwrap()
}

fn extra(request: &mut CertificateSigningRequestSpec) -> &mut BTreeMap<String, Vec<String>> {
    request.extra.as_mut().unwrap()
}

/// First request of an honest machine.
fn first() -> CertificateSigningRequestSpec {
    let extra = [(EXTRA_NODE_NAME, NODE), (EXTRA_NODE_UID, UID)];
    CertificateSigningRequestSpec {
        signer_name: SIGNER.to_owned(),
        username: Some(Account::Kubemark.user(NAMESPACE)),
        groups: Some(vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()]),
        extra: Some(extra.map(|(key, value)| (key.to_owned(), vec![value.to_owned()])).into()),
        usages: Some(USAGES.map(str::to_owned).into()),
        expiration_seconds: Some(lifetime_max()),
        request: encoded("system:node:workers-bcd234", GROUP),
        uid: None,
    }
}

/// Renewal by an honest machine.
fn renewal() -> CertificateSigningRequestSpec {
    CertificateSigningRequestSpec {
        username: Some(format!("{USER_PREFIX}{NODE}")),
        groups: Some(vec![GROUP.to_owned(), "system:authenticated".to_owned()]),
        extra: None,
        ..first()
    }
}

fn node() -> Node {
    Node { uid: UID.to_owned(), server: NodeServer::Dedicated(Account::Kubemark), has_machine: true }
}

fn reason(request: &CertificateSigningRequestSpec, node: Option<&Node>) -> &'static str {
    match decide(request, NAMESPACE, node) {
        CsrDecision::Approve => "approved",
        CsrDecision::Ignore => "ignored",
        CsrDecision::Deny(Denial { reason, .. }) => reason,
    }
}

#[test]
fn honest_requests_are_approved() {
    for request in [first(), renewal()] {
        assert_eq!(node_of(&request, NAMESPACE), Some(NODE));
        assert_eq!(decide(&request, NAMESPACE, Some(&node())), CsrDecision::Approve);
    }
}

#[test]
fn a_machine_begins_with_a_token_of_its_own_kind_alone() {
    for (account, other) in [(Account::Kubemark, Account::Hollow), (Account::Hollow, Account::Kubemark)] {
        let request = CertificateSigningRequestSpec { username: Some(account.user(NAMESPACE)), ..first() };
        let of = |account| Node { server: NodeServer::Dedicated(account), ..node() };
        assert_eq!(decide(&request, NAMESPACE, Some(&of(account))), CsrDecision::Approve);
        assert_eq!(reason(&request, Some(&of(other))), "OtherAccount");
        assert_eq!(
            decide(&renewal(), NAMESPACE, Some(&of(account))),
            CsrDecision::Approve,
            "later it asks by itself"
        );
    }
}

#[test]
fn a_request_for_more_than_its_own_certificate_is_denied_first_and_later() {
    let forged: [(&str, Change); 16] = [
        ("OtherName", |r| r.request = encoded("system:node:other", GROUP)),
        ("OtherName", |r| r.request = encoded("workers-bcd234", GROUP)),
        ("OtherName", |r| r.request = encoded("system:node:WORKERS-bcd234", GROUP)),
        ("OtherGroups", |r| r.request = encoded("system:node:workers-bcd234", "system:masters")),
        ("OtherGroups", |r| {
            let second = DnType::CustomDnType(vec![2, 5, 4, 10]);
            r.request = ByteString(pem("system:node:workers-bcd234", GROUP, |params| {
                params.distinguished_name.push(second, "system:masters");
            }));
        }),
        ("OtherName", |r| {
            let second = DnType::CustomDnType(vec![2, 5, 4, 3]);
            r.request = ByteString(pem("system:node:workers-bcd234", GROUP, |params| {
                params.distinguished_name.push(second, "system:node:other");
            }));
        }),
        ("OtherAttributes", |r| {
            r.request = ByteString(pem("system:node:workers-bcd234", GROUP, |params| {
                params.distinguished_name.push(DnType::OrganizationalUnitName, "x");
            }));
        }),
        ("AlternativeNames", |r| {
            r.request = ByteString(pem("system:node:workers-bcd234", GROUP, |params| {
                params.subject_alt_names = vec![SanType::DnsName("kubernetes".try_into().unwrap())];
            }));
        }),
        ("Extensions", |r| {
            r.request = ByteString(pem("system:node:workers-bcd234", GROUP, |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }));
        }),
        ("OtherUsages", |r| r.usages = Some(vec!["server auth".to_owned(), "digital signature".to_owned()])),
        ("OtherUsages", |r| r.usages.as_mut().unwrap().push("cert sign".to_owned())),
        ("OtherUsages", |r| r.usages = None),
        ("TooLong", |r| r.expiration_seconds = Some(lifetime_max() + 1)),
        ("TooLong", |r| r.expiration_seconds = Some(-1)),
        ("TooLong", |r| r.expiration_seconds = None),
        ("Unreadable", |r| r.request = ByteString(b"nothing".to_vec())),
    ];
    for (wanted, forge) in forged {
        for honest in [first(), renewal()] {
            let mut request = honest;
            forge(&mut request);
            assert_eq!(reason(&request, Some(&node())), wanted, "{request:?}");
        }
    }
}

#[test]
fn a_token_speaks_for_the_node_that_it_is_bound_to_alone() {
    let forged: [(&str, Change); 6] = [
        ("TokenNotBound", |r| r.extra = None),
        ("TokenNotBound", |r| drop(extra(r).remove(EXTRA_NODE_UID))),
        ("TokenNotBound", |r| extra(r).get_mut(EXTRA_NODE_NAME).unwrap().push("other".to_owned())),
        ("TokenNotBound", |r| *extra(r).get_mut(EXTRA_NODE_NAME).unwrap() = vec![String::new()]),
        // A pod's token carries the Node of its kubelet too.
        ("TokenOfPod", |r| drop(extra(r).insert(EXTRA_POD_NAME.to_owned(), vec!["p".to_owned()]))),
        ("OtherName", |r| *extra(r).get_mut(EXTRA_NODE_NAME).unwrap() = vec!["other".to_owned()]),
    ];
    for (wanted, forge) in forged {
        let mut request = first();
        forge(&mut request);
        assert_eq!(reason(&request, Some(&node())), wanted, "{request:?}");
    }
}

#[test]
fn a_node_must_be_there_ours_the_same_and_have_a_machine() {
    let first = first();
    assert_eq!(reason(&first, None), "NodeNotFound");
    assert_eq!(reason(&first, Some(&Node { uid: "u-2".to_owned(), ..node() })), "NodeReplaced");
    assert_eq!(reason(&first, Some(&Node { server: NodeServer::Shared, ..node() })), "NotAMachine");
    assert_eq!(reason(&first, Some(&Node { has_machine: false, ..node() })), "NoMachine");
    assert_eq!(reason(&renewal(), Some(&Node { has_machine: false, ..node() })), "NoMachine");
}

#[test]
fn requests_of_others_are_left_alone() {
    let others: [Change; 5] = [
        |r| r.signer_name = "kubernetes.io/kube-apiserver-client".to_owned(),
        |r| r.username = Some("system:bootstrap:abcdef".to_owned()),
        |r| r.username = Some("system:serviceaccount:default:kube-node-machine".to_owned()),
        |r| r.username = Some(USER_PREFIX.to_owned()),
        |r| r.username = Some("jane".to_owned()),
    ];
    for change in others {
        let mut request = first();
        change(&mut request);
        assert_eq!(reason(&request, Some(&node())), "ignored", "{request:?}");
        assert_eq!(node_of(&request, NAMESPACE), None);
    }
    // Requests of a real node, and of a Node whose machine shares an identity.
    for server in [NodeServer::Elsewhere, NodeServer::Shared] {
        assert_eq!(reason(&renewal(), Some(&Node { server, ..node() })), "ignored");
    }
    // The provider that serves the Node approves; any operator may deny a forged request.
    let elsewhere = Node { server: NodeServer::Elsewhere, has_machine: false, ..node() };
    assert_eq!(reason(&first(), Some(&elsewhere)), "ignored");
    assert_eq!(
        reason(&CertificateSigningRequestSpec { usages: None, ..first() }, Some(&elsewhere)),
        "OtherUsages"
    );
    assert_eq!(reason(&renewal(), None), "ignored");
    assert_eq!(
        reason(&CertificateSigningRequestSpec { groups: None, ..renewal() }, Some(&node())),
        "ignored"
    );
}

#[test]
fn only_a_request_is_read_as_one() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::default().self_signed(&key).unwrap().pem();
    assert!(error(certificate.as_bytes()).starts_with("is not PEM"));
    let relabelled = certificate.replace("CERTIFICATE", "CERTIFICATE REQUEST");
    assert_eq!(error(relabelled.as_bytes()), "is no PKCS #10");
    let two = [pem("system:node:a", GROUP, |_| {}), pem("system:node:b", GROUP, |_| {})].concat();
    assert!(error(&two).starts_with("is not PEM"), "the signer might read the other one");
    let honest = Subject::of(&pem("system:node:a", GROUP, |_| {})).unwrap();
    assert_eq!(honest.common_names, ["system:node:a"]);
    assert_eq!(honest.organizations, [GROUP]);
    assert!(!honest.has_others && !honest.has_alternatives && !honest.has_extensions);
}
