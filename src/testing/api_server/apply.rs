//! Server-side apply, always by one manager and with `force`, for kinds whose fields are all maps of single values, such
//! as `Secret` (structured-merge-diff, `merge/update.go`).
//!
//! Invariant: a field belongs to the manager alone if it has set the field's present value, and nobody else has.

use serde_json::{Map, Value};

/// Applies `config`; what is the manager's `own`, and left out now, goes. Returns what is its own from now on.
pub fn apply(object: &mut Value, own: &Value, config: &Value) -> Value {
    let next = owned(object, own, config);
    withdraw(object, own, config);
    super::patch::merge(object, config);
    next
}

/// Returns true if `config` names an object and sets none of its fields.
pub fn sets_nothing(config: &Value) -> bool {
    config.as_object().into_iter().flatten().all(|(key, value)| match (key.as_str(), value) {
        ("apiVersion" | "kind", _) => true,
        ("metadata", Value::Object(metadata)) => {
            metadata.iter().all(|(key, value)| key == "name" || key == "namespace" || is_empty(value))
        }
        (_, value) => is_empty(value),
    })
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.values().all(is_empty))
}

/// What is left of the manager's own fields after others have changed the object.
pub fn left(own: &Value, object: &Value) -> Value {
    fields(own, |key, own| match (own, &object[key]) {
        (Value::Object(_), present) => Some(left(own, present)),
        (own, present) => (own == present).then(|| own.clone()),
    })
}

/// Fields of `config` that the manager sets, or that are its own already.
fn owned(object: &Value, own: &Value, config: &Value) -> Value {
    fields(config, |key, wanted| match (wanted, &object[key]) {
        (Value::Object(_), present) => Some(owned(present, &own[key], wanted)),
        (wanted, present) => (wanted != present || own[key] == *wanted).then(|| wanted.clone()),
    })
}

fn fields(of: &Value, keep: impl Fn(&str, &Value) -> Option<Value>) -> Value {
    let all = of.as_object().into_iter().flatten();
    Value::Object(all.filter_map(|(key, value)| Some((key.clone(), keep(key, value)?))).collect())
}

fn withdraw(object: &mut Value, own: &Value, config: &Value) {
    let (Value::Object(object), Value::Object(own)) = (object, own) else { return };
    for (key, own) in own {
        let Some(present) = object.get_mut(key) else { continue };
        let is_map = present.is_object();
        if is_map {
            withdraw(present, own, &config[key]);
        }
        let is_gone =
            if is_map { present.as_object().is_some_and(Map::is_empty) } else { config.get(key).is_none() };
        if is_gone {
            object.remove(key);
        }
    }
}
