//! Waits while nodes start and end: follows the NodeSet, with a progress bar on a terminal and lines elsewhere.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use anyhow::bail;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use kube_ext::process::say;
use kube_node_api::{GoDuration, NodeSet};
use tokio::time::{Instant, sleep_until};

use super::FLEET;

/// Update interval of the bar's clock.
const TICK: Duration = Duration::from_millis(250);
/// Time limit for an operator to observe a NodeSet; afterwards a note says that none seems to run.
const UNSEEN: Duration = Duration::from_secs(20);
/// Minimum interval of lines when there is no bar.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Goal of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// All wanted Nodes exist and are Ready.
    Ready,
    /// The NodeSet and its Nodes are gone.
    Gone,
}

/// Progress of a NodeSet towards a goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    /// True if the operator has observed the present generation.
    pub(crate) is_seen: bool,
    /// True if the goal is reached.
    pub(crate) is_done: bool,
    /// Completed steps.
    done: u64,
    /// All steps, as far as they are known.
    total: u64,
    /// Progress as text.
    pub(crate) counts: String,
    /// Reason of a delay.
    pub(crate) why: Option<String>,
}

/// Progress of a NodeSet towards a goal; `set` is `None` if the NodeSet does not exist.
pub(crate) fn stand(goal: Goal, set: Option<&NodeSet>) -> Stand {
    let Some(set) = set else {
        let counts = match goal {
            Goal::Ready => format!("there is no NodeSet {FLEET}"),
            Goal::Gone => "all nodes are gone".to_owned(),
        };
        return Stand { is_seen: true, is_done: goal == Goal::Gone, done: 1, total: 1, counts, why: None };
    };
    let status = set.status.clone().unwrap_or_default();
    let is_seen =
        status.observed_generation.is_some() && status.observed_generation >= set.metadata.generation;
    let wanted = set.spec.replicas;
    let (ready, there) = (status.ready_replicas, status.replicas);
    let steps = |count: i32| u64::try_from(count).unwrap_or_default();
    let why = status.waits.first().map(|wait| format!("{}: {}", wait.reason, wait.message)).or_else(|| {
        let degraded = |c: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            c.type_ == "Degraded" && c.status == "True"
        };
        let degraded = status.conditions.iter().find(degraded)?;
        Some(format!("{}: {}", degraded.reason, degraded.message))
    });
    match goal {
        Goal::Ready => {
            let leaving = (there - wanted).max(0);
            let counts = if leaving > 0 {
                format!("{ready} of {wanted} nodes are Ready, {leaving} more are leaving")
            } else {
                format!("{ready} of {wanted} nodes are Ready")
            };
            let is_done = is_seen && ready == wanted && there == wanted;
            // While surplus Nodes leave, progress counts the leaving Nodes.
            let (done, total) = if leaving > 0 { (0, steps(leaving)) } else { (steps(ready), steps(wanted)) };
            Stand { is_seen, is_done, done, total, counts, why }
        }
        Goal::Gone => {
            let counts = format!("{there} nodes are still there");
            Stand { is_seen, is_done: false, done: 0, total: steps(there), counts, why }
        }
    }
}

/// Follows the NodeSet to the goal and prints the result. After the timeout, returns an error with the reason
/// of the delay.
pub(super) async fn follow(client: &Client, goal: Goal, timeout: GoDuration) -> anyhow::Result<()> {
    let mut changes = Box::pin(watch_object(Api::<NodeSet>::all(client.clone()), FLEET).default_backoff());
    let begun = Instant::now();
    let deadline = (!timeout.0.is_zero()).then(|| begun + timeout.0);
    let mut display = Display::new();
    let mut last: Option<Stand> = None;
    let mut warned = false;
    loop {
        let unseen = last.as_ref().is_none_or(|last| !last.is_seen) && !warned;
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(set)) => {
                    let stand = stand(goal, set.as_ref());
                    if stand.is_done {
                        display.clear();
                        say(&stand.counts);
                        return Ok(());
                    }
                    if set.is_none() {
                        display.clear();
                        bail!("NodeSet {FLEET} has been deleted");
                    }
                    display.show(&stand);
                    last = Some(stand);
                }
                // The watch reconnects by itself.
                Some(Err(_)) => {}
                None => bail!("the watch of NodeSet {FLEET} ended by itself: start the command again"),
            },
            () = sleep_until(begun + UNSEEN), if unseen => {
                warned = true;
                display.note("No operator has looked at it yet: does one run? kube-node doctor finds out.");
            }
            () = until(deadline) => {
                display.clear();
                let stand = last.map_or_else(|| "nothing was heard of it".to_owned(), |stand| match stand.why {
                    Some(why) => format!("{}: {why}", stand.counts),
                    None => stand.counts,
                });
                bail!("timed out after {timeout}: {stand}");
            }
        }
    }
}

/// Waits until the deadline; forever without one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A progress bar on a terminal, lines elsewhere.
struct Display {
    bar: Option<ProgressBar>,
    last: Option<(Instant, String)>,
    /// Highest number of Nodes that had to leave.
    most: u64,
}

impl Display {
    fn new() -> Self {
        let person = io::stderr().is_terminal() && io::stdout().is_terminal();
        Self { bar: person.then(bar), last: None, most: 0 }
    }

    fn show(&mut self, stand: &Stand) {
        let text = match &stand.why {
            Some(why) => format!("{} ({why})", stand.counts),
            None => stand.counts.clone(),
        };
        let Some(bar) = &self.bar else {
            let now = Instant::now();
            let is_news =
                self.last.as_ref().is_none_or(|(at, last)| *last != text && now - *at >= PLAIN_INTERVAL);
            if is_news {
                say(&text);
                self.last = Some((now, text));
            }
            return;
        };
        // Progress of leaving Nodes is measured from their highest number.
        self.most = self.most.max(stand.total);
        let left = stand.total - stand.done;
        bar.set_length(self.most);
        bar.set_position(self.most - left.min(self.most));
        bar.set_message(text);
    }

    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say(text),
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(replicas: i32, status: &Value) -> NodeSet {
        let mut set = super::super::objects::set(replicas);
        set["metadata"]["generation"] = json!(2);
        set["status"] = status.clone();
        serde_json::from_value(set).unwrap()
    }

    #[test]
    fn ready_is_what_the_operator_says_of_the_present_spec() {
        let stand = |status| stand(Goal::Ready, Some(&set(3, &status)));
        assert!(stand(json!({"observedGeneration": 2, "replicas": 3, "readyReplicas": 3})).is_done);
        let old = stand(json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3}));
        assert!(!old.is_done && !old.is_seen);
        let some = stand(json!({"observedGeneration": 2, "replicas": 3, "readyReplicas": 1}));
        assert_eq!((some.done, some.total, some.counts.as_str()), (1, 3, "1 of 3 nodes are Ready"));
        let more = stand(json!({"observedGeneration": 2, "replicas": 8, "readyReplicas": 3}));
        assert!(!more.is_done && more.counts.ends_with("5 more are leaving"), "{more:?}");
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let status = json!({"observedGeneration": 2, "conditions": [{"type": "Degraded", "status": "True",
            "reason": "ClassNotAccepted", "message": "no controller", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let stand = stand(Goal::Ready, Some(&set(3, &status)));
        assert_eq!(stand.why.as_deref(), Some("ClassNotAccepted: no controller"));
    }

    #[test]
    fn a_set_that_is_gone_is_the_end_of_a_cleanup_and_of_nothing_else() {
        assert!(stand(Goal::Gone, None).is_done);
        assert!(!stand(Goal::Ready, None).is_done);
        let left = stand(Goal::Gone, Some(&set(3, &json!({"observedGeneration": 2, "replicas": 2}))));
        assert_eq!((left.is_done, left.counts.as_str()), (false, "2 nodes are still there"));
    }
}
