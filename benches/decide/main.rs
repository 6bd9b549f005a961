//! How long a set's decision takes at 1,000, 10,000 and 100,000 Nodes, in the states that cost most: nothing to do, the
//! first look of a rollout, and a scale-down to a half. `cargo bench --bench decide`; the median of many.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube_node_api::{GoDuration, ReplacementOrder, ScaleDownOrder, UnhealthyCondition};
use kube_node_planner::{
    budget::Budget,
    disruption::DisruptionRules,
    node_state::ObservedCondition,
    rollout::ProgressDeadline,
    set_planner::{self, CreationLimits, DesiredState, NodeState, RolloutMode},
};

const NODES: [usize; 3] = [1_000, 10_000, 100_000];
const ROUNDS: usize = 21;

fn wanted<'a>(
    replicas: usize,
    revision: &'a str,
    unhealthy_conditions: &'a [UnhealthyCondition],
) -> DesiredState<'a> {
    DesiredState {
        replicas,
        budget: Budget { surge: replicas / 4, unavailable: replicas / 10 },
        min_ready: Duration::from_secs(5),
        order: ScaleDownOrder::LeastPods,
        replacement: ReplacementOrder::SurgeFirst,
        rules: DisruptionRules {
            revision: Some(revision),
            expire_after: Some(Duration::from_hours(720)),
            startup_timeout: Some(Duration::from_mins(10)),
            unhealthy_conditions,
            ..DisruptionRules::default()
        },
        pace: RolloutMode::Rolling { keep: 0 },
        clock: ProgressDeadline { deadline: Duration::from_mins(10), ..ProgressDeadline::default() },
        max_unhealthy: replicas / 2,
        max_repairs: 10,
        start_failures: None,
        newest: CreationLimits::default(),
        working: None,
        class_room: None,
        revision_unanswered: false,
        is_node_group: false,
    }
}

fn main() {
    let unhealthy = UnhealthyCondition {
        r#type: "Ready".to_owned(),
        status: "Unknown".to_owned(),
        r#for: GoDuration(Duration::from_mins(5)),
    };
    let unhealthy_conditions = [unhealthy];
    let now = Timestamp::now();
    println!("| nodes | nothing to do, ms | first look of a rollout, ms | scale-down to a half, ms |");
    println!("| --- | --- | --- | --- |");
    for nodes in NODES {
        let names: Vec<String> = (0..nodes).map(|i| format!("workers-{:06}", i * 7_919 % nodes)).collect();
        let members: Vec<NodeState<'_>> = names
            .iter()
            .zip(0..)
            .map(|(name, i)| NodeState {
                name,
                revision: "v1-old",
                created: now - jiff::SignedDuration::from_secs(i % 1_000),
                ready_since: Some(Timestamp::UNIX_EPOCH),
                started: true,
                initialized: true,
                pods: usize::try_from(i % 30).unwrap_or(0),
                conditions: vec![ObservedCondition { r#type: "Ready", status: "True", since: None }],
                ..NodeState::default()
            })
            .collect();
        let median = |wanted: DesiredState<'_>| {
            let mut times: Vec<Duration> = (0..ROUNDS)
                .map(|_| {
                    let start = Instant::now();
                    std::hint::black_box(set_planner::decide(&wanted, &members, 0, now));
                    start.elapsed()
                })
                .collect();
            times.sort();
            times[ROUNDS / 2].as_secs_f64() * 1_000.0
        };
        let idle = median(wanted(nodes, "v1-old", &unhealthy_conditions));
        let rollout = median(wanted(nodes, "v1-new", &unhealthy_conditions));
        let shrink = median(wanted(nodes / 2, "v1-old", &unhealthy_conditions));
        println!("| {nodes} | {idle:.2} | {rollout:.2} | {shrink:.2} |");
    }
}
