//! Each write of a process says which object it is about, in which state: the cache that the decision was made on may be old,
//! and another object may have the name by now. A Node is created only under a set and a class that cannot go before it.
//!
//! Input: a write, or a Node that was created. Output: what is missing.

use http::Method;
use kube_node_api::names;
use kube_node_testing::api_server::ApiServer;
use serde_json::Value;

use crate::sent::Sent;

/// Returns true if a write says too little of the object that it is about.
pub fn is_missing(sent: &Sent) -> bool {
    let (path, body) = (&*sent.path, sent.json());
    let is_about = |plurals: &[&str]| plurals.iter().any(|plural| path.contains(plural));
    let has_uid = |options: &Value| options["preconditions"]["uid"].is_string();
    if path.ends_with("/eviction") {
        return !has_uid(&body["deleteOptions"]);
    }
    if sent.method == Method::DELETE && is_about(&["/pods/", "/secrets/"]) {
        return !has_uid(body);
    }
    if path.contains("/leases/") || !is_about(&["/nodes/", "/nodesets/", "/nodeclasses/"]) {
        return false;
    }
    match (&sent.method, path.ends_with("/status")) {
        // A kubelet's status says of itself which Node it is about.
        (&Method::PATCH, true) => !path.contains("/nodes/") && !names_spec(body),
        (&Method::PATCH, false) => !names_object(body),
        (&Method::DELETE, _) => !has_uid(body) || !body["preconditions"]["resourceVersion"].is_string(),
        _ => false,
    }
}

/// The set or the class of a new Node, if it could go before the Node.
pub fn unprotected(server: &ApiServer, node: &Value) -> Option<String> {
    let labels = &node["metadata"]["labels"];
    let needed = [
        ("nodesets", names::LABEL_NODESET, names::FINALIZER_NODES),
        ("nodeclasses", names::LABEL_NODECLASS, names::FINALIZER_IN_USE),
    ];
    needed.into_iter().find_map(|(plural, label, finalizer)| {
        let name = labels[label].as_str()?;
        let object = server.object(names::GROUP, plural, None, name)?;
        // Whoever creates the Node may not know yet that it leaves.
        let stays = object["metadata"]["deletionTimestamp"].is_null();
        let finalizers = object["metadata"]["finalizers"].as_array();
        let is_kept = finalizers.is_some_and(|all| all.iter().any(|one| one == finalizer));
        (stays && !is_kept).then(|| format!("{plural}/{name}"))
    })
}

/// Returns true if the status of a set or class says which spec it is about.
fn names_spec(body: &Value) -> bool {
    steps(body).any(|step| match step["path"].as_str() {
        Some("/metadata/generation") => step["op"] == "test",
        // The API server refuses a version that is not the present one.
        Some("/metadata/resourceVersion") => true,
        _ => false,
    })
}

/// Returns true if a patch of an object says which object it is about, and in which state where it replaces a list.
fn names_object(body: &Value) -> bool {
    let metadata = &body["metadata"];
    let has_test = |path: &str| steps(body).any(|step| step["op"] == "test" && step["path"] == path);
    let tests = has_test("/metadata/uid") || has_test("/metadata/resourceVersion");
    let is_of_taints = |step: &Value| {
        step["op"] != "test" && step["path"].as_str().unwrap_or_default().starts_with("/spec/taints")
    };
    let tests = tests && (has_test("/spec/taints") || !steps(body).any(is_of_taints));
    // A merge patch replaces lists whole.
    let has_list = ["finalizers", "ownerReferences"].iter().any(|list| metadata[list].is_array())
        || body["spec"]["taints"].is_array();
    metadata["resourceVersion"].is_string() || tests || metadata["uid"].is_string() && !has_list
}

/// Steps of a JSON patch.
fn steps(body: &Value) -> impl Iterator<Item = &Value> {
    body.as_array().into_iter().flatten()
}
