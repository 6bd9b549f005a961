//! Cached form of a pod's status: the fields that a kubelet must find again after its own restart.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::GoDuration;
use prost::Message;
use serde::Deserialize;
use strum::EnumString;

use super::{
    InternedStr, intern,
    protobuf::{ProtobufCondition, Time, at, messages},
};

/// Reason of a container whose variables name a missing object.
pub const CONFIG_ERROR: &str = "CreateContainerConfigError";
/// Prefix of a kubelet's message that contains the backoff of a container.
pub const BACK_OFF: &str = "back-off ";

/// The status of a pod, pruned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// Phase.
    pub phase: InternedStr,
    /// Class of service (`qosClass`), set by the API server at creation.
    pub qos: Qos,
    /// Generation of the spec that the status is about.
    pub observed_generation: Option<i64>,
    /// Conditions, without their messages.
    pub conditions: Box<[PodCondition]>,
    /// Time at which the kubelet accepted the pod.
    pub start_time: Option<Timestamp>,
    /// Address of the Node.
    pub host_ip: Option<Box<str>>,
    /// First address of the pod.
    pub pod_ip: Option<Box<str>>,
    /// Container statuses.
    pub containers: Box<[ContainerView]>,
    /// Init container statuses.
    pub init_containers: Box<[ContainerView]>,
}

impl PodStatus {
    /// Condition of this type.
    pub fn condition(&self, r#type: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|condition| &*condition.r#type == r#type)
    }

    /// Returns true if the condition of this type is True.
    pub fn has(&self, r#type: &str) -> bool {
        self.condition(r#type).is_some_and(|condition| &*condition.status == "True")
    }
}

/// Class of service of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, EnumString)]
pub enum Qos {
    /// Requests nothing.
    #[default]
    BestEffort,
    /// Requests less than its limits.
    Burstable,
    /// Requests equal its limits.
    Guaranteed,
}

/// A condition of a pod, pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCondition {
    /// Type.
    pub r#type: InternedStr,
    /// `True`, `False` or `Unknown`.
    pub status: InternedStr,
    /// Reason; empty if there is none.
    pub reason: InternedStr,
    /// Generation of the spec that the condition is about.
    pub observed_generation: Option<i64>,
    /// Time of the last change of `status`.
    pub since: Option<Timestamp>,
}

/// Status of a container, pruned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerView {
    /// Name.
    pub name: InternedStr,
    /// True if the container counts as ready.
    pub ready: bool,
    /// True if the container runs and its startup probe has passed.
    pub started: bool,
    /// Number of restarts.
    pub restarts: i32,
    /// Image of the run that the status describes, as the status names it.
    pub image: InternedStr,
    /// Number of restarts in a row before that run: see [`crashes`].
    pub crashes: u8,
    /// Current state.
    pub state: ContainerState,
    /// Previous end, of a container that has started again or is about to.
    pub last: Option<Box<Terminated>>,
}

/// State of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContainerState {
    /// Not started, or not started again.
    Waiting {
        /// Reason.
        reason: InternedStr,
        /// Backoff since its last end, if the container is to start again.
        back_off: Option<Duration>,
        /// Message of a container whose variables name a missing object; empty otherwise.
        missing: InternedStr,
    },
    /// Running.
    Running {
        /// Start time.
        since: Option<Timestamp>,
    },
    /// End of the container.
    Terminated(Terminated),
}

impl ContainerState {
    /// State of a container that waits for this reason.
    pub fn waiting(reason: InternedStr, back_off: Option<Duration>) -> Self {
        Self::Waiting { reason, back_off, missing: InternedStr::default() }
    }
}

/// End of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terminated {
    /// Exit code.
    pub exit_code: i32,
    /// Number of restarts in a row before this run: see [`crashes`].
    pub crashes: u8,
    /// Reason, as one word.
    pub reason: InternedStr,
    /// Start time.
    pub started: Option<Timestamp>,
    /// End time.
    pub finished: Option<Timestamp>,
}

messages! {
    /// core/v1 `PodStatus`, as the API server sends it.
    pub(super) struct ProtobufStatus {
        phase: String = 1 (string);
        conditions: Vec<ProtobufCondition> = 2 (message, repeated);
        #[serde(rename = "hostIP")]
        host_ip: Option<String> = 5 (string, optional);
        #[serde(rename = "podIP")]
        pod_ip: Option<String> = 6 (string, optional);
        start_time: Option<Time> = 7 (message, optional);
        container_statuses: Vec<ProtobufContainer> = 8 (message, repeated);
        qos_class: String = 9 (string);
        init_container_statuses: Vec<ProtobufContainer> = 10 (message, repeated);
        observed_generation: Option<i64> = 17 (int64, optional);
    }

    struct ProtobufContainer {
        name: String = 1 (string);
        state: Option<ProtobufState> = 2 (message, optional);
        last_state: Option<ProtobufState> = 3 (message, optional);
        ready: bool = 4 (bool);
        restart_count: i32 = 5 (int32);
        image: String = 6 (string);
        #[serde(rename = "containerID")]
        container_id: String = 8 (string);
        started: bool = 9 (bool);
    }

    struct ProtobufState {
        waiting: Option<Waiting> = 1 (message, optional);
        running: Option<Running> = 2 (message, optional);
        terminated: Option<ProtobufTerminated> = 3 (message, optional);
    }

    struct Waiting {
        reason: String = 1 (string);
        message: String = 2 (string);
    }

    struct Running {
        started_at: Option<Time> = 1 (message, optional);
    }

    struct ProtobufTerminated {
        exit_code: i32 = 1 (int32);
        reason: String = 3 (string);
        started_at: Option<Time> = 5 (message, optional);
        finished_at: Option<Time> = 6 (message, optional);
        #[serde(rename = "containerID")]
        container_id: String = 7 (string);
    }
}

impl From<ProtobufStatus> for PodStatus {
    fn from(status: ProtobufStatus) -> Self {
        let containers = |list: Vec<ProtobufContainer>| list.into_iter().map(ContainerView::from).collect();
        // Protobuf sends an unset string as an empty one.
        let some = |text: Option<String>| text.filter(|text| !text.is_empty()).map(Box::from);
        Self {
            phase: intern(&status.phase),
            qos: status.qos_class.parse().unwrap_or_default(),
            observed_generation: status.observed_generation.filter(|generation| *generation != 0),
            conditions: status.conditions.into_iter().map(PodCondition::from).collect(),
            start_time: at(status.start_time),
            host_ip: some(status.host_ip),
            pod_ip: some(status.pod_ip),
            containers: containers(status.container_statuses),
            init_containers: containers(status.init_container_statuses),
        }
    }
}

impl From<ProtobufCondition> for PodCondition {
    fn from(condition: ProtobufCondition) -> Self {
        Self {
            r#type: intern(&condition.r#type),
            status: intern(&condition.status),
            reason: intern(&condition.reason),
            observed_generation: condition.observed_generation.filter(|generation| *generation != 0),
            since: at(condition.last_transition_time),
        }
    }
}

impl From<ProtobufContainer> for ContainerView {
    fn from(container: ProtobufContainer) -> Self {
        let ProtobufContainer { name, ready, started, restart_count, image, container_id, state, last_state } =
            container;
        let ProtobufState { waiting, running, terminated } = state.unwrap_or_default();
        let state = match (terminated, running, waiting) {
            (Some(terminated), ..) => ContainerState::Terminated(terminated.into()),
            (None, Some(Running { started_at }), _) => ContainerState::Running { since: at(started_at) },
            (None, None, waiting) => {
                let Waiting { reason, message } = waiting.unwrap_or_default();
                let missing = if reason == CONFIG_ERROR { intern(&message) } else { InternedStr::default() };
                ContainerState::Waiting { reason: intern(&reason), back_off: back_off(&message), missing }
            }
        };
        let last = last_state.and_then(|state| state.terminated).map(|last| Box::new(last.into()));
        let (restarts, image, crashes) = (restart_count, intern(&image), crashes(&container_id));
        Self { name: intern(&name), ready, started, restarts, image, crashes, state, last }
    }
}

impl From<ProtobufTerminated> for Terminated {
    fn from(terminated: ProtobufTerminated) -> Self {
        let ProtobufTerminated { exit_code, reason, started_at, finished_at, container_id } = terminated;
        let (started, finished) = (at(started_at), at(finished_at));
        Self { exit_code, crashes: crashes(&container_id), reason: intern(&reason), started, finished }
    }
}

/// Number of restarts in a row before a run, which decides the back-off after its end. Hollow kubelets record it as the
/// last digit of the container's ID, where it outlasts their process.
fn crashes(container_id: &str) -> u8 {
    let digit = container_id.chars().next_back().and_then(|last| last.to_digit(16));
    digit.and_then(|digit| digit.try_into().ok()).unwrap_or_default()
}

/// Backoff in a kubelet's message.
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
        let status: ProtobufStatus = serde_json::from_value(json!({
            "phase": "Running", "observedGeneration": 2, "podIP": "10.0.0.7", "startTime": time.to_string(),
            "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}],
            "containerStatuses": [
                {"name": "a", "ready": true, "started": true, "restartCount": 3, "image": "i", "imageID": "",
                 "containerID": "containerd://ab04",
                 "state": {"running": {"startedAt": time.to_string()}},
                 "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "containerd://ab13",
                               "startedAt": null, "finishedAt": null}}},
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
        assert!(a.restarts == 3 && a.started && &*a.image == "i");
        assert_eq!((a.crashes, a.last.as_ref().map(|last| last.crashes)), (4, Some(3)));
        assert_eq!(a.last.as_ref().map(|last| (last.exit_code, &*last.reason)), Some((137, "OOMKilled")));
        let (back_off, missing) = (Some(Duration::from_secs(80)), InternedStr::default());
        assert_eq!(b.state, ContainerState::Waiting { reason: "CrashLoopBackOff".into(), back_off, missing });
        let terminated = Terminated { exit_code: 2, finished: Some(time), ..Terminated::default() };
        assert_eq!(c.state, ContainerState::Terminated(terminated));
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.7"));
    }

    #[test]
    fn a_message_in_other_words_tells_no_back_off() {
        for message in ["", "back-off", "back-off soon", "Back-off pulling image \"i\""] {
            assert_eq!(back_off(message), None, "{message}");
        }
    }
}
