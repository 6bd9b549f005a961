//! One process: the caches, the controller and the server, all decisions of which are those of `core`. It is killed by
//! being dropped.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use kube_node_api::{ReplacementOrder, ScaleDownOrder};
use kube_node_planner::{
    autoscaling::{
        self, ApiCall, ApiResponse, Bounds, GroupNode, Instance, NodeRef, ReplicaChange, Rolling,
        ScaleRefusal, ScaleRequest, ScaleStep, SetSnapshot, VictimState, WriteCache,
    },
    budget::Budget,
    disruption::DisruptionRules,
    expectations::Expectations,
    rollout::ProgressDeadline,
    set_planner::{self, Creation, DeletionStage, DesiredState, NodeState, RolloutMode},
};

use crate::{
    mutation::Mutation,
    world::{Answer, Event, Node, What, World, Write},
};

pub struct Operator {
    mutation: Option<Mutation>,
    set: SetSnapshot,
    revision: u32,
    nodes: BTreeMap<String, Node>,
    memory: WriteCache,
    expectations: Expectations,
    names: u64,
}

fn stamp(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

impl Operator {
    /// A process that has just listed everything.
    pub fn start(world: &mut World, mutation: Option<Mutation>) -> Self {
        // Its watch begins with the list.
        world.start_process();
        Self {
            mutation,
            set: world.set.clone(),
            revision: world.revision,
            nodes: world.nodes.clone(),
            memory: WriteCache::default(),
            expectations: Expectations::default(),
            names: 0,
        }
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub fn receive(&mut self, world: &mut World) {
        while let Some((_, event)) = world.events.pop_front_if(|(at, _)| *at <= world.now) {
            match event {
                Event::Set(set, revision) => {
                    (self.set, self.revision) = (set, revision);
                }
                Event::Node(node) => {
                    self.expectations.seen(&node.name, &node.version.to_string(), node.leaving);
                    self.nodes.insert(node.name.clone(), node);
                }
                Event::Gone(name) => {
                    self.expectations.gone(&name);
                    self.nodes.remove(&name);
                }
            }
        }
    }

    /// The controller's look, whenever it likes.
    pub fn look(&mut self, world: &mut World) {
        if world.pick(3) == 0 {
            return;
        }
        let left: BTreeSet<String> = self
            .set
            .victims
            .iter()
            .filter(|uid| self.nodes.get(*uid).is_some_and(|node| !node.leaving))
            .cloned()
            .collect();
        if left.len() < self.set.victims.len() {
            let (on, replicas) = (self.set.clone(), self.set.replicas);
            world.write(Write { on, replicas, victims: left, what: What::Record });
        }
        let revision = self.revision.to_string();
        let wanted = wanted(&self.set, &revision);
        let revisions: BTreeMap<&str, String> =
            self.nodes.iter().map(|(name, node)| (name.as_str(), node.revision.to_string())).collect();
        let members: Vec<NodeState<'_>> =
            self.nodes.values().map(|node| self.member(node, &revisions[node.name.as_str()])).collect();
        let unseen = self.coming();
        let plan = set_planner::decide(&wanted, &members, unseen, stamp(world.now));
        let create = plan.create;
        let victims: Vec<(Node, bool)> = plan
            .delete
            .iter()
            .map(|deletion| (self.nodes[deletion.name].clone(), deletion.cause.is_some()))
            .collect();
        for (node, replaced) in victims {
            self.expectations.deleting(&node.name, &node.version.to_string());
            if world.delete(&node, replaced) {
                self.expectations.deleted(&node.name);
            } else {
                self.expectations.not_deleted(&node.name);
            }
        }
        for _ in 0..create {
            self.names += 1;
            let name = format!("n{:05}-{}", world.now, self.names);
            self.expectations.creating(&name);
            world.create(&name, self.revision, self.set.generation);
            self.expectations.created(&name);
        }
    }

    fn member<'a>(&self, node: &'a Node, revision: &'a str) -> NodeState<'a> {
        let leaves = node.leaving || self.expectations.is_leaving(&node.name);
        let stage = if leaves { DeletionStage::Draining } else { DeletionStage::Staying };
        NodeState {
            name: &node.name,
            revision,
            created: stamp(node.created),
            stage,
            ready_since: node.ready.then(|| stamp(node.created)),
            started: node.ready,
            has_kubelet: node.ready,
            marked: node.emptied,
            victim: self.set.victims.contains(&node.name),
            autoscaler_drains: node.emptied && !self.has(Mutation::ReplacesWhatIsEmptied),
            ..NodeState::default()
        }
    }

    fn machines(&self) -> Vec<GroupNode<'_>> {
        self.nodes
            .values()
            .map(|node| GroupNode {
                name: &node.name,
                uid: &node.name,
                provider_id: Some(&node.name),
                leaving: node.leaving || self.expectations.is_leaving(&node.name),
                has_kubelet: node.ready,
                started: node.ready,
                updated: node.revision == self.revision,
                autoscaler_drains: node.emptied,
                created: stamp(node.created),
                trouble: None,
            })
            .collect()
    }

    /// Nodes that were asked for and are not shown yet.
    fn coming(&self) -> usize {
        self.expectations.creations().filter(|name| !self.nodes.contains_key(*name)).count()
    }

    /// Whether a rollout is under way.
    fn rolls(&self) -> bool {
        self.nodes.values().any(|node| !node.leaving && node.revision != self.revision)
    }

    /// `Refresh`: whether the loop may go on.
    pub fn refresh(&mut self, world: &mut World) -> bool {
        self.memory.unsettled().is_none()
            || self.order(world, ScaleRequest::of_number(), &|_, _| Ok(None)).is_ok()
    }

    pub fn target_size(&self) -> Option<i32> {
        let standing = self.memory.current(&self.set)?;
        let rolling = self.rolls().then_some(Rolling { surge: 1, keep: 0 });
        Some(autoscaling::target_size(standing, &self.machines(), self.coming(), rolling))
    }

    pub fn instances(&self, now: i64) -> Option<Vec<(String, autoscaling::InstanceState)>> {
        let standing = self.memory.current(&self.set)?;
        let (machines, coming, rolls) = (self.machines(), self.coming(), self.rolls());
        let all = autoscaling::instances("s", standing, &machines, coming, rolls, stamp(now));
        Some(all.into_iter().map(|Instance { id, state, .. }| (id.into_owned(), state)).collect())
    }

    pub fn increase(&mut self, world: &mut World, delta: i32) -> Result<(), String> {
        let anew = self.has(Mutation::CountsAnew);
        let order = if anew { ScaleRequest::of_names() } else { ScaleRequest::of_number() };
        self.order(world, order, &|_, standing| autoscaling::increase(standing, delta).map(Some))
    }

    pub fn decrease(&mut self, world: &mut World, delta: i32) -> Result<(), String> {
        self.order(world, ScaleRequest::of_number(), &|own, standing| {
            autoscaling::decrease(standing, &own.machines(), own.rolls(), delta).map(Some)
        })
    }

    pub fn delete(&mut self, world: &mut World, id: &str) -> Result<(), String> {
        self.order(world, ScaleRequest::of_names(), &|own, standing| {
            let by_name = |name: &str| own.nodes.get(name);
            let wanted = NodeRef { provider_id: id, name: id };
            let found = autoscaling::resolve(wanted, by_name, by_name, |node| Some(node.name.clone()))?;
            let twice = own.has(Mutation::LowersTwice);
            let target = found.map_or(VictimState::Gone, |node| VictimState::Ours {
                uid: &node.name,
                leaving: node.leaving && !twice,
            });
            let machines = own.machines();
            let staying = match own.mutation {
                Some(Mutation::LowersForTheSurge) => 0,
                _ => autoscaling::staying(standing, &machines, own.coming()),
            };
            let forgetful = SetSnapshot { victims: BTreeSet::new(), ..standing.clone() };
            let standing = if twice { &forgetful } else { standing };
            autoscaling::delete("s", standing, staying, &[target])
        })
    }

    /// As the writer does it.
    fn order(&mut self, world: &mut World, order: ScaleRequest, decide: &Decide<'_>) -> Result<(), String> {
        let answer = self.carry_out(world, order, decide);
        if self.memory.unsettled().is_none() {
            world.settled();
        }
        answer
    }

    fn carry_out(
        &mut self,
        world: &mut World,
        mut order: ScaleRequest,
        decide: &Decide<'_>,
    ) -> Result<(), String> {
        let mut heard = ApiResponse::Begun;
        if self.has(Mutation::BelievesTheWatchAlone) {
            self.memory = WriteCache::default();
        }
        loop {
            let mut memory = std::mem::take(&mut self.memory);
            let shown = self.set.clone();
            let own: &Self = self;
            let decided = |standing: &SetSnapshot| {
                let loose = SetSnapshot { bounds: Bounds { min: 0, ..standing.bounds }, ..standing.clone() };
                let loosened = own.has(Mutation::LeavesTheMinimumToTheCaller);
                decide(own, if loosened { &loose } else { standing })
            };
            let step = order.next(heard, &mut memory, || Ok(shown), decided, "s");
            self.memory = memory;
            let answer = match step {
                ScaleStep::Done => break,
                ScaleStep::Refused(refusal) => return Err(refusal.to_string()),
                ScaleStep::Failed(failure) => return Err(failure.to_string()),
                ScaleStep::ApiCall(ApiCall::Read) => world.read(),
                ScaleStep::ApiCall(ApiCall::Write { on, change }) => {
                    let named = !self.has(Mutation::NamesNobody);
                    let victims = if named { change.victims } else { BTreeSet::new() };
                    let write = Write { on, replicas: change.replicas, victims, what: What::ScaleRequest };
                    let answer = world.write(write);
                    if matches!(answer, Answer::Silence) && self.has(Mutation::TakesSilenceForFailure) {
                        return Err("silence".to_owned());
                    }
                    answer
                }
                ScaleStep::ApiCall(ApiCall::Fence { on }) if self.has(Mutation::SettlesWithoutAFence) => {
                    Answer::Stands(on)
                }
                ScaleStep::ApiCall(ApiCall::Fence { on }) => {
                    let victims = on.victims.clone();
                    world.write(Write { replicas: on.replicas, victims, on, what: What::Fence })
                }
            };
            heard = match answer {
                Answer::Stands(standing) => ApiResponse::Stands(standing),
                Answer::Conflict => ApiResponse::Conflict,
                Answer::Silence => ApiResponse::Nothing,
            };
        }
        if self.has(Mutation::BelievesTheWatchAlone) {
            self.memory = WriteCache::default();
        }
        Ok(())
    }
}

/// What an order comes to, as this operator sees the set.
type Decide<'a> = dyn Fn(&Operator, &SetSnapshot) -> Result<Option<ReplicaChange>, ScaleRefusal> + 'a;

fn wanted<'a>(set: &SetSnapshot, revision: &'a str) -> DesiredState<'a> {
    DesiredState {
        replicas: usize::try_from(set.replicas).unwrap(),
        budget: Budget { surge: 1, unavailable: 0 },
        min_ready: Duration::ZERO,
        order: ScaleDownOrder::LeastPods,
        replacement: ReplacementOrder::SurgeFirst,
        rules: DisruptionRules { revision: Some(revision), ..DisruptionRules::default() },
        pace: RolloutMode::Rolling { keep: 0 },
        clock: ProgressDeadline { deadline: Duration::from_hours(10), ..ProgressDeadline::default() },
        max_unhealthy: usize::MAX,
        max_repairs: usize::MAX,
        start_failures: None,
        class_back_off: Duration::ZERO,
        creation: Creation::Allowed,
        class_room: None,
    }
}
