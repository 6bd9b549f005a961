//! The operator as the simulation runs it: the decisions of `core`, between a view of the cluster that lags behind and
//! writes that may fail. What it keeps in memory is lost when it is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube_node_api::{Drain, GoDuration, NodeSetStatus, ReplacementOrder, ScaleDownOrder, UnhealthyCondition};
use kube_node_planner::{
    budget::Budget,
    disruption::{DisruptionReason, DisruptionRules},
    drain::{self, DrainProgress},
    expectations::Expectations,
    node::{self, Kubelet, NodeStep, Pods},
    node_state::ObservedCondition,
    rollout::{self, ProgressDeadline},
    set_planner::{self, Creation, DeletionStage, DesiredState, NodeState, RolloutMode},
};
use rand::RngExt;

use crate::{
    mutation::Mutation,
    world::{Answer, Event, Machine, Node, Spec, World, stamp},
};

/// It was killed.
pub struct Killed;

pub struct Operator {
    mutation: Option<Mutation>,
    spec: Spec,
    cache: BTreeMap<String, Node>,
    expectations: Expectations,
    drain_permits: BTreeSet<u64>,
    status: NodeSetStatus,
    names: u64,
    /// When to look at the set, and at which Nodes.
    pub set_at: Option<i64>,
    pub nodes_at: BTreeMap<String, i64>,
}

impl Operator {
    /// A new process: it begins with a list, and with the status that the last one wrote.
    pub fn start(world: &mut World, status: NodeSetStatus, names: u64, mutation: Option<Mutation>) -> Self {
        let mut operator = Self {
            mutation,
            spec: world.spec.clone(),
            cache: BTreeMap::new(),
            expectations: Expectations::default(),
            drain_permits: BTreeSet::new(),
            status,
            names,
            set_at: Some(world.now),
            nodes_at: BTreeMap::new(),
        };
        world.spec_events.clear();
        operator.relist(world);
        operator
    }

    /// What outlives the process: the status, and the chance that names are never used twice.
    pub fn remains(self) -> (NodeSetStatus, u64) {
        (self.status, self.names)
    }

    pub fn next(&self) -> Option<i64> {
        self.nodes_at.values().copied().chain(self.set_at).min()
    }

    pub fn relist(&mut self, world: &mut World) {
        self.expectations.relisting();
        world.events.clear();
        self.cache.clone_from(&world.nodes);
        let cache = &self.cache;
        self.expectations.on_resync(|name| cache.contains_key(name));
        self.nodes_at = self.cache.keys().map(|name| (name.clone(), world.now)).collect();
        self.set_at = Some(world.now);
    }

    /// Takes in what the watches have delivered.
    pub fn receive(&mut self, world: &mut World) {
        if std::mem::take(&mut world.relist) {
            self.relist(world);
        }
        while world.spec_events.front().is_some_and(|(at, _)| *at <= world.now) {
            let Some((_, spec)) = world.spec_events.pop_front() else { break };
            self.spec = spec;
            self.set_at = Some(world.now);
        }
        while world.events.front().is_some_and(|(at, _)| *at <= world.now) {
            let Some((_, event)) = world.events.pop_front() else { break };
            self.set_at = Some(world.now);
            match event {
                Event::Changed(node) => {
                    self.expectations.seen(&node.name, &node.version.to_string(), node.deleted_at.is_some());
                    self.nodes_at.insert(node.name.clone(), world.now);
                    self.cache.insert(node.name.clone(), node);
                }
                Event::Gone(name) => {
                    self.expectations.gone(&name);
                    self.cache.remove(&name);
                }
            }
        }
        for uid in std::mem::take(&mut world.told) {
            if let Some(node) = self.cache.values().find(|node| node.uid == uid) {
                self.nodes_at.insert(node.name.clone(), world.now);
            }
        }
    }

    /// Looks at whatever is due.
    pub fn work(&mut self, world: &mut World) -> Result<(), Killed> {
        if self.set_at.is_some_and(|at| at <= world.now) && !self.dawdles(world) {
            self.look_at_set(world)?;
        }
        let due: Vec<String> =
            self.nodes_at.iter().filter(|(_, at)| **at <= world.now).map(|(name, _)| name.clone()).collect();
        for name in due {
            if self.dawdles(world) {
                self.nodes_at.insert(name, world.now + 300);
                continue;
            }
            self.nodes_at.remove(&name);
            self.look_at_node(world, &name)?;
        }
        Ok(())
    }

    /// Looks come in any order and late.
    fn dawdles(&mut self, world: &mut World) -> bool {
        let late = world.rng.random_ratio(1, 5);
        if late && self.set_at.is_some_and(|at| at <= world.now) {
            self.set_at = Some(world.now + 400);
        }
        late
    }

    fn wanted<'a>(
        spec: &'a Spec,
        status: &'a NodeSetStatus,
        unhealthy_conditions: &'a mut Vec<UnhealthyCondition>,
    ) -> DesiredState<'a> {
        let setup = &spec.setup;
        let seconds = |count: i64| Duration::from_secs(u64::try_from(count).unwrap_or(0));
        unhealthy_conditions.clear();
        unhealthy_conditions.extend(setup.sick_after.map(|after| UnhealthyCondition {
            r#type: "Ready".to_owned(),
            status: "Unknown".to_owned(),
            r#for: GoDuration(seconds(after)),
        }));
        DesiredState {
            replicas: spec.replicas,
            budget: Budget { surge: setup.surge, unavailable: setup.unavailable },
            min_ready: seconds(setup.min_ready),
            order: ScaleDownOrder::LeastPods,
            replacement: if setup.delete_first {
                ReplacementOrder::DeleteFirst
            } else {
                ReplacementOrder::SurgeFirst
            },
            rules: DisruptionRules {
                revision: Some(&spec.revision),
                restarted_at: spec.restarted_at.map(stamp),
                expire_after: setup.expire_after.map(seconds),
                startup_timeout: setup.startup_timeout.map(seconds),
                unhealthy_conditions,
            },
            pace: match () {
                () if spec.paused => RolloutMode::Held,
                () if setup.on_delete => RolloutMode::OnDelete,
                () => RolloutMode::Rolling { keep: setup.keep },
            },
            clock: ProgressDeadline {
                old: status.rollout.as_ref(),
                deadline: Duration::from_mins(1),
                resumed_at: spec.resumed_at.map(stamp),
            },
            max_unhealthy: setup.max_sick,
            max_repairs: setup.max_repairs,
            start_failures: status.start_failures.as_ref(),
            class_back_off: Duration::ZERO,
            creation: Creation::Allowed,
            class_room: None,
        }
    }

    fn look_at_set(&mut self, world: &mut World) -> Result<(), Killed> {
        let now = world.timestamp();
        let (spec, status) = (self.spec.clone(), self.status.clone());
        let mut unhealthy_conditions = Vec::new();
        let wanted = Self::wanted(&spec, &status, &mut unhealthy_conditions);
        let cache = std::mem::take(&mut self.cache);
        let members: Vec<NodeState<'_>> = cache.values().map(|node| self.member(node)).collect();
        let unseen = self.expectations.creations().filter(|name| !cache.contains_key(*name)).count();
        let unseen = if self.mutation == Some(Mutation::ForgetsWhatItAskedFor) { 0 } else { unseen };
        let seen: Vec<NodeState<'_>> = match self.mutation {
            Some(Mutation::DoesNotCountMachinesThatLeave) => {
                members.iter().filter(|member| member.stage == DeletionStage::Staying).cloned().collect()
            }
            Some(Mutation::TakesEveryNodeForAvailable) => members
                .iter()
                .map(|member| NodeState { ready_since: Some(stamp(0)), started: true, ..member.clone() })
                .collect(),
            _ => members.clone(),
        };
        let plan = set_planner::decide(&wanted, &seen, unseen, now);
        let requeue_after = plan.requeue_after.filter(|_| self.mutation != Some(Mutation::NeverLooksAgain));
        self.set_at = requeue_after.map(|after| world.now + after.as_millis() as i64 + 1_000);
        self.status.rollout.clone_from(&plan.rollout);
        self.status.start_failures.clone_from(&plan.start_failures);
        let update = Some(self.spec.revision.clone());
        if members
            .iter()
            .filter(|m| m.stage == DeletionStage::Staying)
            .all(|m| Some(m.revision) == update.as_deref())
        {
            self.status.current_revision = update;
        }
        drop(members);
        let drain_permits: Vec<String> = plan
            .drain_permits
            .iter()
            .copied()
            .chain(plan.delete.iter().map(|deletion| deletion.name))
            .map(str::to_owned)
            .collect();
        self.cache = cache.clone();
        self.grant(world, &drain_permits);
        let result = self.apply(world, &plan, &cache);
        self.cache = cache;
        result
    }

    fn member<'a>(&self, node: &'a Node) -> NodeState<'a> {
        let mut stage = match node.deleted_at {
            None if self.expectations.is_leaving(&node.name) => DeletionStage::Draining,
            None => DeletionStage::Staying,
            Some(_) if node.cordoned => DeletionStage::Draining,
            Some(_) if self.drain_permits.contains(&node.uid) => DeletionStage::Draining,
            Some(_) => DeletionStage::PendingDrain,
        };
        if self.mutation == Some(Mutation::TakesTurnsBack)
            && stage == DeletionStage::Draining
            && !node.cordoned
        {
            stage = DeletionStage::PendingDrain;
        }
        NodeState {
            name: &node.name,
            revision: &node.revision,
            created: stamp(node.created),
            stage,
            ready_since: node.ready_since.map(stamp),
            started: node.started(),
            has_kubelet: node.has_kubelet,
            marked: node.marked,
            pods: node.pods,
            conditions: node
                .unknown_since
                .map(|since| ObservedCondition {
                    r#type: "Ready",
                    status: "Unknown",
                    since: Some(stamp(since)),
                })
                .into_iter()
                .collect(),
            ..NodeState::default()
        }
    }

    /// Turns are granted before deletions are asked for.
    fn grant(&mut self, world: &mut World, names: &[String]) {
        let known: Vec<&Node> = names.iter().filter_map(|name| self.cache.get(name)).collect();
        let before = std::mem::replace(&mut self.drain_permits, known.iter().map(|node| node.uid).collect());
        for node in known {
            self.nodes_at.insert(node.name.clone(), world.now);
            // A deletion still has to be accepted, and is only of what was seen: then it is judged.
            if !before.contains(&node.uid) && node.deleted_at.is_some() {
                self.judge(world, &node.name);
            }
        }
    }

    /// Lets the world say whether it may begin to drain a Node that is as it was seen.
    fn judge(&self, world: &mut World, name: &str) {
        let unchanged = |seen: &Node| world.nodes.get(name).is_some_and(|node| node.version == seen.version);
        if self.cache.get(name).is_some_and(unchanged) {
            let draining =
                |node: &Node| node.draining() || self.drain_permits.contains(&node.uid) || node.name == name;
            // A Node whose machine vanished while it was leaving is gone, and the watch has not said so yet.
            let ghosts = self.cache.values().filter(|seen| {
                !world.nodes.contains_key(&seen.name) && seen.ready_since.is_some() && !draining(seen)
            });
            let ghosts = ghosts.count();
            world.turn_granted(name, self.spec.replicas, ghosts, draining);
        }
    }

    fn apply(
        &mut self,
        world: &mut World,
        plan: &set_planner::SetPlan<'_>,
        cache: &BTreeMap<String, Node>,
    ) -> Result<(), Killed> {
        let gives_up = self.mutation == Some(Mutation::GivesUpOnLostAnswers);
        let again: Vec<String> = self
            .expectations
            .unconfirmed()
            .filter(|_| !gives_up)
            .filter(|name| !cache.contains_key(*name))
            .map(str::to_owned)
            .collect();
        if !plan.ask_again {
            for name in &again {
                if world.nodes.contains_key(name) {
                    self.expectations.created(name);
                } else {
                    self.expectations.refused(name);
                }
            }
        }
        let newest = self.spec.revision.clone();
        let working = self.status.current_revision.clone().unwrap_or_else(|| newest.clone());
        let fresh: Vec<(String, String)> = (0..plan.create)
            .map(|i| {
                self.names += 1;
                let revision = if i < plan.create_current { working.clone() } else { newest.clone() };
                (format!("n{:06}", self.names), revision)
            })
            .collect();
        let most = self.spec.replicas + self.spec.setup.surge;
        for (name, revision) in
            again.into_iter().filter(|_| plan.ask_again).map(|name| (name, newest.clone())).chain(fresh)
        {
            self.expectations.creating(&name);
            let before = world.creations;
            let answer = world.create(&name, &revision);
            if world.creations > before && world.nodes.len() > most {
                let count = world.nodes.len();
                world.violate(&format!("{count} machines, and there may be {most}"));
            }
            match answer {
                Answer::Done => self.expectations.created(&name),
                Answer::Killed => return Err(Killed),
                Answer::Lost | Answer::Refused | Answer::Conflict => self.retry_set(world),
            }
        }
        let mut failed_starts = 0;
        let unanswered: Vec<String> =
            self.expectations.unanswered().map(|(name, _)| name.to_owned()).collect();
        for name in unanswered.iter().map(String::as_str).chain(plan.delete.iter().map(|d| d.name)) {
            let Some(seen) = cache.get(name) else { continue };
            if !unanswered.iter().any(|again| again == name) {
                self.judge(world, name);
            }
            self.expectations.deleting(name, &seen.version.to_string());
            let answer = world.delete(seen);
            let cause = plan.delete.iter().find(|deletion| deletion.name == name).and_then(|d| d.cause);
            failed_starts += usize::from(
                cause == Some(DisruptionReason::FailedToStart)
                    && matches!(answer, Answer::Done | Answer::Lost),
            );
            match answer {
                Answer::Done => self.expectations.deleted(name),
                Answer::Killed => return Err(Killed),
                Answer::Conflict | Answer::Lost | Answer::Refused => self.retry_set(world),
            }
        }
        self.status.start_failures = rollout::account(
            plan.start_failures.clone(),
            failed_starts,
            &self.spec.revision,
            world.timestamp(),
        );
        Ok(())
    }

    fn retry_set(&mut self, world: &World) {
        self.set_at = Some(world.now + 1_000);
    }

    fn look_at_node(&mut self, world: &mut World, name: &str) -> Result<(), Killed> {
        let Some(node) = self.cache.get(name).cloned() else { return Ok(()) };
        if world.provider_fails() {
            self.nodes_at.insert(name.to_owned(), world.now + 2_000);
            return Ok(());
        }
        let machine = match world.machines.get(&node.uid) {
            None => node::MachineState::Absent,
            Some(Machine::Leaving { .. }) => node::MachineState::Leaving,
            Some(_) => node::MachineState::Exists,
        };
        let in_turn =
            self.drain_permits.contains(&node.uid) || self.mutation == Some(Mutation::DrainsOutOfTurn);
        // Where there is no machine, none of these pods ever ran.
        let runs = machine != node::MachineState::Absent;
        let pods = world.nodes.get(name).map_or(0, |node| if node.fault || !runs { 0 } else { node.pods });
        let state = node::Node {
            back_off: None,
            volatile: false,
            deleted_at: node.deleted_at.map(stamp),
            finalizer: true,
            cordoned: node.cordoned,
            drain_permit: in_turn,
            taints: node.taints.clone(),
            kubelet: match (node.has_kubelet, node.ready_since) {
                (false, _) => Kubelet::Silent,
                (true, None) => Kubelet::NotReady,
                (true, Some(_)) => Kubelet::Ready,
            },
            lease_renewed: Some(world.timestamp()),
        };
        let progress = DrainProgress { began: world.timestamp(), unreachable: false };
        let pods = vec![drain::Pod::default(); pods];
        let drain = drain::plan(&pods, &Drain::default(), progress, world.timestamp());
        let pods = Pods::Known { drain, attached: node::Attached::default() };
        let plan = node::decide(&state, machine, &pods, Duration::ZERO, world.timestamp());
        if let Some(after) = plan.requeue_after {
            self.nodes_at.insert(name.to_owned(), world.now + (after.as_millis() as i64).max(500));
        }
        for step in &plan.steps {
            let answer = match step {
                NodeStep::AddFinalizer => Answer::Done,
                NodeStep::CreateMachine => {
                    world.create_machine(node.uid);
                    Answer::Done
                }
                NodeStep::SetTaints(taints) => world.patch(&node, |node| node.taints.clone_from(taints)),
                NodeStep::Cordon { .. } => {
                    if !self.drain_permits.contains(&node.uid) {
                        self.judge(world, name);
                    }
                    world.patch(&node, |node| node.cordoned = true)
                }
                NodeStep::Evict(_) => {
                    world.evict(name);
                    Answer::Done
                }
                // Without a timeout nothing is forced, and without a machine there are no pods.
                NodeStep::Force(_) | NodeStep::DeletePods(_) | NodeStep::SetOutOfService(_) => {
                    world.violate(&format!("{name}: {step:?}"));
                    Answer::Done
                }
                NodeStep::DeleteMachine => {
                    world.delete_machine(&node);
                    if self.mutation == Some(Mutation::DropsTheFinalizerEarly) {
                        world.release(&node)
                    } else {
                        Answer::Done
                    }
                }
                NodeStep::RemoveFinalizer => world.release(&node),
            };
            match answer {
                Answer::Done => {}
                Answer::Killed => return Err(Killed),
                Answer::Lost | Answer::Refused | Answer::Conflict => {
                    self.nodes_at.insert(name.to_owned(), world.now + 1_000);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
