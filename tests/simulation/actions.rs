//! What users' actions do to the API server and to the hosts, and the sets and the class that users write.

use std::{sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use crate::{
    autoscaler::SET,
    desired_state::DesiredState,
    faults::AtScaleRequest,
    kubemark::lose_machine,
    objects::name,
    others::{Others, is_leaving},
    people::AGENT,
    process::{self, GROUP, Host},
    rival,
    schedule::{Action, HALTS, Schedule},
};

/// Path of classes.
pub const CLASSES: &str = "/apis/kube-node.io/v1alpha1/nodeclasses";
/// Path of sets.
pub const SETS: &str = "/apis/kube-node.io/v1alpha1/nodesets";
/// Domain of what others give to Nodes.
pub const OTHERS: &str = "example.com/";
/// Label that the class's template gives to Nodes: the class's version.
pub const VERSION_LABEL: &str = "template.test/version";
/// Label of the template that changes while the machines stay.
pub const LABEL: &str = "template.test/label";
/// Taint of Nodes that never start.
pub const STARTUP: &str = "template.test/startup";
/// `nodeStartupTimeout` of sets that people act on: longer than until a rollout halts, shorter than a schedule.
const STARTS: &str = "120s";
/// Condition for which a set replaces a Node.
pub const SICK: &str = "test/Sick";

impl Schedule {
    /// Does what a user does.
    pub fn act(
        &self,
        action: &Action,
        others: &mut Others,
        wanted: &mut DesiredState,
        cluster: &process::Cluster,
        hosts: &[Arc<Host>],
        restarted: &Notify,
    ) {
        let nth = |others: &Others, n: usize| {
            let nodes = others.nodes();
            nodes.get(n % nodes.len().max(1)).map(|node| name(node))
        };
        let change = |others: &Others, n: usize, method: Method, patch: &Value| {
            if let Some(node) = nth(others, n) {
                others.call(method, &format!("/api/v1/nodes/{node}"), patch);
            }
        };
        let host = |n: usize| &hosts[n % hosts.len()];
        match action {
            Action::Scale(set, replicas) => {
                let change = json!({ "spec": { "replicas": replicas } });
                let (code, object) = others.call(Method::PATCH, &format!("{SETS}/{set}"), &change);
                if code == 404 {
                    others.call(Method::POST, SETS, &self.set(set, *replicas));
                }
                if code == 404 || object["metadata"]["deletionTimestamp"].is_null() {
                    wanted.sets.insert(set.clone(), *replicas);
                }
            }
            Action::Roll(version) => {
                wanted.version = *version;
                wanted.starts_never = false;
                self.change_class(others, wanted);
            }
            Action::Relabel(label) => {
                wanted.label = *label;
                self.change_class(others, wanted);
            }
            Action::Break(version) => {
                wanted.version = *version;
                wanted.starts_never = true;
                self.change_class(others, wanted);
            }
            Action::Spoil(seconds) => {
                wanted.spoiled = Some(Instant::now() + Duration::from_secs(*seconds));
                self.change_class(others, wanted);
            }
            Action::Sicken(n) => {
                if let Some(node) = nth(others, *n) {
                    others.sicken(&node);
                }
            }
            Action::Forbid(resource, seconds) => {
                cluster.faults.forbid(resource, Duration::from_secs(*seconds));
            }
            Action::DelayScaleRequest(seconds) => {
                cluster.faults.at_scale_request(AtScaleRequest::Silence(Duration::from_secs(*seconds)));
            }
            Action::KillAtScaleRequest => cluster.faults.at_scale_request(AtScaleRequest::Kill),
            Action::Outage(seconds) => cluster.faults.fall_silent(None, Duration::from_secs(*seconds)),
            Action::Silence(resource, seconds) => {
                cluster.faults.fall_silent(Some(resource), Duration::from_secs(*seconds));
            }
            Action::DeleteSet(set) => {
                wanted.sets.remove(set);
                others.call(Method::DELETE, &format!("{SETS}/{set}"), &Value::Null);
            }
            Action::DeleteNode(n) => change(others, *n, Method::DELETE, &Value::Null),
            Action::Cordon(n) => {
                wanted.cordons = true;
                change(others, *n, Method::PATCH, &json!({ "spec": { "unschedulable": true } }));
            }
            Action::Mark(n) => {
                let nodes = others.nodes();
                let node = nodes.get(n % nodes.len().max(1));
                let taints = node.and_then(|node| node["spec"]["taints"].as_array()).into_iter().flatten();
                let others_taints = taints.filter(|taint| taint["key"] != "example.com/team").cloned();
                let own = json!({ "key": "example.com/team", "effect": "PreferNoSchedule" });
                let taints: Vec<Value> = others_taints.chain([own]).collect();
                let owners = node
                    .and_then(|node| node["metadata"]["ownerReferences"].as_array())
                    .into_iter()
                    .flatten();
                let ours = owners.filter(|owner| owner["kind"] != "Inventory").cloned();
                let own =
                    json!({ "apiVersion": "example.com/v1", "kind": "Inventory", "name": "x", "uid": "x" });
                let owners: Vec<Value> = ours.chain([own]).collect();
                let mark = json!({
                    "metadata": {
                        "labels": { "example.com/team": "x" }, "annotations": { "example.com/note": "x" },
                        "ownerReferences": owners,
                    },
                    "spec": { "taints": taints },
                });
                change(others, *n, Method::PATCH, &mark);
            }
            Action::Remake(n) => others.remake(*n),
            Action::Run(pods, always) => {
                let budget = json!({
                    "metadata": { "name": "app" },
                    "spec": { "minAvailable": always.min(&pods.saturating_sub(1)), "selector": { "matchLabels": { "app": "app" } } },
                });
                others.wanted.insert("app".to_owned(), *pods);
                others.call(Method::POST, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget);
            }
            Action::Contest(n, seconds) => {
                if let Some(pod) = others.pod(*n) {
                    tokio::spawn(rival::contest(cluster.clone(), pod, Duration::from_secs(*seconds)));
                }
            }
            Action::Kill(n) => host(*n).kill(),
            Action::CutOff(n, seconds) => host(*n).cut_off(Duration::from_secs(*seconds)),
            Action::Stop(n, seconds) => host(*n).stop(Duration::from_secs(*seconds)),
            Action::LoseHost(n) => {
                host(*n).lose();
                cluster.checks.lose_worker(&process::lease_of(*n));
            }
            Action::ClockError(n, seconds) => {
                host(*n).set_clock_error(jiff::SignedDuration::from_secs(*seconds));
            }
            Action::Late(resource, seconds) => {
                cluster.faults.delay(resource, Duration::from_secs(*seconds));
            }
            Action::Relist(seconds) => {
                cluster.server.compact();
                cluster.faults.relist(Duration::from_secs(*seconds));
            }
            Action::StopAtRenewal(n, seconds) => {
                host(*n).stop_at_next_renewal(Duration::from_secs(*seconds));
            }
            Action::RestartAutoscaler => restarted.notify_waiters(),
            Action::LoseMachine(n, ends) => lose_machine(others, &cluster.server, *n, *ends),
            Action::Need(needed) => {
                cluster.checks.scaling().need(*needed, &cluster.server);
                let (min, max) = self.scaling.unwrap_or_default();
                let replicas = u64::try_from(*needed.clamp(&min, &max)).unwrap();
                let sets = cluster.server.objects("kube-node.io", "nodesets");
                let set = sets.iter().find(|set| name(set) == SET);
                if set.is_none() {
                    let mut set = self.set(SET, replicas);
                    set["spec"]["autoscaling"] = json!({ "minReplicas": min, "maxReplicas": max });
                    others.call(Method::POST, SETS, &set);
                }
                if set.is_none_or(|set| set["metadata"]["deletionTimestamp"].is_null()) {
                    wanted.sets.insert(SET.to_owned(), replicas);
                }
            }
            Action::RaiseMinimum(least) => {
                let change = json!({ "spec": { "autoscaling": { "minReplicas": least } } });
                others.call(Method::PATCH, &format!("{SETS}/{SET}"), &change);
                let replicas = cluster.checks.scaling().needed().max(*least);
                wanted.sets.insert(SET.to_owned(), u64::try_from(replicas).unwrap());
            }
            Action::Act(act) => act.perform(others, wanted, &cluster.faults),
            Action::Refuse(n) => {
                if let Some(node) = nth(others, *n) {
                    cluster.faults.refuse(Some(node));
                }
            }
        }
    }

    fn set(&self, name: &str, replicas: u64) -> Value {
        let mut set = json!({ "metadata": { "name": name }, "spec": {
            "nodeClassName": "small", "replicas": replicas, "revisionHistoryLimit": self.seed % 2,
            "strategy": { "rollingUpdate": { "maxSurge": self.surge, "maxUnavailable": self.unavailable } },
        } });
        if let Some(seconds) = self.drain_timeout {
            set["spec"]["drain"] = json!({ "timeout": format!("{seconds}s") });
        }
        if self.has_people {
            set["spec"]["remediation"] = json!({ "nodeStartupTimeout": STARTS });
        }
        if self.storm {
            set["spec"]["progressDeadline"] = json!(format!("{HALTS}s"));
            set["spec"]["minReadyTime"] = json!(["0s", "7s"][usize::from(self.seed.is_multiple_of(2))]);
            let sick = json!({ "type": SICK, "status": "True", "for": "20s" });
            set["spec"]["remediation"]["unhealthyConditions"] = json!([sick]);
            if self.has_people {
                set["spec"]["remediation"]["maxInFlight"] = json!(1);
            }
        }
        set
    }

    /// Deletes the sets of a class that was deleted, and makes the class and the sets again once the class is gone.
    pub fn remake_class(&self, others: &Others, wanted: &mut DesiredState) {
        if !wanted.remakes_class {
            return;
        }
        if !others.of("nodeclasses").is_empty() {
            for set in others.of("nodesets").iter().filter(|set| !is_leaving(set)) {
                others.call(Method::DELETE, &format!("{SETS}/{}", name(set)), &Value::Null);
            }
            return;
        }
        wanted.remakes_class = false;
        others.call(Method::POST, CLASSES, &self.class(wanted));
        for (set, replicas) in &wanted.sets {
            others.call(Method::POST, SETS, &self.set(set, *replicas));
        }
    }

    /// Writes the class as users want it.
    pub fn change_class(&self, others: &Others, wanted: &DesiredState) {
        others.call(Method::PATCH, &format!("{CLASSES}/small"), &self.class(wanted));
    }

    /// The class as users want it.
    pub fn class(&self, wanted: &DesiredState) -> Value {
        let DesiredState { version, label, starts_never, spoiled, .. } = wanted;
        let hollow = if self.workers > 0 { json!({ "hosts": GROUP }) } else { Value::Null };
        // Nobody removes this taint.
        let keys = [(STARTUP, *starts_never), (AGENT, self.has_people)];
        let keys = keys.into_iter().filter(|(_, is_there)| *is_there);
        let startup: Vec<Value> =
            keys.map(|(key, _)| json!({ "key": key, "effect": "NoSchedule" })).collect();
        // More than there is.
        let reserved = json!({ "cpu": if spoiled.is_some() { "5" } else { "0" } });
        json!({ "metadata": { "name": "small" }, "spec": {
            "nodeController": if self.kubemark { "kubemark" } else { "hollow" }, "hollow": hollow, "capacity": { "cpu": "4", "memory": "8Gi", "pods": "110" },
            "reserved": reserved,
            "provisioning": { "kubelet": { "version": format!("v1.36.{version}") } },
            "template": {
                "labels": { VERSION_LABEL: version.to_string(), LABEL: label.to_string() },
                "startupTaints": startup,
                // The API server keeps an empty value as none.
                "taints": [{ "key": "template.test/empty", "value": "", "effect": "PreferNoSchedule" }],
            },
        } })
    }
}
