//! Models of what surrounds the operator: scheduler, owner of pods, disruption budgets, people, and
//! [kube-controller-manager](controller_manager). Each lists the server's objects once a second and writes at once; no model fails.

mod controller_manager;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use kube_ext::environment;
use kube_node_api::names::ANNOTATION_RESUMED_AT;
use kube_node_testing::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    actions::SICK,
    autoscaler_checks::is_drained,
    checks::Checks,
    objects::{is_ready, name, taints},
    people::AGENT,
};

/// Time between two attempts of users to resume a rollout that halts.
const RESUMES: Duration = Duration::from_mins(1);
/// Path of revisions.
pub const REVISIONS: &str = "/apis/apps/v1/namespaces/kube-node-system/controllerrevisions";
/// Taint of a Node whose machine is gone.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Everything that surrounds the operator.
pub struct Others {
    server: ApiServer,
    checks: Arc<Checks>,
    /// Pods that there should be, by application.
    pub wanted: BTreeMap<String, usize>,
    unknown: BTreeMap<String, Instant>,
    missing: BTreeMap<String, Instant>,
    /// Last sign of life of each Node's kubelet, and when it was seen.
    signs: BTreeMap<String, (Vec<Value>, Instant)>,
    serial: u64,
    /// Until when the agent of a Node is down, by the Node's name.
    pub agents_down: BTreeMap<String, Instant>,
    /// True if each pod has a volume.
    has_volumes: bool,
    /// When the pod of each attached volume was missing first.
    unused: BTreeMap<String, Instant>,
}

impl Others {
    pub fn new(server: ApiServer, checks: Arc<Checks>, has_volumes: bool) -> Self {
        let (wanted, unknown, missing, signs, agents_down, unused) = <_>::default();
        Self { server, checks, wanted, unknown, missing, signs, serial: 0, agents_down, has_volumes, unused }
    }

    pub fn call(&self, method: Method, path: &str, body: &Value) -> (u16, Arc<Value>) {
        let answer = self.server.write(method, path, body);
        self.checks.check(&self.server, None);
        answer
    }

    pub fn nodes(&self) -> Vec<Arc<Value>> {
        self.server.objects("", "nodes")
    }

    /// All objects of a kind of ours.
    pub fn of(&self, kind: &str) -> Vec<Arc<Value>> {
        self.server.objects("kube-node.io", kind)
    }

    /// Names of the class's revisions, as `spec.revision` takes them, oldest first.
    pub fn revisions(&self) -> Vec<String> {
        let mut revisions = self.server.objects("apps", "controllerrevisions");
        revisions.sort_by_key(|revision| revision["revision"].as_i64());
        let names = revisions.iter().map(|revision| name(revision));
        names.filter_map(|name| name.strip_prefix("small-").map(str::to_owned)).collect()
    }

    /// The agent of each Node removes its startup taint once the Node is Ready, and gives it back while it is down.
    fn run_agents(&mut self) {
        self.agents_down.retain(|_, until| Instant::now() < *until);
        for node in self.nodes().iter().filter(|node| !is_leaving(node)) {
            let is_down = self.agents_down.contains_key(&name(node));
            let has_taint = taints(node).any(|key| key == AGENT);
            if has_taint == is_down || !is_down && !is_ready(node) {
                continue;
            }
            let mut left = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            left.retain(|taint| taint["key"] != AGENT);
            left.extend(is_down.then(|| json!({ "key": AGENT, "effect": "NoSchedule" })));
            let change = json!({ "spec": { "taints": left } });
            self.call(Method::PATCH, &format!("/api/v1/nodes/{}", name(node)), &change);
        }
    }

    /// A user deletes the n-th Node that stays by force, and makes it again as it was (`kubectl replace --force`). It is
    /// none that cluster-autoscaler drains, which would take the new one for the old one.
    pub fn remake(&self, n: usize) {
        let mut staying = self.nodes();
        staying.retain(|node| !is_leaving(node) && !is_drained(node));
        if let Some(node) = staying.get(n % staying.len().max(1)) {
            self.replace(node, &node["spec"]);
        }
    }

    /// The same with the first Node that leaves, which has been cordoned for it.
    pub fn remake_leaving(&self) {
        if let Some(node) = self.nodes().iter().find(|node| is_leaving(node)) {
            let mut spec = node["spec"].clone();
            spec["unschedulable"] = json!(false);
            self.replace(node, &spec);
        }
    }

    fn replace(&self, node: &Value, spec: &Value) {
        let path = format!("/api/v1/nodes/{}", name(node));
        self.call(Method::PATCH, &path, &json!({ "metadata": { "finalizers": [] } }));
        self.call(Method::DELETE, &path, &Value::Null);
        let mut metadata = json!({});
        for key in ["name", "labels", "annotations", "ownerReferences", "finalizers"] {
            metadata[key] = node["metadata"][key].clone();
        }
        let again = json!({ "metadata": metadata, "spec": spec });
        self.call(Method::POST, "/api/v1/nodes", &again);
    }

    /// A detector of problems reports a Node (as node-problem-detector does).
    pub fn sicken(&self, node: &str) {
        let nodes = self.nodes();
        let Some(node) = nodes.iter().find(|one| name(one) == node) else { return };
        let mut conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let now = environment::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        conditions.retain(|one| one["type"] != SICK);
        conditions.push(json!({ "type": SICK, "status": "True", "lastTransitionTime": now }));
        let path = format!("/api/v1/nodes/{}/status", name(node));
        self.call(Method::PATCH, &path, &json!({ "status": { "conditions": conditions } }));
    }

    /// Users resume the rollouts that have halted, each of them after a while once more.
    pub fn resume(&self) {
        let now = environment::now();
        let at = |time: jiff::Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        for set in self.server.objects("kube-node.io", "nodesets") {
            let resumed = &set["metadata"]["annotations"][ANNOTATION_RESUMED_AT];
            let is_due = resumed.as_str().is_none_or(|resumed| resumed < at(now - RESUMES).as_str());
            if set["status"]["rollout"]["haltTime"].is_string() && is_due {
                let path = format!("/apis/kube-node.io/v1alpha1/nodesets/{}", name(&set));
                let change = json!({ "metadata": { "annotations": { (ANNOTATION_RESUMED_AT): at(now) } } });
                self.call(Method::PATCH, &path, &change);
            }
        }
    }

    /// Users delete all applications and their budgets.
    pub fn end_applications(&mut self) {
        self.wanted.clear();
        for budget in self.server.objects("policy", "poddisruptionbudgets") {
            let path = format!("/apis/policy/v1/namespaces/default/poddisruptionbudgets/{}", name(&budget));
            self.call(Method::DELETE, &path, &Value::Null);
        }
        for pod in self.all_pods().iter().filter(|pod| !is_leaving(pod)) {
            self.delete_pod(pod, None);
        }
    }

    /// One second's work.
    pub async fn work(&mut self) {
        self.own_pods();
        self.run_agents();
        self.budget();
        self.schedule();
        self.attach();
        self.watch_nodes();
        self.collect();
        sleep(Duration::from_secs(1)).await;
    }

    /// Pods of applications.
    fn all_pods(&self) -> Vec<Arc<Value>> {
        let pods = self.server.objects("", "pods").into_iter();
        pods.filter(|pod| pod["metadata"]["namespace"] == "default").collect()
    }

    /// Name of the n-th pod of an application.
    pub fn pod(&self, n: usize) -> Option<String> {
        let pods = self.all_pods();
        pods.get(n % pods.len().max(1)).map(|pod| name(pod))
    }

    fn pods(&self, application: &str) -> Vec<Arc<Value>> {
        let pods = self.all_pods().into_iter();
        pods.filter(|pod| pod["metadata"]["labels"]["app"] == application).collect()
    }

    fn own_pods(&mut self) {
        for (application, wanted) in self.wanted.clone() {
            let present = self.pods(&application).iter().filter(|pod| !is_leaving(pod)).count();
            for _ in present..wanted {
                self.serial += 1;
                let pod = json!({
                    "metadata": { "name": format!("{application}-{}", self.serial), "labels": { "app": application },
                        "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": application,
                            "uid": application, "controller": true }] },
                    "spec": { "containers": [{ "name": "main", "image": "pause" }], "terminationGracePeriodSeconds": 5 },
                });
                self.call(Method::POST, "/api/v1/namespaces/default/pods", &pod);
            }
        }
    }

    fn budget(&self) {
        for budget in self.server.objects("policy", "poddisruptionbudgets") {
            let application = budget["spec"]["selector"]["matchLabels"]["app"].as_str().unwrap_or_default();
            let pods = self.pods(application);
            let healthy = pods.iter().filter(|pod| !is_leaving(pod) && is_ready(pod)).count();
            let least = budget["spec"]["minAvailable"].as_u64().unwrap_or_default();
            let allowed = (healthy as u64).saturating_sub(least);
            let status = json!({
                "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": least,
                "expectedPods": pods.len(), "observedGeneration": budget["metadata"]["generation"],
                "disruptedPods": null,
            });
            let path =
                format!("/apis/policy/v1/namespaces/default/poddisruptionbudgets/{}/status", name(&budget));
            let known = &budget["status"];
            if known["disruptionsAllowed"] != status["disruptionsAllowed"]
                || known["observedGeneration"] != status["observedGeneration"]
                || known["disruptedPods"].as_object().is_some_and(|pods| !pods.is_empty())
            {
                self.call(Method::PATCH, &path, &json!({ "status": status }));
            }
        }
    }

    fn schedule(&self) {
        let pods = self.all_pods();
        let is_pending = |pod: &Value| pod["spec"]["nodeName"].is_null() && !is_leaving(pod);
        if !pods.iter().any(|pod| is_pending(pod)) {
            return;
        }
        let nodes = self.server.objects("", "nodes");
        let mut load: BTreeMap<String, usize> = nodes
            .iter()
            .filter(|node| {
                is_ready(node) && node["spec"]["unschedulable"] != true && taints(node).next().is_none()
            })
            .map(|node| (name(node), 0))
            .collect();
        for pod in &pods {
            if let Some(count) = pod["spec"]["nodeName"].as_str().and_then(|node| load.get_mut(node)) {
                *count += 1;
            }
        }
        for pod in pods.iter().filter(|pod| is_pending(pod)) {
            let Some((node, count)) = load.iter_mut().min_by_key(|(_, count)| **count) else { return };
            *count += 1;
            let path = format!("/api/v1/namespaces/default/pods/{}", name(pod));
            let spec = json!({
                "metadata": { "uid": pod["metadata"]["uid"] }, "spec": { "nodeName": node },
            });
            self.call(Method::PATCH, &path, &spec);
        }
    }

    fn delete_pod(&self, pod: &Value, grace: Option<u64>) {
        let path = format!("/api/v1/namespaces/default/pods/{}", name(pod));
        self.call(Method::DELETE, &path, &json!({ "gracePeriodSeconds": grace }));
    }
}

pub fn is_leaving(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}
