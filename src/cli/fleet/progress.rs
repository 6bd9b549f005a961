//! The wait while nodes come and go: follows the set, shows a bar to a person and lines to everybody else.

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

/// How often the bar's clock moves.
const TICK: Duration = Duration::from_millis(250);
/// How long an operator may take to look at a set; then none seems to run.
const UNSEEN: Duration = Duration::from_secs(20);
/// Without a bar, a line at most this often.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// As many Nodes as are wanted, all Ready.
    Ready,
    /// No set, and so no Node.
    Gone,
}

/// Where a set stands on its way to a goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    /// Whether the operator has looked at it as it is now.
    pub(crate) is_seen: bool,
    /// Whether the goal is reached.
    pub(crate) is_done: bool,
    /// Steps done.
    done: u64,
    /// Steps in all, as far as they are known.
    total: u64,
    /// In words.
    pub(crate) counts: String,
    /// What stands in the way.
    pub(crate) why: Option<String>,
}

/// Reads where a set stands; None where there is none any more.
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
            // While some leave, the way is from what there was to what is wanted.
            let (done, total) = if leaving > 0 { (0, steps(leaving)) } else { (steps(ready), steps(wanted)) };
            Stand { is_seen, is_done, done, total, counts, why }
        }
        Goal::Gone => {
            let counts = format!("{there} nodes are still there");
            Stand { is_seen, is_done: false, done: 0, total: steps(there), counts, why }
        }
    }
}

/// Follows the set to the goal, and says how it went; after the time it is an error that says what stands in the way.
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
                // The watch comes back by itself.
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

/// Waits for a moment; for ever where there is none.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A bar for a person, lines for everybody else.
struct Display {
    bar: Option<ProgressBar>,
    last: Option<(Instant, String)>,
    /// The most that were to leave.
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
        // What leaves is counted down from the most that was there.
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
