//! Scenarios: actions of kubemark, and the results that the cluster sees.

use std::collections::BTreeMap;

use hollow_kubelet::health::UNHEALTHY;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_node_api::{FailureMode, GoDuration};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000 + second).unwrap()
}

fn state(failures: Option<Failures>) -> NodeState {
    let mut state = NodeState::new(MachineDescription {
        node: "a".to_owned(),
        uid: "u".to_owned(),
        capacity: BTreeMap::from([("example.com/gpu".to_owned(), Quantity("2".to_owned()))]),
        allocatable: BTreeMap::from([("cpu".to_owned(), Quantity("3900m".to_owned()))]),
        kubelet_version: "v1.36.3".to_owned(),
        container_runtime: "containerd://2.1.0".to_owned(),
        commands: Vec::new(),
    });
    state.failures = failures;
    state
}

/// Unhealthy for 10 s, healthy for 20 s, periodically.
fn by_turns(mode: FailureMode) -> Failures {
    Failures {
        unhealthy_duration: GoDuration(Duration::from_secs(10)),
        healthy_duration: Some(GoDuration(Duration::from_secs(20))),
        turn_unhealthy_periodically: Some(true),
        mode: Some(mode),
        ..Failures::default()
    }
}

fn status() -> Value {
    json!({
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m",
                "lastTransitionTime": "1970-01-01T00:00:00Z"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "fakeRuntime://0.1.0"},
        },
    })
}

fn node(uid: &str, boot: &str) -> Value {
    json!({"metadata": {"name": "a", "uid": uid}, "status": {
        "nodeInfo": {"bootID": boot, "kubeletVersion": "v1.36.3"},
        "conditions": [{"type": "Ready", "status": "False", "reason": UNHEALTHY.reason, "message": UNHEALTHY.message}],
    }})
}

fn ready(written: Option<&Value>) -> &Value {
    &written.expect("a status is forwarded")["status"]["conditions"][0]["status"]
}

#[test]
fn the_first_status_is_the_boot_and_phases_count_from_it() {
    let mut state = state(Some(by_turns(FailureMode::Reported)));
    assert_eq!(state.presence(at(0)).changes_in, None, "no boot, no time");
    let written = state.write_status(status(), at(100));
    assert_eq!(ready(written.as_ref()), "False");
    let body = written.unwrap();
    let info = &body["status"]["nodeInfo"];
    assert_eq!(info["containerRuntimeVersion"], "containerd://2.1.0");
    assert_eq!(body["status"]["allocatable"], json!({"cpu": "3900m"}));
    assert_eq!(body["status"]["capacity"], json!({"example.com/gpu": "2"}), "what kubemark has no flag for");
    let recorded = boot::recorded(info["bootID"].as_str()).and_then(boot::time);
    assert_eq!(recorded, Some(at(100)));
    assert_eq!(
        state.presence(at(103)),
        Presence { behaviour: Behaviour::Reported, changes_in: Some(Duration::from_secs(7)), is_alive: true }
    );
    assert_eq!(state.presence(at(110)).behaviour, Behaviour::Healthy);
    assert_eq!(ready(state.write_status(status(), at(112)).as_ref()), "True");
    assert_eq!(ready(state.write_status(status(), at(131)).as_ref()), "False", "and again");
}

#[test]
fn a_proxy_that_starts_again_goes_on_counting() {
    let boot = boot::first("u", at(0)).to_string();
    let mut state = state(Some(by_turns(FailureMode::Reported)));
    assert!(state.observe(&node("u", &boot)));
    assert_eq!(state.presence(at(12)).changes_in, Some(Duration::from_secs(18)));
    let body = state.write_status(status(), at(35)).expect("reported");
    assert_eq!(body["status"]["nodeInfo"]["bootID"], *boot);
    // kubemark reads no boot ID, and its own report of its health.
    let mut read = node("u", &boot);
    state.rewrite_read(&mut read, at(36));
    assert_eq!(read["status"]["nodeInfo"]["bootID"], "");
    assert_eq!(read["status"]["conditions"][0]["status"], "True");
    let mut list = json!({"items": [node("u", &boot)]});
    state.rewrite_read(&mut list, at(36));
    assert_eq!(list["items"][0], read);
}

#[test]
fn a_silent_machine_keeps_its_first_status_for_later() {
    let mut state = state(Some(by_turns(FailureMode::Silent)));
    let unwritten = json!({"metadata": {"name": "a", "uid": "u"}, "status": {}});
    assert_eq!(state.correction(&unwritten, Behaviour::Healthy, at(0)), Correction::NotYet);
    let labels = json!({"metadata": {"labels": {"kubernetes.io/hostname": "a"}}});
    assert_eq!(state.write_status(labels.clone(), at(0)), None);
    assert_eq!(state.write_status(status(), at(1)), None);
    assert_eq!(state.presence(at(11)).behaviour, Behaviour::Healthy);
    let Correction::Patch(patch) = state.correction(&unwritten, Behaviour::Healthy, at(11)) else {
        panic!("what it said is known")
    };
    assert_eq!(patch["metadata"], labels["metadata"]);
    assert_eq!(patch["status"]["conditions"], status()["status"]["conditions"]);
    assert_eq!(patch["status"]["nodeInfo"]["containerRuntimeVersion"], "containerd://2.1.0");
    // Once the Node shows that status, only its conditions are compared.
    let Correction::Patch(patch) = state.correction(&node("u", ""), Behaviour::Healthy, at(12)) else {
        panic!("Ready is to be True")
    };
    assert!(patch["status"].get("nodeInfo").is_none());
}

#[test]
fn nobody_speaks_for_a_kubelet_that_is_dead() {
    let mut state = state(None);
    assert!(!state.presence(at(0)).is_alive, "nothing was heard of it yet");
    state.record_heartbeat(at(0));
    assert!(state.presence(at(39)).is_alive);
    assert!(!state.presence(at(40)).is_alive);
}

#[test]
fn a_node_that_is_gone_or_another_is_noticed_wherever_it_is_read() {
    let mut read = node("other", "");
    let mut state_ = state(None);
    state_.rewrite_read(&mut read, at(0));
    assert_eq!(read, node("other", ""), "it is not ours to change");
    let gone = state_.gone.unwrap().to_string();
    assert!(gone.contains("has UID other and not u"), "{gone}");

    let mut state_ = state(None);
    let mut elsewhere = json!({"type": "DELETED", "object": {"metadata": {"name": "b", "uid": "v"}}});
    state_.rewrite_event(&mut elsewhere, at(0));
    // The deletion of an earlier Node of that name does not matter either.
    let mut earlier = json!({"type": "DELETED", "object": {"metadata": {"name": "a", "uid": "v"}}});
    state_.rewrite_event(&mut earlier, at(0));
    state_.rewrite_event(
        &mut json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}),
        at(0),
    );
    assert_eq!(state_.gone, None);
    state_.rewrite_event(&mut json!({"type": "DELETED", "object": node("u", "")}), at(0));
    assert!(state_.gone.unwrap().to_string().starts_with("Node a was deleted"));
}
