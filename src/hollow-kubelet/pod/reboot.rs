//! Effect of a machine's boot on a pod: its containers ended with the machine and its sandbox is gone, so all
//! containers that are to run start anew, init containers first.
//!
//! Invariant: the effect is read from the status, where a start before the boot means an end by the boot. A
//! pod once handled therefore needs no further change, whichever process syncs it.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::time;
use kube_node_cache::{
    ContainerState, ContainerView, InternedStr, PodStatus, PodView, RestartPolicy, Terminated, intern,
};

use super::{
    container::{all, has_begun},
    reasons,
    script::{Role, Script},
};
use crate::clock::to_seconds;

/// Exit code of a container whose end was not observed, as containerd reports it after its own start.
const LOST_CODE: i32 = 255;
/// Time to create a sandbox.
const SANDBOX_TIME: Duration = Duration::from_secs(1);

/// Pod as its kubelet finds it after a boot, with the unobserved ends of containers; None if there are none.
pub fn found(pod: &PodView, booted: Option<Timestamp>, now: Timestamp) -> Option<PodView> {
    let booted = booted?;
    let lost = |view: &ContainerView| matches!(view.state, ContainerState::Running { since: Some(since) } if since < booted);
    all(&pod.status).any(lost).then(|| {
        let mut found = pod.clone();
        let status = &mut found.status;
        for view in status.init_containers.iter_mut().chain(&mut status.containers).filter(|view| lost(view))
        {
            let end = Terminated {
                exit_code: LOST_CODE,
                crashes: view.crashes,
                reason: intern(reasons::LOST),
                started: latest_start(view),
                finished: Some(to_seconds(now)),
            };
            (view.ready, view.started, view.state) = (false, false, ContainerState::Terminated(end));
        }
        found
    })
}

/// Reboot state of a pod: some container started before the boot, and the pod is to run on.
#[derive(Clone, Copy, Debug)]
pub struct RebootState {
    booted: Timestamp,
    /// True if no container has started since the boot.
    pub is_fresh: bool,
    /// Time at which the sandbox is ready.
    pub sandbox_at: Option<Timestamp>,
}

impl RebootState {
    /// Reboot state of a pod as returned by [`found`]; None if the boot has no effect.
    pub fn of(pod: &PodView, booted: Option<Timestamp>) -> Option<Self> {
        let mut reboot = Self { booted: booted?, is_fresh: true, sandbox_at: None };
        // A pod that never restarts can only end.
        if pod.spec.restart_policy == RestartPolicy::Never
            || !all(&pod.status).any(|view| reboot.is_stale(view))
        {
            return None;
        }
        reboot.is_fresh = !reboot.has_begun(all(&pod.status));
        let found = all(&pod.status).filter_map(|view| match (&view.state, &view.last) {
            (ContainerState::Terminated(end), _) => Some(end),
            (_, last) => last.as_deref(),
        });
        let lost = found.filter(|end| *end.reason == *reasons::LOST && end.started < Some(reboot.booted));
        reboot.sandbox_at =
            lost.filter_map(|end| end.finished).max().map(|found| time::after(found, SANDBOX_TIME));
        Some(reboot)
    }

    /// Returns true if a pod that had no sandbox has one in `status`.
    pub fn is_remade(&self, status: &PodStatus) -> bool {
        self.is_fresh && self.has_begun(all(status))
    }

    /// Returns true if any of these containers has started since the boot.
    pub fn has_begun<'a>(&self, mut views: impl Iterator<Item = &'a ContainerView>) -> bool {
        views.any(|view| has_begun(view) && !self.is_stale(view))
    }

    /// Returns true if a container has started before the boot, and not since.
    pub fn is_stale(&self, view: &ContainerView) -> bool {
        has_begun(view) && latest_start(view).is_some_and(|start| start < self.booted)
    }

    /// Makes a container wait that is to restart. No kubelet remembers a back-off across a boot.
    pub fn revive(&self, view: &mut ContainerView, script: &Script<'_>, waits_as: &InternedStr) {
        if !self.is_stale(view) {
            return;
        }
        match &view.state {
            ContainerState::Terminated(end)
                if script.role == Role::Init || script.restarts_after(end.exit_code) =>
            {
                view.last = Some(Box::new(end.clone()));
            }
            ContainerState::Waiting { .. } => {}
            ContainerState::Terminated(_) | ContainerState::Running { .. } => return,
        }
        view.ready = false;
        view.state = ContainerState::waiting(InternedStr::clone(waits_as), None);
    }
}

/// Last start of a container, as far as its status shows it.
fn latest_start(view: &ContainerView) -> Option<Timestamp> {
    match (&view.state, &view.last) {
        (ContainerState::Running { since }, _) => *since,
        (ContainerState::Terminated(end), _) => end.started.or(end.finished),
        (ContainerState::Waiting { .. }, last) => last.as_ref().and_then(|end| end.started.or(end.finished)),
    }
}

#[cfg(test)]
#[path = "reboot_tests.rs"]
mod tests;
