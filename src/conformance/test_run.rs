//! One test run: its API clients, arguments, recorded history and report.

use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, ObjectMeta, PartialObjectMeta, PostParams},
    core::Request,
};
use kube_ext::{
    call::{ApiError, call},
    objects::{self, Typed, list},
    process::print_line,
};
use kube_node_api::{NodeClass, NodeClassSpec, NodeSet, NodeSetStatus, names};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Check, FIELD_MANAGER,
    checks::{Checked, has_taint, is_initialized, is_leaving},
    contract::Clause,
    manifests,
    record::Recorder,
    report::{ClauseResult, Report},
    timeouts::Timeouts,
    user_commands,
};

/// Poll interval for objects whose state remains until the next change.
const POLL: Duration = Duration::from_millis(500);

pub(super) struct TestRun {
    pub(super) client: Client,
    pub(super) args: Check,
    /// Name of the class, the NodeSet and the namespace.
    pub(super) name: String,
    pub(super) given: NodeClassSpec,
    pub(super) sets: Api<NodeSet>,
    pub(super) classes: Api<NodeClass>,
    pub(super) nodes: Api<Node>,
    pub(super) namespaces: Api<PartialObjectMeta<Namespace>>,
    pub(super) pods: Api<Pod>,
    pub(super) budgets: Api<PodDisruptionBudget>,
    pub(super) daemons: Api<PartialObjectMeta<DaemonSet>>,
    pub(super) config_maps: Api<PartialObjectMeta<ConfigMap>>,
    /// Recorded history of the Nodes.
    pub(super) seen: Recorder<Node>,
    /// Recorded history of the pods.
    pub(super) seen_pods: Recorder<Pod>,
    report: Mutex<Report>,
    /// Time that the first Nodes took to start.
    start: Mutex<Duration>,
    /// Generation of the NodeSet after the last write of the test run.
    pub(super) generation: Mutex<Option<i64>>,
}

impl TestRun {
    pub(super) async fn new(client: Client, given: NodeClassSpec, args: Check) -> anyhow::Result<Self> {
        let name = manifests::run_name();
        let label = format!("{}={name}", manifests::KEY);
        let classes = [name.clone(), manifests::of_nobody(&name)];
        let is_ours = move |node: &Node| {
            node.labels().get(names::LABEL_NODECLASS).is_some_and(|class| classes.contains(class))
        };
        let (nodes, pods) = (Api::all(client.clone()), Api::namespaced(client.clone(), &name));
        let seen = Recorder::new(nodes.clone(), is_ours);
        // A missing right to list Nodes is reported now; with the watch alone it would look like a Node that
        // never starts.
        list(&nodes, "Nodes", &ListParams::default().labels(&label).limit(1)).await?;
        Ok(Self {
            sets: Api::all(client.clone()),
            classes: Api::all(client.clone()),
            namespaces: Api::all(client.clone()),
            budgets: Api::namespaced(client.clone(), &name),
            daemons: Api::namespaced(client.clone(), &name),
            config_maps: Api::namespaced(client.clone(), &name),
            seen_pods: Recorder::new(pods.clone(), |_| true),
            seen,
            nodes,
            pods,
            client,
            given,
            args,
            name,
            report: Mutex::default(),
            start: Mutex::default(),
            generation: Mutex::default(),
        })
    }

    /// Time limit of each step.
    pub(super) fn limit(&self) -> Duration {
        self.args.timeout.0
    }

    /// Notes the time that the first Nodes took to start.
    pub(super) fn started_within(&self, time: Duration) {
        *self.start.lock() = time;
    }

    /// Timeouts for the controller, by the time that the first Nodes took to start.
    pub(super) fn timeouts(&self) -> Timeouts {
        Timeouts { start: *self.start.lock(), limit: self.limit() }
    }

    /// Name of a Node written by hand.
    pub(super) fn by_hand(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    pub(super) fn introduce(&self) {
        print_line(format_args!(
            "NodeController {}, by NodeClass and NodeSet {} (a copy of {}) with {} nodes",
            self.given.node_controller, self.name, self.args.class, self.args.nodes
        ));
    }

    /// Adds the result of a clause and prints its line.
    fn report(&self, clause: Clause, result: ClauseResult, observation: &str) {
        print_line(self.report.lock().line(clause, result, observation));
    }

    pub(super) fn pass(&self, clause: Clause, seen: impl AsRef<str>) {
        self.report(clause, ClauseResult::Passed, seen.as_ref());
    }

    pub(super) fn fail(&self, clause: Clause, seen: impl AsRef<str>) {
        self.report(clause, ClauseResult::Failed, seen.as_ref());
    }

    pub(super) fn skip(&self, clause: Clause, why: impl AsRef<str>) {
        self.report(clause, ClauseResult::Skipped, why.as_ref());
    }

    pub(super) fn checked(&self, clause: Clause, checked: Checked) {
        match checked {
            Ok(seen) => self.pass(clause, seen),
            Err(seen) => self.fail(clause, seen),
        }
    }

    /// Reports the clauses that the test run did not reach.
    pub(super) fn skip_missing(&self) {
        let missing = self.report.lock().missing();
        for clause in missing {
            self.skip(clause, "the run did not get so far");
        }
    }

    /// Prints the summary line. Returns true if no clause is broken.
    pub(super) fn summarize(&self) -> bool {
        let report = self.report.lock();
        print_line(report.summary());
        report.passed()
    }

    /// Creates an object from JSON without kind and apiVersion.
    pub(super) async fn create<K>(&self, api: &Api<K>, mut object: Value) -> anyhow::Result<ObjectMeta>
    where
        K: Resource<DynamicType = ()>,
    {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let request = Request::new(api.resource_url()).create(&params, serde_json::to_vec(&object)?)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let created = self.client.request::<PartialObjectMeta>(request);
        Ok(call(format_args!("create {} {name}", K::kind(&())), created).await?.metadata)
    }

    pub(super) async fn patch<K>(&self, api: &Api<K>, name: &str, change: Value) -> Result<K, ApiError>
    where
        K: Typed,
    {
        objects::patch(api, name, FIELD_MANAGER, change).await
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
        let set = self.patch(&self.sets, &self.name, json!({ "spec": change })).await?;
        self.wrote(&set.metadata);
        Ok(())
    }

    /// Records the generation of the NodeSet after a write of the test run.
    pub(super) fn wrote(&self, set: &ObjectMeta) {
        *self.generation.lock() = set.generation;
    }

    /// Reads again until `is` holds. `Err`: what was read last within the time limit.
    pub(super) async fn until<T>(
        &self,
        read: impl AsyncFn() -> anyhow::Result<T>,
        is: impl Fn(&T) -> bool,
    ) -> anyhow::Result<Result<T, T>> {
        let begun = Instant::now();
        loop {
            let value = read().await?;
            if is(&value) {
                return Ok(Ok(value));
            }
            if begun.elapsed() > self.limit() {
                return Ok(Err(value));
            }
            sleep(POLL).await;
        }
    }

    /// Waits until the NodeSet's status belongs to the present spec and `is` holds. `Err`: the last status.
    pub(super) async fn set_is(
        &self,
        is: impl Fn(&NodeSetStatus) -> bool,
    ) -> anyhow::Result<Result<NodeSetStatus, NodeSetStatus>> {
        let read = async || {
            let set = call(format_args!("read NodeSet {}", self.name), self.sets.get(&self.name)).await?;
            let status = set.status.unwrap_or_default();
            Ok((status.observed_generation >= set.metadata.generation, status))
        };
        let found = self.until(read, |(is_observed, status)| *is_observed && is(status)).await?;
        Ok(found.map(|(_, status)| status).map_err(|(_, status)| status))
    }

    /// Waits until `is` holds for the class. `Err`: the class after the time limit.
    pub(super) async fn class_is(
        &self,
        is: impl Fn(&NodeClass) -> bool,
    ) -> anyhow::Result<Result<NodeClass, NodeClass>> {
        let action = format!("read NodeClass {}", self.name);
        self.until(async || Ok(call(&action, self.classes.get(&self.name)).await?), is).await
    }

    /// Waits until the operator reports a revision of the class other than `before`.
    pub(super) async fn revision(&self, before: Option<&str>) -> anyhow::Result<String> {
        let of = |class: &NodeClass| class.status.as_ref().and_then(|status| status.revision.clone());
        let is_new = |class: &NodeClass| of(class).is_some_and(|revision| Some(revision.as_str()) != before);
        self.class_is(is_new).await?.ok().as_ref().and_then(of).with_context(|| {
            let name = &self.name;
            format!("kube-node itself says no revision of NodeClass {name}: does its operator run? kube-node doctor finds out")
        })
    }

    /// Existing Nodes of the NodeSet that pods may be scheduled to and that are not being deleted.
    pub(super) fn at_work(&self) -> Vec<Node> {
        let nodes = self.seen.existing().into_iter();
        nodes.filter(|node| self.is_of_set(node) && is_at_work(node)).collect()
    }

    pub(super) fn is_of_set(&self, node: &Node) -> bool {
        node.labels().get(names::LABEL_NODESET) == Some(&self.name)
    }

    /// Lines of the user's command that lists machines; `None` if no command was given.
    pub(super) async fn machines(&self) -> anyhow::Result<Option<Vec<String>>> {
        let Some(command) = &self.args.machines else { return Ok(None) };
        user_commands::run(command).await.map(Some)
    }
}

/// Returns true if pods may be scheduled to the Node and it is not being deleted.
pub(super) fn is_at_work(node: &Node) -> bool {
    is_initialized(node) && !has_taint(node, manifests::STARTUP_TAINT, None) && !is_leaving(node)
}
