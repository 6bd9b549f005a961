//! The nodes that `up` creates: NodeClass `hollow` and NodeSet `hollow-nodes`. Waits until all of them are Ready.

use std::time::Duration;

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use kube_node_api::NodeSet;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::{
    manifests::{Manifest, apply_manifest, parse},
    modules::KUBERNETES_VERSION,
    progress::Progress,
};

/// Name of the NodeSet that `up` creates.
pub const NODE_SET: &str = "hollow-nodes";
/// Taint that keeps pods with real containers off hollow nodes; pods meant for hollow nodes tolerate it.
const TAINT: &str = "kube-node.io/hollow";
/// Number of nodes of a new cluster when none is given.
const DEFAULT_NODES: i32 = 10;
/// The wait ends when no further node gets Ready for this long. A total limit would cut off large fleets.
const STALL: Duration = Duration::from_secs(90);

/// Applies the NodeClass and the NodeSet and waits until every node is Ready. Returns the number of nodes: `nodes`, else the
/// replicas of the existing NodeSet, or 10.
///
/// Hollow nodes beside a real node carry a taint: a pod whose containers must run may not land on a hollow node.
pub(super) async fn bring_up(
    client: &Client,
    nodes: Option<i32>,
    beside_real_node: bool,
    kubernetes: &str,
    progress: &Progress,
) -> anyhow::Result<i32> {
    let sets = Api::<NodeSet>::all(client.clone());
    let desired = if let Some(nodes) = nodes {
        nodes
    } else {
        let set = sets.get_opt(NODE_SET).await;
        let set = set.with_context(|| format!("cannot read the NodeSet {NODE_SET}"))?;
        set.map_or(DEFAULT_NODES, |set| set.spec.replicas)
    };
    for manifest in objects(desired, beside_real_node, kubernetes)? {
        apply_manifest(client, &manifest).await?;
    }
    progress.step(&format!("Waiting for {desired} nodes"));
    wait_ready(sets, progress).await?;
    Ok(desired)
}

/// The NodeClass and the NodeSet. With another release than the default one, the nodes' kubelets are of that release, since a
/// kubelet may not be newer than its API server.
fn objects(replicas: i32, beside_real_node: bool, kubernetes: &str) -> anyhow::Result<Vec<Manifest>> {
    let text = include_str!("fleet.yaml").replace("{replicas}", &replicas.to_string());
    let mut objects = parse("fleet.yaml", &text)?;
    if beside_real_node {
        objects[0].0.data["spec"]["template"] = json!({"taints": [{"key": TAINT, "effect": "NoSchedule"}]});
    }
    if kubernetes != KUBERNETES_VERSION {
        objects[0].0.data["spec"]["provisioning"] = json!({"kubelet": {"version": format!("v{kubernetes}")}});
    }
    Ok(objects)
}

async fn wait_ready(sets: Api<NodeSet>, progress: &Progress) -> anyhow::Result<()> {
    let config = watcher::Config::default().fields(&format!("metadata.name={NODE_SET}"));
    let mut changes = watcher(sets, config).default_backoff().applied_objects().boxed();
    let (mut best, mut last, mut deadline) = (0, None::<NodeSet>, Instant::now() + STALL);
    loop {
        let set = match timeout_at(deadline, changes.try_next()).await {
            Err(_) | Ok(Ok(None)) => bail!(stalled(last.as_ref())),
            // The watch retries by itself; a server that stays unreachable counts as a stall.
            Ok(Err(error)) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("cannot watch the NodeSet {NODE_SET}"));
            }
            Ok(Err(_)) => continue,
            Ok(Ok(Some(set))) => set,
        };
        let ready = ready_of(&set);
        if is_ready(&set) {
            return Ok(());
        }
        if ready > best {
            (best, deadline) = (ready, Instant::now() + STALL);
        }
        progress.update(&format!("{ready} of {} nodes are Ready", set.spec.replicas));
        last = Some(set);
    }
}

fn ready_of(set: &NodeSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.ready_replicas)
}

/// Returns true if `readyReplicas` equals `replicas` in a status of the present generation.
fn is_ready(set: &NodeSet) -> bool {
    let Some(status) = &set.status else { return false };
    status.observed_generation >= set.metadata.generation && status.ready_replicas == set.spec.replicas
}

fn stalled(set: Option<&NodeSet>) -> String {
    let describe = |condition: &Condition| {
        let Condition { type_, status, reason, message, .. } = condition;
        format!("{type_}={status} {reason}: {message}")
    };
    let conditions = match set.and_then(|set| set.status.as_ref()) {
        Some(status) => status.conditions.iter().map(describe).collect::<Vec<_>>().join("; "),
        None => "no status: no operator has looked at it".to_owned(),
    };
    format!(
        "{} of {} nodes are Ready and no further one became so within {} s; NodeSet {NODE_SET}: {conditions}",
        set.map_or(0, ready_of),
        set.map_or(0, |set| set.spec.replicas),
        STALL.as_secs()
    )
}

/// Numbers of Ready and of desired nodes over all NodeSets.
pub async fn count_nodes(client: &Client) -> Result<(i32, i32), kube::Error> {
    let sets = Api::<NodeSet>::all(client.clone()).list(&ListParams::default()).await?;
    Ok(sets.iter().fold((0, 0), |(ready, desired), set| (ready + ready_of(set), desired + set.spec.replicas)))
}

#[cfg(test)]
mod tests {
    use kube_node_api::NodeClass;
    use serde_json::Value;

    use super::*;

    fn both(replicas: i32) -> (NodeClass, NodeSet) {
        of_release(replicas, KUBERNETES_VERSION)
    }

    fn of_release(replicas: i32, kubernetes: &str) -> (NodeClass, NodeSet) {
        let values =
            objects(replicas, true, kubernetes).unwrap().into_iter().map(|(object, _)| json!(object));
        let [class, set] = <[Value; 2]>::try_from(values.collect::<Vec<_>>()).unwrap();
        (serde_json::from_value(class).unwrap(), serde_json::from_value(set).unwrap())
    }

    fn set(generation: i64, status: &Value) -> NodeSet {
        let mut set = both(3).1;
        set.metadata.generation = Some(generation);
        set.status = Some(serde_json::from_value(status.clone()).unwrap());
        set
    }

    #[test]
    fn both_objects_are_of_our_kinds() {
        let (class, set) = both(7);
        assert_eq!(class.spec.node_controller, "hollow");
        assert_eq!(class.spec.template.unwrap().taints[0].key, TAINT);
        assert_eq!((set.spec.replicas, set.spec.node_class_name.as_str()), (7, "hollow"));
    }

    #[test]
    fn kubelets_are_of_the_release_that_runs() {
        assert!(both(1).0.spec.provisioning.is_none());
        let provisioning = of_release(1, "1.35.4").0.spec.provisioning.unwrap();
        assert_eq!(provisioning.kubelet.unwrap().version, "v1.35.4");
    }

    #[test]
    fn a_status_of_an_older_spec_does_not_count() {
        assert!(!is_ready(&set(2, &json!({"observedGeneration": 1, "readyReplicas": 3}))));
        assert!(is_ready(&set(2, &json!({"observedGeneration": 2, "readyReplicas": 3}))));
        assert!(!is_ready(&set(2, &json!({"observedGeneration": 2, "readyReplicas": 2}))));
        assert!(!is_ready(&set(1, &json!({}))), "a status without a generation speaks of none");
    }

    #[test]
    fn a_stall_says_what_the_set_says() {
        let status = json!({"readyReplicas": 1, "conditions": [{
            "type": "Progressing", "status": "True", "reason": "Waiting", "message": "for machines",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]});
        let text = stalled(Some(&set(1, &status)));
        assert!(
            text.starts_with("1 of 3 nodes") && text.contains("Progressing=True Waiting: for machines"),
            "{text}"
        );
        assert!(stalled(None).contains("no operator"));
    }
}
