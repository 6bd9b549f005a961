//! The status of a pod as the patch that a kubelet sends.

use std::fmt::Write;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::pod::CONDITIONS;
use crate::cache::{Container, ContainerState, ContainerView, PodCondition, PodStatus, PodView};

/// The strategic merge patch that makes `pod` show `status`.
#[must_use]
pub fn patch(pod: &PodView, status: &PodStatus) -> Vec<u8> {
    // The order is sent too: without it the API server appends new conditions to those of others.
    let order: Vec<Value> =
        status.conditions.iter().map(|condition| json!({ "type": condition.r#type })).collect();
    let conditions: Vec<Value> = status
        .conditions
        .iter()
        .filter(|condition| CONDITIONS.contains(&&*condition.r#type))
        .map(|shown| condition(status, shown))
        .collect();
    let addresses = |ip: &Option<Box<str>>| ip.iter().map(|ip| json!({ "ip": ip })).collect::<Vec<_>>();
    let mut patch = json!({
        "phase": status.phase,
        "observedGeneration": status.observed_generation,
        "startTime": status.start_time,
        "hostIP": status.host_ip,
        "hostIPs": addresses(&status.host_ip),
        "podIP": status.pod_ip,
        "podIPs": addresses(&status.pod_ip),
        "$setElementOrder/conditions": order,
        "conditions": conditions,
        "containerStatuses": containers(pod, &pod.containers, &status.containers),
    });
    if !pod.init_containers.is_empty() {
        patch["initContainerStatuses"] =
            json!(containers(pod, &pod.init_containers, &status.init_containers));
    }
    // With another UID the API server refuses.
    json!({ "metadata": { "uid": *pod.uid }, "status": patch }).to_string().into_bytes()
}

fn condition(status: &PodStatus, shown: &PodCondition) -> Value {
    let PodCondition { r#type, status: value, reason, observed_generation, since } = shown;
    let message = match &**reason {
        "ContainersNotReady" => {
            let names = status.containers.iter().filter(|container| !container.ready);
            let names: Vec<&str> = names.map(|container| &*container.name).collect();
            Some(format!("containers with unready status: [{}]", names.join(" ")))
        }
        "ReadinessGatesNotReady" => Some("a readiness gate of the pod is not \"True\"".to_owned()),
        _ => None,
    };
    json!({
        "type": r#type,
        "status": value,
        "reason": Some(reason).filter(|reason| !reason.is_empty()),
        "message": message,
        "observedGeneration": observed_generation,
        "lastProbeTime": null,
        "lastTransitionTime": since,
    })
}

fn containers(pod: &PodView, specs: &[Container], views: &[ContainerView]) -> Vec<Value> {
    views
        .iter()
        .map(|ContainerView { name, ready, restarts, state }| {
            let image = specs.iter().find(|spec| spec.name == *name).map_or("", |spec| &*spec.image);
            let id = format!("containerd://{}", digest(&format!("{}/{name}/{restarts}", pod.uid)));
            let state = match state {
                ContainerState::Waiting => json!({ "waiting": { "reason": "ContainerCreating" } }),
                ContainerState::Running { since } => json!({ "running": { "startedAt": since } }),
                ContainerState::Ended { exit_code, started, finished } => {
                    let reason = match (exit_code, started) {
                        (_, None) => "ContainerStatusUnknown",
                        (0, _) => "Completed",
                        _ => "Error",
                    };
                    json!({ "terminated": {
                        "exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": finished,
                        "containerID": id,
                    } })
                }
            };
            json!({
                "name": name,
                "image": image,
                "imageID": image_id(image),
                "containerID": id,
                "ready": ready,
                "started": state.get("running").is_some(),
                "restartCount": restarts,
                "state": state,
                "lastState": {},
            })
        })
        .collect()
}

/// The image by a digest, made up from its name.
fn image_id(image: &str) -> String {
    if image.contains('@') {
        return image.to_owned();
    }
    let repository = match image.rsplit_once(':') {
        // A colon before a slash is that of a port.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    };
    format!("{repository}@sha256:{}", digest(image))
}

/// 64 hexadecimal digits that follow from `text`.
fn digest(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_keeps_its_repository() {
        for (image, repository) in [
            ("nginx", "nginx"),
            ("nginx:1.29", "nginx"),
            ("registry:5000/nginx", "registry:5000/nginx"),
            ("registry:5000/nginx:1", "registry:5000/nginx"),
        ] {
            let id = image_id(image);
            let (shown, hex) = id.split_once("@sha256:").unwrap();
            assert_eq!((shown, hex.len()), (repository, 64), "{image}");
        }
        assert_eq!(image_id("a@sha256:0"), "a@sha256:0");
    }

    #[test]
    fn the_order_names_the_conditions_of_others_and_the_patch_does_not() {
        let condition = |name: &str| PodCondition {
            r#type: name.into(),
            status: "True".into(),
            reason: "".into(),
            observed_generation: None,
            since: None,
        };
        let status =
            PodStatus { conditions: vec![condition("gate"), condition("Ready")], ..PodStatus::default() };
        let patch: Value = serde_json::from_slice(&patch(&PodView::default(), &status)).unwrap();
        assert_eq!(patch["status"]["$setElementOrder/conditions"][0]["type"], "gate");
        assert_eq!(patch["status"]["conditions"][0]["type"], "Ready");
        assert_eq!(patch["status"]["conditions"][0]["reason"], Value::Null);
    }
}
