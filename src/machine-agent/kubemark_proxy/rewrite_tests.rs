//! Writes and reads of kubemark 1.36.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn overrides() -> Leaves {
    Leaves::from([
        (("nodeInfo", "bootID".to_owned()), json!("boot")),
        (("nodeInfo", "containerRuntimeVersion".to_owned()), json!("containerd://2.1.0")),
        (("allocatable", "cpu".to_owned()), json!("3900m")),
    ])
}

/// First status of a kubelet: the difference from a Node that has none yet.
fn first() -> Value {
    json!({
        "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "MemoryPressure"}],
        "allocatable": {"cpu": "4", "memory": "16Gi"},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
             "lastHeartbeatTime": "1970-01-01T00:01:40Z", "lastTransitionTime": "1970-01-01T00:01:40Z"},
            {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory",
             "message": "kubelet has sufficient memory available",
             "lastHeartbeatTime": "1970-01-01T00:01:40Z", "lastTransitionTime": "1970-01-01T00:01:40Z"},
        ],
        "nodeInfo": {"containerRuntimeVersion": "fakeRuntime://0.1.0", "kubeletVersion": "v1.36.3"},
    })
}

/// A Node with these conditions, all since second 50.
fn node(behaviour: Behaviour, status: &str) -> Value {
    let conditions: Vec<Value> = health::conditions(behaviour != Behaviour::Reported)
        .iter()
        .map(|condition| {
            let status = if status.is_empty() { condition.status } else { status };
            json!({"type": condition.r#type, "status": status, "reason": condition.reason,
                "message": condition.message, "lastTransitionTime": "1970-01-01T00:00:50Z"})
        })
        .collect();
    json!({
        "metadata": {"name": "a", "uid": "u"},
        "status": {
            "conditions": conditions,
            "allocatable": {"cpu": "3900m", "memory": "16Gi"},
            "nodeInfo": {"bootID": "boot", "containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": "v1.36.3"},
        },
    })
}

#[test]
fn the_first_status_says_what_the_machine_is_to_be() {
    let mut status = first();
    rewrite_written(&mut status, &overrides(), Behaviour::Healthy, None, at(100));
    assert_eq!(status["nodeInfo"]["bootID"], "boot");
    assert_eq!(status["nodeInfo"]["containerRuntimeVersion"], "containerd://2.1.0");
    assert_eq!(status["nodeInfo"]["kubeletVersion"], "v1.36.3", "what the image is");
    assert_eq!(status["allocatable"], json!({"cpu": "3900m", "memory": "16Gi"}));
    assert_eq!(status["conditions"], first()["conditions"]);
}

#[test]
fn an_unhealthy_phase_is_reported_since_the_node_is_not_ready() {
    for (shown, since) in [("False", 7), ("True", 100), ("Unknown", 100)] {
        let mut status = first();
        let shown = json!({"status": shown, "lastTransitionTime": at(7)});
        rewrite_written(&mut status, &overrides(), Behaviour::Reported, Some(&shown), at(100));
        let ready = &status["conditions"][0];
        assert!(ConditionText::from(UNHEALTHY).is_in(ready), "{ready}");
        assert_eq!(ready["lastTransitionTime"], time(at(since)), "{shown:?}");
        assert_eq!(ready["lastHeartbeatTime"], "1970-01-01T00:01:40Z");
        assert_eq!(status["conditions"][1], first()["conditions"][1]);
    }
}

#[test]
fn a_whole_node_is_covered_as_a_patch_is() {
    let mut whole = node(Behaviour::Healthy, "");
    let shown = json!({"status": "False", "lastTransitionTime": at(60)});
    rewrite_written(&mut whole["status"], &overrides(), Behaviour::Reported, Some(&shown), at(100));
    let ready = condition(&whole, "Ready").unwrap();
    assert_eq!((&ready["status"], &ready["lastTransitionTime"]), (&json!("False"), &time(at(60))));
}

#[test]
fn nonsense_is_left_to_the_api_server() {
    for nonsense in [json!("x"), json!(null), json!([]), json!({"nodeInfo": 7, "conditions": {"a": 1}})] {
        let mut status = nonsense.clone();
        rewrite_written(&mut status, &overrides(), Behaviour::Reported, None, at(100));
        ReportedStatus::default().learn(&status, &overrides());
    }
    let mut status = json!({"nodeInfo": 7});
    rewrite_written(&mut status, &overrides(), Behaviour::Healthy, None, at(100));
    assert_eq!(status["nodeInfo"], 7);
}

#[test]
fn kubemark_reads_what_it_said() {
    let mut reported = ReportedStatus::default();
    reported.learn(&first(), &overrides());
    let mut read = node(Behaviour::Reported, "");
    reported.rewrite_read(&mut read, &overrides(), Behaviour::Reported);
    assert_eq!(read["status"]["nodeInfo"]["bootID"], "");
    assert_eq!(read["status"]["nodeInfo"]["containerRuntimeVersion"], "fakeRuntime://0.1.0");
    assert_eq!(read["status"]["allocatable"], json!({"cpu": "4", "memory": "16Gi"}));
    let ready = condition(&read, "Ready").unwrap();
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("True"), &json!("KubeletReady")));
}

#[test]
fn a_value_that_another_client_wrote_over_is_read_as_missing_so_that_kubemark_writes_it_again() {
    let mut reported = ReportedStatus::default();
    reported.learn(&first(), &overrides());
    // The second one is what kubemark itself has reported; the third one is the machine's, in another notation.
    for (shown, read_as) in [("1", None), ("4", None), ("3.9", Some("4"))] {
        let mut read = node(Behaviour::Healthy, "");
        read["status"]["allocatable"]["cpu"] = json!(shown);
        reported.rewrite_read(&mut read, &overrides(), Behaviour::Healthy);
        assert_eq!(
            read["status"]["allocatable"].get("cpu"),
            read_as.map(|cpu| json!(cpu)).as_ref(),
            "{shown}"
        );
    }
}

#[test]
fn what_others_wrote_is_read_as_it_is_while_the_machine_speaks() {
    let reported = ReportedStatus::default();
    for behaviour in [Behaviour::Healthy, Behaviour::Reported] {
        let mut read = node(Behaviour::Healthy, "Unknown");
        reported.rewrite_read(&mut read, &overrides(), behaviour);
        assert_eq!(read["status"]["conditions"], node(Behaviour::Healthy, "Unknown")["status"]["conditions"]);
    }
    let mut read = node(Behaviour::Healthy, "Unknown");
    reported.rewrite_read(&mut read, &overrides(), Behaviour::Silent);
    assert_eq!(read["status"]["conditions"], node(Behaviour::Healthy, "")["status"]["conditions"]);
}

#[test]
fn a_phase_that_changes_is_written_once() {
    let reported = ReportedStatus::default();
    let well = node(Behaviour::Healthy, "");
    assert_eq!(reported.correction(&well, Behaviour::Healthy, at(100)), None);
    let patch = reported.correction(&well, Behaviour::Reported, at(100)).unwrap();
    assert_eq!(patch["metadata"]["uid"], "u");
    let ready = condition(&patch, "Ready").unwrap();
    assert_eq!((&ready["status"], &ready["lastTransitionTime"]), (&json!("False"), &time(at(100))));
    let memory = condition(&patch, "MemoryPressure").unwrap();
    assert_eq!(memory["lastTransitionTime"], time(at(50)), "it did not change");

    let unhealthy = node(Behaviour::Reported, "");
    assert_eq!(reported.correction(&unhealthy, Behaviour::Reported, at(100)), None);
    let patch = reported.correction(&unhealthy, Behaviour::Healthy, at(100)).unwrap();
    assert_eq!(condition(&patch, "Ready").unwrap()["status"], "True");

    let lost = node(Behaviour::Healthy, "Unknown");
    let patch = reported.correction(&lost, Behaviour::Healthy, at(100)).unwrap();
    let statuses = patch["status"]["conditions"].as_array().unwrap();
    assert!(statuses.iter().all(|condition| condition["lastTransitionTime"] == time(at(100))), "{patch}");
}

#[test]
fn what_kubemark_says_of_itself_outlives_a_phase() {
    let mut reported = ReportedStatus::default();
    let trouble = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady",
        "message": "container runtime is down"}]});
    reported.learn(&trouble, &overrides());
    let unhealthy = node(Behaviour::Reported, "");
    let patch = reported.correction(&unhealthy, Behaviour::Healthy, at(100)).unwrap();
    let ready = condition(&patch, "Ready").unwrap();
    assert_eq!(ready["message"], "container runtime is down");
    assert_eq!(ready["lastTransitionTime"], time(at(50)), "False before and after");
}

#[test]
fn a_resource_that_kubemark_took_away_stays_away_for_it() {
    let mut reported = ReportedStatus::default();
    reported.learn(&json!({"allocatable": {"cpu": null}}), &overrides());
    let mut read = node(Behaviour::Healthy, "");
    reported.rewrite_read(&mut read, &overrides(), Behaviour::Healthy);
    assert_eq!(read["status"]["allocatable"], json!({"memory": "16Gi"}));
}

#[test]
fn a_node_is_posted_once_its_kubelet_has_a_version() {
    assert!(is_posted(&node(Behaviour::Healthy, "")));
    for status in [json!({}), json!({"nodeInfo": {"kubeletVersion": ""}})] {
        assert!(!is_posted(&json!({"status": status})));
    }
}
