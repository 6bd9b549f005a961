//! A change of the class rolls through the set, within its budget, and whatever holds it up is said.

use std::{
    collections::HashSet,
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Node};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use kube_node_api::names::LABEL_REVISION;
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, ROLLED, always, class_spec, eventually, is_ready, name};

fn uids(nodes: &[Node]) -> HashSet<String> {
    nodes.iter().filter_map(|node| node.metadata.uid.clone()).collect()
}

/// A change that makes other machines.
fn bigger(cpu: &str) -> Value {
    json!({"spec": {"capacity": {"cpu": cpu}}})
}

#[tokio::test]
async fn a_class_change_rolls_through_with_the_workload_up() {
    let own = Fixture::new(&CLUSTER, "roll", 4, class_spec()).await;
    let before = own.settled(4).await;
    own.workload(4).await;
    own.budget(json!({"minAvailable": 3})).await;

    own.patch_class(bigger("8")).await;
    own.drifted().await;
    let mut status = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    status.args(["rollout", "status", "roll", "--timeout=3m", "--data-dir"]).arg(&CLUSTER.dir);
    let status = status.stdout(Stdio::piped()).spawn().unwrap();
    let watch = async {
        // As fast as the API server answers, until the rollout is over.
        let (mut fewest, mut fewest_nodes, mut most_nodes) = (usize::MAX, usize::MAX, 0);
        loop {
            fewest = fewest.min(own.endpoints().await);
            let nodes = own.my_nodes().await;
            fewest_nodes = fewest_nodes.min(nodes.iter().filter(|node| is_ready(node)).count());
            most_nodes = most_nodes.max(nodes.len());
            tokio::time::sleep(Duration::from_millis(50)).await;
            if uids(&nodes).is_disjoint(&uids(&before)) && nodes.len() == 4 {
                return (fewest, fewest_nodes, most_nodes);
            }
        }
    };
    let (fewest, fewest_nodes, most_nodes) = tokio::time::timeout(ROLLED, watch).await.unwrap();
    assert!(fewest >= 3, "{fewest} endpoints");
    assert!(fewest_nodes >= 4, "{fewest_nodes} Ready nodes");
    assert!(most_nodes <= 5, "{most_nodes} nodes");
    let after = own.rolled(4).await;
    let status = status.wait_with_output().unwrap();
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(status.status.success() && said.contains("out of 4 new nodes"), "{said}");
    assert!(said.ends_with("nodeset \"roll\" successfully rolled out\n"), "{said}");
    for node in &after {
        let capacity = node.status.as_ref().unwrap().capacity.as_ref().unwrap();
        assert_eq!(capacity["cpu"].0, "8");
    }
    own.end_workload().await;
    own.clean_up().await;
}

#[tokio::test]
async fn labels_taints_timeouts_and_failures_replace_no_node() {
    let own = Fixture::new(&CLUSTER, "in-place", 3, class_spec()).await;
    let before = uids(&own.settled(3).await);
    own.patch_class(json!({"spec": {
        "template": {"labels": {"rack": "7"}, "taints": [{"key": "a", "effect": "NoSchedule"}]},
        "deletionTimeout": "1s",
        "failures": {"unhealthyDuration": "1h", "turnUnhealthyAfter": true},
    }}))
    .await;
    eventually("the label is there", LONG, async || {
        own.my_nodes()
            .await
            .iter()
            .all(|n| n.metadata.labels.as_ref().unwrap().contains_key("rack"))
            .then_some(())
    })
    .await;
    assert_eq!(uids(&own.settled(3).await), before);
    own.clean_up().await;
}

#[tokio::test]
async fn new_nodes_that_do_not_come_stop_the_rollout_at_its_budget() {
    let own = Fixture::without_set(&CLUSTER, "stuck", class_spec()).await;
    own.create_set(3, json!({"progressDeadline": "5s"})).await;
    let before = uids(&own.settled(3).await);
    // An agent that never comes keeps them from being initialised.
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"},
        "template": {"startupTaints": [{"key": "example.com/agent", "effect": "NoSchedule"}]}}}))
        .await;
    let said = own.set_says("Progressing", "False", "ProgressDeadlineExceeded").await;
    assert!(said.contains("1 of 3 nodes have revision"), "{said}");
    let said = own.set_says("Degraded", "True", "ProgressDeadlineExceeded").await;
    assert!(said.contains("correct the class, undo, or resume"), "{said}");
    let status = CLUSTER.kube_node(&["rollout", "status", "stuck"]);
    let stopped = String::from_utf8(status.stderr).unwrap();
    assert!(status.status.code() == Some(1) && stopped.contains("progress deadline"), "{stopped}");
    let nodes = own.my_nodes().await;
    assert!(nodes.len() == 4 && before.is_subset(&uids(&nodes)), "no old node has gone");
    // Scaling goes on, with the revision that works.
    own.patch_set(json!({"spec": {"replicas": 5}})).await;
    let status = own.sets.get(&own.name).await.unwrap().status.unwrap();
    let (current, update) = (status.current_revision.unwrap(), status.update_revision.unwrap());
    eventually("it grows", LONG, async || {
        let nodes = own.my_nodes().await;
        let of = |revision: &str| {
            let current =
                |node: &&Node| node.metadata.labels.as_ref().unwrap()["kube-node.io/revision"] == revision;
            nodes.iter().filter(current).count()
        };
        (of(&current) == 4 && of(&update) == 1).then_some(())
    })
    .await;
    // The class is corrected: the rollout goes on by itself.
    own.patch_set(json!({"spec": {"replicas": 3}})).await;
    own.patch_class(json!({"spec": {"capacity": {"cpu": "6"}, "template": null}})).await;
    let after = own.rolled(3).await;
    assert!(uids(&after).is_disjoint(&before));
    own.clean_up().await;
}

#[tokio::test]
async fn a_budget_that_allows_nothing_is_named_until_it_is_relaxed() {
    let own = Fixture::new(&CLUSTER, "blocked", 2, class_spec()).await;
    let before = uids(&own.settled(2).await);
    own.workload(2).await;
    let budgets = own.budget(json!({"maxUnavailable": 0})).await;
    own.patch_class(bigger("8")).await;
    let said = eventually("the budget is named", LONG, async || {
        let status = own.sets.get(&own.name).await.unwrap().status?;
        status.waits.into_iter().find(|wait| wait.reason == "PodDisruptionBudget").map(|wait| wait.message)
    })
    .await;
    assert!(said.contains("pod default/blocked-"), "{said}");
    own.set_says("Progressing", "True", "RollingOut").await;
    always("nothing is forced", Duration::from_secs(4), async || own.endpoints().await == 2).await;
    let relaxed = Patch::Merge(json!({"spec": {"maxUnavailable": 1}}));
    budgets.patch(&own.name, &PatchParams::default(), &relaxed).await.unwrap();
    assert!(uids(&own.rolled(2).await).is_disjoint(&before));
    own.end_workload().await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_deleted_by_hand_is_drained_only_when_its_replacement_is_ready() {
    let own = Fixture::new(&CLUSTER, "by-hand", 2, class_spec()).await;
    let victim = name(&own.settled(2).await[0]);
    own.nodes.delete(&victim, &kube::api::DeleteParams::default()).await.unwrap();
    let mut cordoned_with = None;
    eventually("it goes", LONG, async || {
        let nodes = own.my_nodes().await;
        let others = nodes.iter().filter(|node| name(node) != victim && is_ready(node)).count();
        match nodes.iter().find(|node| name(node) == victim) {
            Some(node) if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) => {
                cordoned_with.get_or_insert(others);
                None
            }
            Some(_) => None,
            None => Some(()),
        }
    })
    .await;
    assert!(cordoned_with.is_none_or(|others| others >= 2), "cordoned with {cordoned_with:?} others Ready");
    own.settled(2).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_partition_is_a_canary_and_a_pinned_revision_goes_back() {
    let own = Fixture::without_set(&CLUSTER, "canary", class_spec()).await;
    own.create_set(4, json!({"strategy": {"rollingUpdate": {"partition": 3, "maxSurge": 2}}})).await;
    let before = uids(&own.settled(4).await);
    let first = own.sets.get(&own.name).await.unwrap().status.unwrap().current_revision.unwrap();
    own.patch_class(bigger("8")).await;
    own.drifted().await;
    eventually("one node tries it", LONG, async || {
        let status = own.sets.get(&own.name).await.unwrap().status.unwrap();
        let nodes = uids(&own.my_nodes().await);
        (status.updated_replicas == 1 && nodes.len() == 4 && nodes.intersection(&before).count() == 3)
            .then_some(())
    })
    .await;
    let said = own.set_says("Progressing", "False", "Complete").await;
    assert!(said.contains("3 of them keep an older revision"), "{said}");
    // Undo: the pinned revision is what the nodes are to have.
    own.patch_set(json!({"spec": {"revision": first, "strategy": null}})).await;
    let after = own.rolled(4).await;
    assert_eq!(uids(&after).intersection(&before).count(), 3, "those that were right stay");
    own.patch_set(json!({"spec": {"revision": "v1-0000000000"}})).await;
    let said = own.set_says("Degraded", "True", "RevisionNotFound").await;
    assert!(said.contains("v1-0000000000"), "{said}");
    own.patch_set(json!({"spec": {"revision": null}})).await;
    own.rolled(4).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_paused_set_scales_and_does_not_roll_and_a_restart_replaces_all() {
    let own = Fixture::without_set(&CLUSTER, "paused", class_spec()).await;
    own.create_set(2, json!({"paused": true, "strategy": {"rollingUpdate": {"maxSurge": 2}}})).await;
    let before = uids(&own.settled(2).await);
    own.patch_class(bigger("8")).await;
    own.set_says("Progressing", "False", "Paused").await;
    own.patch_set(json!({"spec": {"replicas": 3}})).await;
    let grown = own.settled(3).await;
    let capacities: Vec<&str> = grown
        .iter()
        .map(|node| node.status.as_ref().unwrap().capacity.as_ref().unwrap()["cpu"].0.as_str())
        .collect();
    assert_eq!(capacities, ["4"; 3], "the revision that works");
    assert!(before.is_subset(&uids(&grown)));
    own.patch_set(json!({"spec": {"paused": false}})).await;
    let rolled = uids(&own.rolled(3).await);
    assert!(rolled.is_disjoint(&before));
    // A restart replaces Nodes of the right revision, too. Creation times are whole seconds.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let now = jiff::Timestamp::now().strftime("%FT%TZ").to_string();
    own.patch_set(json!({"metadata": {"annotations": {"kube-node.io/restarted-at": now}}})).await;
    eventually("all are replaced", ROLLED, async || {
        let nodes = uids(&own.my_nodes().await);
        (nodes.len() == 3 && nodes.is_disjoint(&rolled)).then_some(())
    })
    .await;
    // A restart in the future would make each new Node outdated at birth.
    let restarted = uids(&own.settled(3).await);
    let future = json!({"kube-node.io/restarted-at": "2099-01-01T00:00:00Z"});
    own.patch_set(json!({"metadata": {"annotations": future}})).await;
    let said = eventually("the set reports the time", LONG, async || {
        let waits = own.sets.get(&own.name).await.unwrap().status?.waits;
        waits.into_iter().find(|wait| wait.reason == "RestartNotDue").map(|wait| wait.message)
    })
    .await;
    assert!(said.contains("kube-node rollout restart paused"), "{said}");
    always("they stay", Duration::from_secs(3), async || uids(&own.my_nodes().await) == restarted).await;
    own.patch_set(json!({"metadata": {"annotations": {"kube-node.io/restarted-at": "soon"}}})).await;
    own.set_says("Degraded", "True", "InvalidAnnotation").await;
    own.clean_up().await;
}

#[tokio::test]
async fn sick_nodes_are_replaced_unless_too_many_are_or_somebody_says_no() {
    let own = Fixture::without_set(&CLUSTER, "sick", class_spec()).await;
    let remediation = json!({
        "nodeStartupTimeout": "10m",
        "unhealthyConditions": [{"type": "example.com/Disk", "status": "True", "for": "5s"}],
        "maxUnhealthy": "50%",
    });
    own.create_set(3, json!({"remediation": remediation})).await;
    let nodes = own.settled(3).await;
    let now = || jiff::Timestamp::now().strftime("%FT%TZ").to_string();
    let disk = async |node: &str, status: &str, since: &str| {
        let condition = json!({"type": "example.com/Disk", "status": status, "reason": "Tried",
            "lastTransitionTime": since});
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        own.nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    };
    let [first, second, third] = [0, 1, 2].map(|at| name(&nodes[at]));
    let skip = |value: Value| {
        Patch::Merge(json!({"metadata": {"annotations": {"kube-node.io/skip-remediation": value}}}))
    };
    own.nodes.patch(&first, &PatchParams::default(), &skip(json!("true"))).await.unwrap();
    disk(&first, "True", &now()).await;
    always("nobody replaces it", Duration::from_secs(8), async || {
        own.nodes
            .get_opt(&first)
            .await
            .unwrap()
            .is_some_and(|node| node.metadata.deletion_timestamp.is_none())
    })
    .await;
    disk(&first, "False", &now()).await;
    own.nodes.patch(&first, &PatchParams::default(), &skip(Value::Null)).await.unwrap();
    // Two of three are more than half: the fault is not theirs. Their time is over at once.
    let since = now();
    disk(&first, "True", &since).await;
    disk(&second, "True", &since).await;
    let said = own.set_says("Degraded", "True", "TooManySick").await;
    assert!(said.contains("2 nodes are unhealthy, more than maxUnhealthy (1)"), "{said}");
    disk(&first, "False", &now()).await;
    eventually("one is replaced", LONG, async || {
        let names: Vec<String> = own.my_nodes().await.iter().map(name).collect();
        (names.len() == 3 && !names.contains(&second) && names.contains(&first) && names.contains(&third))
            .then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn nodes_that_never_start_are_given_up_and_made_again_ever_more_slowly() {
    let mut class = class_spec();
    class["template"] = json!({"startupTaints": [{"key": "example.com/agent", "effect": "NoSchedule"}]});
    let own = Fixture::without_set(&CLUSTER, "no-start", class).await;
    own.create_set(1, json!({"remediation": {"nodeStartupTimeout": "2s"}})).await;
    let said = own.set_says("Degraded", "True", "BackOff").await;
    assert!(said.contains("did not start"), "{said}");
    let failures = own.sets.get(&own.name).await.unwrap().status.unwrap().start_failures.unwrap();
    assert!(failures.count >= 1, "{failures:?}");
    own.patch_class(json!({"spec": {"template": null}})).await;
    own.settled(1).await;
    own.clean_up().await;
}

#[tokio::test]
async fn nodes_expire_within_the_budget() {
    let own = Fixture::without_set(&CLUSTER, "expiry", class_spec()).await;
    own.create_set(2, json!({"expireAfter": "8s", "strategy": {"rollingUpdate": {"maxSurge": 2}}})).await;
    let before = uids(&own.settled(2).await);
    eventually("both are replaced", LONG, async || {
        let nodes = own.my_nodes().await;
        assert!(nodes.len() <= 4, "more than the surge");
        uids(&nodes).is_disjoint(&before).then_some(())
    })
    .await;
    own.patch_set(json!({"spec": {"expireAfter": null}})).await;
    own.settled(2).await;
    own.clean_up().await;
}

#[tokio::test]
async fn revisions_that_nothing_names_are_forgotten() {
    let own = Fixture::without_set(&CLUSTER, "history", class_spec()).await;
    own.create_set(1, json!({"revisionHistoryLimit": 1})).await;
    own.settled(1).await;
    for cpu in ["5", "6", "7", "8"] {
        let before = own.sets.get(&own.name).await.unwrap().status.unwrap().update_revision;
        own.patch_class(bigger(cpu)).await;
        eventually("the set sees the change", LONG, async || {
            let now = own.sets.get(&own.name).await.unwrap().status?.update_revision;
            (now != before).then_some(())
        })
        .await;
        own.rolled(1).await;
    }
    let revisions: Api<ControllerRevision> = Api::namespaced(own.client.clone(), "kube-node-system");
    let selector = ListParams::default().labels("kube-node.io/nodeclass=history");
    // Looked at once a minute.
    eventually("one is left besides that of the Node", ROLLED, async || {
        let mut left = revisions.list(&selector).await.unwrap().items;
        left.sort_by_key(|revision| revision.revision);
        let current = own.sets.get(&own.name).await.unwrap().status?.current_revision?;
        let is_named = left.last()?.metadata.name.as_deref() == Some(format!("history-{current}").as_str());
        (left.len() == 2 && is_named).then_some(())
    })
    .await;
    own.clean_up().await;
}

/// The class that comes back under a name finds the revisions of the one that went, which are collected with it.
#[tokio::test]
async fn a_class_that_comes_back_owns_its_revisions() {
    let own = Fixture::new(&CLUSTER, "again", 1, class_spec()).await;
    let revisions: Api<ControllerRevision> = Api::namespaced(own.client.clone(), "kube-node-system");
    own.settled(1).await;
    own.clean_up().await;
    let own = Fixture::new(&CLUSTER, "again", 1, class_spec()).await;
    let current = own.settled(1).await[0].metadata.labels.as_ref().unwrap()[LABEL_REVISION].clone();
    let class = own.classes.get(&own.name).await.unwrap().metadata.uid;
    let name = format!("again-{current}");
    let is_stored = async || {
        let stored = revisions.get_opt(&name).await.unwrap()?;
        let owners = stored.metadata.owner_references?;
        (owners.into_iter().map(|owner| Some(owner.uid)).eq([class.clone()])).then_some(())
    };
    eventually("it is stored under the new class", LONG, is_stored).await;
    // What somebody deletes by hand is stored again at the next look, once a minute.
    revisions.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("it is stored again", ROLLED, is_stored).await;
    own.clean_up().await;
}
