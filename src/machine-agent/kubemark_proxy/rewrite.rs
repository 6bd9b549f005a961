//! Rewriting between the status that kubemark reports and the one that the cluster sees, in both directions:
//! values in, values out.
//!
//! A kubelet computes its patches from the Node as it last read it. So the Node that kubemark reads is made
//! to show all that kubemark reported: otherwise it would find a difference every ten seconds and write it
//! again.

use std::collections::BTreeMap;

use hollow_kubelet::{
    fault_injection::Behaviour,
    health::{self, UNHEALTHY},
};
use jiff::Timestamp;
use kube_node_api::quantity;
use serde_json::{Map, Value, json};

/// Key of the boot ID in `nodeInfo`.
const BOOT_ID: &str = "bootID";

/// Values inside a status by section and key, such as `nodeInfo` and `bootID`. Null stands for a missing one.
pub type Leaves = BTreeMap<(&'static str, String), Value>;

/// A condition without its type and times: status, reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConditionText(Map<String, Value>);

impl From<health::KubeletCondition> for ConditionText {
    fn from(condition: health::KubeletCondition) -> Self {
        let health::KubeletCondition { status, reason, message, .. } = condition;
        let text = [("status", status), ("reason", reason), ("message", message)];
        Self(text.into_iter().map(|(key, text)| (key.to_owned(), json!(text))).collect())
    }
}

impl ConditionText {
    fn is_in(&self, condition: &Value) -> bool {
        self.0.iter().all(|(key, text)| condition[key] == *text)
    }

    fn learn(&mut self, condition: &Value) {
        for (key, text) in &mut self.0 {
            if condition[key].is_string() {
                text.clone_from(&condition[key]);
            }
        }
    }
}

/// Status that kubemark has reported. Unknown parts default to what kubemark 1.36 reports of a healthy
/// machine: where that is wrong, kubemark sees a difference and reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedStatus {
    leaves: Leaves,
    conditions: BTreeMap<&'static str, ConditionText>,
}

impl Default for ReportedStatus {
    fn default() -> Self {
        let conditions = health::conditions(true).map(|condition| (condition.r#type, condition.into()));
        // kubemark's cadvisor knows no boot ID. If kubemark read ours, it would report a reboot.
        let leaves = [(("nodeInfo", BOOT_ID.to_owned()), json!(""))];
        Self { leaves: leaves.into(), conditions: conditions.into() }
    }
}

impl ReportedStatus {
    /// Learns from a status that kubemark writes, whole or in parts.
    pub fn learn(&mut self, status: &Value, overrides: &Leaves) {
        for leaf @ (section, key) in overrides.keys() {
            if let Some(value) = status.get(*section).and_then(|section| section.get(key)) {
                self.leaves.insert(leaf.clone(), value.clone());
            }
        }
        for condition in status["conditions"].as_array().into_iter().flatten() {
            let known = condition["type"].as_str().and_then(|r#type| self.conditions.get_mut(r#type));
            if let Some(text) = known {
                text.learn(condition);
            }
        }
    }

    /// Makes a Node that kubemark reads show what kubemark reported. A value that another client wrote over one of
    /// `overrides` is missing there, so that kubemark writes it again.
    pub fn rewrite_read(&self, node: &mut Value, overrides: &Leaves, behaviour: Behaviour) {
        let Some(status) = node.get_mut("status") else { return };
        let is_overwritten = |leaf: &(&'static str, String)| {
            overrides.get(leaf).is_some_and(|own| !is_equal(&status[leaf.0][&leaf.1], own))
        };
        // A missing boot ID is the one that kubemark reports.
        let leaf = |(leaf, value): (&(&'static str, String), &Value)| {
            (
                leaf.clone(),
                if leaf.1 != BOOT_ID && is_overwritten(leaf) { Value::Null } else { value.clone() },
            )
        };
        let read: Leaves = self.leaves.iter().map(leaf).collect();
        put(status, &read);
        let unhealthy = ConditionText::from(UNHEALTHY);
        for shown in conditions(status) {
            let reported = shown["type"].as_str().and_then(|r#type| self.conditions.get(r#type));
            let is_ours = match behaviour {
                // The proxy writes the end of the phase; until then kubemark should correct the real
                // conditions.
                Behaviour::Healthy => false,
                Behaviour::Reported => unhealthy.is_in(shown),
                // By now the controller-manager may have written Unknown, which kubemark cannot change.
                Behaviour::Silent => true,
            };
            if let (true, Some(reported), Some(shown)) = (is_ours, reported, shown.as_object_mut()) {
                shown.extend(reported.0.clone());
            }
        }
    }

    /// Strategic merge patch that makes `node` show the conditions of this behaviour; None if it does
    /// already.
    pub fn correction(&self, node: &Value, behaviour: Behaviour, now: Timestamp) -> Option<Value> {
        let mut desired = self.conditions.clone();
        if behaviour == Behaviour::Reported {
            desired.insert(UNHEALTHY.r#type, UNHEALTHY.into());
        }
        let mut shown = desired.iter().map(|(r#type, text)| (condition(node, r#type), text));
        if shown.all(|(shown, text)| shown.is_some_and(|shown| text.is_in(shown))) {
            return None;
        }
        let conditions: Vec<Value> = desired
            .iter()
            .map(|(r#type, text)| {
                let before = condition(node, r#type).filter(|before| before["status"] == text.0["status"]);
                let since = before.and_then(since).unwrap_or(now);
                let times = [("lastHeartbeatTime", now), ("lastTransitionTime", since)];
                let mut condition = text.0.clone();
                condition.insert("type".to_owned(), json!(r#type));
                condition.extend(times.map(|(key, at)| (key.to_owned(), time(at))));
                Value::Object(condition)
            })
            .collect();
        // The UID is a precondition: the field cannot change, so the API server refuses another one.
        Some(json!({
            "metadata": { "uid": node["metadata"]["uid"] },
            "status": { "conditions": conditions },
        }))
    }
}

/// Rewrites a status of kubemark to the one that the cluster is to see, for a machine that is not silent.
/// `shown` is the Ready condition that the API server has.
pub fn rewrite_written(
    status: &mut Value,
    overrides: &Leaves,
    behaviour: Behaviour,
    shown: Option<&Value>,
    now: Timestamp,
) {
    put(status, overrides);
    if behaviour != Behaviour::Reported {
        return;
    }
    let ready = conditions(status).find(|condition| condition["type"] == UNHEALTHY.r#type);
    let Some(ready) = ready.and_then(Value::as_object_mut) else { return };
    ready.extend(ConditionText::from(UNHEALTHY).0);
    // kubemark sees a status that differs from the API server's, so the transition time is computed here.
    if let Some(shown) = shown {
        let since = since(shown).filter(|_| shown["status"] == UNHEALTHY.status).unwrap_or(now);
        ready.insert("lastTransitionTime".to_owned(), time(since));
    }
}

/// Returns true if a kubelet has ever written this Node's status.
pub fn is_posted(node: &Value) -> bool {
    node["status"]["nodeInfo"]["kubeletVersion"].as_str().is_some_and(|version| !version.is_empty())
}

/// Returns true if two values are equal; amounts are in any notation.
fn is_equal(one: &Value, other: &Value) -> bool {
    let amount = |value: &Value| value.as_str().and_then(|text| quantity::nanos_of(text).ok());
    one == other || amount(one).is_some_and(|amount_of_one| amount(other) == Some(amount_of_one))
}

/// Puts `leaves` into a status. A section that is no object stays as it is: the API server will report the
/// error.
fn put(status: &mut Value, leaves: &Leaves) {
    let Some(status) = status.as_object_mut() else { return };
    for ((section, key), value) in leaves {
        let section = status.entry(*section).or_insert_with(|| json!({}));
        let Some(section) = section.as_object_mut() else { continue };
        if value.is_null() {
            section.remove(key);
        } else {
            section.insert(key.clone(), value.clone());
        }
    }
}

fn conditions(status: &mut Value) -> impl Iterator<Item = &mut Value> {
    status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten()
}

/// A condition of a Node.
pub fn condition<'a>(node: &'a Value, r#type: &str) -> Option<&'a Value> {
    node["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == r#type)
}

fn since(condition: &Value) -> Option<Timestamp> {
    condition["lastTransitionTime"].as_str()?.parse().ok()
}

/// A time in the precision of a status: seconds.
fn time(time: Timestamp) -> Value {
    json!(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
