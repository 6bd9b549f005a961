//! Random requests: any verb, patch type and subresource, at objects around those of an identity. All are dry runs.

use kube_node_testing::api_server::Random;
use serde_json::{Value, json};

use super::model::{HOLLOW, MINE, REAL};

/// Names of objects of any kind.
const NAMES: [&str; 8] = [
    HOLLOW,
    MINE,
    REAL,
    "attack",
    "kube-node-operator",
    "kube-node-hollow",
    "kube-node-hollow-machine",
    "extension-apiserver-authentication",
];

/// A kind of objects: path of its group, kind, plural, namespaced or not, subresources.
struct Kind(&'static str, &'static str, &'static str, bool, &'static [&'static str]);

/// Namespace and names of the objects of a kind that are there.
fn objects(resource: &str) -> (&'static str, &'static [&'static str]) {
    match resource {
        "leases" => ("kube-node-lease", &[HOLLOW, MINE, REAL]),
        "nodes" | "pods" | "csinodes" => ("default", &[HOLLOW, MINE, REAL]),
        "serviceaccounts" => ("kubemark", &["kube-node-machine", "kube-node-hollow-machine"]),
        _ => ("kube-node-system", &["attack"]),
    }
}

const CORE: &str = "/api/v1";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const OWN: &str = "/apis/kube-node.io/v1alpha1";

const KINDS: [Kind; 25] = [
    Kind(CORE, "Node", "nodes", false, &["status", "proxy"]),
    Kind(
        CORE,
        "Pod",
        "pods",
        true,
        &[
            "status",
            "eviction",
            "binding",
            "log",
            "exec",
            "attach",
            "portforward",
            "proxy",
            "ephemeralcontainers",
            "resize",
        ],
    ),
    Kind(CORE, "Secret", "secrets", true, &[]),
    Kind(CORE, "ConfigMap", "configmaps", true, &[]),
    Kind(CORE, "ServiceAccount", "serviceaccounts", true, &["token"]),
    Kind(CORE, "Event", "events", true, &[]),
    Kind(CORE, "Namespace", "namespaces", false, &["finalize"]),
    Kind(CORE, "Service", "services", true, &["status", "proxy"]),
    Kind(CORE, "PersistentVolumeClaim", "persistentvolumeclaims", true, &["status"]),
    Kind("/apis/coordination.k8s.io/v1", "Lease", "leases", true, &[]),
    Kind("/apis/storage.k8s.io/v1", "CSINode", "csinodes", false, &[]),
    Kind(
        "/apis/certificates.k8s.io/v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        false,
        &["approval", "status"],
    ),
    Kind("/apis/apps/v1", "ControllerRevision", "controllerrevisions", true, &[]),
    Kind("/apis/apps/v1", "Deployment", "deployments", true, &["scale", "status"]),
    Kind(OWN, "NodeClass", "nodeclasses", false, &["status"]),
    Kind(OWN, "NodeSet", "nodesets", false, &["status", "scale"]),
    Kind(RBAC, "Role", "roles", true, &[]),
    Kind(RBAC, "RoleBinding", "rolebindings", true, &[]),
    Kind(RBAC, "ClusterRole", "clusterroles", false, &[]),
    Kind(RBAC, "ClusterRoleBinding", "clusterrolebindings", false, &[]),
    Kind(
        "/apis/admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
        &["status"],
    ),
    Kind(
        "/apis/admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
        &[],
    ),
    Kind(
        "/apis/apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
        &["status"],
    ),
    Kind("/apis/authentication.k8s.io/v1", "TokenReview", "tokenreviews", false, &[]),
    Kind("/apis/authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", false, &[]),
];

/// Namespaces of kube-node, and of others.
const NAMESPACES: [&str; 5] = ["default", "kube-system", "kube-node-system", "kube-node-lease", "kubemark"];

/// What a body changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    Label,
    /// A label below `kube-node.io/`.
    OurLabel,
    Annotation,
    /// An annotation below `kube-node.io/`.
    OurAnnotation,
    Finalizer,
    Owner,
    Status,
    Spec,
    /// What a Secret or a ConfigMap holds.
    Data,
}

const CHANGES: [Change; 10] = [
    Change::Nothing,
    Change::Label,
    Change::OurLabel,
    Change::Annotation,
    Change::OurAnnotation,
    Change::Finalizer,
    Change::Owner,
    Change::Status,
    Change::Spec,
    Change::Data,
];

/// Verbs of authorization. A watch would last.
pub const VERBS: [&str; 7] = ["get", "list", "create", "update", "patch", "delete", "deletecollection"];
const PATCHES: [&str; 3] =
    ["application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json"];

/// A request. Its verb is that of authorization.
#[derive(Debug)]
pub struct Attack {
    pub verb: &'static str,
    group: &'static str,
    kind: &'static str,
    pub resource: &'static str,
    pub subresource: Option<&'static str>,
    pub namespace: Option<&'static str>,
    pub name: Option<String>,
    pub change: Change,
    method: &'static str,
    media: &'static str,
    body: Value,
}

impl Attack {
    /// A random one, or one of a verb and a resource that a role has, then at an object that is there.
    pub fn draw(random: &mut Random, granted: Option<(&'static str, &'static str)>) -> Self {
        let any = &KINDS[random.below(KINDS.len())];
        let wanted = granted.map(|(_, resource)| {
            resource.split_once('/').map_or((resource, None), |(of, sub)| (of, Some(sub)))
        });
        let kind =
            wanted.and_then(|(resource, _)| KINDS.iter().find(|kind| kind.2 == resource)).unwrap_or(any);
        let Kind(group, kind, resource, is_namespaced, subresources) = kind;
        let subresource = match (wanted, random.below(2)) {
            (Some((_, subresource)), _) => subresource,
            (None, 0) if !subresources.is_empty() => Some(subresources[random.below(subresources.len())]),
            _ => None,
        };
        let verb = granted.map_or_else(|| VERBS[random.below(VERBS.len())], |(verb, _)| verb);
        let (method, media) = match verb {
            "create" => ("POST", "application/json"),
            "update" => ("PUT", "application/json"),
            "patch" => ("PATCH", PATCHES[random.below(PATCHES.len())]),
            "delete" | "deletecollection" => ("DELETE", ""),
            _ => ("GET", ""),
        };
        // A collection has no subresources.
        let subresource = subresource.filter(|_| !matches!(verb, "list" | "deletecollection"));
        let is_named =
            !matches!(verb, "list" | "deletecollection") && (verb != "create" || subresource.is_some());
        let (near, there) = objects(resource);
        let names = if granted.is_some() { there } else { &NAMES };
        let name = if is_named { names[random.below(names.len())] } else { "attack-new" }.to_owned();
        let anywhere = NAMESPACES[random.below(NAMESPACES.len())];
        let place = if granted.is_some() && random.below(4) > 0 { near } else { anywhere };
        let change = CHANGES[random.below(CHANGES.len())];
        let mut attack = Self {
            verb,
            group,
            kind,
            resource,
            subresource,
            namespace: is_namespaced.then_some(place),
            name: (is_named || verb == "create").then_some(name),
            change,
            method,
            media,
            body: Value::Null,
        };
        attack.body = match media {
            "" => Value::Null,
            "application/json-patch+json" => attack.json_patch(),
            _ => attack.object(),
        };
        attack
    }

    pub fn is_of(&self, resource: &str, subresource: Option<&str>) -> bool {
        self.resource == resource && self.subresource == subresource
    }

    /// As a rule of a role has it.
    pub fn resource(&self) -> String {
        self.subresource.map_or_else(|| self.resource.to_owned(), |sub| format!("{}/{sub}", self.resource))
    }

    pub fn request(&self) -> http::Request<Vec<u8>> {
        let namespace = self.namespace.map(|name| format!("/namespaces/{name}")).unwrap_or_default();
        let is_collection = self.verb == "create" && self.subresource.is_none();
        let name =
            self.name.as_ref().filter(|_| !is_collection).map(|name| format!("/{name}")).unwrap_or_default();
        let sub = self.subresource.map(|sub| format!("/{sub}")).unwrap_or_default();
        // An apply patch needs a manager, and other requests bear with it.
        let query = if self.method == "GET" { "" } else { "?dryRun=All&fieldManager=attack" };
        let uri = format!("{}{namespace}/{}{name}{sub}{query}", self.group, self.resource);
        let request =
            http::Request::builder().method(self.method).uri(uri).header("content-type", self.media);
        let body = if self.body.is_null() { Vec::new() } else { serde_json::to_vec(&self.body).unwrap() };
        request.body(body).unwrap()
    }

    fn metadata(&self) -> Value {
        match self.change {
            Change::Label => json!({"labels": {"example.com/attack": "a"}}),
            Change::OurLabel => json!({"labels": {"kube-node.io/nodeset": "attack"}}),
            Change::Annotation => json!({"annotations": {"example.com/attack": "a"}}),
            Change::OurAnnotation => json!({"annotations": {"kube-node.io/applied-template": "{}"}}),
            Change::Finalizer => json!({"finalizers": ["example.com/attack"]}),
            Change::Owner => json!({"ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "0c0ffee0-0000-4000-8000-000000000000",
            }]}),
            _ => json!({}),
        }
    }

    /// An object, or the part of one that a patch changes.
    fn object(&self) -> Value {
        let (version, kind) = match self.subresource {
            Some("token") => ("authentication.k8s.io/v1", "TokenRequest"),
            Some("eviction") => ("policy/v1", "Eviction"),
            Some("binding") => ("v1", "Binding"),
            Some("scale") => ("autoscaling/v1", "Scale"),
            _ => (self.group.trim_start_matches("/apis/").trim_start_matches("/api/"), self.kind),
        };
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": self.metadata()});
        if let Some(name) = &self.name {
            object["metadata"]["name"] = name.as_str().into();
        }
        let condition =
            json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Attack", "message": ""}]});
        match (self.resource, self.subresource) {
            (_, Some("token")) => object["spec"] = json!({"expirationSeconds": 600}),
            (_, Some("eviction")) => {}
            (_, Some("scale")) => object["spec"] = json!({"replicas": 3}),
            (_, Some("binding")) => object["target"] = json!({"kind": "Node", "name": "attack-real"}),
            (_, Some("approval")) => {
                object["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Attack", "message": ""}]});
            }
            (_, Some("status")) => object["status"] = condition,
            ("nodes", _) if self.change == Change::Spec => object["spec"] = json!({"unschedulable": true}),
            ("pods", _) => {
                object["spec"] = json!({"containers": [{"name": "main", "image": "example.com/main:1"}]});
            }
            ("leases", _) => object["spec"] = json!({"holderIdentity": "attack"}),
            ("csinodes", _) => object["spec"] = json!({"drivers": []}),
            ("secrets" | "configmaps", _) if self.change == Change::Data => {
                object["data"] = json!({"value": "YQ=="});
            }
            ("certificatesigningrequests", _) => {
                object["spec"] = json!({"request": "YQ==", "usages": ["client auth"], "signerName": "kubernetes.io/kube-apiserver-client"});
            }
            ("nodesets", _) => object["spec"] = json!({"replicas": 2, "nodeClassName": "attack"}),
            ("nodeclasses", _) => {
                object["spec"] =
                    json!({"nodeController": "hollow", "capacity": {"cpu": "1", "memory": "1Gi"}});
            }
            ("clusterrolebindings" | "rolebindings", _) => {
                object["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
                object["subjects"] =
                    json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "attack"}]);
            }
            ("clusterroles" | "roles", _) => {
                object["rules"] = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
            }
            ("tokenreviews", _) => object["spec"] = json!({"token": "a"}),
            ("subjectaccessreviews", _) => {
                object["spec"] =
                    json!({"user": "attack", "resourceAttributes": {"verb": "get", "resource": "pods"}});
            }
            ("events", _) => {
                object["involvedObject"] =
                    json!({"namespace": self.namespace, "kind": "Pod", "name": "attack"});
            }
            _ => {}
        }
        object
    }

    fn json_patch(&self) -> Value {
        let metadata = self.metadata();
        let parts = metadata.as_object().into_iter().flatten();
        let mut operations: Vec<Value> = parts
            .map(|(key, value)| json!({"op": "add", "path": format!("/metadata/{key}"), "value": value}))
            .collect();
        match self.change {
            // What a value is shows where it is put.
            Change::Data => operations.push(json!({"op": "move", "from": "/data/value", "path": "/data/x"})),
            Change::Status => operations.push(json!({"op": "add", "path": "/status/attack", "value": "a"})),
            Change::Spec => {
                operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
            }
            _ => {}
        }
        operations.into()
    }
}
