//! Health of a machine's pod, from the pod's status. No I/O.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use crate::provider::Trouble;

/// Waiting reasons of a container that starts normally.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Maximum length of a text that a hosting cluster gives, in characters.
const TEXT_MAX: usize = 1_024;
/// Maximum length of a container's termination message, in characters.
const MESSAGE_MAX: usize = 256;

/// Health of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Starting.
    Starting,
    /// All containers run.
    Running,
    /// There is an obstacle; the kubelet or the scheduler tries again.
    Troubled(Trouble),
    /// Ended for good.
    Dead(Trouble),
}

/// Returns the health of a pod.
pub fn of(pod: &Pod) -> Health {
    let Some(status) = &pod.status else { return Health::Starting };
    match status.phase.as_deref() {
        Some("Failed" | "Succeeded") => return Health::Dead(end(status)),
        // The kubelet that runs the pod is lost: the container states are old.
        Some("Unknown") => return Health::Starting,
        _ => {}
    }
    if let Some(message) = unschedulable(status) {
        return Health::Troubled(Trouble { reason: "Unschedulable".to_owned(), message });
    }
    if let Some(trouble) = containers(status).find_map(trouble) {
        return Health::Troubled(trouble);
    }
    let main = status.container_statuses.as_deref().unwrap_or_default();
    let run = |container: &ContainerStatus| container.state.as_ref().is_some_and(|s| s.running.is_some());
    if !main.is_empty() && main.iter().all(run) { Health::Running } else { Health::Starting }
}

/// Last end of a container that runs again. The kubelet restarts it so soon that its end may never be observed.
pub fn last_end(pod: &Pod) -> Option<Trouble> {
    let again = containers(pod.status.as_ref()?)
        .filter(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    let ends = again.filter_map(|container| {
        let end = container.last_state.as_ref()?.terminated.as_ref()?;
        let Trouble { reason, message } = ended(&container.name, end);
        let message = format!("{message}; it runs again, restarts: {}", container.restart_count);
        Some((end.finished_at.clone().map(|time| time.0), Trouble { reason, message }))
    });
    ends.max_by_key(|(at, _)| *at).map(|(_, end)| end)
}

/// Containers in the order in which they start.
fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

fn unschedulable(status: &PodStatus) -> Option<String> {
    let conditions = status.conditions.iter().flatten();
    let scheduled = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    Some(format!("no node takes its pod: {}", clipped(scheduled.message.as_deref().unwrap_or_default())))
}

/// Obstacle of a container.
fn trouble(container: &ContainerStatus) -> Option<Trouble> {
    let ContainerState { waiting, terminated, .. } = container.state.as_ref()?;
    let name = &container.name;
    if let Some(end) = terminated {
        // A completed init container is no obstacle.
        let done = end.exit_code == 0 && end.reason.as_deref() == Some("Completed");
        return (!done).then(|| ended(name, end));
    }
    let waiting = waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !STARTING.contains(reason))?;
    if reason == "CrashLoopBackOff"
        && let Some(last) = container.last_state.as_ref().and_then(|state| state.terminated.as_ref())
    {
        let Trouble { reason: why, message } = ended(name, last);
        // The cause of the last end says more than `CrashLoopBackOff`.
        let reason = if why == "ContainerExited" { reason.to_owned() } else { why };
        return Some(Trouble { reason, message: format!("{message}; {} restarts", container.restart_count) });
    }
    let image =
        if reason.contains("Image") { format!(" (image {})", container.image) } else { String::new() };
    let message = clipped(waiting.message.as_deref().unwrap_or("the kubelet says no more"));
    Some(Trouble { reason: clipped(reason), message: format!("container {name}{image}: {message}") })
}

/// Describes the end of a container.
fn ended(name: &str, end: &ContainerStateTerminated) -> Trouble {
    let reason = match end.reason.as_deref() {
        None | Some("" | "Error" | "Completed") => "ContainerExited",
        Some(reason) => reason,
    };
    let code = end.exit_code;
    let how = match (end.signal, code) {
        (Some(signal), _) if signal > 0 => format!("was ended by signal {signal}"),
        (_, 129..) => format!("exited with code {code} (signal {})", code - 128),
        _ => format!("exited with code {code}"),
    };
    let message = end.message.as_deref().unwrap_or_default().trim();
    let message = match message.char_indices().rev().nth(MESSAGE_MAX - 1) {
        _ if message.is_empty() => String::new(),
        Some((from, _)) if from > 0 => format!(": …{}", &message[from..]),
        _ => format!(": {message}"),
    };
    Trouble { reason: clipped(reason), message: format!("container {name} {how}{message}") }
}

/// The beginning of a text of a hosting cluster. It becomes part of a condition of the Node, and the API server refuses conditions of
/// more than 32 KiB.
fn clipped(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Reason why a pod has ended: its own, such as Evicted, else that of a container.
fn end(status: &PodStatus) -> Trouble {
    let container = containers(status)
        .filter_map(|container| Some((&container.name, container.state.as_ref()?.terminated.as_ref()?)))
        .find(|(_, end)| end.exit_code != 0)
        .map(|(name, end)| ended(name, end));
    let own = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(clipped);
    match own(&status.reason) {
        Some(reason) => {
            let message = own(&status.message).or(container.map(|container| container.message));
            Trouble { reason, message: message.unwrap_or_else(|| "its pod has ended".to_owned()) }
        }
        None => container.unwrap_or_else(|| Trouble {
            reason: "PodEnded".to_owned(),
            message: "its pod has ended by itself".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn health(status: &Value) -> Health {
        of(&serde_json::from_value(json!({"metadata": {"name": "m"}, "status": status})).unwrap())
    }

    fn container(state: &Value, more: &Value) -> Value {
        let mut container = json!({"name": "hollow-kubelet", "image": "i:1", "imageID": "", "ready": false, "restartCount": 0});
        container["state"] = state.clone();
        for (key, value) in more.as_object().unwrap() {
            container[key] = value.clone();
        }
        json!({"phase": "Running", "containerStatuses": [container]})
    }

    fn troubled(status: &Value) -> (String, String) {
        match health(status) {
            Health::Troubled(Trouble { reason, message }) => (reason, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn on_its_way_and_at_work() {
        assert_eq!(of(&Pod::default()), Health::Starting);
        assert_eq!(health(&json!({"phase": "Pending"})), Health::Starting);
        let waits = json!({"waiting": {"reason": "ContainerCreating"}});
        assert_eq!(health(&container(&waits, &json!({}))), Health::Starting);
        let runs = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        assert_eq!(health(&container(&runs, &json!({}))), Health::Running);
        let mut done = container(&runs, &json!({}));
        done["initContainerStatuses"] = json!([{
            "name": "files", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}
        }]);
        assert_eq!(health(&done), Health::Running);
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let status = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
        ]});
        let (reason, message) = troubled(&status);
        assert_eq!((reason.as_str(), message.contains("0/1 nodes")), ("Unschedulable", true));
        let (reason, message) = troubled(&container(
            &json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}),
            &json!({}),
        ));
        assert_eq!(reason, "ImagePullBackOff");
        assert_eq!(message, "container hollow-kubelet (image i:1): Back-off pulling image");
    }

    #[test]
    fn the_end_of_a_container_says_how() {
        let killed = json!({"terminated": {"exitCode": 137, "reason": "Error"}});
        let (reason, message) = troubled(&container(&killed, &json!({})));
        assert_eq!(reason, "ContainerExited");
        assert_eq!(message, "container hollow-kubelet exited with code 137 (signal 9)");
        let waits = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let oom =
            json!({"restartCount": 3, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}});
        let (reason, message) = troubled(&container(&waits, &oom));
        assert_eq!(reason, "OOMKilled");
        assert!(message.ends_with("; 3 restarts"), "{message}");
        let failed = json!({"lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "é".repeat(300)}}});
        let (reason, message) = troubled(&container(&waits, &failed));
        assert_eq!(reason, "CrashLoopBackOff");
        assert!(message.contains("…é") && message.chars().count() < 350, "{message}");
    }

    #[test]
    fn a_restart_that_nobody_saw_is_known_by_its_end() {
        let runs = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let of = |more: &Value| {
            let status = container(&runs, more);
            last_end(&serde_json::from_value(json!({"status": status})).unwrap())
        };
        assert_eq!(of(&json!({})), None);
        let again =
            json!({"restartCount": 2, "lastState": {"terminated": {"exitCode": 137, "reason": "Error"}}});
        let end = of(&again).unwrap();
        assert_eq!(end.reason, "ContainerExited");
        assert!(end.message.ends_with("(signal 9); it runs again, restarts: 2"), "{}", end.message);
    }

    #[test]
    fn a_long_text_of_a_hosting_cluster_is_clipped() {
        let long = "é".repeat(100_000);
        let waits = json!({"waiting": {"reason": long, "message": long}});
        let unscheduled = json!({"type": "PodScheduled", "status": "False", "message": long});
        for status in [
            container(&waits, &json!({})),
            json!({"conditions": [unscheduled]}),
            json!({"phase": "Failed", "reason": long, "message": long}),
        ] {
            let (Health::Troubled(trouble) | Health::Dead(trouble)) = health(&status) else {
                panic!("no trouble")
            };
            assert!(trouble.reason.len() < 3_000 && trouble.message.len() < 3_000, "{}", trouble.message);
        }
    }

    #[test]
    fn a_pod_that_ended_is_dead() {
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory"});
        let Health::Dead(trouble) = health(&evicted) else { panic!() };
        assert_eq!(trouble.reason, "Evicted");
        assert!(trouble.message.contains("low on resource"));
        let Health::Dead(trouble) = health(&json!({"phase": "Succeeded"})) else { panic!() };
        assert_eq!(trouble.reason, "PodEnded");
    }
}
