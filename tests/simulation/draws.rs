//! Random schedules: each is drawn from one seed. What came later is drawn apart from what was there, so that a seed keeps its
//! schedule.

use std::collections::BTreeSet;

use kube_node_testing::api_server::Random;

use crate::{
    REGRESSIONS,
    autoscaler::SET,
    fault::Fault,
    people::{self, Act},
    schedule::{Action, HALTS, POD_CIDRS, Schedule},
};

/// Resources that the processes may not write for a time. What they say in the end is checked, so that a write that is
/// missing is seen.
const FORBIDDEN: [&str; 3] = ["controllerrevisions", "nodes", "pods"];
/// Range of pod CIDRs where cluster-autoscaler scales a set: there are more Nodes then.
const MORE_POD_CIDRS: &str = "10.64.0.0/19";
/// Seconds in which users of a random schedule act.
const ACTIVE: u64 = 240;

impl Schedule {
    /// The schedule of this seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut actions = vec![(1, Action::Scale("a".to_owned(), random.number() % 6))];
        if random.number().is_multiple_of(3) {
            actions.push((2, Action::Scale("b".to_owned(), random.number() % 4)));
        }
        if random.number().is_multiple_of(2) {
            let pods = 1 + random.below(5);
            actions.push((20, Action::Run(pods, random.below(pods + 1))));
        }
        for _ in 0..random.below(8) {
            let set = if random.number().is_multiple_of(4) { "b" } else { "a" }.to_owned();
            let which = random.below(6);
            let host = random.below(2);
            let action = match random.number() % 19 {
                0..4 => Action::Scale(set, random.number() % 7),
                4..7 => Action::Roll(random.number() % 20),
                7 => Action::DeleteSet(set),
                8 | 9 => Action::DeleteNode(which),
                10 => Action::Cordon(which),
                11 | 12 => Action::Mark(which),
                13 => Action::Refuse(which),
                14 => Action::CutOff(host, random.number() % 60),
                18 => Action::Remake(which),
                15 => Action::ClockError(host, i64::try_from(random.number() % 120).unwrap() - 60),
                _ => Action::Kill(host),
            };
            actions.push((5 + random.number() % ACTIVE, action));
        }
        actions.sort_by_key(|(at, _)| *at);
        let faults = if random.number().is_multiple_of(5) { 0 } else { random.below(6) };
        let faults = (0..faults).map(|_| Fault::ALL[random.below(Fault::FIRST)]).collect();
        let unavailable = random.number() % 3;
        let surge = if unavailable == 0 { 1 + random.number() % 2 } else { random.number() % 3 };
        let operators = 1 + random.below(2);
        let (elects, workers, kubemark) = (true, 0, false);
        let (scaling, single, storm, active) = (None, None, false, ACTIVE);
        let all = Self {
            seed,
            operators,
            elects,
            workers,
            kubemark,
            surge,
            unavailable,
            scaling,
            pod_cidrs: POD_CIDRS,
            actions,
            faults,
            single,
            storm,
            active,
            page: None,
            drain_timeout: None,
            has_volumes: false,
            spared: BTreeSet::new(),
            has_people: false,
            is_instant: false,
        };
        all.scaled_by_autoscaler()
            .with_workers()
            .with_kubemark()
            .with_stops()
            .with_storm()
            .with_refusal_in_the_end()
            .with_storm_of_scale_requests()
            .with_outages()
            .with_late_answers()
            .with_people()
    }

    /// In a fifth of the schedules that users scale, lets people act at the edges of the API; half of these schedules have
    /// neither faults nor wrong clocks, so that each Node that goes has a reason. The draws are apart from the others, and pass
    /// over the seeds of `REGRESSIONS`, which have shown their faults without this.
    fn with_people(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(48) ^ 0x9e09);
        let is_known = REGRESSIONS.iter().any(|(seed, _)| *seed == self.seed);
        if self.scaling.is_some() || is_known || !random.number().is_multiple_of(5) {
            return self;
        }
        self.has_people = true;
        if random.number().is_multiple_of(2) {
            self.faults.clear();
            self.actions.retain(|(_, action)| action.is_of_users());
        }
        self.actions.extend(people::draw(&mut random, ACTIVE));
        // A class is gone after its last Node alone, and the policy that keeps that Node stays until all else has settled.
        if self.actions.iter().any(|(_, action)| *action == Action::Act(Act::RemakeClass)) {
            self.actions.retain(|(_, action)| !matches!(action, Action::Refuse(_)));
        }
        self.actions.sort_by_key(|(at, _)| *at);
        self
    }

    /// Makes a storm of half of the schedules that users scale: many bugs need two faults, or an action right after
    /// another one. The draws are apart from the others.
    fn with_storm(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(16) ^ 0x5a93);
        if self.scaling.is_some() || !random.number().is_multiple_of(2) {
            return self;
        }
        self.storm = true;
        let of_watches = Fault::OF_WATCHES;
        let of_requests = &Fault::ALL[..Fault::FIRST - of_watches.len()];
        let watches = (0..=random.below(2)).map(|_| of_watches[random.below(of_watches.len())]);
        self.faults = watches.collect();
        self.faults.extend((0..random.below(3)).map(|_| of_requests[random.below(of_requests.len())]));
        self.actions.retain(|(_, action)| !matches!(action, Action::Refuse(_) | Action::Cordon(_)));
        for _ in 0..2 + random.below(3) {
            let mut at = 5 + random.number() % ACTIVE;
            for _ in 0..2 + random.below(2) {
                let set = if random.number().is_multiple_of(4) { "b" } else { "a" }.to_owned();
                let which = random.below(6);
                let action = match random.number() % 20 {
                    0..4 => Action::Scale(set, random.number() % 7),
                    4..6 => Action::Roll(random.number() % 20),
                    6 => Action::DeleteSet(set),
                    7 | 8 => Action::DeleteNode(which),
                    9 | 10 => Action::Mark(which),
                    11..13 => Action::Kill(random.below(2)),
                    13 => Action::CutOff(random.below(2), random.number() % 60),
                    14 => Action::Relabel(random.number() % 9),
                    15 | 16 => Action::Sicken(which),
                    17 => Action::Forbid(FORBIDDEN[random.below(FORBIDDEN.len())], 5 + random.number() % 40),
                    18 => Action::Break(100 + random.number() % 9),
                    _ => Action::Spoil(5 + random.number() % 30),
                };
                if matches!(action, Action::Break(_)) {
                    // Its rollout halts, and then nobody knows to which machines it went.
                    self.actions
                        .push((at + HALTS + random.number() % 60, Action::Spoil(5 + random.number() % 30)));
                }
                self.actions.push((at, action));
                at += random.number() % 6;
            }
        }
        self.actions.sort_by_key(|(at, _)| *at);
        self
    }

    /// Ends a third of the storms with a write that is refused for a while, after which nobody acts: what is missing then
    /// has to be tried again by itself. The draws are apart from the others.
    fn with_refusal_in_the_end(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(24) ^ 0xf0b1e);
        if !self.storm || self.scaling.is_some() || !random.number().is_multiple_of(3) {
            return self;
        }
        let mut at = ACTIVE - 60 + random.number() % 30;
        self.actions.retain(|(before, _)| *before < at);
        let forbidden = FORBIDDEN[random.below(FORBIDDEN.len())];
        self.actions.push((at, Action::Forbid(forbidden, 10 + random.number() % 40)));
        at += random.number() % 8;
        let action = match random.number() % 8 {
            0..3 => Action::Roll(random.number() % 20),
            3 | 4 => Action::Scale("a".to_owned(), random.number() % 7),
            5 => Action::Relabel(random.number() % 9),
            6 => Action::DeleteNode(random.below(6)),
            _ => Action::DeleteSet("a".to_owned()),
        };
        self.actions.push((at, action));
        self
    }

    /// Makes a storm of half of the schedules that cluster-autoscaler scales: its loops follow each other within seconds,
    /// the number of Nodes that pods need changes between them, and many writes get no response. A third of these storms
    /// has no faults, so that the state that each process has read is known exactly.
    fn with_storm_of_scale_requests(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(16) ^ 0x5ca1e);
        if self.scaling.is_none() || !random.number().is_multiple_of(2) {
            return self;
        }
        self.storm = true;
        if random.number().is_multiple_of(2) {
            (self.operators, self.elects) = (1, false);
        }
        self.actions.retain(|(_, action)| !matches!(action, Action::Refuse(_) | Action::Cordon(_)));
        self.faults.clear();
        let of_writes = [Fault::LostRequest, Fault::LostAnswer, Fault::DoneLater, Fault::GatewayTimeout];
        if !random.number().is_multiple_of(3) {
            self.faults.extend((0..=random.below(3)).map(|_| of_writes[random.below(of_writes.len())]));
            self.faults.insert([Fault::Lag, Fault::Frozen][random.below(2)]);
        }
        for _ in 0..3 + random.below(4) {
            let mut at = 5 + random.number() % ACTIVE;
            for _ in 0..=random.below(4) {
                let action = match random.number() % 10 {
                    0..6 => Action::Need(i32::try_from(random.below(11)).unwrap()),
                    6 | 7 => Action::Roll(random.number() % 20),
                    8 => Action::RestartAutoscaler,
                    _ => Action::Kill(random.below(2)),
                };
                self.actions.push((at, action));
                at += random.number() % 12;
            }
        }
        self.actions.sort_by_key(|(at, _)| *at);
        self
    }

    /// Lets the API server fall silent a few times in a storm with faults, in one of scale requests when it has received one.
    /// Pods come or go right before and right after: cluster-autoscaler then does not repeat the scale request that got no
    /// answer. The draws are apart from the others.
    fn with_outages(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(24) ^ 0x0f7);
        if !self.storm || self.faults.is_empty() {
            return self;
        }
        for _ in 0..random.below(4) {
            let at = 5 + random.number() % ACTIVE;
            self.actions.push((at, Action::Outage(2 + random.number() % 10)));
        }
        if self.scaling.is_some() {
            for _ in 0..2 + random.below(4) {
                let at = 5 + random.number() % ACTIVE;
                let delay = Action::DelayScaleRequest(1 + random.number() % 5);
                let kills = !self.elects && !random.number().is_multiple_of(4);
                self.actions.push((at, if kills { Action::KillAtScaleRequest } else { delay }));
                let mut need = |at: u64| (at, Action::Need(i32::try_from(random.below(11)).unwrap()));
                self.actions.extend([need(at), need(at + 6)]);
            }
        }
        self.actions.sort_by_key(|(at, _)| *at);
        self
    }

    /// In a quarter of the schedules, stops a process once or twice. The draws are apart from the others.
    fn with_stops(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(16) ^ 0x57);
        if random.number().is_multiple_of(4) {
            for _ in 0..=random.below(2) {
                let host = random.below(self.operators + self.workers);
                let stop = Action::Stop(host, 5 + random.number() % 55);
                self.actions.push((5 + random.number() % ACTIVE, stop));
            }
            self.actions.sort_by_key(|(at, _)| *at);
        }
        self
    }

    /// In a quarter of the schedules, lets cluster-autoscaler scale a set in place of users. The draws are apart from the
    /// others.
    fn scaled_by_autoscaler(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(32) ^ 0xca);
        if !random.number().is_multiple_of(4) {
            return self;
        }
        // A maximum that the needs reach, and one that a scale-up that is counted twice does not.
        let max = [9, 30, 30][random.below(3)];
        self.scaling = Some((i32::try_from(random.below(3)).unwrap(), max));
        self.pod_cidrs = MORE_POD_CIDRS;
        for (_, action) in &mut self.actions {
            if let Action::Scale(set, replicas) = action
                && set == SET
            {
                *action = Action::Need(i32::try_from(*replicas).unwrap());
            }
        }
        for _ in 0..4 + random.below(8) {
            let action = match random.number() % 8 {
                0..5 => Action::Need(i32::try_from(random.below(11)).unwrap()),
                5 => Action::RestartAutoscaler,
                6 => Action::Roll(random.number() % 20),
                _ => Action::Kill(random.below(2)),
            };
            self.actions.push((5 + random.number() % ACTIVE, action));
        }
        self.actions.sort_by_key(|(at, _)| *at);
        if random.number().is_multiple_of(2) {
            self.faults.extend([Fault::LostAnswer, Fault::DoneLater]);
        }
        self
    }

    /// In a quarter of the schedules, lets workers run the machines. The draws are apart from the others.
    fn with_workers(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(16) ^ 0x3057);
        if !random.number().is_multiple_of(4) {
            return self;
        }
        self.workers = 1 + random.below(3);
        for _ in 0..random.below(5) {
            let host = self.operators + random.below(self.workers);
            let action = match random.number() % 4 {
                0 => Action::CutOff(host, random.number() % 60),
                1 => Action::ClockError(host, i64::try_from(random.number() % 120).unwrap() - 60),
                _ => Action::Kill(host),
            };
            self.actions.push((5 + random.number() % ACTIVE, action));
        }
        self.actions.sort_by_key(|(at, _)| *at);
        self
    }

    /// In a sixth of the schedules without workers, makes each machine a pod. The draws are apart from the others.
    fn with_kubemark(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(16) ^ 0x40de);
        self.kubemark = self.workers == 0 && random.number().is_multiple_of(6);
        for _ in 0..if self.kubemark { random.below(4) } else { 0 } {
            let lose = Action::LoseMachine(random.below(6), random.number().is_multiple_of(2));
            self.actions.push((5 + random.number() % ACTIVE, lose));
        }
        self.actions.sort_by_key(|(at, _)| *at);
        self
    }

    /// In a quarter of the schedules, lets answers come late or be cut, lists come in small pages, drains have a time limit,
    /// pods have volumes, and one of several hosts go down for ever. The draws are apart from the others, and pass over the seeds
    /// of `REGRESSIONS`, which have shown their faults without this.
    fn with_late_answers(mut self) -> Self {
        let mut random = Random::new(self.seed.rotate_left(40) ^ 0x5286);
        if !random.number().is_multiple_of(4) {
            return self;
        }
        for fault in [Fault::LateAnswer, Fault::CutAnswer] {
            if random.number().is_multiple_of(2) {
                self.faults.insert(fault);
            }
        }
        self.page = random.number().is_multiple_of(2).then(|| 1 + random.below(3));
        let is_wrong = |(_, action): &(u64, Action)| matches!(action, Action::ClockError(..));
        // A host whose clock is ahead sees the end of the time early.
        let has_timeout = random.number().is_multiple_of(2) && !self.actions.iter().any(is_wrong);
        self.drain_timeout = has_timeout.then(|| 5 + random.number() % 40);
        let at = 5 + random.number() % ACTIVE;
        let lost = match (random.number() % 4, self.operators, self.workers) {
            (0, 2, _) => Some(random.below(2)),
            (1, _, 2..) => Some(self.operators + random.below(self.workers)),
            _ => None,
        };
        self.has_volumes = random.number().is_multiple_of(2);
        self.actions.extend(lost.map(|host| (at, Action::LoseHost(host))));
        self.actions.sort_by_key(|(at, _)| *at);
        self
    }
}
