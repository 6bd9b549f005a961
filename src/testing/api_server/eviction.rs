//! Eviction of a pod: as its budgets allow it, and with the condition that tells its owner why
//! (registry/core/pod/storage/eviction.go of Kubernetes).

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    kinds::Kind,
    refusal::Refusal,
    store::{Key, Store},
    write::{self, DeleteOptions},
};

/// Evicts a pod, if the budgets allow it.
pub fn evict(store: &mut Store, key: &Key, options: &DeleteOptions, now: Timestamp) -> Result<(), Refusal> {
    let Some(pod) = store.get(key).cloned() else {
        return Err(Refusal::not_found("pods", key.1.rsplit('/').next().unwrap_or_default()));
    };
    write::check(&pod, options, "pods")?;
    let conditions = || pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready = conditions().any(|one| one["type"] == "Ready" && one["status"] == "True");
    let needs_no_budget = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
        || !pod["metadata"]["deletionTimestamp"].is_null();
    let budgets = Kind::find("policy", "poddisruptionbudgets").unwrap();
    let labels = &pod["metadata"]["labels"];
    let mut matching = store.all(budgets).map(|(_, budget)| Arc::clone(budget)).collect::<Vec<_>>();
    matching.retain(|budget| {
        let selected = budget["spec"]["selector"]["matchLabels"].as_object();
        budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
            && selected.is_some_and(|selected| selected.iter().all(|(key, value)| labels[key] == *value))
    });
    // A pod that does not work is none of those that a budget which is met keeps (`IfHealthyBudget`).
    let spares_unready = |budget: &Arc<Value>| {
        let number = |field: &str| budget["status"][field].as_i64().unwrap_or_default();
        let desired = number("desiredHealthy");
        !is_ready && matching.len() == 1 && desired > 0 && number("currentHealthy") >= desired
    };
    if let Some(budget) = matching.first().filter(|budget| !needs_no_budget && !spares_unready(budget)) {
        if matching.len() > 1 {
            let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Refusal::new(500, "InternalError", why));
        }
        let name = budget["metadata"]["name"].as_str().unwrap_or_default();
        let status = &budget["status"];
        let is_observed = status["observedGeneration"].as_i64() >= budget["metadata"]["generation"].as_i64();
        let allowed = status["disruptionsAllowed"].as_i64().unwrap_or_default();
        if !is_observed || allowed <= 0 {
            let why = format!("The disruption budget {name} is still being processed by the server.");
            let healthy = status["currentHealthy"].as_i64().unwrap_or_default();
            let desired = status["desiredHealthy"].as_i64().unwrap_or_default();
            let needs = format!(
                "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
            );
            let cause = ("DisruptionBudget", if is_observed { needs } else { why }, String::new());
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            return Err(Refusal { causes: vec![cause], ..Refusal::new(429, "TooManyRequests", message) });
        }
        let mut budget = Value::clone(budget);
        let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
        budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
        budget["status"]["disruptedPods"][pod_name] = json!(now);
        store.put(budgets, budget);
    }
    if !conditions().any(|one| one["type"] == "DisruptionTarget" && one["status"] == "True") {
        let mut told = Value::clone(&pod);
        let mut all: Vec<Value> =
            conditions().filter(|one| one["type"] != "DisruptionTarget").cloned().collect();
        all.push(json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": now,
        }));
        told["status"]["conditions"] = json!(all);
        store.put(key.0, told);
    }
    write::delete(store, key, options, now).map(drop)
}
