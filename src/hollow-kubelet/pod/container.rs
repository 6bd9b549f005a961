//! Container statuses: what they show, and how a container ends for good.

use jiff::Timestamp;
use kube_node_cache::{
    CONFIG_ERROR, Container, ContainerState, ContainerView, InternedStr, PodSpecView, PodStatus, Terminated,
    intern,
};

use super::{reasons, script::KILLED};

/// Status of all containers, init containers first.
pub fn all(status: &PodStatus) -> impl Iterator<Item = &ContainerView> {
    status.init_containers.iter().chain(&status.containers)
}

/// Returns true if a container runs.
pub fn is_running(container: &ContainerView) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}

/// Returns true if a container has started at least once.
pub fn has_begun(container: &ContainerView) -> bool {
    container.last.is_some() || !matches!(container.state, ContainerState::Waiting { .. })
}

/// Returns true if a container ended that may never have been created.
pub fn is_unknown(container: &ContainerView) -> bool {
    matches!(&container.state, ContainerState::Terminated(end) if &*end.reason == reasons::UNKNOWN)
}

/// Returns true if a container has come far enough to need the pod's sandbox, which has the address.
pub fn needs_sandbox(container: &ContainerView) -> bool {
    has_begun(container)
        || matches!(&container.state, ContainerState::Waiting { reason, .. }
            if [reasons::PULL_FAILED, reasons::PULL_BACK_OFF, CONFIG_ERROR].contains(&&**reason))
}

/// Reason for which a container of a pod waits before its first start.
pub fn initial_reason(pod: &PodSpecView) -> InternedStr {
    intern(if pod.init_containers.is_empty() { reasons::CREATING } else { reasons::INITIALIZING })
}

/// A container that waits for `reason` and has never run.
pub fn waiting(container: &Container, reason: &InternedStr) -> ContainerView {
    ContainerView {
        name: InternedStr::clone(&container.name),
        ready: false,
        started: false,
        restarts: 0,
        image: intern(&container.image),
        crashes: 0,
        state: ContainerState::waiting(InternedStr::clone(reason), None),
        last: None,
    }
}

/// Ends a container for good. `has_run`: a container without any trace counts as having run.
pub fn stop(view: &mut ContainerView, finished: Timestamp, exit_code: i32, has_run: bool) {
    let end = match &view.state {
        ContainerState::Running { since } => {
            let reason = intern(if exit_code == 0 { reasons::COMPLETED } else { reasons::ERROR });
            Terminated { exit_code, crashes: view.crashes, reason, started: *since, finished: Some(finished) }
        }
        ContainerState::Waiting { .. } => match view.last.take() {
            // The container does not restart, so its last end is final.
            Some(last) => *last,
            None if has_run => {
                Terminated { exit_code: KILLED, reason: intern(reasons::UNKNOWN), ..Terminated::default() }
            }
            None => return,
        },
        ContainerState::Terminated(_) => return,
    };
    (view.ready, view.started, view.state) = (false, false, ContainerState::Terminated(end));
}
