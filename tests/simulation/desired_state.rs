//! What users want in the end, and what is missing.

use std::{collections::BTreeMap, sync::Arc};

use kube_node_api::names::{ANNOTATION_VICTIMS, LABEL_NODE_CONTROLLER, LABEL_REVISION, MACHINE_NAMESPACE};
use kube_node_testing::api_server::ApiServer;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    actions::{LABEL, SICK, VERSION_LABEL},
    autoscaler_checks::is_drained,
    faults::NEWER_FIELD,
    invariants::size,
    objects::{is_available, is_ready, name, set_of, taints},
    others::is_leaving,
    people::Undo,
};

/// What users want in the end.
#[derive(Default)]
pub struct DesiredState {
    /// Replicas by the name of the set.
    pub sets: BTreeMap<String, u64>,
    /// Version of the kubelets.
    pub version: u64,
    /// Value of the label that changes while the machines stay.
    pub label: u64,
    /// True if the Nodes of this version never start.
    pub starts_never: bool,
    /// Until when the class cannot be used.
    pub spoiled: Option<Instant>,
    /// True if users have cordoned Nodes.
    pub cordons: bool,
    /// What ends the acts of people that last.
    pub undo: Vec<Undo>,
    /// True until the class that users have deleted is gone and made again.
    pub remakes_class: bool,
    /// True if cluster-autoscaler scales the first set.
    pub is_scaled: bool,
}

/// Version that users take back to in the end.
const HEALTHY: u64 = 20;

impl DesiredState {
    /// Mends the class once its time is over, and what does not start once everything `is_over`. Returns true if the class
    /// has changed.
    pub fn heal(&mut self, is_over: bool) -> bool {
        let is_mended = self.spoiled.take_if(|until| Instant::now() >= *until || is_over).is_some();
        let is_rolled = is_over && self.starts_never;
        if is_rolled {
            (self.version, self.starts_never) = (HEALTHY, false);
        }
        is_mended || is_rolled
    }

    /// What is not as users want it. The `refused` Node, to which nobody may write, may stay as it is, and its set
    /// may have one Node more.
    pub fn unmet(&self, server: &ApiServer, refused: Option<&str>) -> Option<String> {
        let nodes = server.objects("", "nodes");
        let version = format!("v1.36.{}", self.version);
        let (stuck, free): (Vec<_>, Vec<_>) =
            nodes.iter().partition(|node| refused == Some(name(node).as_str()));
        let set_of_stuck = stuck.first().map(|node| set_of(node));
        let count = |set: &str| nodes.iter().filter(|node| set_of(node) == set).count();
        // If that Node takes the last of the budget, a Node that was deleted waits for it, and so does a rollout without room
        // for one Node more.
        let has_budget = |set: &Value| {
            let Some(stuck) = stuck.first().filter(|node| set_of(node) == name(set)) else { return true };
            let unavailable = set["spec"]["replicas"].as_i64().unwrap_or_default() - size(set).1;
            // A victim goes whenever it can, so nothing counts on it.
            let victims = set["metadata"]["annotations"][ANNOTATION_VICTIMS].as_str().unwrap_or_default();
            let is_victim = victims.split(',').any(|uid| stuck["metadata"]["uid"] == uid);
            unavailable > i64::from(!is_available(stuck) || is_drained(stuck) || is_victim)
        };
        // As in a Deployment, new Nodes never outnumber the replicas: one of them that does not start holds up the last
        // outdated Node, until it has taken longer than a Node may.
        let awaits_stuck = |set: &Value| {
            let revision = &set["status"]["updateRevision"];
            let is_new = |node: &Value| node["metadata"]["labels"][LABEL_REVISION] == *revision;
            let new = nodes.iter().filter(|node| set_of(node) == name(set) && is_new(node)).count() as u64;
            stuck.iter().any(|node| set_of(node) == name(set) && is_new(node) && !is_available(node))
                && new >= set["spec"]["replicas"].as_u64().unwrap_or_default()
        };
        let has_room =
            |set: &Value| i64::try_from(count(&name(set))).unwrap() < size(set).0 && !awaits_stuck(set);
        let sets = server.objects("kube-node.io", "nodesets");
        let names = |is: &dyn Fn(&Value) -> bool| -> Vec<String> {
            sets.iter().filter(|set| is(set)).map(|set| name(set)).collect()
        };
        let draining = names(&has_budget);
        let rolling = names(&|set| has_budget(set) || has_room(set));
        for node in &free {
            let name = name(node);
            if !self.sets.contains_key(&set_of(node)) {
                return Some(format!("{name} has no set"));
            }
            if is_leaving(node) {
                if draining.contains(&set_of(node)) {
                    return Some(format!("{name} is on its way out"));
                }
                continue;
            }
            if !is_ready(node) || taints(node).next().is_some() && !self.cordons {
                return Some(format!("{name} is not ready: {}", node["spec"]["taints"]));
            }
            let rolls = rolling.contains(&set_of(node));
            if rolls && node["status"]["nodeInfo"]["kubeletVersion"] != version.as_str() {
                return Some(format!("{name} does not have version {version}"));
            }
            let conditions = node["status"]["conditions"].as_array();
            if conditions.into_iter().flatten().any(|one| one["type"] == SICK) {
                return Some(format!("{name} is sick"));
            }
            let (version, label) = (self.version.to_string(), self.label.to_string());
            let labels = &node["metadata"]["labels"];
            if labels[VERSION_LABEL] != version.as_str() || labels[LABEL] != label.as_str() {
                return Some(format!(
                    "{name} does not have the template's label: {}",
                    node["metadata"]["labels"]
                ));
            }
        }
        for (set, replicas) in &self.sets {
            let count = count(set) as u64;
            let is_stuck = set_of_stuck.as_ref() == Some(set);
            // A Node that a rollout deletes, and that cannot go, keeps cluster-autoscaler off until the progress deadline; a new
            // one that does not become available, until it has taken longer than a Node may.
            let is_kept = |own: &Arc<Value>| {
                let is_new = |node: &Value| {
                    node["metadata"]["labels"][LABEL_REVISION] == own["status"]["updateRevision"]
                };
                let is_waited_for =
                    |node: &&Arc<Value>| is_leaving(node) || is_new(node) && !is_available(node);
                let rollout = &own["status"]["rollout"];
                let rolls = rollout.is_object() && rollout["haltTime"].is_null();
                is_stuck && stuck.iter().any(is_waited_for) && name(own) == *set && rolls
            };
            let is_off = self.is_scaled && sets.iter().any(is_kept);
            // Those that were deleted, and wait until the budget of their set lets them go. They may have been replaced.
            let is_waiting =
                |node: &&&Arc<Value>| set_of(node) == *set && is_leaving(node) && !draining.contains(set);
            let waiting = free.iter().filter(is_waiting).count() as u64;
            let may_be = *replicas..=replicas + waiting + 1;
            if count != *replicas && !(is_stuck && may_be.contains(&count)) && !is_off {
                return Some(format!("{set} has {count} Nodes of {replicas}"));
            }
        }
        let (machines, pods): (Vec<_>, Vec<_>) = server
            .objects("", "pods")
            .into_iter()
            .partition(|pod| pod["metadata"]["namespace"] == MACHINE_NAMESPACE);
        let secrets = server.objects("", "secrets").len();
        let is_kubemark =
            nodes.iter().any(|node| node["metadata"]["labels"][LABEL_NODE_CONTROLLER] == "kubemark");
        // The machine of the refused Node may be gone, and its finalizer not.
        let wanted = if is_kubemark { free.len()..=nodes.len() } else { 0..=0 };
        if !wanted.contains(&machines.len()) || !wanted.contains(&secrets) {
            return Some(format!("{} pods and {secrets} Secrets of {wanted:?} machines", machines.len()));
        }
        if let Some(pod) = pods.iter().find(|pod| refused.is_none_or(|node| pod["spec"]["nodeName"] != *node))
        {
            return Some(format!("pod {} is left", name(pod)));
        }
        let classes = server.objects("kube-node.io", "nodeclasses");
        for class in &classes {
            if class["status"]["nodes"].as_u64().unwrap_or_default() != nodes.len() as u64 {
                return Some(format!("status of {}: {}", name(class), class["status"]));
            }
        }
        for set in &sets {
            if set_of_stuck == Some(name(set)) {
                continue;
            }
            let (spec, status) = (&set["spec"], &set["status"]);
            // The field of a newer release stays in the revision, and its Nodes work without it.
            let waits = status["waits"].as_array().into_iter().flatten();
            let is_of_field = |wait: &Value| {
                wait["reason"] == "RevisionNotHonoured"
                    && wait["message"].as_str().is_some_and(|message| message.contains(NEWER_FIELD))
            };
            let is_waiting = waits.into_iter().any(|wait| !is_of_field(wait));
            if is_leaving(set) {
                return Some(format!("{} is on its way out", name(set)));
            }
            if set["metadata"]["annotations"][ANNOTATION_VICTIMS].is_string() {
                return Some(format!("{} has victims written down", name(set)));
            }
            if status["observedGeneration"] != set["metadata"]["generation"]
                || status["replicas"].as_u64().unwrap_or_default()
                    != spec["replicas"].as_u64().unwrap_or_default()
                || status["readyReplicas"].as_u64().unwrap_or_default()
                    != spec["replicas"].as_u64().unwrap_or_default()
                || is_waiting
                || !classes.iter().any(|class| class["status"]["revision"] == status["updateRevision"])
            {
                return Some(format!("status of {}: {status}", name(set)));
            }
        }
        None
    }
}
