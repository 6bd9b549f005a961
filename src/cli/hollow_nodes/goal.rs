//! Goals of the commands: all nodes are Ready, or gone.

use std::time::Duration;

use kube::Client;
use kube_node_api::{GoDuration, NodeSet};
use local_cluster::counted;

use crate::{
    progress::{self, Progress, Waiting},
    set_status::{delay, is_observed},
};

/// Minimum interval of progress lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Goal of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// All wanted Nodes exist and are Ready.
    Ready,
    /// The NodeSet and its Nodes are gone.
    Gone,
}

/// Follows the NodeSet to the goal and prints the result.
pub(super) async fn follow(client: &Client, name: &str, goal: Goal, limit: GoDuration) -> anyhow::Result<()> {
    progress::follow(client, name, limit, LINE_INTERVAL, |set| progress(goal, name, set)).await
}

/// Progress of the NodeSet `name` towards a goal; `set` is `None` if the NodeSet does not exist.
pub(crate) fn progress(goal: Goal, name: &str, set: Option<&NodeSet>) -> Progress {
    let Some(set) = set else {
        return match goal {
            Goal::Ready => Progress::Failed(format!("NodeSet {name} has been deleted")),
            Goal::Gone => Progress::Done("all nodes are gone".to_owned()),
        };
    };
    let status = set.status.clone().unwrap_or_default();
    let is_observed = is_observed(set);
    let (wanted, nodes, ready) = (set.spec.replicas, status.replicas, status.ready_replicas);
    let leaving = (nodes - wanted).max(0);
    // While surplus Nodes leave, progress counts the leaving Nodes.
    let (counts, done, total) = match goal {
        Goal::Ready if leaving > 0 => {
            (format!("{ready} of {wanted} nodes are Ready, {leaving} more are leaving"), 0, leaving)
        }
        Goal::Ready => (format!("{ready} of {wanted} nodes are Ready"), ready, wanted),
        Goal::Gone => (format!("{} still there", counted(nodes, "node")), 0, nodes),
    };
    if goal == Goal::Ready && is_observed && (ready, nodes) == (wanted, wanted) {
        return Progress::Done(counts);
    }
    let steps = |count: i32| u64::try_from(count).unwrap_or_default();
    Progress::Waiting(Waiting {
        line: counts.clone(),
        delay: delay(&status).map(|(reason, message)| format!("{reason}: {message}")),
        counts,
        done: steps(done),
        total: steps(total),
        is_observed,
    })
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

    fn waiting(goal: Goal, status: &Value) -> Waiting {
        match progress(goal, "a", Some(&set(3, status))) {
            Progress::Waiting(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ready_is_what_the_operator_says_of_the_present_spec() {
        let ready = json!({"observedGeneration": 2, "replicas": 3, "readyReplicas": 3});
        let done = Progress::Done("3 of 3 nodes are Ready".to_owned());
        assert_eq!(progress(Goal::Ready, "a", Some(&set(3, &ready))), done);
        let old = waiting(Goal::Ready, &json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3}));
        assert!(!old.is_observed);
        let some = waiting(Goal::Ready, &json!({"observedGeneration": 2, "replicas": 3, "readyReplicas": 1}));
        assert_eq!((some.done, some.total, some.line.as_str()), (1, 3, "1 of 3 nodes are Ready"));
        let more = waiting(Goal::Ready, &json!({"observedGeneration": 2, "replicas": 8, "readyReplicas": 3}));
        assert!(more.line.ends_with("5 more are leaving"), "{more:?}");
        assert_eq!((more.done, more.total), (0, 5));
    }

    #[test]
    fn a_delay_is_named() {
        let status = json!({"observedGeneration": 2, "conditions": [{"type": "Degraded", "status": "True",
            "reason": "ClassNotAccepted", "message": "no controller", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let waiting = waiting(Goal::Ready, &status);
        assert_eq!(waiting.delay.as_deref(), Some("ClassNotAccepted: no controller"));
        assert_eq!(waiting.text(), "0 of 3 nodes are Ready (ClassNotAccepted: no controller)");
    }

    #[test]
    fn a_set_that_is_gone_is_the_end_of_a_cleanup_and_of_nothing_else() {
        assert!(matches!(progress(Goal::Gone, "a", None), Progress::Done(_)));
        assert!(matches!(progress(Goal::Ready, "a", None), Progress::Failed(_)));
        let left = waiting(Goal::Gone, &json!({"observedGeneration": 2, "replicas": 2}));
        assert_eq!(left.line, "2 nodes still there");
        let last = waiting(Goal::Gone, &json!({"observedGeneration": 2, "replicas": 1}));
        assert_eq!(last.line, "1 node still there");
    }
}
