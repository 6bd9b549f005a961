//! One test run: its API clients, arguments, recorded history and report.

use std::{
    fmt::Debug,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::bail;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use kube_ext::{
    call::{ApiError, call},
    process::say,
};
use kube_node_api::{NodeClass, NodeClassSpec, NodeSet, NodeSetStatus, names};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Check,
    contract::Clause,
    housekeeping::Housekeeping,
    objects,
    record::Recorder,
    report::{Report, Verdict},
    user_commands,
};
use crate::FIELD_MANAGER;

/// Poll interval for objects whose state remains until the next change.
const LOOK: Duration = Duration::from_millis(500);

pub(super) struct TestRun {
    pub(super) args: Check,
    /// Name of the class, the NodeSet and the namespace.
    pub(super) run: String,
    pub(super) given: NodeClassSpec,
    pub(super) sets: Api<NodeSet>,
    pub(super) classes: Api<NodeClass>,
    pub(super) nodes: Api<Node>,
    pub(super) namespaces: Api<Namespace>,
    pub(super) pods: Api<Pod>,
    pub(super) budgets: Api<PodDisruptionBudget>,
    pub(super) daemons: Api<DaemonSet>,
    pub(super) config_maps: Api<ConfigMap>,
    /// Recorded history of the Nodes.
    pub(super) seen: Recorder<Node>,
    /// Recorded history of the pods.
    pub(super) seen_pods: Recorder<Pod>,
    _housekeeping: Housekeeping,
    report: Mutex<Report>,
    /// Generation of the NodeSet after the last write of the test run.
    generation: Mutex<Option<i64>>,
}

impl TestRun {
    pub(super) async fn new(client: Client, given: NodeClassSpec, args: Check) -> anyhow::Result<Self> {
        let run = objects::run_name();
        let label = format!("{}={run}", objects::KEY);
        let namespace = run.clone();
        let (set, nobody) = (run.clone(), objects::of_nobody(&run));
        let is_ours = move |node: &Node| {
            let class = node.labels().get(names::LABEL_NODECLASS);
            class.is_some_and(|class| *class == set || *class == nobody)
        };
        let (nodes, pods) = (Api::all(client.clone()), Api::namespaced(client.clone(), &namespace));
        let seen = Recorder::new(nodes.clone(), is_ours);
        // A missing right to list Nodes is reported now; with the watch alone it would look like a Node that
        // never starts.
        let first = kube::api::ListParams::default().labels(&label).limit(1);
        call("list Nodes", nodes.list(&first)).await?;
        Ok(Self {
            sets: Api::all(client.clone()),
            classes: Api::all(client.clone()),
            namespaces: Api::all(client.clone()),
            budgets: Api::namespaced(client.clone(), &namespace),
            daemons: Api::namespaced(client.clone(), &namespace),
            config_maps: Api::namespaced(client.clone(), &namespace),
            seen_pods: Recorder::new(pods.clone(), |_| true),
            _housekeeping: Housekeeping::new(client, seen.shared()),
            seen,
            nodes,
            pods,
            given,
            args,
            run,
            report: Mutex::default(),
            generation: Mutex::default(),
        })
    }

    /// Time limit of each step.
    pub(super) fn limit(&self) -> Duration {
        self.args.timeout.0
    }

    pub(super) fn controller(&self) -> &str {
        &self.given.node_controller
    }

    /// Name of a Node written by hand.
    pub(super) fn by_hand(&self, what: &str) -> String {
        format!("{}-{what}", self.run)
    }

    pub(super) fn introduce(&self) {
        say(format_args!(
            "NodeController {}, by NodeClass and NodeSet {} (a copy of {}) with {} nodes",
            self.controller(),
            self.run,
            self.args.class,
            self.args.nodes
        ));
    }

    /// Adds the verdict of a clause and prints its line.
    fn verdict(&self, clause: &Clause, verdict: &Verdict) {
        say(self.report.lock().unwrap_or_else(PoisonError::into_inner).line(clause, verdict));
    }

    pub(super) fn kept(&self, clause: &Clause, seen: impl Into<String>) {
        self.verdict(clause, &Verdict::Kept(seen.into()));
    }

    pub(super) fn broken(&self, clause: &Clause, seen: impl Into<String>) {
        self.verdict(clause, &Verdict::Broken(seen.into()));
    }

    pub(super) fn unseen(&self, clause: &Clause, why: impl Into<String>) {
        self.verdict(clause, &Verdict::Unseen(why.into()));
    }

    pub(super) fn judged(&self, clause: &Clause, judgement: Result<String, String>) {
        match judgement {
            Ok(seen) => self.kept(clause, seen),
            Err(seen) => self.broken(clause, seen),
        }
    }

    /// Reports the clauses that the test run did not reach.
    pub(super) fn say_what_is_missing(&self) {
        let missing: Vec<_> = self.report.lock().unwrap_or_else(PoisonError::into_inner).missing().collect();
        for clause in missing {
            self.unseen(clause, "the run did not get so far");
        }
    }

    /// Prints the summary line. Returns true if no clause is broken.
    pub(super) fn sum(&self) -> bool {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        say(report.sum());
        report.is_kept()
    }

    pub(super) async fn create<K>(&self, api: &Api<K>, object: Value) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let object: K = objects::object(object)?;
        let action = format!("create {} {}", K::kind(&()), object.name_any());
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        Ok(call(action, api.create(&params, &object)).await?)
    }

    pub(super) async fn patch<K>(&self, api: &Api<K>, name: &str, change: Value) -> Result<K, ApiError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let action = format!("change {} {name}", K::kind(&()));
        call(action, api.patch(name, &params, &Patch::Merge(change))).await
    }

    /// Removes all finalizers from a Node, which may be gone.
    pub(super) async fn free(&self, node: &str) -> Result<(), ApiError> {
        match self.patch(&self.nodes, node, json!({"metadata": {"finalizers": null}})).await {
            Err(error) if !error.is(404) => Err(error),
            _ => Ok(()),
        }
    }

    /// Patches the spec of the NodeSet.
    pub(super) async fn set_spec(&self, change: Value) -> anyhow::Result<()> {
        let set = self.patch(&self.sets, &self.run, json!({ "spec": change })).await?;
        self.wrote(&set);
        Ok(())
    }

    /// Records the generation of the NodeSet after a write of the test run.
    pub(super) fn wrote(&self, set: &NodeSet) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) = set.metadata.generation;
    }

    pub(super) fn generation(&self) -> Option<i64> {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the NodeSet's status belongs to the present spec and `is` holds. `Err`: the last status.
    pub(super) async fn set_is(
        &self,
        is: impl Fn(&NodeSetStatus) -> bool,
    ) -> anyhow::Result<Result<NodeSetStatus, NodeSetStatus>> {
        let begun = Instant::now();
        loop {
            let set = call(format_args!("read NodeSet {}", self.run), self.sets.get(&self.run)).await?;
            let status = set.status.unwrap_or_default();
            if status.observed_generation >= set.metadata.generation && is(&status) {
                return Ok(Ok(status));
            }
            if begun.elapsed() > self.limit() {
                return Ok(Err(status));
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until `is` holds for the class. `Err`: the class after the time limit.
    pub(super) async fn class_is(
        &self,
        is: impl Fn(&NodeClass) -> bool,
    ) -> anyhow::Result<Result<NodeClass, NodeClass>> {
        let begun = Instant::now();
        loop {
            let class =
                call(format_args!("read NodeClass {}", self.run), self.classes.get(&self.run)).await?;
            if is(&class) {
                return Ok(Ok(class));
            }
            if begun.elapsed() > self.limit() {
                return Ok(Err(class));
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until the operator reports a revision of the class other than `before`.
    pub(super) async fn revision(&self, before: Option<&str>) -> anyhow::Result<String> {
        let of = |class: &NodeClass| class.status.as_ref().and_then(|status| status.revision.clone());
        let is_new = |class: &NodeClass| of(class).is_some_and(|revision| Some(revision.as_str()) != before);
        match self.class_is(is_new).await?.ok().as_ref().and_then(of) {
            Some(revision) => Ok(revision),
            None => bail!(
                "kube-node itself says no revision of NodeClass {}: does its operator run? kube-node doctor finds out",
                self.run
            ),
        }
    }

    /// Existing Nodes of the NodeSet that pods may be scheduled to and that are not being deleted.
    pub(super) fn at_work(&self) -> Vec<Node> {
        let all = self.seen.all().into_values().filter(|history| history.gone.is_none());
        let nodes = all.filter_map(|history| history.last().cloned());
        nodes.filter(|node| self.is_of_set(node) && is_at_work(node)).collect()
    }

    pub(super) fn is_of_set(&self, node: &Node) -> bool {
        node.labels().get(names::LABEL_NODESET) == Some(&self.run)
    }

    /// Lines of the user's command that lists machines; `None` if no command was given.
    pub(super) async fn machines(&self) -> anyhow::Result<Option<Vec<String>>> {
        match &self.args.machines {
            Some(command) => Ok(Some(user_commands::run(command).await?)),
            None => Ok(None),
        }
    }
}

/// Returns true if pods may be scheduled to the Node and it is not being deleted.
pub(super) fn is_at_work(node: &Node) -> bool {
    super::checks::is_initialized(node)
        && !super::checks::has_taint(node, objects::STARTUP_TAINT, None)
        && node.metadata.deletion_timestamp.is_none()
}
