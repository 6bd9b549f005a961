//! What the API server refuses is said in the status of the set it concerns, and stops nothing else.

use std::time::{Duration, Instant};

use k8s_openapi::api::{
    admissionregistration::v1::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
    },
    apps::v1::ControllerRevision,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use kube_node_api::{
    NodeClass,
    names::{FINALIZER_IN_USE, GROUP, LABEL_REVISION},
};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, always, class_spec, create, delete, eventually, is_ready, name};

/// What the policies say.
pub const REFUSAL: &str = "not while somebody looks at it";

/// A policy that refuses some writes until it is taken away.
pub struct Policy {
    name: String,
    policies: Api<ValidatingAdmissionPolicy>,
    bindings: Api<ValidatingAdmissionPolicyBinding>,
}

impl Policy {
    /// Refuses `operations` of `resource` (`GROUP/RESOURCE`) where `expression` is false.
    pub async fn refuse(
        own: &Fixture,
        resource: (&str, &str),
        operations: &[&str],
        expression: &str,
    ) -> Self {
        let policy = Self {
            name: own.name.clone(),
            policies: Api::all(own.client.clone()),
            bindings: Api::all(own.client.clone()),
        };
        let spec = json!({
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": [resource.0], "apiVersions": ["*"],
                "operations": operations, "resources": [resource.1]}]},
            "validations": [{"expression": expression, "message": REFUSAL}],
        });
        create(&policy.policies, json!({"metadata": {"name": policy.name}, "spec": spec})).await.unwrap();
        let spec = json!({"policyName": policy.name, "validationActions": ["Deny"]});
        create(&policy.bindings, json!({"metadata": {"name": policy.name}, "spec": spec})).await.unwrap();
        policy
    }

    pub async fn lift(self) {
        delete(&self.bindings, &self.name, PropagationPolicy::Background).await;
        delete(&self.policies, &self.name, PropagationPolicy::Background).await;
    }
}

/// Whether it is the policy that refuses, and not an API server that is busy.
pub fn is_by_policy(error: &kube::Error) -> bool {
    error.to_string().contains(REFUSAL)
}

fn dry_run() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

/// The messages of the set's waits for a reason.
async fn waits(own: &Fixture, reason: &str) -> Vec<String> {
    let status = own.sets.get(&own.name).await.unwrap().status.unwrap_or_default();
    status.waits.into_iter().filter(|wait| wait.reason == reason).map(|wait| wait.message).collect()
}

/// Of three Nodes, the one that goes first, with the set's name as the value of this label.
async fn goes_first(own: &Fixture, label: &str) -> String {
    let node = name(&own.settled(3).await[0]);
    let mark = json!({"metadata": {"labels": {label: own.name}, "annotations": {"kube-node.io/delete-first": "true"}}});
    own.nodes.patch(&node, &PatchParams::default(), &Patch::Merge(&mark)).await.unwrap();
    node
}

/// Waits until the deletion of the Node would fail so.
async fn deletion_fails(own: &Fixture, node: &str, is_so: impl Fn(&kube::Error) -> bool) {
    let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
    eventually("its deletion fails", LONG, async || {
        own.nodes.delete(node, &dry).await.err().filter(|error| is_so(error)).map(drop)
    })
    .await;
}

/// Refuses to create the Nodes of the set, and waits until the API server does.
async fn creations_fail(own: &Fixture) -> Policy {
    let expression = format!("!object.metadata.name.startsWith('{}-')", own.name);
    let policy = Policy::refuse(own, ("", "nodes"), &["CREATE"], &expression).await;
    eventually("the policy works", LONG, async || {
        let node = json!({"metadata": {"name": format!("{}-x", own.name)}});
        let tried = create(&own.nodes, node).await;
        delete(&own.nodes, &format!("{}-x", own.name), PropagationPolicy::Background).await;
        tried.err().filter(is_by_policy).map(drop)
    })
    .await;
    policy
}

#[tokio::test]
async fn a_node_that_a_policy_protects_holds_up_no_other() {
    let own = Fixture::new(&CLUSTER, "refused-update", 4, class_spec()).await;
    let other = Fixture::new(&CLUSTER, "refused-update-beside", 1, class_spec()).await;
    let nodes = own.settled(4).await;
    other.settled(1).await;
    let protected = name(&nodes[0]);
    let mark = json!({"metadata": {"labels": {"protected-by": own.name}}});
    own.nodes.patch(&protected, &PatchParams::default(), &Patch::Merge(&mark)).await.unwrap();
    let expression = format!("object.metadata.?labels['protected-by'].orValue('') != '{}'", own.name);
    let policy = Policy::refuse(&own, ("", "nodes"), &["UPDATE"], &expression).await;
    eventually("the policy works", LONG, async || {
        let change = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
        own.nodes.patch(&protected, &dry_run(), &change).await.err().filter(is_by_policy).map(drop)
    })
    .await;

    // In place.
    own.patch_class(json!({"spec": {"template": {"labels": {"team": own.name}}}})).await;
    let start = Instant::now();
    let message = own.set_says("Degraded", "True", "UpdateFailed").await;
    println!("Degraded {:.1} s after the class changed: {message}", start.elapsed().as_secs_f64());
    assert!(message.contains(&protected) && message.contains("not while somebody looks"), "{message}");
    assert_eq!(waits(&own, "UpdateFailed").await, [message]);
    let metrics = CLUSTER.metrics();
    let counted =
        metrics.lines().find_map(|l| l.strip_prefix("kube_node_waiting_nodesets{reason=\"UpdateFailed\"} "));
    assert!(counted.is_some_and(|count| count != "0"), "{metrics}");
    eventually("the others have the label", LONG, async || {
        let nodes = own.my_nodes().await;
        let has = |node: &&k8s_openapi::api::core::v1::Node| {
            node.metadata.labels.as_ref().unwrap().get("team") == Some(&own.name)
        };
        (nodes.iter().filter(has).count() == 3).then_some(())
    })
    .await;
    // Scaling and repair.
    own.patch_set(json!({"spec": {"replicas": 6}})).await;
    let nodes = own.settled(6).await;
    let victim = nodes.iter().map(name).find(|node| *node != protected).unwrap();
    own.nodes.delete(&victim, &DeleteParams::default()).await.unwrap();
    eventually("another one comes in its place", LONG, async || {
        let nodes = own.my_nodes().await;
        (nodes.len() == 6 && nodes.iter().all(|node| is_ready(node) && name(node) != victim)).then_some(())
    })
    .await;
    // A rollout within the default budget.
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
    eventually("all others are rolled", LONG, async || {
        let status = own.sets.get(&own.name).await.unwrap().status?;
        let update = status.update_revision?;
        let nodes = own.my_nodes().await;
        let new = nodes.iter().filter(|node| {
            node.metadata.labels.as_ref().unwrap()["kube-node.io/revision"] == update && is_ready(node)
        });
        (new.count() >= 5 && nodes.iter().filter(|node| name(node) != protected).count() <= 6).then_some(())
    })
    .await;
    assert!(own.my_nodes().await.iter().any(|node| name(node) == protected));
    let unaffected = other.sets.get(&other.name).await.unwrap().status.unwrap();
    assert!(unaffected.waits.is_empty(), "{:?}", unaffected.waits);
    // Mended without anybody's word.
    policy.lift().await;
    eventually("the last one goes", LONG, async || {
        let nodes = own.my_nodes().await;
        (nodes.len() == 6 && nodes.iter().all(|node| name(node) != protected)).then_some(())
    })
    .await;
    own.set_says("Degraded", "False", "AsExpected").await;
    other.clean_up().await;
    own.clean_up().await;
}

/// A broken webhook is answered with an error of the server, which might be over at the next try.
#[tokio::test]
async fn a_node_whose_webhook_is_broken_is_passed_over_in_the_end() {
    let own = Fixture::new(&CLUSTER, "broken-webhook", 3, class_spec()).await;
    let broken = goes_first(&own, "webhook-of").await;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(own.client.clone());
    let webhook = json!({
        "name": "broken.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Fail", "timeoutSeconds": 1,
        "objectSelector": {"matchLabels": {"webhook-of": own.name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["nodes"]}],
    });
    create(&webhooks, json!({"metadata": {"name": own.name}, "webhooks": [webhook]})).await.unwrap();
    let is_error = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 500);
    deletion_fails(&own, &broken, is_error).await;
    own.patch_set(json!({"spec": {"replicas": 2}})).await;
    let message = own.set_says("Degraded", "True", "DeleteFailed").await;
    assert!(message.contains(&broken) && message.contains("failed calling webhook"), "{message}");
    // Once it is in another state, as by a kubelet's status each five minutes, no deletion of it is under way.
    let mut state = 0;
    eventually("another one goes", LONG, async || {
        state += 1;
        let change = json!({"metadata": {"annotations": {"state": state.to_string()}}});
        own.nodes.patch(&broken, &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        (own.my_nodes().await.len() == 2).then_some(())
    })
    .await;
    assert!(own.my_nodes().await.iter().any(|node| name(node) == broken));
    delete(&webhooks, &own.name, PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn no_node_comes_before_its_class_is_kept() {
    let own = Fixture::nothing(&CLUSTER, "refused-finalizer").await;
    let kept = format!("'{FINALIZER_IN_USE}' in object.metadata.?finalizers.orValue([])");
    let expression = format!("object.metadata.name != '{}' || !({kept})", own.name);
    let policy = Policy::refuse(&own, (GROUP, "nodeclasses"), &["CREATE", "UPDATE"], &expression).await;
    let class: NodeClass = serde_json::from_value(json!({
        "metadata": {"name": own.name, "finalizers": [FINALIZER_IN_USE]}, "spec": class_spec(),
    }))
    .unwrap();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the policy works", LONG, async || {
        own.classes.create(&params, &class).await.err().filter(is_by_policy).map(drop)
    })
    .await;
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class_spec()})).await.unwrap();
    own.create_set(2, json!({})).await;
    let message = own.set_says("Degraded", "True", "FinalizerNotSet").await;
    assert!(message.contains(&own.name) && message.contains(REFUSAL), "{message}");
    always("no Node comes", Duration::from_secs(3), async || own.my_nodes().await.is_empty()).await;
    policy.lift().await;
    own.settled(2).await;
    let class = own.classes.get(&own.name).await.unwrap();
    assert_eq!(class.metadata.finalizers.as_deref(), Some(&[FINALIZER_IN_USE.to_owned()][..]));
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_that_may_not_be_deleted_is_passed_over() {
    let own = Fixture::new(&CLUSTER, "refused-delete", 3, class_spec()).await;
    let protected = goes_first(&own, "protected-by").await;
    let expression = format!("oldObject.metadata.?labels['protected-by'].orValue('') != '{}'", own.name);
    let policy = Policy::refuse(&own, ("", "nodes"), &["DELETE"], &expression).await;
    deletion_fails(&own, &protected, is_by_policy).await;
    own.patch_set(json!({"spec": {"replicas": 2}})).await;
    own.settled(2).await;
    assert!(own.my_nodes().await.iter().any(|node| name(node) == protected));
    // Deleting the set takes the others along, and says what is in the way.
    delete(&own.sets, &own.name, PropagationPolicy::Background).await;
    let message = own.set_says("Degraded", "True", "DeleteFailed").await;
    assert!(message.contains(&protected), "{message}");
    eventually("the other goes", LONG, async || (own.my_nodes().await.len() == 1).then_some(())).await;
    policy.lift().await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_revision_that_could_not_be_stored_is_tried_again() {
    let own = Fixture::nothing(&CLUSTER, "refused-revision").await;
    let expression =
        format!("object.metadata.?labels['kube-node.io/nodeclass'].orValue('') != '{}'", own.name);
    let policy = Policy::refuse(&own, ("apps", "controllerrevisions"), &["CREATE"], &expression).await;
    let revisions: Api<ControllerRevision> = Api::namespaced(own.client.clone(), "default");
    eventually("the policy works", LONG, async || {
        let object = json!({"metadata": {"name": own.name, "labels": {"kube-node.io/nodeclass": own.name}},
            "revision": 1, "data": {"x": 1}});
        let tried = create(&revisions, object).await;
        delete(&revisions, &own.name, PropagationPolicy::Background).await;
        tried.err().filter(is_by_policy).map(drop)
    })
    .await;
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class_spec()})).await.unwrap();
    own.create_set(2, json!({})).await;
    let message = own.set_says("Degraded", "True", "RevisionNotStored").await;
    assert!(message.contains("not while somebody looks"), "{message}");
    policy.lift().await;
    own.settled(2).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_status_that_somebody_wrote_over_is_written_again() {
    let own = Fixture::new(&CLUSTER, "refused-status", 2, class_spec()).await;
    own.settled(2).await;
    own.set_says("Progressing", "False", "Complete").await;
    let wrong = json!({"status": {"replicas": 77, "readyReplicas": 66, "waits": [], "conditions": [
        {"type": "Degraded", "status": "True", "reason": "Foreign", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    own.sets.patch_status(&own.name, &PatchParams::default(), &Patch::Merge(&wrong)).await.unwrap();
    own.settled(2).await;
    own.set_says("Degraded", "False", "AsExpected").await;
    let version = async || own.sets.get(&own.name).await.unwrap().metadata.resource_version;
    let before = version().await;
    always("one write is enough", std::time::Duration::from_secs(3), async || version().await == before)
        .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_class_gives_its_sets_no_more_nodes_than_its_limit() {
    let mut class = class_spec();
    class["limits"] = json!({"nodes": 5});
    let own = Fixture::without_set(&CLUSTER, "class-limit", class).await;
    // One by hand counts as well.
    let by_hand = json!({"metadata": {"name": "class-limit-by-hand",
        "labels": {"kube-node.io/nodeclass": own.name}}});
    create(&own.nodes, by_hand).await.unwrap();
    let set = |name: &str, replicas: i32| json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "nodeClassName": own.name}});
    for name in ["class-limit", "class-limit-too"] {
        create(&own.sets, set(name, 40)).await.unwrap();
    }
    let of_class = async || {
        let selector = ListParams::default().labels(&format!("kube-node.io/nodeclass={}", own.name));
        own.nodes.list(&selector).await.unwrap().items.len()
    };
    let message = own.set_says("Degraded", "True", "ClassLimit").await;
    assert!(message.contains("5 nodes at most"), "{message}");
    eventually("the class is full", LONG, async || (of_class().await == 5).then_some(())).await;
    always("and stays so", std::time::Duration::from_secs(2), async || of_class().await == 5).await;
    // What one gives back the other takes.
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    own.sets.patch("class-limit-too", &PatchParams::default(), &none).await.unwrap();
    own.settled(4).await;
    own.patch_class(json!({"spec": {"limits": {"nodes": 7}}})).await;
    own.settled(6).await;
    delete(&own.sets, "class-limit-too", PropagationPolicy::Background).await;
    delete(&own.nodes, "class-limit-by-hand", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn what_is_refused_of_a_set_is_an_event_of_it() {
    let own = Fixture::without_set(&CLUSTER, "refused-create", class_spec()).await;
    let policy = creations_fail(&own).await;
    own.create_set(50, json!({})).await;
    let message = own.set_says("Degraded", "True", "CreateFailed").await;
    assert!(message.contains("not while somebody looks"), "{message}");
    eventually("an event", LONG, async || own.event_of(&own.name, "CreateFailed").await).await;
    policy.lift().await;
    own.settled(50).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_refused_creation_leaves_the_status_of_a_set_without_a_revision() {
    let own = Fixture::new(&CLUSTER, "refused-held", 1, class_spec()).await;
    own.settled(1).await;
    let policy = creations_fail(&own).await;
    // A paused set makes Nodes of the revision that works.
    own.patch_set(json!({"spec": {"paused": true}})).await;
    own.patch_class(json!({"spec": {"capacity": {"cpu": "64"}}})).await;
    own.set_says("Progressing", "False", "Paused").await;
    own.patch_set(json!({"spec": {"replicas": 3}})).await;
    own.set_says("Degraded", "True", "CreateFailed").await;
    own.patch_set(json!({"spec": {"revision": "v1-0000000000"}})).await;
    own.set_says("Degraded", "True", "RevisionNotFound").await;
    eventually("the status has no failure of a creation", LONG, async || {
        waits(&own, "CreateFailed").await.is_empty().then_some(())
    })
    .await;
    policy.lift().await;
    own.patch_set(json!({"spec": {"revision": null}})).await;
    let nodes = own.settled(3).await;
    let revisions: std::collections::HashSet<_> =
        nodes.iter().map(|node| node.metadata.labels.as_ref().unwrap()[LABEL_REVISION].clone()).collect();
    assert_eq!(revisions.len(), 1, "all have the revision that works");
    own.clean_up().await;
}
