//! A schedule: what users do and which faults happen, drawn from one seed or written as a scenario; how one is run, and
//! what has to hold in the end.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use http::Method;
use kube_ext::environment::{Environment, within};
use kube_node_testing::{
    api_server::{ApiServer, Random},
    simulated_time::SimulatedTime,
};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use crate::{
    checks::{Checks, is_ready, name, set_of, taints},
    faults::{Fault, Faults},
    others::Others,
    process,
};

const CLASSES: &str = "/apis/kube-node.io/v1alpha1/nodeclasses";
const SETS: &str = "/apis/kube-node.io/v1alpha1/nodesets";
/// Seconds in which users act and faults happen.
const ACTIVE: u64 = 240;
/// Time within which everything has to settle afterwards.
const SETTLES: Duration = Duration::from_mins(30);
/// Time for which it has to stay so.
const STAYS: Duration = Duration::from_secs(45);

/// What a user does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The set is created, or has this size from now on.
    Scale(String, u64),
    /// The class has this version from now on.
    Roll(u64),
    /// The set is deleted.
    DeleteSet(String),
    /// The n-th Node is deleted.
    DeleteNode(usize),
    /// The n-th Node is cordoned.
    Cordon(usize),
    /// The n-th Node gets a label and a taint.
    Mark(usize),
    /// So many pods of an application run, as many of them always.
    Run(usize, usize),
    /// All operators are killed.
    KillAll,
}

/// All that decides about a run.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub seed: u64,
    pub operators: usize,
    pub surge: u64,
    pub unavailable: u64,
    /// Seconds from the beginning.
    pub actions: Vec<(u64, Action)>,
    pub faults: BTreeSet<Fault>,
    pub single: Option<(u64, Fault)>,
}

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub log: Vec<String>,
    pub requests: u64,
    pub writes: u64,
    pub violation: Option<String>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "seed {}: {} operators, surge {}, unavailable {}, faults {:?}, single {:?}",
            self.seed, self.operators, self.surge, self.unavailable, self.faults, self.single
        )?;
        self.actions.iter().try_for_each(|(at, action)| writeln!(formatter, "  {at:>4} s: {action:?}"))
    }
}

impl Schedule {
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut actions = vec![(1, Action::Scale("a".to_owned(), random.number() % 6))];
        if random.number() % 3 == 0 {
            actions.push((2, Action::Scale("b".to_owned(), random.number() % 4)));
        }
        if random.number() % 2 == 0 {
            let pods = 1 + random.below(5);
            actions.push((20, Action::Run(pods, random.below(pods + 1))));
        }
        for _ in 0..random.below(8) {
            let set = if random.number() % 4 == 0 { "b" } else { "a" }.to_owned();
            let which = random.below(6);
            let action = match random.number() % 14 {
                0..4 => Action::Scale(set, random.number() % 7),
                4..7 => Action::Roll(random.number() % 20),
                7 => Action::DeleteSet(set),
                8 | 9 => Action::DeleteNode(which),
                10 => Action::Cordon(which),
                11 | 12 => Action::Mark(which),
                _ => Action::KillAll,
            };
            actions.push((5 + random.number() % ACTIVE, action));
        }
        actions.sort_by_key(|(at, _)| *at);
        let faults = if random.number() % 5 == 0 { 0 } else { random.below(6) };
        let faults = (0..faults).map(|_| Fault::ALL[random.below(Fault::ALL.len())]).collect();
        let unavailable = random.number() % 3;
        let surge = if unavailable == 0 { 1 + random.number() % 2 } else { random.number() % 3 };
        let operators = 1 + random.below(2);
        Self { seed, operators, surge, unavailable, actions, faults, single: None }
    }

    /// Runs it on a thread of its own time.
    pub fn run(&self) -> Outcome {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let simulated = async {
            let time: Arc<dyn Environment> = Arc::new(SimulatedTime::new(self.seed));
            within(time, self.simulate()).await
        };
        // A task that lost its environment would read the clocks of this machine.
        futures::executor::block_on(within(Arc::new(Nowhere), async { runtime.block_on(simulated) }))
    }

    async fn simulate(&self) -> Outcome {
        let server = ApiServer::new(self.seed, {
            let clock = SimulatedTime::new(0);
            move || Environment::now(&clock)
        });
        let begun = Instant::now();
        let checks = Arc::new(Checks::new());
        let until = begun + Duration::from_secs(ACTIVE + 10);
        let faults = Arc::new(Faults::new(self.seed, self.faults.clone(), until, self.single));
        let mut others = Others::new(server.clone(), Arc::clone(&checks));
        for name in ["kube-system", "kube-node-lease", "kube-node-system", "default"] {
            others.call(Method::POST, "/api/v1/namespaces", &json!({ "metadata": { "name": name } }));
        }
        let kills = Arc::new(Notify::new());
        let operators = (0..self.operators)
            .map(|place| {
                process::keep_running(process::Place {
                    place,
                    seed: self.seed,
                    server: server.clone(),
                    checks: Arc::clone(&checks),
                    faults: Arc::clone(&faults),
                    begun,
                    kills: Arc::clone(&kills),
                })
            })
            .collect::<Vec<_>>();
        tokio::select! {
            biased;
            _ = futures::future::join_all(operators) => checks.violate("no operator is started again"),
            () = self.live(&mut others, &checks, &faults, begun, &kills) => {}
        }
        Outcome {
            log: checks.log(),
            requests: checks.requests(),
            writes: faults.writes(),
            violation: checks.violation(),
        }
    }

    /// What users do, and the wait for its effect.
    async fn live(
        &self,
        others: &mut Others,
        checks: &Checks,
        faults: &Faults,
        begun: Instant,
        kills: &Notify,
    ) {
        let server = others.server().clone();
        others.call(Method::POST, CLASSES, &class(0));
        let mut actions = self.actions.iter().peekable();
        let mut wanted = Wanted::default();
        let mut settled: Option<Instant> = None;
        while checks.violation().is_none() {
            let now = begun.elapsed();
            while let Some((_, action)) = actions.next_if(|(at, _)| Duration::from_secs(*at) <= now) {
                checks.note(&format!("user: {action:?}"));
                self.act(action, others, &mut wanted, kills);
            }
            if faults.has(Fault::Compacted) && now.as_secs() % 20 == 7 {
                server.compact();
            }
            others.work().await;
            if actions.peek().is_some() || Instant::now() < faults.until {
                continue;
            }
            // A budget that leaves no room would hold a drain for ever.
            others.end_applications();
            match wanted.unmet(&server) {
                None if settled.is_some_and(|since| since.elapsed() > STAYS) => break,
                None => drop(settled.get_or_insert_with(Instant::now)),
                Some(unmet) if begun.elapsed() > faults.until - begun + SETTLES => {
                    checks.violate(&format!("not settled: {unmet}"))
                }
                Some(_) => settled = None,
            }
        }
    }

    fn act(&self, action: &Action, others: &mut Others, wanted: &mut Wanted, kills: &Notify) {
        let nth = |others: &Others, n: usize| {
            let nodes = others.nodes();
            nodes.get(n % nodes.len().max(1)).map(|node| format!("/api/v1/nodes/{}", name(node)))
        };
        match action {
            Action::Scale(set, replicas) => {
                let path = format!("{SETS}/{set}");
                let patch = json!({ "spec": { "replicas": replicas } });
                let (code, object) = others.call(Method::PATCH, &path, &patch);
                if code == 404 {
                    others.call(Method::POST, SETS, &self.set(set, *replicas));
                }
                if code == 404 || object["metadata"]["deletionTimestamp"].is_null() {
                    wanted.sets.insert(set.clone(), *replicas);
                }
            }
            Action::Roll(version) => {
                wanted.version = *version;
                others.call(Method::PATCH, &format!("{CLASSES}/small"), &class(*version));
            }
            Action::DeleteSet(set) => {
                wanted.sets.remove(set);
                others.call(Method::DELETE, &format!("{SETS}/{set}"), &Value::Null);
            }
            Action::DeleteNode(n) => {
                if let Some(path) = nth(others, *n) {
                    others.call(Method::DELETE, &path, &Value::Null);
                }
            }
            Action::Cordon(n) => {
                if let Some(path) = nth(others, *n) {
                    others.call(Method::PATCH, &path, &json!({ "spec": { "unschedulable": true } }));
                    wanted.cordons = true;
                }
            }
            Action::Mark(n) => {
                if let Some(path) = nth(others, *n) {
                    others.call(
                        Method::PATCH,
                        &path,
                        &json!({ "metadata": { "labels": { "example.com/team": "x" } } }),
                    );
                }
            }
            Action::Run(pods, always) => {
                let budget = json!({
                    "metadata": { "name": "app" },
                    "spec": { "minAvailable": always.min(&pods.saturating_sub(1)), "selector": { "matchLabels": { "app": "app" } } },
                });
                others.wanted.insert("app".to_owned(), *pods);
                others.call(Method::POST, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget);
            }
            Action::KillAll => kills.notify_waiters(),
        }
    }

    fn set(&self, name: &str, replicas: u64) -> Value {
        json!({ "metadata": { "name": name }, "spec": {
            "nodeClassName": "small", "replicas": replicas,
            "strategy": { "rollingUpdate": { "maxSurge": self.surge, "maxUnavailable": self.unavailable } },
        } })
    }
}

fn class(version: u64) -> Value {
    json!({ "metadata": { "name": "small" }, "spec": {
        "nodeController": "hollow", "capacity": { "cpu": "4", "memory": "8Gi", "pods": "110" },
        "provisioning": { "kubelet": { "version": format!("v1.36.{version}") } },
    } })
}

/// Environment of tasks that belong to no process.
struct Nowhere;

impl Environment for Nowhere {
    fn now(&self) -> jiff::Timestamp {
        panic!("a task without a process reads the time of day")
    }

    fn since_boot(&self) -> Duration {
        panic!("a task without a process reads the boot clock")
    }

    fn random(&self) -> u64 {
        panic!("a task without a process draws a random number")
    }
}

/// What users want in the end.
#[derive(Default)]
struct Wanted {
    sets: std::collections::BTreeMap<String, u64>,
    version: u64,
    cordons: bool,
}

impl Wanted {
    /// What is not as users want it.
    fn unmet(&self, server: &ApiServer) -> Option<String> {
        let nodes = server.objects("", "nodes");
        let version = format!("v1.36.{}", self.version);
        for node in &nodes {
            let name = name(node);
            if !self.sets.contains_key(&set_of(node)) {
                return Some(format!("{name} has no set"));
            }
            if node["metadata"]["deletionTimestamp"].is_string() {
                return Some(format!("{name} is on its way out"));
            }
            if !is_ready(node) || taints(node).next().is_some() && !self.cordons {
                return Some(format!("{name} is not ready: {}", node["spec"]["taints"]));
            }
            if node["status"]["nodeInfo"]["kubeletVersion"] != version.as_str() {
                return Some(format!("{name} does not have version {version}"));
            }
        }
        for (set, replicas) in &self.sets {
            let count = nodes.iter().filter(|node| set_of(node) == *set).count() as u64;
            if count != *replicas {
                return Some(format!("{set} has {count} Nodes of {replicas}"));
            }
        }
        for set in server.objects("kube-node.io", "nodesets") {
            let (spec, status) = (&set["spec"], &set["status"]);
            if set["metadata"]["deletionTimestamp"].is_string() {
                return Some(format!("{} is on its way out", name(&set)));
            }
            if status["observedGeneration"] != set["metadata"]["generation"]
                || status["replicas"].as_u64().unwrap_or_default()
                    != spec["replicas"].as_u64().unwrap_or_default()
                || status["readyReplicas"].as_u64().unwrap_or_default()
                    != spec["replicas"].as_u64().unwrap_or_default()
            {
                return Some(format!("status of {}: {status}", name(&set)));
            }
        }
        None
    }
}
