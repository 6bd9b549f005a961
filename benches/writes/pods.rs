//! The kinds of writes of pods that are compared: the status that is written once all runs.

use k8s_pb::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::{
    forms::{Call, Form, JSON, State, Tracking, put, status_of},
    status,
};

/// Writes of pods.
pub fn pods() -> Vec<Form<Pod>> {
    let short = ("short status of a pod", State::Created);
    let whole = ("whole status of a pod", State::Created);
    vec![
        Form::of(short, "strategic patch", Tracking::On, |pod| {
            Call::strategic(status_of(pod), &json!({ "status": status::short() }))
        }),
        Form::of(whole, "strategic patch", Tracking::On, |pod| {
            Call::strategic(status_of(pod), &json!({ "status": whole_of(&pod.json) }))
        }),
        Form::of(whole, "merge patch", Tracking::On, |pod| {
            Call::merge(status_of(pod), &json!({ "status": whole_of(&pod.json) }))
        }),
        Form::of(whole, "JSON patch", Tracking::On, |pod| {
            let change = json!([
                { "op": "test", "path": "/metadata/uid", "value": pod.json["metadata"]["uid"] },
                { "op": "replace", "path": "/status", "value": whole_of(&pod.json) },
            ]);
            Call::json(status_of(pod), &change)
        }),
        Form::of(whole, "PUT, JSON", Tracking::On, |pod| {
            let mut json = pod.json.clone();
            json["status"] = whole_of(&pod.json);
            put(status_of(pod), JSON, json.to_string().into_bytes())
        }),
    ]
}

fn whole_of(pod: &Value) -> Value {
    let container = &pod["spec"]["containers"][0];
    let volume = container["volumeMounts"][0]["name"].as_str().unwrap_or_default();
    status::whole(&container["resources"]["requests"], volume)
}
