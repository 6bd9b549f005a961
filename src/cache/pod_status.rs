//! What is kept of a pod's status: what a kubelet must find again after its own restart.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::{Word, word};
use crate::api::GoDuration;

/// How a kubelet's message begins that says how long it waits before it starts a container again.
pub const BACK_OFF: &str = "back-off ";

/// The status of a pod, pruned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// Phase.
    pub phase: Word,
    /// Its class of service, which the API server gives it at its creation.
    pub qos: Qos,
    /// Generation of the spec that it speaks of.
    pub observed_generation: Option<i64>,
    /// Conditions, without their messages.
    pub conditions: Box<[PodCondition]>,
    /// When the kubelet took the pod over.
    pub start_time: Option<Timestamp>,
    /// Address of its Node.
    pub host_ip: Option<Box<str>>,
    /// First address of the pod.
    pub pod_ip: Option<Box<str>>,
    /// Containers.
    pub containers: Box<[ContainerView]>,
    /// Init containers.
    pub init_containers: Box<[ContainerView]>,
}

impl PodStatus {
    /// A condition by its type.
    #[must_use]
    pub fn condition(&self, r#type: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|condition| &*condition.r#type == r#type)
    }

    /// Whether a condition is True.
    #[must_use]
    pub fn has(&self, r#type: &str) -> bool {
        self.condition(r#type).is_some_and(|condition| &*condition.status == "True")
    }
}

/// How much a pod may rely on what it requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Qos {
    /// It requests nothing.
    #[default]
    BestEffort,
    /// It requests less than it is limited to.
    Burstable,
    /// It requests what it is limited to.
    Guaranteed,
}

/// A condition of a pod, pruned.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCondition {
    /// Its type.
    #[serde(deserialize_with = "shared")]
    pub r#type: Word,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "shared")]
    pub status: Word,
    /// Its reason; empty when it has none.
    #[serde(default, deserialize_with = "shared")]
    pub reason: Word,
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
    pub name: Word,
    /// Whether it counts as ready.
    pub ready: bool,
    /// Whether it runs and its startup probe has passed.
    pub started: bool,
    /// How often it was started again.
    pub restarts: i32,
    /// What it does.
    pub state: ContainerState,
    /// How it ended the last time, where it has started again or is to.
    pub last: Option<Box<Ended>>,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It has not started, or not again.
    Waiting {
        /// Why.
        reason: Word,
        /// How long it waits from its last end on, where it is to start again.
        back_off: Option<Duration>,
    },
    /// It runs.
    Running {
        /// Since when.
        since: Option<Timestamp>,
    },
    /// It has ended.
    Ended(Ended),
}

/// The end of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code.
    pub exit_code: i32,
    /// Why, in a word.
    pub reason: Word,
    /// When it had started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub finished: Option<Timestamp>,
}

/// The status as the watch delivers it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireStatus {
    #[serde(deserialize_with = "shared")]
    phase: Word,
    qos_class: Option<Qos>,
    observed_generation: Option<i64>,
    conditions: Box<[PodCondition]>,
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
    #[serde(deserialize_with = "shared")]
    name: Word,
    #[serde(default)]
    ready: bool,
    started: Option<bool>,
    #[serde(default)]
    restart_count: i32,
    #[serde(default)]
    state: WireState,
    #[serde(default)]
    last_state: WireState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireState {
    waiting: Option<Waiting>,
    running: Option<Running>,
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    #[serde(deserialize_with = "shared")]
    reason: Word,
    message: String,
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
    #[serde(deserialize_with = "shared")]
    reason: Word,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
    Ok(word(&String::deserialize(deserializer)?))
}

impl From<WireStatus> for PodStatus {
    fn from(status: WireStatus) -> Self {
        let containers = |list: Vec<WireContainer>| list.into_iter().map(ContainerView::from).collect();
        Self {
            phase: status.phase,
            qos: status.qos_class.unwrap_or_default(),
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
    fn from(container: WireContainer) -> Self {
        let WireContainer { name, ready, started, restart_count, state, last_state } = container;
        let state = match (state.terminated, state.running, state.waiting) {
            (Some(ended), ..) => ContainerState::Ended(ended.into()),
            (None, Some(Running { started_at }), _) => ContainerState::Running { since: started_at },
            (None, None, waiting) => {
                let Waiting { reason, message } = waiting.unwrap_or_default();
                ContainerState::Waiting { reason, back_off: back_off(&message) }
            }
        };
        let last = last_state.terminated.map(|ended| Box::new(ended.into()));
        Self { name, ready, started: started.unwrap_or(false), restarts: restart_count, state, last }
    }
}

impl From<Terminated> for Ended {
    fn from(ended: Terminated) -> Self {
        let Terminated { exit_code, reason, started_at, finished_at } = ended;
        Self { exit_code, reason, started: started_at, finished: finished_at }
    }
}

/// The back-off that a kubelet's message tells.
fn back_off(message: &str) -> Option<Duration> {
    let time = message.strip_prefix(BACK_OFF)?.split(' ').next()?;
    time.parse::<GoDuration>().ok().map(|time| time.0)
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
            "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}],
            "containerStatuses": [
                {"name": "a", "ready": true, "started": true, "restartCount": 3, "image": "i", "imageID": "",
                 "state": {"running": {"startedAt": time.to_string()}},
                 "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": null, "finishedAt": null}}},
                {"name": "b", "ready": false, "restartCount": 1, "state": {"waiting": {
                    "reason": "CrashLoopBackOff", "message": "back-off 1m20s restarting failed container=b pod=b_default(u)"}}},
                {"name": "c", "state": {"terminated": {"exitCode": 2, "finishedAt": time.to_string(), "startedAt": null}}},
            ]
        }))
        .unwrap();
        let status = PodStatus::from(status);
        assert!(status.has("Ready") && status.qos == Qos::Burstable);
        let [a, b, c] = &*status.containers else { panic!() };
        assert_eq!(a.state, ContainerState::Running { since: Some(time) });
        assert!(a.restarts == 3 && a.started);
        assert_eq!(a.last.as_ref().map(|last| (last.exit_code, &*last.reason)), Some((137, "OOMKilled")));
        let back_off = Some(Duration::from_secs(80));
        assert_eq!(b.state, ContainerState::Waiting { reason: "CrashLoopBackOff".into(), back_off });
        let ended = Ended { exit_code: 2, finished: Some(time), ..Ended::default() };
        assert_eq!(c.state, ContainerState::Ended(ended));
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.7"));
    }

    #[test]
    fn a_message_in_other_words_tells_no_back_off() {
        for message in ["", "back-off", "back-off soon", "Back-off pulling image \"i\""] {
            assert_eq!(back_off(message), None, "{message}");
        }
    }
}
