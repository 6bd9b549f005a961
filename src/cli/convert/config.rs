//! Converts one provider configuration to a NodeClass and lists what a NodeClass cannot express. No I/O.
//!
//! The fields mean what the README of the Cluster API kubemark provider says; kube-node has the same semantics.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_node_api::{GoDuration, quantity};
use local_cluster::binaries::KUBERNETES_VERSION;
use serde_json::{Value, json};

use super::fields::{KNOWN, advice};
use crate::manifest::object;

/// Kind of a provider configuration.
const KIND: &str = "KubemarkMachineProviderConfig";
/// API version of a provider configuration.
const API_VERSION: &str = "kubemarkproviderconfig.k8s.io/v1alpha1";
/// Capacity that kubemark reports by default (pkg/kubemark, cadvisor's fake).
const DEFAULT_CPU: &str = "1";
const DEFAULT_MEMORY: &str = "3840Mi";
const DEFAULT_PODS: &str = "110";

/// A conversion, and its result in the end.
#[derive(Debug)]
pub(super) struct Conversion<'a> {
    config: &'a Value,
    /// The NodeClass.
    pub(super) class: Value,
    /// Settings that were not converted, each with what to write instead.
    pub(super) lost: Vec<String>,
    /// Further remarks.
    pub(super) notes: Vec<String>,
}

/// All configurations in a document, including those inside machines.
pub(super) fn find(document: &Value) -> Vec<&Value> {
    match document {
        Value::Object(object) if object.get("kind").is_some_and(|kind| kind == KIND) => vec![document],
        Value::Object(object) => object.values().flat_map(find).collect(),
        Value::Array(items) => items.iter().flat_map(find).collect(),
        _ => Vec::new(),
    }
}

/// Converts a configuration to a NodeClass of this name.
pub(super) fn convert<'a>(name: &str, config: &'a Value) -> Conversion<'a> {
    let mut conversion = Conversion { config, class: Value::Null, lost: Vec::new(), notes: Vec::new() };
    conversion.check_fields();
    let spec = json!({
        "nodeController": "kubemark",
        "capacity": conversion.capacity(),
        "deletionTimeout": conversion.duration("deletionTimeout"),
        "failures": conversion.failures(),
        "kubemark": { "image": conversion.image() },
    });
    conversion.class = object("NodeClass", name, spec);
    conversion
}

impl<'a> Conversion<'a> {
    /// Reports a setting that is not converted.
    fn lose(&mut self, text: impl Into<String>) {
        self.lost.push(text.into());
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    fn check_fields(&mut self) {
        for (field, value) in self.config.as_object().into_iter().flatten() {
            match field.as_str() {
                "kind" | "metadata" => {}
                "apiVersion" if value == API_VERSION => {}
                "apiVersion" => self.note(format!("its apiVersion is {value}; it is read as {API_VERSION}")),
                field if KNOWN.contains(&field) => {}
                field => self.lose(format!("unknown field {field}: {}", advice(field))),
            }
        }
    }

    fn get(&self, field: &str) -> Option<&'a Value> {
        self.config.get(field).filter(|value| !value.is_null())
    }

    /// A duration, if it is present and valid.
    fn duration(&mut self, field: &str) -> Option<GoDuration> {
        let parsed = match self.get(field)? {
            Value::String(text) => text.parse().map_err(|error| format!("{field}: {error}")),
            value => Err(format!("{field}: {value} has no unit: write for example 30s")),
        };
        parsed.map_err(|error| self.lose(error)).ok()
    }

    fn flag(&mut self, field: &str) -> bool {
        let value = self.get(field).unwrap_or(&Value::Bool(false));
        if !value.is_boolean() {
            self.lose(format!("{field}: {value} is neither true nor false"));
        }
        *value == Value::Bool(true)
    }

    /// A quantity as text, if it is present and valid.
    fn quantity(&mut self, field: &str, example: &str) -> Option<String> {
        let value = self.get(field)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if quantity::nanos(&Quantity(text.clone())).is_ok_and(|nanos| nanos > 0) {
            return Some(text);
        }
        self.lose(format!("{field}: {text:?} is no amount: write for example {example}"));
        None
    }

    fn capacity(&mut self) -> Value {
        let mut quantity = |field, example, resource, default: &str| {
            self.quantity(field, example).unwrap_or_else(|| {
                self.note(format!("spec.capacity.{resource} is {default}, kubemark's own default"));
                default.to_owned()
            })
        };
        json!({
            "cpu": quantity("numCores", "4", "cpu", DEFAULT_CPU),
            "memory": quantity("memoryCapacity", "16Gi", "memory", DEFAULT_MEMORY),
            "pods": DEFAULT_PODS,
        })
    }

    fn failures(&mut self) -> Option<Value> {
        let unhealthy = self.duration("unhealthyDuration");
        let healthy = self.duration("healthyDuration");
        let (periodically, after) = (self.flag("turnUnhealthyPeriodically"), self.flag("turnUnhealthyAfter"));
        if periodically == after {
            if after {
                self.lose(
                    "turnUnhealthyPeriodically and turnUnhealthyAfter exclude each other: set one of them",
                );
            } else if unhealthy.is_some() || healthy.is_some() {
                self.note(
                    "without turnUnhealthyPeriodically or turnUnhealthyAfter the durations have no effect: spec.failures is left out",
                );
            }
            return None;
        }
        if self.get("unhealthyDuration").is_none() {
            self.lose(
                "unhealthyDuration is missing: it says how long, or after what time, nodes are unhealthy",
            );
        }
        // An invalid duration has been reported already.
        let mut failures = json!({ "unhealthyDuration": unhealthy? });
        match (after, &healthy) {
            (true, Some(_)) => self.note("healthyDuration has no effect beside turnUnhealthyAfter"),
            (false, None) => self.note("without healthyDuration nodes are never healthy"),
            _ => {}
        }
        if after {
            failures["turnUnhealthyAfter"] = json!(true);
        } else {
            failures["healthyDuration"] = json!(healthy.unwrap_or_default());
            failures["turnUnhealthyPeriodically"] = json!(true);
        }
        Some(failures)
    }

    fn image(&mut self) -> Option<String> {
        let value = self.get("image")?;
        let Some(image) = value.as_str().filter(|image| !image.is_empty()) else {
            self.lose(format!("image: {value} is no name of an image"));
            return None;
        };
        let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
        let minor = KUBERNETES_VERSION.rsplit_once('.').map_or(KUBERNETES_VERSION, |(minor, _)| minor);
        if !tag.trim_start_matches('v').starts_with(&format!("{minor}.")) {
            self.note(format!(
                "kube-node is tried with kubemark {minor}; {image} may not know its arguments. No patched one is needed: without spec.kubemark.image our own hollow kubelet runs"
            ));
        }
        Some(image.to_owned())
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
