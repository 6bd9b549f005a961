//! A NodeClass and a NodeSet of one test.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PropagationPolicy},
};
use kube_node_api::{NodeClass, NodeSet};
use serde_json::{Value, json};

use crate::{LONG, TestCluster, create, delete, eventually, is_ready, summary, taints};

/// Until a rollout of a handful of nodes is over, drains included.
pub const ROLLED: Duration = Duration::from_mins(3);

/// A class and a set of one name, both of one test.
pub struct Fixture {
    /// Name of both.
    pub name: String,
    /// Client of the cluster.
    pub client: Client,
    /// All NodeSets.
    pub sets: Api<NodeSet>,
    /// All NodeClasses.
    pub classes: Api<NodeClass>,
    /// All Nodes.
    pub nodes: Api<Node>,
    /// Pods of the default namespace.
    pub pods: Api<Pod>,
}

/// The class that tests use unless they want another one.
pub fn class_spec() -> Value {
    json!({
        "nodeController": "hollow",
        "machineType": "test",
        "capacity": {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"},
        "reserved": {"cpu": "100m", "memory": "512Mi"},
    })
}

impl Fixture {
    /// A class with a spec and a set of it.
    pub async fn new(cluster: &TestCluster, name: &str, replicas: i32, class: Value) -> Self {
        let fixture = Self::without_set(cluster, name, class).await;
        fixture.create_set(replicas, json!({})).await;
        fixture
    }

    /// A Node that stays Ready while a test waits for another one to become Unknown. Without any the controller-manager
    /// thinks itself cut off, and each time it ceases to, the grace of all Nodes begins anew.
    pub async fn anchor(cluster: &TestCluster, name: &str) -> Self {
        let fixture = Self::new(cluster, name, 1, class_spec()).await;
        fixture.settled(1).await;
        fixture
    }

    /// A class alone.
    pub async fn without_set(cluster: &TestCluster, name: &str, class: Value) -> Self {
        let fixture = Self::nothing(cluster, name).await;
        create(&fixture.classes, json!({"metadata": {"name": name}, "spec": class})).await.unwrap();
        fixture
    }

    /// Only the names.
    pub async fn nothing(cluster: &TestCluster, name: &str) -> Self {
        Self::of(cluster.client().await, name)
    }

    /// Only the names, in the cluster that `client` leads to.
    pub fn of(client: Client, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            sets: Api::all(client.clone()),
            classes: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            client,
        }
    }

    /// The set; `more` is merged into its spec.
    pub async fn create_set(&self, replicas: i32, more: Value) {
        let mut spec = json!({"replicas": replicas, "nodeClassName": self.name});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        create(&self.sets, json!({"metadata": {"name": self.name}, "spec": spec})).await.unwrap();
    }

    /// Merges a change into the set.
    pub async fn patch_set(&self, change: Value) {
        self.sets.patch(&self.name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    /// Merges a change into the class.
    pub async fn patch_class(&self, change: Value) {
        self.classes.patch(&self.name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    /// The Nodes that carry the set's label.
    pub async fn my_nodes(&self) -> Vec<Node> {
        let selector = ListParams::default().labels(&format!("kube-node.io/nodeset={}", self.name));
        self.nodes.list(&selector).await.unwrap().items
    }

    /// Waits until exactly so many Nodes are there, all Ready and open to pods, and the set says so.
    pub async fn settled(&self, count: usize) -> Vec<Node> {
        let nodes = eventually(&format!("{count} Ready nodes of {}", self.name), LONG, async || {
            let nodes = self.my_nodes().await;
            let is_settled = |node| is_ready(node) && taints_of_ours(node) == 0;
            if nodes.len() == count && nodes.iter().all(is_settled) {
                return Ok(nodes);
            }
            Err((nodes.len(), nodes.iter().filter(|node| !is_settled(node)).map(summary).collect::<Vec<_>>()))
        })
        .await;
        eventually(&format!("status of {}", self.name), LONG, async || {
            let status = self.sets.get(&self.name).await.unwrap().status.unwrap_or_default();
            let ready = usize::try_from(status.ready_replicas).unwrap();
            if ready == count && status.replicas == status.ready_replicas { Ok(()) } else { Err(status) }
        })
        .await;
        nodes
    }

    /// Waits until every Node is of the newest revision and nothing is under way.
    pub async fn rolled(&self, count: usize) -> Vec<Node> {
        eventually(&format!("{} is rolled", self.name), ROLLED, async || {
            let set = self.sets.get(&self.name).await.unwrap();
            let status = set.status.unwrap_or_default();
            let done = status.observed_generation == set.metadata.generation
                && status.rollout.is_none()
                && usize::try_from(status.updated_replicas).unwrap() == count
                && status.current_revision == status.update_revision
                && status.conditions.iter().any(|c| c.type_ == "Progressing" && c.reason == "Complete");
            let nodes = self.my_nodes().await;
            if done && nodes.len() == count { Ok(nodes) } else { Err(status) }
        })
        .await
    }

    /// Waits until the set has seen its class's last change.
    pub async fn drifted(&self) {
        eventually("the set sees the change", LONG, async || {
            let status = self.sets.get(&self.name).await.unwrap().status?;
            (status.current_revision != status.update_revision).then_some(())
        })
        .await;
    }

    /// The reason and message of a condition of the set with this status.
    pub async fn set_says(&self, r#type: &str, status: &str, reason: &str) -> String {
        eventually(&format!("{}: {type} {status} {reason}", self.name), LONG, async || {
            let set = self.sets.get_opt(&self.name).await.unwrap();
            let conditions = set.and_then(|set| set.status).unwrap_or_default().conditions;
            let said =
                conditions.iter().find(|c| c.type_ == r#type && c.status == status && c.reason == reason);
            said.map(|condition| condition.message.clone()).ok_or(conditions)
        })
        .await
    }

    /// Deletes set and class, and waits until everything is gone.
    pub async fn clean_up(self) {
        delete(&self.sets, &self.name, PropagationPolicy::Background).await;
        delete(&self.classes, &self.name, PropagationPolicy::Background).await;
        eventually(&format!("{} is gone", self.name), LONG, async || {
            let nodes = self.my_nodes().await;
            let set = self.sets.get_opt(&self.name).await.unwrap();
            let class = self.classes.get_opt(&self.name).await.unwrap();
            if nodes.is_empty() && set.is_none() && class.is_none() {
                return Ok(());
            }
            let nodes: Vec<String> = nodes.iter().map(summary).collect();
            Err((nodes, set.map(|set| set.status), class.map(|class| class.status)))
        })
        .await;
    }

    /// What an event with this reason says of an object of this name, in any namespace. Unlike a condition, which the
    /// next step writes over at once, it stays to be read.
    pub async fn event_of(&self, object: &str, reason: &str) -> Option<String> {
        let of_it = format!("involvedObject.name={object},reason={reason}");
        let events: Api<Event> = Api::all(self.client.clone());
        events.list(&ListParams::default().fields(&of_it)).await.unwrap().items.pop()?.message
    }

    /// Waits until the Node is gone. Panics if the pod is there after the Node.
    pub async fn pod_goes_before_node(&self, pod: &str, node: &str) {
        eventually("the pod goes, then the Node", LONG, async || {
            // The Node is read first: both may go between the two reads.
            let node = self.nodes.get_opt(node).await.unwrap();
            let pod = self.pods.get_opt(pod).await.unwrap();
            assert!(pod.is_none() || node.is_some(), "the Node went first");
            node.is_none().then_some(())
        })
        .await;
    }

    /// A pod bound to a Node directly, as a DaemonSet's old controller did; `more` is merged into its spec.
    pub async fn pod_on(&self, node: &str, name: &str, annotations: Value, more: Value) -> Pod {
        let mut spec = json!({
            "nodeName": node,
            "containers": [{"name": "main", "image": "example.com/main:1"}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 30,
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let metadata = json!({"name": name, "annotations": annotations, "labels": {"app": name}});
        create(&self.pods, json!({"metadata": metadata, "spec": spec})).await.unwrap()
    }
}

fn taints_of_ours(node: &Node) -> usize {
    taints(node).iter().filter(|(key, _)| key.starts_with("kube-node.io/")).count()
}
