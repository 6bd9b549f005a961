//! The cluster as it really is: the API server with its Nodes, the provider with its machines, kubelets and pods. It does
//! what is asked of it, shows it later, and notes what must never happen.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube_node_planner::{budget::Budget, taints};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::schedule::{Action, Setup};

/// Revisions with this last digit never become Ready.
const BROKEN: u32 = 3;

/// What the NodeSet says.
#[derive(Clone, Debug)]
pub struct Spec {
    pub replicas: usize,
    pub revision: String,
    pub restarted_at: Option<i64>,
    pub paused: bool,
    pub resumed_at: Option<i64>,
    pub setup: Setup,
}

/// A Node as the API server has it. Times are milliseconds.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub uid: u64,
    pub version: u64,
    pub revision: String,
    pub created: i64,
    pub deleted_at: Option<i64>,
    pub cordoned: bool,
    pub taints: Vec<Taint>,
    pub has_kubelet: bool,
    pub ready_since: Option<i64>,
    /// Since when its Ready condition is Unknown.
    pub unknown_since: Option<i64>,
    pub marked: bool,
    pub pods: usize,
    /// Its kubelet is silent, or somebody drains it: none of our doing.
    pub fault: bool,
    /// It was so once, so that it may be unavailable where the watch still shows otherwise.
    pub excused: bool,
}

impl Node {
    pub fn started(&self) -> bool {
        !self.taints.iter().any(|taint| taint.key == kube_node_api::names::TAINT_UNINITIALIZED)
    }

    pub fn draining(&self) -> bool {
        self.deleted_at.is_some() && self.cordoned
    }

    fn available(&self, min_ready: i64, now: i64) -> bool {
        self.started()
            && !self.draining()
            && self.ready_since.is_some_and(|since| now - since >= min_ready * 1_000)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    Booting { until: i64 },
    Up,
    Dead,
    Leaving { until: i64 },
}

/// What the watch of Nodes delivers.
#[derive(Clone, Debug)]
pub enum Event {
    Changed(Node),
    Gone(String),
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// It took effect, and nobody said so.
    Lost,
    /// It had no effect, and may the next time.
    Refused,
    /// The object is no more as it was seen.
    Conflict,
    /// The operator was killed right after it.
    Killed,
}

pub struct World {
    pub now: i64,
    pub rng: SmallRng,
    pub spec: Spec,
    pub nodes: BTreeMap<String, Node>,
    pub machines: BTreeMap<u64, Machine>,
    pub events: VecDeque<(i64, Event)>,
    pub spec_events: VecDeque<(i64, Spec)>,
    /// UIDs of machines that changed by themselves.
    pub told: Vec<u64>,
    pub violation: Option<String>,
    pub creations: usize,
    pub writes: usize,
    pub relist: bool,
    blocked_until: i64,
    failing_until: i64,
    outage_until: i64,
    kill_after: Option<usize>,
    leaving_pods: Vec<(i64, String)>,
    counter: u64,
}

impl World {
    pub fn new(seed: u64, setup: &Setup) -> Self {
        let spec = Spec {
            replicas: setup.replicas,
            revision: "0".to_owned(),
            restarted_at: None,
            paused: false,
            resumed_at: None,
            setup: setup.clone(),
        };
        Self {
            now: 1_000_000,
            rng: SmallRng::seed_from_u64(seed ^ 0x5eed),
            spec,
            nodes: BTreeMap::new(),
            machines: BTreeMap::new(),
            events: VecDeque::new(),
            spec_events: VecDeque::new(),
            told: Vec::new(),
            violation: None,
            creations: 0,
            writes: 0,
            relist: false,
            blocked_until: 0,
            failing_until: 0,
            outage_until: 0,
            kill_after: None,
            leaving_pods: Vec::new(),
            counter: 0,
        }
    }

    pub fn timestamp(&self) -> Timestamp {
        stamp(self.now)
    }

    pub fn violate(&mut self, what: &str) {
        self.violation
            .get_or_insert_with(|| format!("at {} s: {what}", (self.now - 1_000_000) as f64 / 1_000.0));
    }

    fn some(&mut self, from: i64, to: i64) -> i64 {
        self.rng.random_range(from..to)
    }

    fn delivery(&mut self, last: Option<i64>) -> i64 {
        let lag = self.spec.setup.lag;
        let at = self.now + self.some(0, lag + 1);
        last.map_or(at, |last| at.max(last))
    }

    /// A Node changed: its version moves, and the watch will show it.
    fn changed(&mut self, name: &str) {
        self.counter += 1;
        let version = self.counter;
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.version = version;
        node.excused |= node.fault;
        let event = Event::Changed(node.clone());
        let at = self.delivery(self.events.back().map(|(at, _)| *at));
        self.events.push_back((at, event.clone()));
        // Watches may show one state twice.
        if self.rng.random_ratio(1, 10) {
            self.events.push_back((at, event));
        }
    }

    fn gone(&mut self, name: &str) {
        self.nodes.remove(name);
        let at = self.delivery(self.events.back().map(|(at, _)| *at));
        self.events.push_back((at, Event::Gone(name.to_owned())));
    }

    pub fn change_spec(&mut self, change: impl FnOnce(&mut Spec)) {
        change(&mut self.spec);
        let at = self.delivery(self.spec_events.back().map(|(at, _)| *at));
        self.spec_events.push_back((at, self.spec.clone()));
    }

    /// Whether a write takes effect, and what its writer hears.
    fn answer(&mut self) -> (bool, Answer) {
        self.writes += 1;
        if let Some(left) = &mut self.kill_after {
            if *left == 0 {
                self.kill_after = None;
                return (self.rng.random_ratio(1, 2), Answer::Killed);
            }
            *left -= 1;
        }
        if self.now < self.outage_until {
            return if self.rng.random_ratio(1, 2) { (true, Answer::Lost) } else { (false, Answer::Refused) };
        }
        (true, Answer::Done)
    }

    /// POST of a Node; one that exists already under this name was made by an earlier call of ours.
    pub fn create(&mut self, name: &str, revision: &str) -> Answer {
        let (effect, answer) = self.answer();
        if effect && !self.nodes.contains_key(name) {
            self.counter += 1;
            self.creations += 1;
            let pods = self.rng.random_range(0..3);
            let node = Node {
                name: name.to_owned(),
                uid: self.counter,
                version: 0,
                revision: revision.to_owned(),
                created: self.now,
                deleted_at: None,
                cordoned: false,
                taints: taints::at_birth(),
                has_kubelet: false,
                ready_since: None,
                unknown_since: None,
                marked: false,
                pods,
                fault: false,
                excused: false,
            };
            self.nodes.insert(name.to_owned(), node);
            self.changed(name);
        }
        answer
    }

    /// DELETE of a Node that was seen in this version.
    pub fn delete(&mut self, seen: &Node) -> Answer {
        let (effect, answer) = self.answer();
        match self.nodes.get_mut(&seen.name) {
            Some(node) if node.version != seen.version => return Answer::Conflict,
            Some(node) if effect && node.deleted_at.is_none() => node.deleted_at = Some(self.now),
            _ => return answer,
        }
        self.changed(&seen.name);
        answer
    }

    /// A change of a Node that was seen in this version.
    pub fn patch(&mut self, seen: &Node, change: impl FnOnce(&mut Node)) -> Answer {
        let (effect, answer) = self.answer();
        match self.nodes.get_mut(&seen.name) {
            Some(node) if node.version != seen.version => return Answer::Conflict,
            Some(node) if effect => change(node),
            _ => return answer,
        }
        self.changed(&seen.name);
        answer
    }

    /// Drops the finalizer of a Node that leaves.
    pub fn release(&mut self, seen: &Node) -> Answer {
        let (effect, answer) = self.answer();
        match self.nodes.get(&seen.name) {
            Some(node) if node.version != seen.version => return Answer::Conflict,
            Some(node) if effect => {
                if self.machines.contains_key(&node.uid) {
                    let name = node.name.clone();
                    self.violate(&format!("{name} goes before its machine"));
                }
                self.gone(&seen.name);
            }
            _ => {}
        }
        answer
    }

    /// Evicts the pods of a Node; budgets may hold them.
    pub fn evict(&mut self, name: &str) {
        if self.now >= self.blocked_until && !self.leaving_pods.iter().any(|(_, node)| node == name) {
            let at = self.now + self.some(100, 20_000);
            self.leaving_pods.push((at, name.to_owned()));
        }
    }

    pub fn provider_fails(&self) -> bool {
        self.now < self.failing_until
    }

    pub fn create_machine(&mut self, uid: u64) {
        let until = self.now + self.some(500, 15_000);
        self.machines.entry(uid).or_insert(Machine::Booting { until });
    }

    pub fn delete_machine(&mut self, seen: &Node) {
        if let Some(node) = self.nodes.get(&seen.name)
            && node.pods > 0
            && !node.fault
        {
            let name = node.name.clone();
            self.violate(&format!("the machine of {name} is deleted under its pods"));
        }
        let until = self.now + self.some(500, 5_000);
        if let Some(machine) = self.machines.get_mut(&seen.uid) {
            *machine = Machine::Leaving { until };
        }
    }

    /// Nodes that would be available if nobody but us had done anything.
    pub fn available_but_for_faults(&self, draining: impl Fn(&Node) -> bool) -> usize {
        let min_ready = self.spec.setup.min_ready;
        // What somebody drains without asking counts as there: the watch may not show it yet.
        let excused = |node: &Node| node.excused && (node.fault || !draining(node));
        let counts = |node: &&Node| excused(node) || (node.available(min_ready, self.now) && !draining(node));
        self.nodes.values().filter(counts).count()
    }

    /// The drain of a Node may begin from now on: is it ours to let?
    pub fn turn_granted(
        &mut self,
        node: &str,
        replicas: usize,
        ghosts: usize,
        draining: impl Fn(&Node) -> bool,
    ) {
        let setup = &self.spec.setup;
        let budget = Budget { surge: setup.surge, unavailable: setup.unavailable };
        let least = if setup.delete_first {
            replicas.saturating_sub(setup.unavailable.max(1))
        } else {
            budget.floor(replicas)
        };
        let Some(own) = self.nodes.get(node) else { return };
        if !own.available(setup.min_ready, self.now) || own.marked {
            return;
        }
        let left = self.available_but_for_faults(draining) + ghosts;
        if left < least {
            self.violate(&format!(
                "{node} is drained, which leaves {left} of {replicas} available, and {least} have to be"
            ));
        }
    }

    /// When something happens by itself next.
    pub fn next(&self) -> Option<i64> {
        let machines = self.machines.values().filter_map(|machine| match machine {
            Machine::Booting { until } | Machine::Leaving { until } => Some(*until),
            Machine::Up | Machine::Dead => None,
        });
        machines
            .chain(self.leaving_pods.iter().map(|(at, _)| *at))
            .chain(self.events.front().map(|(at, _)| *at))
            .chain(self.spec_events.front().map(|(at, _)| *at))
            .min()
    }

    /// What happens by itself up to now.
    pub fn happen(&mut self) {
        let now = self.now;
        let due: Vec<(u64, Machine)> = self
            .machines
            .iter()
            .filter(|(_, machine)| matches!(machine, Machine::Booting { until } | Machine::Leaving { until } if *until <= now))
            .map(|(uid, machine)| (*uid, *machine))
            .collect();
        for (uid, machine) in due {
            if matches!(machine, Machine::Booting { .. }) {
                self.boot(uid);
            } else {
                self.machines.remove(&uid);
                self.told.push(uid);
            }
        }
        let (left, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving_pods).into_iter().partition(|(at, _)| *at > now);
        self.leaving_pods = left;
        for (_, name) in gone {
            if let Some(node) = self.nodes.get_mut(&name) {
                node.pods = 0;
                // Pods have no version of their own here: the Node's change brings the look.
                self.changed(&name);
            }
        }
    }

    fn boot(&mut self, uid: u64) {
        self.machines.insert(uid, Machine::Up);
        self.told.push(uid);
        let now = self.now;
        let Some(node) = self.nodes.values_mut().find(|node| node.uid == uid) else { return };
        node.has_kubelet = true;
        node.unknown_since = None;
        node.fault = false;
        if node.revision.parse::<u32>().is_ok_and(|revision| revision % 10 != BROKEN) {
            node.ready_since = Some(now);
        }
        let name = node.name.clone();
        self.changed(&name);
    }

    fn fall_silent(&mut self, name: &str, to: Option<Machine>) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else { return };
        let uid = node.uid;
        if !matches!(self.machines.get(&uid), Some(Machine::Up)) {
            return;
        }
        node.ready_since = None;
        node.unknown_since = Some(now);
        node.fault = true;
        match to {
            Some(machine) => drop(self.machines.insert(uid, machine)),
            None => drop(self.machines.remove(&uid)),
        }
        self.told.push(uid);
        self.changed(name);
    }

    pub fn act(&mut self, action: Action) {
        let now = self.now;
        let nth = |world: &Self, n: usize| world.nodes.keys().nth(n % world.nodes.len().max(1)).cloned();
        match action {
            Action::Scale(replicas) => self.change_spec(|spec| spec.replicas = replicas),
            Action::Revise(revision) => self.change_spec(|spec| spec.revision = revision.to_string()),
            Action::Restart => self.change_spec(|spec| spec.restarted_at = Some(now)),
            Action::Pause(paused) => self.change_spec(|spec| spec.paused = paused),
            Action::Delete(n) => {
                if let Some(name) = nth(self, n)
                    && let Some(node) = self.nodes.get_mut(&name)
                {
                    node.deleted_at.get_or_insert(now);
                    // Whoever deletes a Node that is closed already asked for no turn.
                    node.fault |= node.cordoned;
                    self.changed(&name);
                }
            }
            Action::Cordon(n) => {
                if let Some(name) = nth(self, n)
                    && let Some(node) = self.nodes.get_mut(&name)
                {
                    node.fault |= node.deleted_at.is_some() && !node.cordoned;
                    node.cordoned = true;
                    self.changed(&name);
                }
            }
            Action::Mark(n) => {
                if let Some(name) = nth(self, n)
                    && let Some(node) = self.nodes.get_mut(&name)
                {
                    node.marked = true;
                    self.changed(&name);
                }
            }
            Action::Die(n) => {
                if let Some(name) = nth(self, n) {
                    self.fall_silent(&name, Some(Machine::Dead));
                }
            }
            Action::Vanish(n) => {
                if let Some(name) = nth(self, n) {
                    self.fall_silent(&name, None);
                }
            }
            Action::Block(seconds) => self.blocked_until = now + seconds * 1_000,
            Action::Fail(seconds) => self.failing_until = now + seconds * 1_000,
            Action::Outage(seconds) => self.outage_until = now + seconds * 1_000,
            Action::Crash(writes) => self.kill_after = Some(writes),
            Action::Relist => self.relist = true,
        }
    }

    /// Nobody does anything any more: what was broken works again, and the class is a new one that does.
    pub fn calm(&mut self) {
        (self.blocked_until, self.failing_until, self.outage_until) = (0, 0, 0);
        self.kill_after = None;
        let now = self.now;
        self.change_spec(|spec| {
            "1000".clone_into(&mut spec.revision);
            spec.paused = false;
            spec.resumed_at = Some(now);
            spec.setup.keep = 0;
            spec.setup.on_delete = false;
            spec.setup.expire_after = None;
            // One that is shorter than a boot would never let it settle.
            spec.setup.startup_timeout = None;
        });
        let dead: Vec<u64> =
            self.machines.iter().filter(|(_, m)| **m == Machine::Dead).map(|(uid, _)| *uid).collect();
        for uid in dead {
            self.boot(uid);
        }
    }
}

pub fn stamp(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds).unwrap()
}
