//! Rules of writes: creation, updates of an object and of its subresources, deletion
//! (apiserver, pkg/registry/rest and pkg/registry/generic/registry/store.go).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

use super::{
    kinds::{KINDS, Kind},
    refusal::Refusal,
    store::{Key, Store, key_of},
};

/// Parts of an object that its own updates do not change.
const KEPT: [&str; 6] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"];
/// Grace period of a pod that names none, in seconds.
const GRACE: i64 = 30;

/// Request that made the new state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    /// The whole object was sent.
    Put,
    /// The present object was patched.
    Patch,
}

/// Options of a deletion.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Grace period in seconds.
    pub grace: Option<i64>,
    /// Required UID.
    pub uid: Option<String>,
    /// Required version.
    pub version: Option<String>,
    /// True if nothing is to be changed.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads `DeleteOptions`.
    pub fn read(options: &Value) -> Self {
        let text = |key: &str| options["preconditions"][key].as_str().map(ToOwned::to_owned);
        Self {
            grace: options["gracePeriodSeconds"].as_i64(),
            uid: text("uid"),
            version: text("resourceVersion"),
            dry_run: options["dryRun"].as_array().is_some_and(|parts| !parts.is_empty()),
        }
    }
}

/// Creates an object. `uid` and `suffix` are for it and for the end of a generated name.
pub fn create(
    store: &mut Store,
    kind: usize,
    mut object: Value,
    (uid, suffix): (String, String),
    now: Timestamp,
) -> Result<Arc<Value>, Refusal> {
    let rules = &KINDS[kind];
    let metadata = metadata_of(&mut object);
    if metadata
        .get("resourceVersion")
        .is_some_and(|version| version.as_str().is_some_and(|version| !version.is_empty() && version != "0"))
    {
        let why = "resourceVersion should not be set on objects to be created";
        return Err(Refusal::new(500, "InternalError", why));
    }
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let generated = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() && generated.is_empty() {
        let why = "Required value: name or generateName is required";
        return Err(Refusal::invalid(rules.kind, "", "metadata.name", "FieldValueRequired", why));
    }
    let name = if name.is_empty() { format!("{generated}{suffix}") } else { name };
    metadata.insert("name".to_owned(), json!(name));
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        metadata.remove(key);
    }
    metadata.insert("uid".to_owned(), json!(uid));
    metadata.insert("creationTimestamp".to_owned(), json!(seconds(now)));
    metadata.insert("managedFields".to_owned(), json!([{ "operation": "Update" }]));
    if rules.generation {
        metadata.insert("generation".to_owned(), json!(1));
    }
    object["apiVersion"] = json!(rules.api_version());
    object["kind"] = json!(rules.kind);
    match rules.kind {
        "Pod" => object["status"] = json!({ "phase": "Pending", "qosClass": "BestEffort" }),
        "VolumeAttachment" => object["status"] = json!({ "attached": false }),
        // A node may register with its status.
        "Node" => {}
        _ if rules.status => drop(object.as_object_mut().map(|object| object.remove("status"))),
        _ => {}
    }
    encode_string_data(rules, &mut object);
    let key = (kind, key_of(kind, &object));
    if store.get(&key).is_some() {
        let message = format!("{} \"{name}\" already exists", qualified(rules));
        return Err(Refusal::new(409, "AlreadyExists", message));
    }
    Ok(store.put(kind, object))
}

/// Updates an object, or one of its subresources, to `new`.
pub fn update(
    store: &mut Store,
    key: &Key,
    subresource: Option<&str>,
    mut new: Value,
    origin: UpdateKind,
) -> Result<Arc<Value>, Refusal> {
    let rules = &KINDS[key.0];
    let (plural, kind) = (qualified(rules), rules.kind);
    let Some(old) = store.get(key).cloned() else {
        return Err(Refusal::not_found(&plural, name_in(&key.1)));
    };
    let name = old["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let text = |field: &str| new["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (uid, version) = (text("uid"), text("resourceVersion"));
    // A status of a custom resource leaves all metadata as they are, one of a kind that is built in all but the uid.
    let is_of_status = rules.is_custom() && subresource.is_some();
    let uid = Some(uid.as_str()).filter(|uid| !uid.is_empty() && old["metadata"]["uid"] != **uid);
    let uid = uid.filter(|_| origin == UpdateKind::Put || !is_of_status);
    if let Some(uid) = uid {
        let shown = old["metadata"]["uid"].as_str().unwrap_or_default();
        if origin == UpdateKind::Put {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {shown}");
            return Err(Refusal::conflict(&plural, &name, &why));
        }
    }
    match version.as_str() {
        "" if origin == UpdateKind::Put && !rules.unconditional => {
            let why = "Invalid value: 0: must be specified for an update";
            let field = "metadata.resourceVersion";
            return Err(Refusal::invalid(kind, &name, field, "FieldValueInvalid", why));
        }
        "" => {}
        version if old["metadata"]["resourceVersion"] != *version => {
            return Err(Refusal::modified(&plural, &name));
        }
        _ => {}
    }
    restrict(rules, subresource, &old, &mut new);
    encode_string_data(rules, &mut new);
    keep_metadata(&old, &mut new, subresource.is_none());
    let (before, after) = (list(&old, "finalizers"), list(&new, "finalizers").to_vec());
    let is_leaving = !old["metadata"]["deletionTimestamp"].is_null();
    let has_new = is_leaving && after.iter().any(|finalizer| !before.contains(finalizer));
    let forbidden = "Forbidden: no new finalizers can be added if the object is being deleted";
    let immutable = uid.map(|uid| format!("Invalid value: \"{uid}\": field is immutable"));
    let causes = has_new
        .then(|| ("FieldValueForbidden", forbidden.to_owned(), "metadata.finalizers".to_owned()))
        .into_iter()
        .chain(immutable.map(|why| ("FieldValueInvalid", why, "metadata.uid".to_owned())));
    let causes: Vec<_> = causes.collect();
    if !causes.is_empty() {
        let message = format!("{kind} \"{name}\" is invalid");
        return Err(Refusal { causes, ..Refusal::new(422, "Invalid", message) });
    }
    if rules.generation && !spec_of(&old).eq(spec_of(&new)) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        new["metadata"]["generation"] = json!(generation);
    }
    let has_grace = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() > 0;
    if is_leaving && after.is_empty() && !before.is_empty() && !has_grace {
        return Ok(store.remove(key.0, new));
    }
    if new == *old {
        return Ok(old);
    }
    Ok(store.put(key.0, new))
}

/// Deletes an object, or marks it. Returns its last state, and true if it is gone.
pub fn delete(
    store: &mut Store,
    key: &Key,
    options: &DeleteOptions,
    now: Timestamp,
) -> Result<(Arc<Value>, bool), Refusal> {
    let rules = &KINDS[key.0];
    let plural = qualified(rules);
    let Some(old) = store.get(key).cloned() else {
        return Err(Refusal::not_found(&plural, name_in(&key.1)));
    };
    let metadata = &old["metadata"];
    check(&old, options, &plural)?;
    let finalizers = list(&old, "finalizers");
    let marked =
        metadata["deletionGracePeriodSeconds"].as_i64().filter(|_| !metadata["deletionTimestamp"].is_null());
    let grace = match marked {
        _ if rules.kind != "Pod" => 0,
        // Of a pod that is being deleted only the grace period that the request names counts.
        Some(marked) => options.grace.unwrap_or(marked),
        None => pod_grace(&old, options.grace),
    };
    if grace == 0 && finalizers.is_empty() {
        let mut last = Value::clone(&old);
        if rules.kind == "Pod" && marked != Some(0) {
            mark(&mut last, (0, now), marked.is_none());
            // Watches see the mark before the pod goes.
            last = Value::clone(&store.put(key.0, last));
        }
        return Ok((store.remove(key.0, last), true));
    }
    if marked.is_some_and(|marked| marked <= grace) {
        return Ok((old, false));
    }
    let mut new = Value::clone(&old);
    mark(&mut new, shortened(&old, marked, grace, now), marked.is_none());
    Ok((store.put(key.0, new), false))
}

/// Grace period and time of a deletion. One that has been asked for before counts from then, and has another second where
/// it would be over already.
fn shortened(object: &Value, marked: Option<i64>, grace: i64, now: Timestamp) -> (i64, Timestamp) {
    let seconds = jiff::SignedDuration::from_secs;
    let end = object["metadata"]["deletionTimestamp"].as_str().and_then(|end| end.parse::<Timestamp>().ok());
    match end.zip(marked).map(|(end, marked)| end + seconds(grace - marked)) {
        Some(end) if grace > 0 && end < now => (1, now),
        Some(end) => (grace, end),
        None => (grace, now + seconds(grace)),
    }
}

/// Checks the preconditions of a deletion.
pub fn check(object: &Value, options: &DeleteOptions, plural: &str) -> Result<(), Refusal> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    for (wanted, field, label) in
        [(&options.uid, "uid", "UID"), (&options.version, "resourceVersion", "ResourceVersion")]
    {
        if let Some(wanted) = wanted.as_deref().filter(|wanted| metadata[field] != **wanted) {
            let shown = metadata[field].as_str().unwrap_or_default();
            let why = format!(
                "Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {shown}"
            );
            return Err(Refusal::conflict(plural, name, &why));
        }
    }
    Ok(())
}

/// Marks an object as being deleted; the first mark counts as a change of the spec.
fn mark(object: &mut Value, (grace, end): (i64, Timestamp), is_first: bool) {
    if let Some(generation) = object["metadata"]["generation"].as_i64().filter(|_| is_first) {
        object["metadata"]["generation"] = json!(generation + 1);
    }
    object["metadata"]["deletionTimestamp"] = json!(seconds(end));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
}

/// Grace period of a pod's deletion. No kubelet stops a pod that is bound to no Node, or that has ended.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty) || is_over {
        return 0;
    }
    asked.or(pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(GRACE)
}

/// Takes from `old` what a write of this part may not change.
fn restrict(rules: &Kind, subresource: Option<&str>, old: &Value, new: &mut Value) {
    match subresource {
        None if rules.status => copy(old, new, "status"),
        None => {}
        Some(_) if rules.status_keeps_metadata => {
            let status = new["status"].take();
            new.clone_from(old);
            set(new, "status", status);
        }
        Some(part) => {
            let (status, metadata) = (new["status"].take(), new["metadata"].take());
            new.clone_from(old);
            new["metadata"] = metadata;
            if part == "approval" {
                set(&mut new["status"], "conditions", status["conditions"].clone());
            } else {
                set(new, "status", status);
            }
            if rules.kind == "Pod" {
                copy(&old["metadata"], &mut new["metadata"], "ownerReferences");
            }
        }
    }
    for field in ["apiVersion", "kind"] {
        copy(old, new, field);
    }
}

/// Keeps the metadata that belongs to the server. `own`: the object itself is written, and not a subresource.
fn keep_metadata(old: &Value, new: &mut Value, own: bool) {
    let (before, new) = (&old["metadata"], &mut new["metadata"]);
    for field in KEPT.into_iter().chain(["name", "namespace", "resourceVersion"]) {
        copy(before, new, field);
    }
    let is_emptied = new["managedFields"]
        .as_array()
        .is_some_and(|entries| entries.iter().all(|entry| entry.as_object().is_some_and(Map::is_empty)));
    copy(before, new, "managedFields");
    if own && is_emptied {
        set(new, "managedFields", Value::Null);
    }
    for field in ["finalizers", "ownerReferences", "labels", "annotations"] {
        let is_empty = match &new[field] {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if is_empty {
            set(new, field, Value::Null);
        }
    }
}

/// The data that a Secret was given as text.
fn encode_string_data(rules: &Kind, object: &mut Value) {
    let Some(object) = object.as_object_mut().filter(|_| rules.kind == "Secret") else { return };
    let Some(Value::Object(texts)) = object.remove("stringData") else { return };
    let data = object.entry("data").or_insert_with(|| json!({}));
    for (key, text) in texts {
        let bytes = text.as_str().unwrap_or_default().as_bytes().to_vec();
        data[key] = json!(ByteString(bytes));
    }
}

fn copy(from: &Value, to: &mut Value, field: &str) {
    set(to, field, from[field].clone());
}

/// Sets a field, or removes it for null.
fn set(object: &mut Value, field: &str, value: Value) {
    match (object, value) {
        (Value::Object(object), Value::Null) => drop(object.remove(field)),
        (object, Value::Null) if object.is_null() => {}
        (object, value) => object[field] = value,
    }
}

/// All of an object but metadata and status.
fn spec_of(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"))
}

fn metadata_of(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"].as_object_mut().expect("it was just made")
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object["metadata"][field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn name_in(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

/// Plural with the group, as messages name a kind.
pub fn qualified(kind: &Kind) -> String {
    if kind.group.is_empty() { kind.plural.to_owned() } else { format!("{}.{}", kind.plural, kind.group) }
}

/// Times of the API have whole seconds.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_grace_period_counts_from_the_first_deletion() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(shortened(&json!({}), None, 30, at(0)), (30, at(30)));
        let pod = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:00:30Z" } });
        // As a kube-apiserver 1.36 answers one and seven seconds after the first deletion.
        assert_eq!(shortened(&pod, Some(30), 5, at(1)), (5, at(5)));
        assert_eq!(shortened(&pod, Some(30), 5, at(7)), (1, at(7)));
    }
}
