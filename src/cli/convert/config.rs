//! Rules for a provider configuration: what becomes of it in a NodeClass. No I/O.
//!
//! The fields mean what the README of the Cluster API kubemark provider says; kube-node has the same semantics.

use local_cluster::binaries::KUBERNETES_VERSION;
use serde_json::{Value, json};

use super::{
    document::CONFIG,
    ledger::{Ledger, Path},
    machines::left_out,
    values::{self, amount, duration, flag, phase},
};
use crate::hollow_nodes::has_tag;

/// API version of a provider configuration.
pub(super) const API_VERSION: &str = "kubemarkproviderconfig.k8s.io/v1alpha1";
/// Capacity that kubemark reports by default (pkg/kubemark, cadvisor's fake).
const DEFAULT_CPU: &str = "1";
const DEFAULT_MEMORY: &str = "3840Mi";
const DEFAULT_PODS: &str = "110";

/// Places the configuration at this path in a NodeClass.
pub(super) fn convert(ledger: &mut Ledger, config: &Path, class: &mut Value) {
    ledger.same(&config.at("kind"), &json!(CONFIG));
    if !ledger.same(&config.at("apiVersion"), &json!(API_VERSION))
        && let Some(other) = ledger.get(&config.at("apiVersion")).cloned()
    {
        ledger.without_effect(&config.at("apiVersion"), &format!("{other} is read as {API_VERSION}"));
    }
    left_out(ledger, &config.at("metadata"));
    ledger.place(&config.at("numCores"), class, "spec.capacity.cpu", |value| amount(value, "4"));
    ledger.place(&config.at("memoryCapacity"), class, "spec.capacity.memory", |value| amount(value, "16Gi"));
    for (resource, default) in [("cpu", DEFAULT_CPU), ("memory", DEFAULT_MEMORY)] {
        let amount = &mut class["spec"]["capacity"][resource];
        if amount.is_null() {
            *amount = json!(default);
            ledger.note(format!("spec.capacity.{resource} is {default}, kubemark's own default"));
        }
    }
    class["spec"]["capacity"]["pods"] = json!(DEFAULT_PODS);
    ledger.place(&config.at("deletionTimeout"), class, "spec.deletionTimeout", duration);
    failures(ledger, config, class);
    image(ledger, config, class);
}

/// Places the fault injection as a whole, or not at all.
fn failures(ledger: &mut Ledger, config: &Path, class: &mut Value) {
    let [unhealthy, healthy, periodically, after] =
        ["unhealthyDuration", "healthyDuration", "turnUnhealthyPeriodically", "turnUnhealthyAfter"]
            .map(|field| config.at(field));
    let has_unhealthy = ledger.check(&unhealthy, phase).is_some();
    let has_healthy = ledger.check(&healthy, phase).is_some();
    let is_periodic = ledger.check(&periodically, flag) == Some(json!(true));
    let is_after = ledger.check(&after, flag) == Some(json!(true));
    for flag in [&periodically, &after] {
        // False is the value of an absent flag.
        ledger.same(flag, &json!(false));
        ledger.same(flag, &Value::Null);
    }
    let all = [&unhealthy, &healthy, &periodically, &after];
    let give_up = |ledger: &mut Ledger, reason: &str| all.iter().for_each(|path| ledger.refuse(path, reason));
    if is_periodic && is_after {
        give_up(
            ledger,
            "turnUnhealthyPeriodically and turnUnhealthyAfter exclude each other: set one of them",
        );
    } else if all.iter().any(|path| ledger.is_refused(path)) {
        give_up(ledger, "spec.failures needs the other fields of the fault injection as well");
    } else if !is_periodic && !is_after {
        for path in [&unhealthy, &healthy] {
            ledger.same(path, &Value::Null);
            ledger.without_effect(
                path,
                "has no effect without turnUnhealthyPeriodically or turnUnhealthyAfter",
            );
        }
    } else if !has_unhealthy {
        give_up(
            ledger,
            "unhealthyDuration is missing: it says how long, or after what time, nodes are unhealthy",
        );
    } else if is_after {
        ledger.place(&unhealthy, class, "spec.failures.unhealthyDuration", phase);
        ledger.place(&after, class, "spec.failures.turnUnhealthyAfter", flag);
        ledger.without_effect(&healthy, "has no effect beside turnUnhealthyAfter");
    } else {
        ledger.place(&unhealthy, class, "spec.failures.unhealthyDuration", phase);
        ledger.place(&healthy, class, "spec.failures.healthyDuration", phase);
        ledger.place(&periodically, class, "spec.failures.turnUnhealthyPeriodically", flag);
        if !has_healthy {
            class["spec"]["failures"]["healthyDuration"] = json!("0s");
            ledger.note("without healthyDuration nodes are never healthy");
        }
    }
}

fn image(ledger: &mut Ledger, config: &Path, class: &mut Value) {
    let version = class["spec"]["provisioning"]["kubelet"]["version"].as_str().map(str::to_owned);
    let tagged = |value: &Value| match values::image(value)?.as_str() {
        Some(image) if version.is_none() && !has_tag(image) => Ok(json!(format!("{image}:latest"))),
        _ => Ok(value.clone()),
    };
    ledger.place(&config.at("image"), class, "spec.kubemark.image", tagged);
    let Some(image) = class["spec"]["kubemark"]["image"].as_str() else { return };
    let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
    let version = if has_tag(image) { tag } else { version.as_deref().unwrap_or_default() };
    let minor = KUBERNETES_VERSION.rsplit_once('.').map_or(KUBERNETES_VERSION, |(minor, _)| minor);
    if !version.trim_start_matches('v').starts_with(&format!("{minor}.")) {
        ledger.note(format!(
            "kube-node is tried with kubemark {minor}; {image} may not know its arguments. No patched one is needed: without spec.kubemark.image our own hollow kubelet runs"
        ));
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
