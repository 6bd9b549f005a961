//! What is kept of a pod's status: what a kubelet must find again after its own restart.

use jiff::Timestamp;
use serde::Deserialize;

/// The status of a pod, pruned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// Phase.
    pub phase: Box<str>,
    /// Generation of the spec that it speaks of.
    pub observed_generation: Option<i64>,
    /// Conditions, without their messages.
    pub conditions: Vec<PodCondition>,
    /// When the kubelet took the pod over.
    pub start_time: Option<Timestamp>,
    /// Address of its Node.
    pub host_ip: Option<Box<str>>,
    /// First address of the pod.
    pub pod_ip: Option<Box<str>>,
    /// Containers.
    pub containers: Vec<ContainerView>,
    /// Init containers.
    pub init_containers: Vec<ContainerView>,
}

impl PodStatus {
    /// A condition by its type.
    #[must_use]
    pub fn condition(&self, r#type: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|condition| &*condition.r#type == r#type)
    }
}

/// A condition of a pod, pruned.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCondition {
    /// Its type.
    pub r#type: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Box<str>,
    /// Its reason; empty when it has none.
    #[serde(default)]
    pub reason: Box<str>,
    /// Generation of the spec that it speaks of.
    pub observed_generation: Option<i64>,
    /// When `status` changed last.
    #[serde(rename = "lastTransitionTime")]
    pub since: Option<Timestamp>,
}

/// How a container is, pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Name.
    pub name: Box<str>,
    /// Whether it counts as ready.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: i32,
    /// What it does.
    pub state: ContainerState,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It has not started.
    Waiting,
    /// It runs.
    Running {
        /// Since when.
        since: Option<Timestamp>,
    },
    /// It has ended.
    Ended {
        /// Its exit code.
        exit_code: i32,
        /// When it had started.
        started: Option<Timestamp>,
        /// When it ended.
        finished: Option<Timestamp>,
    },
}

/// The status as the watch delivers it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireStatus {
    phase: Box<str>,
    observed_generation: Option<i64>,
    conditions: Vec<PodCondition>,
    start_time: Option<Timestamp>,
    #[serde(rename = "hostIP")]
    host_ip: Option<Box<str>>,
    #[serde(rename = "podIP")]
    pod_ip: Option<Box<str>>,
    container_statuses: Vec<WireContainer>,
    init_container_statuses: Vec<WireContainer>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainer {
    name: Box<str>,
    #[serde(default)]
    ready: bool,
    #[serde(default)]
    restart_count: i32,
    #[serde(default)]
    state: WireState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireState {
    running: Option<Running>,
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Running {
    started_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

impl From<WireStatus> for PodStatus {
    fn from(status: WireStatus) -> Self {
        let containers =
            |list: Vec<WireContainer>| list.into_iter().map(ContainerView::from).collect::<Vec<_>>();
        Self {
            phase: status.phase,
            observed_generation: status.observed_generation,
            conditions: status.conditions,
            start_time: status.start_time,
            host_ip: status.host_ip,
            pod_ip: status.pod_ip,
            containers: containers(status.container_statuses),
            init_containers: containers(status.init_container_statuses),
        }
    }
}

impl From<WireContainer> for ContainerView {
    fn from(WireContainer { name, ready, restart_count, state }: WireContainer) -> Self {
        let state = match (state.terminated, state.running) {
            (Some(Terminated { exit_code, started_at, finished_at }), _) => {
                ContainerState::Ended { exit_code, started: started_at, finished: finished_at }
            }
            (None, Some(Running { started_at })) => ContainerState::Running { since: started_at },
            (None, None) => ContainerState::Waiting,
        };
        Self { name, ready, restarts: restart_count, state }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_what_a_restarted_kubelet_needs() {
        let time: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let status: WireStatus = serde_json::from_value(json!({
            "phase": "Running", "observedGeneration": 2, "podIP": "10.0.0.7", "startTime": time.to_string(),
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}],
            "containerStatuses": [
                {"name": "a", "ready": true, "restartCount": 3, "image": "i", "imageID": "",
                 "state": {"running": {"startedAt": time.to_string()}}},
                {"name": "b", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "x"}}},
                {"name": "c", "state": {"terminated": {"exitCode": 2, "finishedAt": time.to_string(), "startedAt": null}}},
            ]
        }))
        .unwrap();
        let status = PodStatus::from(status);
        assert_eq!(status.condition("Ready").map(|ready| &*ready.status), Some("True"));
        assert_eq!(status.containers[0].state, ContainerState::Running { since: Some(time) });
        assert_eq!(status.containers[0].restarts, 3);
        assert_eq!(status.containers[1].state, ContainerState::Waiting);
        assert_eq!(
            status.containers[2].state,
            ContainerState::Ended { exit_code: 2, started: None, finished: Some(time) }
        );
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.7"));
    }
}
