//! One scenario on one node: its pod is made, and what is to be done to it is done.

use std::time::{Duration, Instant};

use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, Patch, PatchParams},
};
use kube_node_api::names;
use serde_json::{Map, Value, json};

use super::{
    CLUSTER, NAMESPACE,
    record::Record,
    scenarios::{Goal, Scenario, Step},
    systems::{System, Target},
};
use kube_node_testing::{LONG, create, eventually, real_node::said_of_pods};

/// Time limit of a step for a real kubelet and for a hollow one, beside all others. A hollow kubelet takes all steps, so its
/// limit costs no time, and a busy machine is no difference.
const KUBELETS: Duration = Duration::from_mins(3);
/// Time limit of a step for KWOK and kubemark, which do not take some of them at all.
const OTHERS: Duration = Duration::from_secs(45);

/// How long a pause is.
const PAUSE: Duration = Duration::from_secs(10);

/// The pod of a scenario on a node of this system.
pub fn pod_name(scenario: &str, system: System) -> String {
    format!("{scenario}-{}", system.name())
}

/// How a course went.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScenarioResult {
    /// The number of the change of its pod that fulfilled the last step, where one did.
    pub last: Option<usize>,
    /// When its deletion was asked for. By the watch, which may lag, it would look shorter than it was.
    pub deleted: Option<Instant>,
}

/// Runs a scenario.
pub async fn run(client: &Client, record: &Record, target: &Target, scenario: &Scenario) -> ScenarioResult {
    let limit = match target.system {
        System::Kubelet | System::Hollow => KUBELETS,
        System::Kwok | System::KwokGeneral | System::Kubemark => OTHERS,
    };
    let name = pod_name(scenario.name, target.system);
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    if let Some(other) = scenario.after {
        record.until(&pod_name(other, target.system), 0, limit, |pod| Goal::Ready.is_met(pod)).await;
    }
    eventually(&format!("{name} is accepted"), LONG, async || {
        create(&pods, pod(&name, target, scenario)).await.ok()
    })
    .await;
    let mut outcome = ScenarioResult::default();
    let mut from = 0;
    for step in &scenario.steps {
        match step {
            Step::Until(Goal::Gone) => {
                let is_gone = record.until_gone(&name, limit).await;
                assert!(is_gone || target.system != System::Kubelet, "{name} stays: {:?}", record.of(&name));
                if !is_gone {
                    println!("{name} is not gone after {limit:?}");
                }
            }
            Step::Until(goal) => {
                let last = record.until(&name, from, limit, |pod| goal.is_met(pod)).await;
                let is_met = last.is_some() || target.system != System::Kubelet;
                let shown = || record.of(&name).shown.pop().map(|(_, pod)| pod["status"].to_string());
                assert!(
                    is_met,
                    "{name} does not show {goal:?}, but {:?}; {}",
                    shown(),
                    said_of_pods(&CLUSTER, NAMESPACE)
                );
                // What follows is another course then, and this is why.
                if last.is_none() {
                    println!("{name} does not show {goal:?} after {limit:?}");
                }
                from = last.unwrap_or(from);
                outcome.last = last;
            }
            Step::Delete(grace) => {
                let params = grace.map_or_else(DeleteParams::default, |grace| DeleteParams {
                    grace_period_seconds: Some(grace),
                    ..DeleteParams::default()
                });
                outcome.deleted.get_or_insert_with(Instant::now);
                // Some are gone after the first.
                let deleted = pods.delete(&name, &params).await;
                assert!(is_fine(&deleted), "{deleted:?}");
            }
            Step::Pause => tokio::time::sleep(PAUSE).await,
            Step::Evict => {
                outcome.deleted = Some(Instant::now());
                evict(client, &pods, &name).await;
            }
            Step::Spec(change) => {
                let patch = Patch::Strategic(json!({"spec": change}));
                pods.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            }
            Step::Status(change) => {
                let patch = Patch::Strategic(json!({"status": change}));
                pods.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            }
            Step::Condition(r#type, status) => {
                let conditions = json!([{"type": r#type, "status": status}]);
                let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
                pods.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            }
        }
    }
    outcome
}

fn is_fine<T>(result: &kube::Result<T>) -> bool {
    result.is_ok() || matches!(result, Err(kube::Error::Api(status)) if status.code == 404)
}

async fn evict(client: &Client, pods: &Api<Pod>, name: &str) {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = json!({"minAvailable": 0, "selector": {"matchLabels": {"app": name}}});
    create(&budgets, json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
    // Refused until the budget has been counted.
    eventually(&format!("{name} is evicted"), LONG, async || {
        is_fine(&pods.evict(name, &EvictParams::default()).await).then_some(())
    })
    .await;
}

fn pod(name: &str, target: &Target, scenario: &Scenario) -> Value {
    let mut spec = scenario.spec.clone();
    if scenario.by_hand {
        spec["nodeName"] = json!(target.node);
    } else {
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": target.node});
    }
    let annotated = scenario
        .annotated
        .iter()
        .map(|(key, value)| (format!("{}{key}", names::HOLLOW_PREFIX), json!(value)));
    let annotations: Map<String, Value> = annotated.collect();
    json!({"metadata": {"name": name, "labels": {"app": name}, "annotations": annotations}, "spec": spec})
}
