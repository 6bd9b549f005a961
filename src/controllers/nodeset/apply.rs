//! Brings a NodeSet's Nodes to what it asks for: adopts, releases, changes in place, creates, deletes.
//!
//! Many writes at once, but bounded; one look writes at most a batch of each kind, so that the next look, which knows
//! more, comes soon.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::Resource;
use serde_json::json;
use tracing::{debug, info};

use super::{
    Error, NodeSetController, autoscaling,
    observe::{Blueprint, Observed},
};
use crate::{
    api::{NodeSet, names},
    cache::NodeView,
    controllers::{
        ApiError,
        api::{self, Seen},
    },
    core::{
        birth,
        set::Problem,
        template::{Change, Current},
        turnover::Plan,
    },
    wire::{self, Body},
};

/// Writes under way at once for one set: more than keep a control plane busy, at some milliseconds each, and each with a
/// connection of its own.
const WRITES_AT_ONCE: usize = 32;
/// Most Nodes that one look deletes or changes.
const BATCH: usize = 500;

/// What a look has done.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// What keeps Nodes from being created.
    pub(super) problem: Option<Problem>,
    /// Whether a further look has more to do at once.
    pub(super) more: bool,
    /// Whether a write failed in a way that a later look may heal.
    pub(super) failed: bool,
}

impl NodeSetController {
    pub(super) async fn apply(
        &self,
        set: &NodeSet,
        observed: &Observed,
        plan: &Plan<'_>,
    ) -> Result<Applied, Error> {
        self.add_finalizer(set).await?;
        for node in &observed.to_release {
            info!(node = &*node.name, "released: its label names another set, or none");
            self.change_owners(node, |owners| owners.retain(|owner| owner.uid != observed.uid)).await?;
        }
        for node in &observed.to_adopt {
            let Some(owner) = set.controller_owner_ref(&()) else { continue };
            info!(node = &*node.name, "adopted: it carries the set's label and nobody owns it");
            self.change_owners(node, |owners| owners.push(owner)).await?;
        }
        let mut applied = Applied::default();
        self.forget_victims(set, observed).await?;
        match &observed.blueprint {
            Ok(blueprint) => {
                let kept = autoscaling::keeps_off(set, plan);
                self.propagate(blueprint, observed, kept, &mut applied).await?;
            }
            Err(problem) => applied.problem = Some(problem.clone()),
        }
        self.grant_turns(observed, plan);
        self.make(set, observed, plan, &mut applied).await?;
        self.delete(observed, plan, &mut applied).await?;
        Ok(applied)
    }

    async fn add_finalizer(&self, set: &NodeSet) -> Result<(), ApiError> {
        let mut finalizers = set.metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|finalizer| finalizer == names::FINALIZER_NODES) {
            return Ok(());
        }
        finalizers.push(names::FINALIZER_NODES.to_owned());
        let change = json!({ "metadata": { "finalizers": finalizers } });
        api::patch::<NodeSet>(&self.context.client, seen_set(set), change, "set the finalizer").await
    }

    async fn change_owners(
        &self,
        node: &NodeView,
        change: impl FnOnce(&mut Vec<OwnerReference>),
    ) -> Result<(), ApiError> {
        let mut owners = node.owners.clone();
        change(&mut owners);
        let change = json!({ "metadata": { "ownerReferences": owners } });
        api::patch::<Node>(&self.context.client, seen_node(node), change, "change the owner").await
    }

    /// Labels, annotations and taints of the templates onto Nodes that live.
    async fn propagate(
        &self,
        blueprint: &Blueprint,
        observed: &Observed,
        kept: bool,
        applied: &mut Applied,
    ) -> Result<(), Error> {
        let marked = kept.then(|| autoscaling::marked(&blueprint.template));
        let changes: Vec<(Arc<NodeView>, Change)> = observed
            .members
            .iter()
            .filter(|node| node.deleted_at.is_none())
            .filter_map(|node| {
                let current =
                    Current { labels: &node.labels, annotations: &node.annotations, taints: &node.taints };
                let marked = marked.as_ref().filter(|_| !autoscaling::is_marked_by_others(node));
                let template = marked.unwrap_or(&blueprint.template);
                Some((Arc::clone(node), template.change(current)?))
            })
            .take(BATCH)
            .collect();
        applied.more |= changes.len() == BATCH;
        stream::iter(changes)
            .map(Ok)
            .try_for_each_concurrent(WRITES_AT_ONCE, |(node, change)| async move {
                let mut patch = json!({ "metadata": {} });
                if !change.labels.is_empty() {
                    patch["metadata"]["labels"] = json!(change.labels);
                }
                if !change.annotations.is_empty() {
                    patch["metadata"]["annotations"] = json!(change.annotations);
                }
                if let Some(taints) = change.taints {
                    patch["spec"] = json!({ "taints": taints });
                }
                match api::patch::<Node>(&self.context.client, seen_node(&node), patch, "change the template")
                    .await
                {
                    // It changed or went meanwhile: the watch brings the next look.
                    Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
                    other => other.map_err(Error::from),
                }
            })
            .await
    }

    /// Lets the drains begin that were decided on, before the deletions are asked for: the NodeController is quick.
    fn grant_turns(&self, observed: &Observed, plan: &Plan<'_>) {
        let names = plan.turns.iter().copied().chain(plan.delete.iter().map(|deletion| deletion.name));
        let nodes = names.filter_map(|name| self.context.nodes.get(name));
        let turns = nodes.map(|node| (Arc::clone(&node.uid), Arc::clone(&node.name)));
        self.context.turns.set(&observed.name, turns);
    }

    /// Creates what is missing, and asks again for what may never have arrived.
    async fn make(
        &self,
        set: &NodeSet,
        observed: &Observed,
        plan: &Plan<'_>,
        applied: &mut Applied,
    ) -> Result<(), Error> {
        let Ok(newest) = &observed.blueprint else { return Ok(()) };
        if !plan.ask_again {
            self.forget_what_never_came(&observed.name).await?;
        }
        let unconfirmed: Vec<String> = observed
            .expectations
            .unconfirmed()
            .filter(|_| plan.ask_again)
            .filter(|name| !observed.nodes().any(|node| *node.name == **name))
            .map(str::to_owned)
            .collect();
        let working = self.working_blueprint(set, observed, newest, plan).await?;
        let of_working = if working.is_some() { plan.create_current } else { 0 };
        let new_names = |count: usize| (0..count).map(|_| self.new_name(&observed.name));
        let names = unconfirmed.into_iter().chain(new_names(plan.create - of_working)).collect();
        self.create(set, observed, newest, names, applied).await;
        if let Some(working) = &working {
            self.create(set, observed, working, new_names(of_working).collect(), applied).await;
        }
        applied.more |= plan.more && applied.problem.is_none();
        Ok(())
    }

    /// What Nodes are made of that are to have the revision that works; None where that is the newest, or gone.
    async fn working_blueprint(
        &self,
        set: &NodeSet,
        observed: &Observed,
        newest: &Blueprint,
        plan: &Plan<'_>,
    ) -> Result<Option<Blueprint>, Error> {
        let current = self.last_status_of(set).current_revision;
        let Some(current) = current.filter(|current| plan.create_current > 0 && *current != newest.revision)
        else {
            return Ok(None);
        };
        let stored = self.stored(&newest.class, &current, newest.template.clone()).await?;
        if stored.is_none() {
            info!(set = observed.name, revision = current, "is not stored any more: making the newest");
        }
        Ok(stored)
    }

    fn new_name(&self, set: &str) -> String {
        loop {
            let name = birth::name(set, |below| rand::random_range(0..below));
            if self.context.nodes.get(&name).is_none() {
                return name;
            }
        }
    }

    async fn create(
        &self,
        set: &NodeSet,
        observed: &Observed,
        blueprint: &Blueprint,
        names: Vec<String>,
        applied: &mut Applied,
    ) {
        if names.is_empty() {
            return;
        }
        debug!(count = names.len(), "creating Nodes");
        self.expectations(&observed.name, |expectations| {
            for name in &names {
                expectations.creating(name);
            }
        });
        let names = self.with_pod_cidrs(observed, names, applied);
        // Each counts those before it: the watch shows them later.
        let size = self.context.nodes.len() + observed.expectations.pending_creations();
        let results: Vec<(String, Result<(), ApiError>)> = stream::iter((size + 1..).zip(names))
            .map(|(size, (name, pod_cidr))| async move {
                let result = self.create_one(set, blueprint, (&name, pod_cidr), size).await;
                (name, result)
            })
            .buffer_unordered(WRITES_AT_ONCE)
            .collect()
            .await;
        for (name, result) in results {
            let metrics = &self.context.metrics;
            match result {
                Ok(()) => metrics.node_created(Ok(())),
                Err(error) => {
                    metrics.node_created(Err(&error));
                    if error.is_final() {
                        self.expectations(&observed.name, |expectations| expectations.refused(&name));
                    }
                    applied.failed = true;
                    applied.problem = Some(Problem { reason: "CreateFailed", message: error.chain() });
                }
            }
        }
    }

    /// Each with the block that its Node is to be born with, where it gets one here. Those for which there is none do not come.
    fn with_pod_cidrs(
        &self,
        observed: &Observed,
        names: Vec<String>,
        applied: &mut Applied,
    ) -> Vec<(String, Option<String>)> {
        let Some(cidrs) = &self.context.pod_cidrs else {
            return names.into_iter().map(|name| (name, None)).collect();
        };
        let mut born = Vec::with_capacity(names.len());
        for name in names {
            match cidrs.promise(&name) {
                Ok(cidr) => born.push((name, Some(cidr))),
                Err(problem) => {
                    self.expectations(&observed.name, |expectations| expectations.refused(&name));
                    self.context.metrics.node_not_created(problem.reason);
                    applied.problem = Some(problem);
                }
            }
        }
        born
    }

    async fn create_one(
        &self,
        set: &NodeSet,
        blueprint: &Blueprint,
        (name, pod_cidr): (&str, Option<String>),
        cluster_size: usize,
    ) -> Result<(), ApiError> {
        let provider = blueprint.machine.node_controller.as_str();
        let set_name = set.metadata.name.as_deref().unwrap_or_default();
        let origin = birth::Origin {
            name,
            set: set_name,
            class: &blueprint.class,
            revision: &blueprint.revision,
            provider,
            provider_id: self.context.provider_id(provider, name),
            machine_type: blueprint.machine.machine_type.as_deref(),
            hosts: blueprint.machine.hosts(),
            load: blueprint.machine.load(),
            owner: birth::Owner {
                api_version: &NodeSet::api_version(&()),
                uid: set.metadata.uid.as_deref().unwrap_or_default(),
            },
            pod_cidr,
            cluster_size,
        };
        let node = birth::node(origin, &blueprint.template, Timestamp::now());
        match self.post(&node).await {
            Ok(()) => {}
            // An earlier call had succeeded after all: nobody else makes such names.
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error),
        }
        self.expectations(set_name, |expectations| expectations.created(name));
        Ok(())
    }

    async fn post(&self, node: &k8s_pb::api::core::v1::Node) -> Result<(), ApiError> {
        let body = Body::Object(wire::envelope("v1", "Node", node));
        let path = format!("/api/v1/nodes?fieldManager={}", api::FIELD_MANAGER);
        let name = node.metadata.as_ref().map_or("", |metadata| metadata.name());
        // The watch brings the object.
        api::send(&self.context.client, || format!("create Node {name}"), Method::POST, &path, body)
            .await
            .map(drop)
    }

    /// Deletes the victims; each under the condition that it is as it was seen.
    async fn delete(&self, observed: &Observed, plan: &Plan<'_>, applied: &mut Applied) -> Result<(), Error> {
        applied.more |= plan.delete.len() > BATCH;
        // Those that nobody answered are asked for again.
        let unanswered = observed.expectations.unanswered().map(|name| (name, None));
        let nodes: Vec<_> = unanswered
            .chain(plan.delete.iter().take(BATCH).map(|deletion| (deletion.name, deletion.cause)))
            .filter_map(|(name, cause)| Some((self.context.nodes.get(name)?, cause)))
            .collect();
        stream::iter(nodes)
            .map(Ok)
            .try_for_each_concurrent(WRITES_AT_ONCE, |(node, cause)| async move {
                match self.delete_one(&observed.name, &node).await {
                    Ok(()) => {
                        if let Some(cause) = cause {
                            info!(node = &*node.name, cause = cause.reason(), "replaced");
                            self.context.metrics.node_replaced(cause);
                        }
                        Ok(())
                    }
                    // It changed meanwhile: the next look sees how, and may choose another victim.
                    Err(error) if error.is_conflict() => Ok(()),
                    Err(error) => Err(Error::from(error)),
                }
            })
            .await
    }

    /// Deletes one Node in the state that was seen.
    pub(super) async fn delete_one(&self, set: &str, node: &NodeView) -> Result<(), ApiError> {
        self.expectations(set, |expectations| expectations.deleting(&node.name, &node.resource_version));
        let result = api::delete::<Node>(&self.context.client, seen_node(node)).await;
        // The echo may have come first.
        let now = self.context.nodes.get(&node.name);
        let changed = now.as_ref().is_none_or(|now| now.resource_version != node.resource_version);
        self.expectations(set, |expectations| match &result {
            Ok(()) if now.is_none_or(|now| now.deleted_at.is_some()) => expectations.gone(&node.name),
            Ok(()) => expectations.deleted(&node.name),
            Err(error) if error.is_final() || (error.is_conflict() && changed) => {
                expectations.kept(&node.name);
            }
            // It may have had its effect; the watch will tell.
            Err(_) => {}
        });
        // It went meanwhile.
        if result.as_ref().is_err_and(ApiError::is_not_found) {
            return Ok(());
        }
        self.context.metrics.node_deleted(result.as_ref().copied());
        result
    }
}

pub(super) fn seen_node(node: &NodeView) -> Seen<'_> {
    Seen { name: &node.name, uid: &node.uid, resource_version: &node.resource_version }
}

pub(super) fn seen_set(set: &NodeSet) -> Seen<'_> {
    seen_meta(&set.metadata)
}

pub(super) fn seen_meta(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Seen<'_> {
    Seen {
        name: metadata.name.as_deref().unwrap_or_default(),
        uid: metadata.uid.as_deref().unwrap_or_default(),
        resource_version: metadata.resource_version.as_deref().unwrap_or_default(),
    }
}

/// How long to wait when a write failed that the next look may repeat.
pub(super) const RETRY: Duration = Duration::from_secs(1);
