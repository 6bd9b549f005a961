//! What the pods have that are measured, and what a client says of one that runs: as little as makes it Running and Ready, or
//! all that a kubelet says.

use jiff::Timestamp;
use serde_json::{Value, json};

/// Image of the container of each pod.
pub const IMAGE: &str = "registry.k8s.io/pause:3.10";
/// What it requests.
pub const REQUESTS: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "16Mi")];

/// As little as makes it Running and Ready.
pub fn short() -> Value {
    let now = Timestamp::now();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"];
    json!({
        "phase": "Running",
        "startTime": now,
        "hostIP": "100.64.0.1",
        "hostIPs": [{ "ip": "100.64.0.1" }],
        "podIP": "10.128.0.1",
        "podIPs": [{ "ip": "10.128.0.1" }],
        "conditions": kinds.map(condition),
        "containerStatuses": [{
            "name": "main",
            "image": IMAGE,
            "imageID": "registry.k8s.io/pause@sha256:0",
            "containerID": "containerd://0",
            "ready": true,
            "started": true,
            "restartCount": 0,
            "state": { "running": { "startedAt": now } },
        }],
    })
}

/// What it requests, as JSON.
pub fn requests() -> Value {
    REQUESTS.into_iter().map(|(name, amount)| (name.to_owned(), Value::from(amount))).collect()
}

/// All that a kubelet says, where the container has the token of its ServiceAccount in `volume`.
pub fn whole(volume: &str) -> Value {
    let requests = requests();
    let digest = "7031c1b283388d2c2e09b57badb803c05ebed362dc88d84b480cc47f72a21097";
    let mut status = short();
    status["observedGeneration"] = 1.into();
    if let Some(conditions) = status["conditions"].as_array_mut() {
        for condition in conditions {
            condition["observedGeneration"] = 1.into();
            condition["lastProbeTime"] = Value::Null;
        }
    }
    status["allocatedResources"] = requests.clone();
    status["resources"] = json!({ "requests": requests });
    let container = &mut status["containerStatuses"][0];
    container["imageID"] = format!("registry.k8s.io/pause@sha256:{digest}").into();
    container["containerID"] = format!("containerd://{digest}").into();
    container["lastState"] = json!({});
    container["allocatedResources"] = requests.clone();
    container["resources"] = json!({ "requests": requests });
    container["volumeMounts"] = json!([{
        "name": volume,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": true,
        "recursiveReadOnly": "Disabled",
    }]);
    status
}
