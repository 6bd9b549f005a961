//! The API server with one set and its Nodes, and what is needed of them. It notes what must never happen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kube_node_planner::autoscaling::{Bounds, SetSnapshot};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// A Node as the API server has it. Times are seconds.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub version: u64,
    pub revision: u32,
    pub created: i64,
    pub leaving: bool,
    /// When its machine is up; None: it never comes.
    pub up_at: Option<i64>,
    pub ready: bool,
    pub ready_at: Option<i64>,
    /// Made beside an order, by a look that had not seen it: perhaps one too many.
    stray: bool,
    /// cluster-autoscaler's taint.
    pub emptied: bool,
    /// When it thought better of it.
    spared_at: Option<i64>,
    gone_at: i64,
}

/// What a watch shows.
#[derive(Clone, Debug)]
pub enum Event {
    Set(SetSnapshot, u32),
    Node(Node),
    Gone(String),
}

/// A write of the set.
#[derive(Clone, Debug)]
pub struct Write {
    pub on: SetSnapshot,
    pub replicas: i32,
    pub victims: BTreeSet<String>,
    pub what: What,
}

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    ScaleRequest,
    Fence,
    Record,
}

/// A write that is carried out when nobody waits for it any more.
#[derive(Clone, Debug)]
struct Late {
    at: i64,
    sent: i64,
    write: Write,
    /// The process that sent it.
    process: u32,
    /// That process has said what came of it.
    over: bool,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub enum Answer {
    Stands(SetSnapshot),
    Conflict,
    Silence,
}

#[derive(Debug)]
pub struct World {
    pub now: i64,
    rng: SmallRng,
    pub set: SetSnapshot,
    pub revision: u32,
    pub nodes: BTreeMap<String, Node>,
    pub events: VecDeque<(i64, Event)>,
    pub violation: Option<String>,
    /// What happened, for whoever reads a failure.
    history: VecDeque<String>,
    /// Nodes that cluster-autoscaler has asked to be deleted.
    pub asked: BTreeSet<String>,
    needed: i32,
    /// What was needed lately, and until when it counts.
    peaks: Vec<(i64, i32)>,
    /// Writes that are carried out only then, and when they were sent.
    late: Vec<Late>,
    process: u32,
    outage_until: i64,
    lag: i64,
    calm: bool,
    counter: u64,
}

/// How long a caller may act on what was needed before.
const MEMORY: i64 = 25;
/// How much of what happened is remembered.
const HISTORY: usize = 60;

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let min = rng.random_range(0..3);
        let replicas = rng.random_range(min..6);
        let set = SetSnapshot {
            uid: "set".to_owned(),
            generation: 1,
            version: "1".to_owned(),
            bounds: Bounds { min, max: 9 },
            replicas,
            victims: BTreeSet::new(),
        };
        let lag = [0, 1, 3, 8, 14][rng.random_range(0..5)];
        Self {
            now: 0,
            rng,
            set,
            revision: 0,
            nodes: BTreeMap::new(),
            events: VecDeque::new(),
            violation: None,
            history: VecDeque::new(),
            asked: BTreeSet::new(),
            needed: replicas,
            peaks: Vec::new(),
            late: Vec::new(),
            process: 0,
            outage_until: 0,
            lag,
            calm: false,
            counter: 1,
        }
    }

    pub fn pick(&mut self, below: u32) -> u32 {
        self.rng.random_range(0..below)
    }

    /// Remembers what happened.
    pub fn note(&mut self, what: std::fmt::Arguments<'_>) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(format!("{:>4} s: {what}", self.now));
    }

    /// The last that happened, a line each.
    pub fn history(&self) -> String {
        self.history.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// How many Nodes there have to be in the end.
    pub fn needed(&self) -> i32 {
        self.needed.clamp(self.set.bounds.min, self.set.bounds.max)
    }

    /// Pods came or went.
    pub fn need(&mut self) {
        self.peaks.push((self.now + MEMORY, self.needed()));
        self.needed = self.rng.random_range(0..11);
    }

    pub fn outage(&mut self) {
        self.outage_until = self.now + self.rng.random_range(1..12);
    }

    pub fn roll_out(&mut self) {
        self.note(format_args!("a new revision"));
        self.revision += 1;
        self.show_set();
    }

    pub fn lag(&mut self) {
        self.lag = [0, 1, 3, 8, 14][self.rng.random_range(0..5)];
    }

    /// A process begins, with what is there now.
    pub fn start_process(&mut self) {
        self.process += 1;
        self.events.clear();
    }

    /// The process says that it knows what came of all it has sent.
    pub fn settled(&mut self) {
        let process = self.process;
        self.late.iter_mut().filter(|late| late.process == process).for_each(|late| late.over = true);
    }

    /// A scale-up was refused: where nobody disturbs it any more, nothing gives a reason to.
    pub fn refused(&mut self, why: &str) {
        if self.calm && self.late.is_empty() {
            self.violate(format!("a scale-up is refused: {why}"));
        }
    }

    /// Nobody disturbs it any more, and every machine comes.
    pub fn calm(&mut self) {
        self.calm = true;
        self.outage_until = 0;
        let now = self.now;
        for node in self.nodes.values_mut() {
            node.up_at = node.up_at.or(Some(now + 2));
        }
    }

    fn event(&mut self, event: Event) {
        let at = self.now + self.rng.random_range(0..=self.lag);
        let at = self.events.back().map_or(at, |(last, _)| at.max(*last));
        self.events.push_back((at, event));
    }

    fn show_set(&mut self) {
        self.counter += 1;
        self.set.version = self.counter.to_string();
        self.event(Event::Set(self.set.clone(), self.revision));
    }

    fn show_node(&mut self, name: &str) {
        self.counter += 1;
        let version = self.counter;
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.version = version;
        let event = Event::Node(node.clone());
        self.event(event);
    }

    pub fn read(&mut self) -> Answer {
        if self.now < self.outage_until { Answer::Silence } else { Answer::Stands(self.set.clone()) }
    }

    /// A write of the set; in an outage it may happen, happen late, or not at all, and nobody says which.
    pub fn write(&mut self, write: Write) -> Answer {
        if self.now >= self.outage_until {
            return self.carry_out(&write);
        }
        match self.pick(3) {
            0 => drop(self.carry_out(&write)),
            1 => {
                let at = self.now + i64::from(self.pick(12));
                self.late.push(Late { at, sent: self.now, write, process: self.process, over: false });
            }
            _ => {}
        }
        Answer::Silence
    }

    fn carry_out(&mut self, write: &Write) -> Answer {
        if write.on.version != self.set.version {
            return Answer::Conflict;
        }
        let before = self.set.replicas;
        self.note(format_args!(
            "{:?}: {before} to {} replicas, to go: {:?}",
            write.what, write.replicas, write.victims
        ));
        if write.what != What::Fence {
            // One that never came, or has only just come, may be given up without its name.
            let young = |node: &Node| node.ready_at.is_none_or(|at| at > self.now - MEMORY);
            let given_up = write.victims.iter().filter(|uid| self.nodes.get(*uid).is_some_and(young));
            self.asked.extend(given_up.cloned().collect::<Vec<_>>());
            self.set.victims.clone_from(&write.victims);
        }
        if write.what == What::ScaleRequest && write.replicas != before {
            self.set.replicas = write.replicas;
            self.set.generation += 1;
            self.judge(before);
        }
        self.show_set();
        Answer::Stands(self.set.clone())
    }

    fn judge(&mut self, before: i32) {
        let (now, min) = (self.set.replicas, self.set.bounds.min);
        let peak = self.peaks.iter().map(|(_, peak)| *peak).chain([self.needed()]).max().unwrap_or(0);
        // Those that are being emptied take their replicas along, or were to when the order was given.
        let lately = |node: &Node| node.emptied || node.spared_at.is_some_and(|at| at > self.now - MEMORY);
        let emptied = self.nodes.values().filter(|node| lately(node) && !node.leaving).count();
        let stay = now - i32::try_from(emptied).unwrap();
        if now > before && stay > peak {
            self.violate(format!("scaled up twice: from {before} to {now} replicas, and {peak} are needed"));
        }
        if now < before && now < min {
            self.violate(format!("{now} replicas, and the minimum is {min}"));
        }
    }

    /// `seen` is the generation of the set that whoever creates it has seen.
    pub fn create(&mut self, name: &str, revision: u32, seen: i64) {
        let comes = self.calm || self.pick(8) > 0;
        let up_at = comes.then(|| self.now + i64::from(self.pick(10)));
        let node = Node {
            name: name.to_owned(),
            version: 0,
            revision,
            created: self.now,
            leaving: false,
            up_at,
            ready: false,
            ready_at: None,
            stray: seen != self.set.generation,
            emptied: false,
            spared_at: None,
            gone_at: i64::MAX,
        };
        self.note(format_args!(
            "{name} is created, revision {revision}{}",
            if node.stray { ", stray" } else { "" }
        ));
        self.nodes.insert(name.to_owned(), node);
        self.show_node(name);
    }

    /// DELETE of a Node in the version that was seen; `replaced` by a rollout. Whether it was accepted.
    pub fn delete(&mut self, seen: &Node, replaced: bool) -> bool {
        let gone_at = self.now + 1 + i64::from(self.pick(6));
        let Some(node) = self.nodes.get_mut(&seen.name) else { return true };
        if node.version != seen.version {
            return false;
        }
        if !node.leaving {
            node.leaving = true;
            node.gone_at = gone_at;
            let (name, counted) = (node.name.clone(), node.ready && !node.stray);
            self.note(format_args!("{name} is deleted{}", if replaced { ", replaced" } else { "" }));
            if counted && !replaced && !self.asked.contains(&name) {
                self.violate(format!("{name} goes, and nobody has named it"));
            }
            self.show_node(&name);
        }
        true
    }

    /// cluster-autoscaler's taint comes or goes.
    pub fn empty(&mut self, name: &str, emptied: bool) {
        if let Some(node) = self.nodes.get_mut(name)
            && node.emptied != emptied
        {
            node.emptied = emptied;
            node.spared_at = (!emptied).then_some(self.now);
            self.note(format_args!("{name} is {}emptied", if emptied { "" } else { "not to be " }));
            self.show_node(name);
        }
    }

    /// What happens by itself up to now.
    pub fn happen(&mut self) {
        let now = self.now;
        self.peaks.retain(|(until, _)| *until > now);
        let (due, later): (Vec<Late>, Vec<Late>) =
            std::mem::take(&mut self.late).into_iter().partition(|late| late.at <= now);
        self.late = later;
        for Late { sent, write, over, .. } in due {
            if over && write.what == What::ScaleRequest && write.on.version == self.set.version {
                self.violate("an order that was answered is carried out".to_owned());
            }
            // Whoever gave the order could not know of those.
            self.nodes.values_mut().for_each(|node| node.stray |= node.created >= sent);
            self.carry_out(&write);
        }
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            let node = &self.nodes[&name];
            if node.leaving && node.gone_at <= now {
                self.nodes.remove(&name);
                self.event(Event::Gone(name));
            } else if !node.ready && node.up_at.is_some_and(|at| at <= now) {
                let node = self.nodes.get_mut(&name).unwrap();
                (node.ready, node.ready_at) = (true, Some(now));
                self.show_node(&name);
            }
        }
    }
}
