//! Random requests, the same for any server: preconditions and versions are named by what they mean, and each server's
//! own values are put in when a request is sent.

use kube_node_testing::api_server::Random;
use serde_json::{Value, json};

/// Kinds that are tried: collection, `apiVersion`, kind, and the subresource of the status.
pub const KINDS: [(&str, &str, &str, bool); 10] = [
    ("/api/v1/namespaces/default/configmaps", "v1", "ConfigMap", false),
    ("/apis/coordination.k8s.io/v1/namespaces/default/leases", "coordination.k8s.io/v1", "Lease", false),
    ("/api/v1/nodes", "v1", "Node", true),
    ("/api/v1/namespaces/default/pods", "v1", "Pod", true),
    ("/apis/kube-node.io/v1alpha1/nodesets", "kube-node.io/v1alpha1", "NodeSet", true),
    ("/apis/kube-node.io/v1alpha1/nodeclasses", "kube-node.io/v1alpha1", "NodeClass", true),
    ("/api/v1/namespaces/default/secrets", "v1", "Secret", false),
    ("/apis/apps/v1/namespaces/default/controllerrevisions", "apps/v1", "ControllerRevision", false),
    ("/apis/storage.k8s.io/v1/volumeattachments", "storage.k8s.io/v1", "VolumeAttachment", true),
    ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", "policy/v1", "PodDisruptionBudget", true),
];
/// Number of kinds that are watched, and that all actions are tried on; the others have their own.
pub const WATCHED_KINDS: usize = 9;
/// Positions of some kinds.
const PODS: usize = 3;
const NODE_SETS: usize = 4;
const BUDGETS: usize = 9;
/// Names of each kind.
pub const NAMES: [&str; 3] = ["honest-a", "honest-b", "honest-c"];

/// What a request says of a value of the object that the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    None,
    /// The present value.
    Right,
    /// The value before the present one.
    Old,
    /// A value that was never right.
    Wrong,
}

/// Form of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON merge patch.
    Merge,
    /// Strategic merge patch.
    Strategic,
    /// JSON patch, with a test before it that holds or fails.
    Json {
        /// True if the test holds.
        holds: bool,
    },
}

/// A request.
#[derive(Clone, Debug)]
pub enum Action {
    /// POST of the collection.
    Create(Value),
    /// POST with `generateName`.
    Generate(Value),
    /// PUT of the object, or of its status.
    Put(Value, bool),
    /// PATCH of the object, or of its status.
    Patch(Form, Value, bool),
    /// Server-side apply with force.
    Apply(Value),
    /// DELETE with a grace period; true: as a dry run.
    Delete(Option<i64>, bool),
    /// Eviction of a pod.
    Evict,
    /// GET.
    Get,
    /// Lists the collection in pages of this size.
    List(usize),
    /// GET of the scale.
    GetScale,
    /// PUT of the scale with so many replicas.
    PutScale(u64),
    /// Merge patch of the scale.
    PatchScale(u64),
    /// GET of the metadata alone.
    Metadata,
    /// Lists the collection with a selector, written as a parameter.
    Select(&'static str),
}

/// A request about one object.
#[derive(Clone, Debug)]
pub struct Request {
    /// Position in [`KINDS`].
    pub kind: usize,
    /// Name of the object.
    pub name: &'static str,
    /// What the request does.
    pub action: Action,
    /// Claimed UID.
    pub uid: Precondition,
    /// Claimed version.
    pub version: Precondition,
}

/// A random request.
pub fn random(random: &mut Random) -> Request {
    let apart = random.apart(0x5ca1e);
    let usual = usual(random);
    special(apart, &usual).unwrap_or(usual)
}

/// In a fifth of the cases, a request that only some kinds have.
fn special(mut random: Random, usual: &Request) -> Option<Request> {
    if !random.number().is_multiple_of(5) {
        return None;
    }
    let replicas = random.number() % 4;
    // A scale that changes nothing is not compared: it may be a new version of the set, which says who wrote the replicas.
    let other = 10 + random.number() % 50_000;
    let (kind, action) = match random.below(12) {
        0 => (NODE_SETS, Action::GetScale),
        1 => (NODE_SETS, Action::PutScale(other)),
        2 => (NODE_SETS, Action::PatchScale(other)),
        3 => (usual.kind, Action::Metadata),
        4 | 5 => {
            let of_labels = [
                "tier%3Dfront",
                "tier!%3Dfront",
                "tier",
                "!tier",
                "tier%20in%20(front,back)",
                "tier%20notin%20(back)",
            ];
            (usual.kind, Action::Select(of_labels[random.below(of_labels.len())]))
        }
        6 => {
            let of_fields = ["spec.nodeName%3Dhonest-node", "spec.nodeName!%3D", "spec.nodeName%3D"];
            (PODS, Action::Select(of_fields[random.below(of_fields.len())]))
        }
        7 => {
            let spec = json!({ "minAvailable": 1, "selector": { "matchLabels": { "tier": "front" } } });
            (BUDGETS, Action::Create(json!({ "metadata": {}, "spec": spec })))
        }
        8 => {
            let status = json!({
                "disruptionsAllowed": replicas / 2, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
                "observedGeneration": replicas % 2,
            });
            (BUDGETS, Action::Patch(Form::Merge, json!({ "status": status }), true))
        }
        9 => (BUDGETS, Action::Delete(None, false)),
        10 => (PODS, Action::Patch(Form::Strategic, json!({ "status": { "phase": "Running" } }), true)),
        _ => (PODS, Action::Evict),
    };
    // A budget stands for itself: with two of them an eviction is an error.
    let name = if kind == BUDGETS { NAMES[0] } else { usual.name };
    let mut request = Request { kind, name, action, ..usual.clone() };
    if kind == BUDGETS || matches!(request.action, Action::Patch(..)) {
        (request.uid, request.version) = (Precondition::None, Precondition::None);
    }
    Some(request)
}

fn usual(random: &mut Random) -> Request {
    let kind = random.below(WATCHED_KINDS);
    let claim = |random: &mut Random, none: usize| match random.below(none + 4) {
        0 | 1 => Precondition::Right,
        2 => Precondition::Old,
        3 => Precondition::Wrong,
        _ => Precondition::None,
    };
    let (_, _, name, has_status) = KINDS[kind];
    let of_status = has_status && random.below(3) == 0;
    let action = match random.below(20) {
        0..5 => Action::Create(object(random, name)),
        5 => Action::Generate(object(random, name)),
        // The spec of a pod cannot be replaced.
        6..9 if name == "Pod" && !of_status => Action::Get,
        6..9 => Action::Put(if of_status { status(random, name) } else { object(random, name) }, of_status),
        9..13 if name == "Secret" => Action::Apply(object(random, name)),
        9..15 => {
            let change = if of_status { status(random, name) } else { change(random, name) };
            let form = match random.below(3) {
                0 => Form::Merge,
                1 if name != "NodeSet" && name != "NodeClass" => Form::Strategic,
                _ if of_status => Form::Merge,
                _ => Form::Json { holds: random.below(2) == 0 },
            };
            Action::Patch(form, change, of_status)
        }
        15 | 16 => Action::Delete([None, Some(0), Some(5)][random.below(3)], random.below(4) == 0),
        17 if name == "Pod" => Action::Evict,
        17 | 18 => Action::Get,
        _ => Action::List(random.below(4)),
    };
    let (uid, version) = (claim(random, 8), claim(random, 6));
    Request { kind, name: NAMES[random.below(NAMES.len())], action, uid, version }
}

/// Labels, annotations and finalizers of an object.
fn metadata(random: &mut Random) -> Value {
    let mut metadata = json!({});
    if random.below(2) == 0 {
        metadata["labels"] = json!({ "tier": (["front", "back"][random.below(2)]) });
    }
    if random.below(3) == 0 {
        metadata["annotations"] = json!({ "example.com/note": random.below(3).to_string() });
    }
    if random.below(4) == 0 {
        metadata["finalizers"] = json!(["example.com/held"]);
    }
    metadata
}

/// A whole object without a name.
fn object(random: &mut Random, kind: &str) -> Value {
    let mut object = json!({ "metadata": metadata(random) });
    match kind {
        "ConfigMap" => object["data"] = json!({ "key": random.below(3).to_string() }),
        "Secret" => {
            for key in ["key", "more"] {
                if random.below(2) == 0 {
                    object["data"][key] = json!((["YQ==", "Yg=="][random.below(2)]));
                }
            }
            // A list of finalizers is a set of values, which our operator does not apply.
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("finalizers");
            }
        }
        // Neither the data of a revision nor the spec of an attachment can be changed.
        "ControllerRevision" => {
            object["revision"] = json!(1 + random.below(2));
            object["data"] = json!({ "capacity": "1" });
        }
        "VolumeAttachment" => {
            object["spec"] = json!({
                "attacher": "csi.example.com", "nodeName": "honest-node", "source": { "persistentVolumeName": "a" },
            });
        }
        "Lease" => {
            object["spec"] = json!({ "holderIdentity": "a", "leaseDurationSeconds": 40 + random.below(2) });
        }
        "Node" if random.below(2) == 0 => {
            object["spec"] = json!({ "taints": [{ "key": "example.com/a", "effect": "NoSchedule" }] });
        }
        "Pod" => {
            object["spec"] = json!({
                "containers": [{ "name": "main", "image": "a" }],
                "automountServiceAccountToken": false,
            });
            if random.below(2) == 0 {
                object["spec"]["nodeName"] = json!("honest-node");
            }
        }
        "NodeSet" => {
            object["spec"] = json!({ "nodeClassName": "honest-a", "replicas": random.below(3) });
        }
        "NodeClass" => {
            object["spec"] = json!({
                "nodeController": "honest", "capacity": { "cpu": (1 + random.below(3)).to_string() },
            });
        }
        _ => {}
    }
    object
}

/// A change of an object, as a merge patch.
fn change(random: &mut Random, kind: &str) -> Value {
    match (random.below(5), kind) {
        (0, _) => json!({ "metadata": { "labels": { "tier": "patched" } } }),
        (1, _) => json!({ "metadata": { "finalizers": null } }),
        (2, _) => json!({ "metadata": { "finalizers": ["example.com/other"] } }),
        (3, "Node") => {
            json!({ "spec": { "taints": [{ "key": "example.com/b", "effect": "NoExecute" }], "unschedulable": true } })
        }
        (3, "NodeSet") => json!({ "spec": { "replicas": 5 + random.below(2) } }),
        (3, "Lease") => json!({ "spec": { "holderIdentity": "b" } }),
        (3, "ControllerRevision") => json!({ "revision": 3 + random.below(2) }),
        (3, "ConfigMap") => json!({ "data": { "more": "b" } }),
        (3, "Secret") => json!({ "stringData": { "more": "b" } }),
        _ => json!({ "metadata": { "annotations": { "example.com/note": random.below(3).to_string() } } }),
    }
}

/// A change of a status, as a merge patch.
fn status(random: &mut Random, kind: &str) -> Value {
    let value = ["True", "False"][random.below(2)];
    let condition = json!({
        "type": "Ready", "status": value, "reason": "Tried", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    match kind {
        "NodeSet" | "NodeClass" => json!({ "status": { "conditions": [condition] } }),
        "Pod" => json!({ "status": { "phase": (["Running", "Succeeded"][random.below(2)]), "conditions": [
            { "type": "Ready", "status": value, "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] } }),
        "VolumeAttachment" => {
            json!({ "status": { "attached": random.below(2) == 0 }, "metadata": { "labels": { "by": "status" } } })
        }
        _ => json!({ "status": { "conditions": [condition] }, "metadata": { "labels": { "by": "status" } } }),
    }
}
