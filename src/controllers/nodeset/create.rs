//! Creates the Nodes that a NodeSet lacks.
//!
//! Invariants: a name is chosen here and reused on a retry, so that a creation without a response happens
//! once. A class never gets more Nodes than its limit, whichever of its sets are reconciled at the same time.

use futures::{StreamExt, future::OptionFuture, stream};
use http::Method;
use kube::Resource;
use kube_ext::{
    call::{ApiError, call, send},
    environment,
    error::chain,
    transport::{self, Body},
};
use kube_node_api::{NodeSet, names};
use kube_node_planner::{
    failed_writes::{Answer, Failure, Write},
    node_builder,
    set_planner::{Creation, SetPlan},
    set_wait::SetWait,
};
use tokio::{join, time::Instant};
use tracing::{debug, info};

use super::{
    NodeSetController,
    apply::Applied,
    autoscaling,
    observe::{Blueprint, Observed},
};
use crate::{batch::Batch, revisions};

/// New Nodes of one revision.
struct Part<'a> {
    revision: &'a str,
    creation: Creation,
    /// Number of Nodes to create now.
    count: usize,
    /// True if Nodes of this revision are missing.
    missing: bool,
}

impl NodeSetController {
    /// Creates missing Nodes, and repeats creations that may never have arrived.
    pub(super) async fn create_missing(
        &self,
        observed: &Observed,
        plan: &SetPlan<'_>,
        at_once: usize,
    ) -> Applied {
        let mut applied = Applied::default();
        let Ok(newest) = &observed.blueprint else { return applied };
        let working = observed.working_revision().map(|revision| Part {
            revision,
            creation: observed.working.creation,
            count: plan.create_current,
            missing: plan.missing_current > 0,
        });
        let (of_working, missing) =
            if working.is_some() { (plan.create_current, plan.missing_current) } else { (0, 0) };
        let newest = Part {
            revision: &newest.revision,
            creation: observed.newest.creation,
            count: plan.create - of_working,
            missing: plan.missing > missing,
        };
        let revisions = [Some(newest.revision), working.as_ref().map(|part| part.revision)];
        self.failed_writes(&observed.name, |failures| {
            failures.keep(Write::Create, |revision| revisions.contains(&Some(revision)));
        });
        let confirmed = async {
            if plan.ask_again { Applied::default() } else { self.confirm_creations(&observed.name).await }
        };
        let create = |part| self.create_part(observed, plan, part, at_once);
        let of_working = OptionFuture::from(working.map(create));
        let (confirmed, newest, of_working) = join!(confirmed, create(newest), of_working);
        for step in [confirmed, newest, of_working.unwrap_or_default()] {
            applied.add(step);
        }
        applied
    }

    async fn create_part(
        &self,
        observed: &Observed,
        plan: &SetPlan<'_>,
        part: Part<'_>,
        at_once: usize,
    ) -> Applied {
        let mut applied = Applied::default();
        let Ok(newest) = &observed.blueprint else { return applied };
        let working = observed.working_revision();
        let is_of_part = |revision: &str| (Some(revision) == working) == (Some(part.revision) == working);
        let is_shown = |name: &str| observed.nodes().any(|node| *node.name == *name);
        let unconfirmed = observed.expectations.unconfirmed();
        let unconfirmed = unconfirmed.filter(|(name, revision)| is_of_part(revision) && !is_shown(name));
        let unconfirmed: Vec<String> = unconfirmed.map(|(name, _)| name.to_owned()).collect();
        if !part.missing && unconfirmed.is_empty() {
            self.failed_writes(&observed.name, |failures| {
                failures.keep(Write::Create, |revision| revision != part.revision);
            });
        }
        let may_ask = plan.ask_again && !matches!(part.creation, Creation::Refused { .. });
        let unconfirmed = if may_ask { unconfirmed } else { Vec::new() };
        if unconfirmed.is_empty() && part.count == 0 {
            return applied;
        }
        let stored = match self.stored_blueprint(observed, newest, part.revision).await {
            Ok(stored) => stored,
            // The newest revision may be the one that does not work.
            Err(error) => {
                applied.problems.push(SetWait::of_set("RevisionNotRead", chain(&error)));
                applied.failed = true;
                return applied;
            }
        };
        let blueprint = stored.as_ref().unwrap_or(newest);
        // A new Node is no candidate of cluster-autoscaler's for a moment either.
        let stays_off = autoscaling::must_stay_off(&observed.set, plan);
        let reserved = self.reserve(observed, &part, &mut applied);
        let names: Vec<String> = unconfirmed.into_iter().chain(reserved).collect();
        if !names.is_empty() {
            let creations = (names, at_once);
            self.create(observed, (part.revision, blueprint), stays_off, creations, &mut applied).await;
        }
        applied
    }

    /// Blueprint of the revision that works; None if it is the newest one, or gone.
    async fn stored_blueprint(
        &self,
        observed: &Observed,
        newest: &Blueprint,
        revision: &str,
    ) -> revisions::Result<Option<Blueprint>> {
        if revision == newest.revision {
            return Ok(None);
        }
        let class = &observed.set.spec.node_class_name;
        let stored = self.stored(class, revision, newest.template.clone()).await?;
        if stored.is_none() {
            info!(set = observed.name, revision, "is not stored any more: making the newest");
        }
        Ok(stored)
    }

    fn new_name(&self, set: &str) -> String {
        loop {
            let name = node_builder::name(set, |below| environment::random_range(0..below));
            if self.context.nodes.get(&name).is_none() {
                return name;
            }
        }
    }

    /// Records expectations for the Nodes to create, within the limit of their class. Counting the class and
    /// recording is one step, so that another set of the class counts these Nodes.
    fn reserve(&self, observed: &Observed, part: &Part<'_>, applied: &mut Applied) -> Vec<String> {
        let count = part.count;
        if count == 0 {
            return Vec::new();
        }
        // Drawn before the lock is taken, which all sets share.
        let mut names: Vec<String> = (0..count).map(|_| self.new_name(&observed.name)).collect();
        let limit = observed.blueprint.as_ref().ok().and_then(|blueprint| blueprint.limit);
        let class = &observed.set.spec.node_class_name;
        let mut all = self.context.expectations.lock();
        if let Some(limit) = limit {
            let left = limit.saturating_sub(self.context.nodes_of_class(class, None, &all));
            // Another set was faster; the next plan reports the limit.
            applied.failed |= count > left;
            names.truncate(left);
        }
        let expectations = all.entry(observed.name.clone()).or_default();
        for name in &names {
            expectations.creating(name, part.revision);
        }
        names
    }

    /// Creates Nodes of these names, so many at once. Failures are recorded by the revision that was planned; the blueprint is of another one if that is gone.
    async fn create(
        &self,
        observed: &Observed,
        (revision, blueprint): (&str, &Blueprint),
        stays_off: bool,
        (names, at_once): (Vec<String>, usize),
        applied: &mut Applied,
    ) {
        debug!(count = names.len(), "creating Nodes");
        let names = self.with_pod_cidrs(observed, names, applied);
        let marked = stays_off.then(|| autoscaling::marked(&blueprint.template));
        let template = marked.as_ref().unwrap_or(&blueprint.template);
        // Each creation counts the ones before it, which the watch shows later.
        let size = self.context.nodes.len() + observed.expectations.pending_creations();
        let mut batch = Batch::new(observed.at, (size + 1..).zip(names));
        let mut results = stream::iter(&mut batch)
            .map(|(size, (name, pod_cidr))| async move {
                let blueprint = node_builder::Blueprint {
                    set: &observed.name,
                    class: &observed.set.spec.node_class_name,
                    revision: &blueprint.revision,
                    machine: &blueprint.machine,
                    template,
                };
                let result = self.create_one(observed, blueprint, (&name, pod_cidr), size).await;
                (name, result)
            })
            .buffer_unordered(at_once);
        let is_repeated = |name: &str| observed.expectations.unconfirmed().any(|(before, _)| before == name);
        let (mut created, mut refused) = (false, None);
        while let Some((name, result)) = results.next().await {
            self.context.metrics.node_created(result.as_ref().copied().map_err(ApiError::reason));
            match result {
                Ok(()) => created = true,
                Err(error) if error.is_final() => {
                    // A refusal of a repeated creation says nothing of the one before, which may have taken effect.
                    let is_repeated = is_repeated(&name);
                    if !is_repeated {
                        self.expectations(&observed.name, |expectations| expectations.refused(&name));
                    }
                    refused = Some(Failure { message: error.chain(), answer: Answer::Refusal });
                }
                Err(error) => applied.failed(Write::Create.into(), &error),
            }
        }
        drop(results);
        // What was not sent is planned again by the next reconciliation, with newer state.
        for (_, (name, _)) in batch.left() {
            applied.more = true;
            if !is_repeated(&name) {
                self.expectations(&observed.name, |expectations| expectations.refused(&name));
            }
        }
        let (now, intent) = (environment::now(), blueprint.intent(revision));
        self.failed_writes(&observed.name, |failures| match refused {
            Some(failure) => failures.failed(Write::Create, revision, intent, failure, now),
            None if created => failures.succeeded(Write::Create, revision, now),
            None => {}
        });
    }

    /// Adds to each name the Node's pod CIDR, if this operator assigns it. Names for which there is none are dropped.
    fn with_pod_cidrs(
        &self,
        observed: &Observed,
        names: Vec<String>,
        applied: &mut Applied,
    ) -> Vec<(String, Option<String>)> {
        let mut problem = None;
        let promise =
            |name: &str| self.context.pod_cidrs.as_ref().map(|cidrs| cidrs.promise(name)).transpose();
        let with_cidr = |name: String| match promise(&name) {
            Ok(cidr) => Some((name, cidr)),
            Err(wait) => {
                self.expectations(&observed.name, |expectations| expectations.refused(&name));
                self.context.metrics.node_created(Err(wait.reason));
                problem = Some(wait);
                None
            }
        };
        let names = names.into_iter().filter_map(with_cidr).collect();
        applied.problems.extend(problem);
        names
    }

    async fn create_one(
        &self,
        observed: &Observed,
        blueprint: node_builder::Blueprint<'_>,
        (name, pod_cidr): (&str, Option<String>),
        cluster_size: usize,
    ) -> Result<(), ApiError> {
        let origin = node_builder::NodeOrigin {
            name,
            blueprint,
            provider_id: self.context.provider_id(&blueprint.machine.node_controller, name),
            owner_api_version: &NodeSet::api_version(&()),
            owner_uid: &observed.uid,
            pod_cidr,
            cluster_size,
        };
        let node = node_builder::node(origin, environment::now());
        let body = Body::Object(transport::envelope("v1", "Node", &node));
        let path = format!("/api/v1/nodes?fieldManager={}", names::FIELD_MANAGER);
        let action = format!("create Node {name}");
        match send(&self.context.client, action, Method::POST, &path, body).await {
            // A conflict: an earlier call had succeeded after all, since no other writer chooses such names.
            Err(error) if !error.is_conflict() => Err(error),
            // The watch delivers the object.
            answer => {
                self.confirmed(&observed.name, name, answer.as_deref().ok());
                Ok(())
            }
        }
    }

    /// Notes that a Node was created, in this version if it is known: a new list must not be older.
    fn confirmed(&self, set: &str, name: &str, version: Option<&str>) {
        self.context.nodes.written(version.unwrap_or_default());
        self.expectations(set, |expectations| expectations.created(name));
    }

    /// Looks up creations with unknown result that will not be repeated.
    pub(super) async fn confirm_creations(&self, set: &str) -> Applied {
        let mut applied = Applied::default();
        let unconfirmed: Vec<String> = self.expectations(set, |expectations| {
            expectations.unconfirmed().map(|(name, _)| name.to_owned()).collect()
        });
        let mut batch = Batch::new(Instant::now(), unconfirmed);
        for name in &mut batch {
            match call(format!("read Node {name}"), self.node_api.get_metadata_opt(&name)).await {
                Ok(Some(node)) => self.confirmed(set, &name, node.metadata.resource_version.as_deref()),
                // The plan has counted it.
                Ok(None) => {
                    self.expectations(set, |expectations| expectations.refused(&name));
                    applied.more = true;
                }
                Err(error) => applied.failed("NodeNotRead", &error),
            }
        }
        applied.more |= batch.left().next().is_some();
        applied
    }
}
