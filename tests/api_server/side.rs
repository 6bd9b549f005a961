//! One of the two servers: sends requests with its own UIDs and versions, and reports answers in a form that both share.

use std::collections::BTreeMap;

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::requests::{Action, Form, KINDS, Precondition, Request};

/// Form of an answer with metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// A server with what its answers have shown.
pub struct Side {
    client: Client,
    /// UID, version and former version, by kind and name.
    known: BTreeMap<(usize, String), (String, String, String)>,
}

impl Side {
    /// A server that has shown nothing yet.
    pub fn new(client: Client) -> Self {
        Self { client, known: BTreeMap::new() }
    }

    /// Sends a request; returns the answer in the shared form.
    pub async fn run(&mut self, request: &Request) -> Value {
        let (collection, api_version, kind, _) = KINDS[request.kind];
        let (uid, version) = (self.uid(request), self.version(request));
        let own = format!("{collection}/{}", request.name);
        let is_made = matches!(request.action, Action::Create(_) | Action::Generate(_));
        let named = |object: &Value, name: &str| {
            let mut object = object.clone();
            if is_made && kind == "Node" {
                add_admitted(&mut object);
            }
            object["apiVersion"] = json!(api_version);
            object["kind"] = json!(kind);
            object["metadata"]["name"] = json!(name);
            object
        };
        let claimed = |mut object: Value| {
            for (field, value) in [("uid", &uid), ("resourceVersion", &version)] {
                if let Some(value) = value {
                    object["metadata"][field] = json!(value);
                }
            }
            object
        };
        let sub = |of_status: bool| if of_status { format!("{own}/status") } else { own.clone() };
        match &request.action {
            Action::Create(object) => {
                self.send(Method::POST, collection, "application/json", &named(object, request.name), request)
                    .await
            }
            Action::Generate(object) => {
                let mut object = named(object, "");
                object["metadata"]["generateName"] = json!("honest-made-");
                let made = self.send(Method::POST, collection, "application/json", &object, request).await;
                json!({ "code": made["code"] })
            }
            Action::Put(object, of_status) => {
                let object = claimed(named(object, request.name));
                self.send(Method::PUT, &sub(*of_status), "application/json", &object, request).await
            }
            Action::Patch(Form::Json { holds }, change, of_status) => {
                let label = json!({ "op": "add", "path": "/metadata/annotations", "value": { "json": change.to_string() } });
                let name = if *holds { request.name } else { "other" };
                let patch = json!([{ "op": "test", "path": "/metadata/name", "value": name }, label]);
                self.send(Method::PATCH, &sub(*of_status), "application/json-patch+json", &patch, request)
                    .await
            }
            Action::Patch(form, change, of_status) => {
                let media = if *form == Form::Merge { "merge-patch" } else { "strategic-merge-patch" };
                let media = format!("application/{media}+json");
                self.send(Method::PATCH, &sub(*of_status), &media, &claimed(change.clone()), request).await
            }
            Action::Apply(config) => {
                let path = format!("{own}?fieldManager=honest&force=true");
                let config = named(config, request.name);
                self.send(Method::PATCH, &path, "application/apply-patch+yaml", &config, request).await
            }
            Action::Delete(grace, dry_run) => {
                let mut options = options(*grace, (&uid, &version));
                if *dry_run {
                    options["dryRun"] = json!(["All"]);
                }
                self.send(Method::DELETE, &own, "application/json", &options, request).await
            }
            Action::Evict => {
                let eviction = json!({
                    "apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": { "name": request.name }, "deleteOptions": options(None, (&uid, &None)),
                });
                let path = format!("{own}/eviction");
                let answer = self.send(Method::POST, &path, "application/json", &eviction, request).await;
                let causes = if answer["code"] == 429 { &answer["causes"] } else { &Value::Null };
                json!({ "code": answer["code"], "reason": answer["reason"], "causes": causes })
            }
            Action::Get => self.send(Method::GET, &own, "application/json", &Value::Null, request).await,
            Action::List(limit) => self.pages(collection, *limit).await,
            Action::GetScale => {
                let path = format!("{own}/scale");
                self.send(Method::GET, &path, "application/json", &Value::Null, request).await
            }
            Action::PutScale(replicas) => {
                let scale = json!({
                    "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": request.name },
                    "spec": { "replicas": replicas },
                });
                let path = format!("{own}/scale");
                self.send(Method::PUT, &path, "application/json", &claimed(scale), request).await
            }
            Action::PatchScale(replicas) => {
                let scale = claimed(json!({ "spec": { "replicas": replicas } }));
                let path = format!("{own}/scale");
                self.send(Method::PATCH, &path, "application/merge-patch+json", &scale, request).await
            }
            Action::Metadata => {
                let (code, object) =
                    self.raw_as(METADATA, Method::GET, &own, "application/json", &Value::Null).await;
                let parts: Option<Vec<&String>> =
                    object.as_object().filter(|_| code == 200).map(|object| object.keys().collect());
                json!({ "kind": object["kind"], "parts": parts, "object": shared(code, &object) })
            }
            Action::Select(selector) => {
                let parameter = if selector.starts_with("spec.") { "fieldSelector" } else { "labelSelector" };
                self.pages(&format!("{collection}?{parameter}={selector}"), 2).await
            }
        }
    }

    fn uid(&self, request: &Request) -> Option<String> {
        let known = self.known.get(&(request.kind, request.name.to_owned()));
        match request.uid {
            Precondition::None => None,
            Precondition::Right => known.map(|(uid, ..)| uid.clone()),
            Precondition::Old | Precondition::Wrong => {
                Some("00000000-0000-0000-0000-000000000000".to_owned())
            }
        }
    }

    fn version(&self, request: &Request) -> Option<String> {
        let known = self.known.get(&(request.kind, request.name.to_owned()));
        match request.version {
            Precondition::None => None,
            Precondition::Right => known.map(|(_, version, _)| version.clone()),
            Precondition::Old => known.map(|(.., old)| old.clone()).filter(|old| !old.is_empty()),
            Precondition::Wrong => Some("1".to_owned()),
        }
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        media: &str,
        body: &Value,
        request: &Request,
    ) -> Value {
        let (code, answer) = self.raw(method, path, media, body).await;
        let name = answer["metadata"]["name"].as_str().unwrap_or_default();
        let text = |field: &str| answer["metadata"][field].as_str().unwrap_or_default().to_owned();
        if answer["kind"] != "Status" && name == request.name {
            let entry = self.known.entry((request.kind, name.to_owned())).or_default();
            let (uid, version) = (text("uid"), text("resourceVersion"));
            if entry.1 != version {
                let old = std::mem::take(&mut entry.1);
                *entry = (uid, version, old);
            }
        }
        shared(code, &answer)
    }

    /// Names of a collection, page by page.
    async fn pages(&mut self, collection: &str, limit: usize) -> Value {
        let (mut pages, mut token) = (Vec::new(), String::new());
        loop {
            let begins = if collection.contains('?') { '&' } else { '?' };
            let path = format!("{collection}{begins}limit={limit}&continue={token}");
            let (code, list) = self.raw(Method::GET, &path, "application/json", &Value::Null).await;
            let items = list["items"].as_array().cloned().unwrap_or_default();
            let names = items.iter().filter_map(|item| item["metadata"]["name"].as_str());
            let names: Vec<&str> = names.filter(|name| crate::requests::NAMES.contains(name)).collect();
            pages.push(json!({ "code": code, "names": names }));
            match list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(next) => next.clone_into(&mut token),
                None => return json!(names_of(&pages)),
            }
        }
    }

    /// Present version of a collection.
    pub async fn present(&self, kind: usize) -> String {
        let (_, list) = self.raw(Method::GET, KINDS[kind].0, "application/json", &Value::Null).await;
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    /// Changes of the tried objects of a kind since a version, of those with the selected labels.
    pub async fn changes(&self, kind: usize, since: &str, labels: &str) -> Vec<Value> {
        let collection = KINDS[kind].0;
        let path = format!(
            "{collection}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion={since}&labelSelector={labels}"
        );
        let (code, text) = self.raw(Method::GET, &path, "application/json", &Value::Null).await;
        // A single event is an object already.
        let text = text.as_str().map_or_else(|| text.to_string(), ToOwned::to_owned);
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_tried = |event: &Value| {
            let name = event["object"]["metadata"]["name"].as_str();
            name.is_some_and(|name| crate::requests::NAMES.contains(&name))
        };
        events
            .filter(is_tried)
            .map(|event| json!({ "type": event["type"], "object": shared(code, &event["object"]) }))
            .collect()
    }

    async fn raw(&self, method: Method, path: &str, media: &str, body: &Value) -> (u16, Value) {
        self.raw_as("application/json", method, path, media, body).await
    }

    async fn raw_as(
        &self,
        accept: &str,
        method: Method,
        path: &str,
        media: &str,
        body: &Value,
    ) -> (u16, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.header("accept", accept);
        let response = self.client.send(request.body(body.into()).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
    }

    /// Deletes everything that requests may have made.
    pub async fn clear(&self) {
        for (collection, ..) in KINDS {
            let (_, list) = self.raw(Method::GET, collection, "application/json", &Value::Null).await;
            for item in list["items"].as_array().into_iter().flatten() {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                if !name.starts_with("honest") {
                    continue;
                }
                let path = format!("{collection}/{name}");
                let free = json!({ "metadata": { "finalizers": null } });
                self.raw(Method::PATCH, &path, "application/merge-patch+json", &free).await;
                let now = json!({ "gracePeriodSeconds": 0 });
                self.raw(Method::DELETE, &path, "application/json", &now).await;
            }
        }
    }
}

/// Gives a new Node the taint that the real server's admission gives it (`TaintNodesByCondition`), which the one in memory
/// does not serve: a PUT without it is a change then.
fn add_admitted(node: &mut Value) {
    let taint = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" });
    match &mut node["spec"]["taints"] {
        Value::Array(taints) => taints.push(taint),
        taints => *taints = json!([taint]),
    }
}

/// Names of all pages: pages differ in length where other objects stand between ours.
fn names_of(pages: &[Value]) -> Vec<Value> {
    pages.iter().flat_map(|page| page["names"].as_array().cloned().unwrap_or_default()).collect()
}

fn options(grace: Option<i64>, (uid, version): (&Option<String>, &Option<String>)) -> Value {
    let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
    if let Some(grace) = grace {
        options["gracePeriodSeconds"] = json!(grace);
    }
    for (field, value) in [("uid", uid), ("resourceVersion", version)] {
        if let Some(value) = value {
            options["preconditions"][field] = json!(value);
        }
    }
    options
}

/// The part of an answer in which both servers must agree. Messages, defaults of specs, times and identifiers are not.
fn shared(code: u16, answer: &Value) -> Value {
    if answer["kind"] == "Status" {
        let causes = answer["details"]["causes"].as_array().into_iter().flatten();
        let mut causes: Vec<Value> =
            causes.map(|cause| json!({ "reason": cause["reason"], "field": cause["field"] })).collect();
        // Some kinds validate their metadata twice.
        let mut seen = Vec::new();
        causes.retain(|cause| {
            !seen.contains(cause) && {
                seen.push(cause.clone());
                true
            }
        });
        let reason = &answer["reason"];
        return json!({ "code": code, "status": answer["status"], "reason": reason, "causes": causes });
    }
    let metadata = &answer["metadata"];
    let conditions = answer["status"]["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<Value> =
        conditions.map(|one| json!({ "type": one["type"], "status": one["status"] })).collect();
    let taints = answer["spec"]["taints"].as_array().into_iter().flatten();
    let taints: Vec<&Value> =
        taints.filter(|taint| taint["key"].as_str().is_some_and(|key| key.starts_with("example"))).collect();
    json!({
        "code": code,
        "labels": metadata["labels"], "annotations": metadata["annotations"],
        "finalizers": metadata["finalizers"], "generation": metadata["generation"],
        "deleted": metadata["deletionTimestamp"].is_string(), "grace": metadata["deletionGracePeriodSeconds"],
        "data": answer["data"], "replicas": number(&answer["spec"]["replicas"]), "holder": answer["spec"]["holderIdentity"],
        "unschedulable": answer["spec"]["unschedulable"], "taints": taints, "conditions": conditions,
        "phase": answer["status"]["phase"], "replicas of the status": number(&answer["status"]["replicas"]),
        "revision": number(&answer["revision"]), "attached": answer["status"]["attached"] == true,
        "allowed": number(&answer["status"]["disruptionsAllowed"]),
    })
}

/// A number, of which some kinds leave out the zero.
fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}
