//! Findings from objects as clusters show them.

use serde_json::{Value, json};

use super::*;

fn pod(status: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
}

fn container(state: &Value, more: &Value) -> Value {
    let mut status = json!({"name": "hollow-kubelet", "state": state, "ready": false, "restartCount": 0,
        "image": "", "imageID": ""});
    for (key, value) in more.as_object().unwrap() {
        status[key] = value.clone();
    }
    json!({"phase": "Running", "containerStatuses": [status]})
}

#[test]
fn a_pod_in_trouble_is_told_with_the_container_to_ask() {
    let crash = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
    let last = json!({"restartCount": 3, "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "error: Node a was deleted\n"}}});
    let crashed = pod(&container(&crash, &last));
    let why = trouble(&crashed).unwrap();
    assert!(
        why.starts_with("CrashLoopBackOff: container hollow-kubelet exited with code 1: error: Node a"),
        "{why}"
    );
    assert_eq!(failed_container(&crashed), Some(("hollow-kubelet".to_owned(), true)));
    let killed =
        pod(&container(&json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), &json!({})));
    assert_eq!(failed_container(&killed), Some(("hollow-kubelet".to_owned(), false)));
    // A container that never ran has no log.
    let pull = pod(&container(
        &json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
        &json!({}),
    ));
    assert!(trouble(&pull).unwrap().contains("no such image"));
    assert_eq!(failed_container(&pull), None);
}

#[test]
fn a_pod_that_works_or_begins_is_left_alone() {
    for state in [json!({"running": {}}), json!({"waiting": {"reason": "ContainerCreating"}})] {
        let pod = pod(&container(&state, &json!({"restartCount": 2})));
        assert_eq!((trouble(&pod), failed_container(&pod)), (None, None));
    }
}

#[test]
fn secrets_are_found_in_volumes_of_both_kinds() {
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
        {"name": "a", "secret": {"secretName": "one"}},
        {"name": "b", "projected": {"sources": [{"secret": {"name": "two"}}, {"secret": {"name": "may-lack", "optional": true}}]}},
        {"name": "c", "emptyDir": {}},
    ]}}))
    .unwrap();
    assert_eq!(needed_secrets(&pod), ["one", "two"]);
}

fn csr(status: &Value) -> CertificateSigningRequest {
    serde_json::from_value(json!({
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"request": "", "signerName": "s", "username": "system:serviceaccount:kubemark:kube-node-machine",
            "extra": {"authentication.kubernetes.io/node-name": ["a"]}},
        "status": status,
    }))
    .unwrap()
}

#[test]
fn a_request_that_is_stuck_says_who_has_to_answer() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let (soon, late) = (at("2026-01-01T00:00:05Z"), at("2026-01-01T00:01:00Z"));
    let refused = |status: Value, now| {
        refusal(&csr(&status), now).map(|(why, hint)| format!("{why}; {hint}")).unwrap_or_default()
    };
    assert_eq!(refused(json!({}), soon), "", "it may come");
    assert!(refused(json!({}), late).starts_with("not approved for 60 s; the operator approves"));
    let approved = json!([{"type": "Approved", "status": "True"}]);
    assert!(refused(json!({"conditions": approved}), late).starts_with("approved, and not signed for 60 s"));
    assert_eq!(refused(json!({"conditions": approved, "certificate": "Q0VSVA=="}), late), "");
    let denied = json!([{"type": "Denied", "status": "True", "reason": "OtherNode", "message": "UID"}]);
    assert!(refused(json!({"conditions": denied}), soon).starts_with("denied: OtherNode: UID"));
    assert_eq!(node_of(&csr(&json!({}))), Some("a"));
}

#[test]
fn a_machine_without_a_fresh_lease_does_not_reach_the_server() {
    let good = reachability(&BTreeMap::from([("a".to_owned(), Some(39))]), "kubemark");
    assert_eq!(good.severity, Severity::Good);
    let ages = [("a", Some(3)), ("b", Some(40)), ("c", None)];
    let bad = reachability(&ages.map(|(node, age)| (node.to_owned(), age)).into(), "kubemark");
    assert_eq!(bad.severity, Severity::Bad);
    assert!(
        bad.message.contains("2 of 3 machines") && bad.message.contains("b (Lease 40 s old), c (no Lease)"),
        "{}",
        bad.message
    );
}

#[test]
fn a_check_of_nodes_that_could_not_be_made_fails_the_command_as_a_problem_does() {
    let unknown = |topic| Finding::of(topic, Err(anyhow::anyhow!("forbidden")));
    assert!(["kinds", "operator", "NodeSets", "nodes"].into_iter().all(|topic| unknown(topic).is_failure()));
    assert!(!unknown("credentials").is_failure(), "the role for people does not read Secrets");
    assert!(Finding::bad("0 of 1 are Ready").is_failure());
    assert!(!Finding::odd("0 of 1 are Ready").is_failure() && !Finding::good("it answers").is_failure());
}

#[test]
fn findings_read_as_lines() {
    let finding = Finding::of("operator", Ok(Finding::bad("none answers").hint("start one")));
    assert_eq!(finding.to_string(), "BAD  operator     none answers\n                  start one");
    let unknown = Finding::of("rights", Err(anyhow::anyhow!("no answer").context("cannot ask")));
    assert_eq!(unknown.to_string(), "?    rights       not known: cannot ask: no answer");
    let names: Vec<String> = (0..7).map(|n| n.to_string()).collect();
    assert_eq!(list(&names), "0, 1, 2, 3, 4 and 2 more");
}
