//! An API server in memory, for the simulation: a service behind `kube::Client::new`.
//!
//! Inputs: the requests of clients. Outputs: the answers and watches that kube-apiserver and etcd would give, and all
//! changes in their order. Invariants: no I/O, no thread and no clock but the given one; names and UIDs come from the
//! seed, so that the same requests in the same order have the same answers. Not served: admission, the validation of
//! specs, defaults, deletion of collections, garbage collection; server-side apply is served for Secrets alone.

mod apply;
mod eviction;
mod kinds;
mod list;
mod patch;
mod protobuf;
mod random;
mod refusal;
mod request;
mod response;
mod selector;
mod store;
mod watch;
mod write;

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, header::CONTENT_TYPE};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tower::Service;

use self::{
    kinds::{KINDS, Kind},
    list::Filter,
    patch::PatchError,
    refusal::Refusal,
    request::{ApiRequest, Form, Target},
    response::{JSON, PROTOBUF, bytes_of, encoded, json_bytes, media, refused, response, shown, success},
    store::{Key, Store},
    write::{DeleteOptions, UpdateKind},
};
pub use self::{random::Random, store::Change};

/// Characters of generated names (apimachinery, `rand.String`).
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Media type of server-side apply.
const APPLY: &str = "application/apply-patch+yaml";

/// The server. Clones share their objects.
#[derive(Clone)]
pub struct ApiServer {
    state: Arc<State>,
}

struct State {
    store: Mutex<Store>,
    random: Mutex<Random>,
    /// Objects of the store, by their version: no two have the same.
    encoded: Mutex<HashMap<(u64, Form), Bytes>>,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl ApiServer {
    /// Creates a server without objects.
    pub fn new(seed: u64, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let (store, random) = (Mutex::default(), Mutex::new(Random::new(seed)));
        let encoded = Mutex::default();
        Self { state: Arc::new(State { store, random, encoded, clock: Box::new(clock) }) }
    }

    /// All changes since the last compaction.
    pub fn changes(&self) -> Vec<Change> {
        self.store().log().to_vec()
    }

    /// Forgets all changes so far: watches from an older version end with an error event.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Revision of the last change.
    pub fn revision(&self) -> u64 {
        self.store().revision()
    }

    /// Changes after a revision; those that are compacted are missing.
    pub fn changes_since(&self, revision: u64) -> Vec<Change> {
        let store = self.store();
        let first = store.log().partition_point(|change| change.revision <= revision);
        store.log()[first..].to_vec()
    }

    /// The object of a kind, such as `leases`, with this name.
    pub fn object(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        let kind = Kind::find(group, plural)?;
        self.store().get(&(kind, store::key(kind, namespace, name))).cloned()
    }

    /// Objects of a kind, such as `nodes`, in the order of their names.
    pub fn objects(&self, group: &str, plural: &str) -> Vec<Arc<Value>> {
        let Some(kind) = Kind::find(group, plural) else { return Vec::new() };
        self.store().all(kind).map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Writes or reads one object at once, for users and controllers that a simulation models. A PATCH is a merge
    /// patch. Returns the code and the object, or the `Status` of a refusal.
    pub fn write(&self, method: Method, path: &str, body: &Value) -> (u16, Arc<Value>) {
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { JSON };
        let request =
            Request::builder().method(method).uri(path).header(CONTENT_TYPE, media).body(()).unwrap();
        let call = ApiRequest::parse(&request.into_parts().0);
        let Target::Objects { kind, namespace, name, subresource } = &call.target else {
            return (404, Arc::default());
        };
        let body = if body.is_null() { Vec::new() } else { json_bytes(body) };
        let place = (namespace.as_deref(), name.as_deref(), subresource.as_deref());
        self.act(&call, *kind, place, &body)
            .unwrap_or_else(|refusal| (refusal.code, Arc::new(refusal.status())))
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.state.store.lock()
    }

    fn random(&self) -> u64 {
        self.state.random.lock().number()
    }

    fn uid(&self) -> String {
        uuid::Uuid::from_u64_pair(self.random(), self.random()).to_string()
    }

    fn suffix(&self) -> String {
        let mut random = self.random();
        let letter = |_| {
            let at = random % ALPHABET.len() as u64;
            random /= ALPHABET.len() as u64;
            char::from(ALPHABET[usize::try_from(at).unwrap()])
        };
        (0..5).map(letter).collect()
    }

    async fn respond(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let call = ApiRequest::parse(&head);
        let body = match body.collect_bytes().await {
            Ok(body) => body,
            Err(error) => return refused(&Refusal::bad(error.to_string()), call.form),
        };
        let answer = self.answer(&call, &body);
        answer.unwrap_or_else(|refusal| refused(&refusal, call.form))
    }

    fn answer(&self, call: &ApiRequest, body: &[u8]) -> Result<Response<Body>, Refusal> {
        match &call.target {
            Target::Objects { kind, namespace, name: None, .. } if call.method == Method::GET => {
                let filter = Filter::of(call, namespace.clone())?;
                if call.has("watch") {
                    let stream = watch::start(self, *kind, filter, call)?;
                    let media = if call.form.protobuf {
                        "application/vnd.kubernetes.protobuf;stream=watch"
                    } else {
                        JSON
                    };
                    return Ok(response(200, media, Body::from_stream(stream)));
                }
                let list = self.list(*kind, &filter, call)?;
                let bytes = if call.form.protobuf { protobuf::list(&list) } else { json_bytes(&list) };
                Ok(response(200, media(call.form), bytes.into()))
            }
            Target::Objects { kind, namespace, name, subresource } => {
                let (code, object) = self.act(
                    call,
                    *kind,
                    (namespace.as_deref(), name.as_deref(), subresource.as_deref()),
                    body,
                )?;
                let is_stored = subresource.as_deref().is_none_or(|subresource| subresource == "status");
                let bytes = if is_stored && call.method == Method::GET {
                    self.encoded(&object, call.form)
                } else {
                    bytes_of(&shown(&object, call.form), call.form).into()
                };
                Ok(response(code, media(call.form), bytes.into()))
            }
            Target::Review => {
                let mut review = json_of(call, body)?;
                review["status"] = json!({ "allowed": true, "authenticated": true });
                Ok(encoded(201, &review, call.form))
            }
            Target::Other(path) if path == "/version" => {
                let version = json!({ "major": "1", "minor": "36", "gitVersion": "v1.36.3" });
                Ok(encoded(200, &version, Form::default()))
            }
            Target::Other(path) if path.starts_with("/openapi/v3/apis/kube-node.io/") => {
                Ok(response(200, JSON, DEFINITIONS.clone().into()))
            }
            Target::Other(_) => {
                Err(Refusal::new(404, "NotFound", "the server could not find the requested resource"))
            }
        }
    }

    /// Reads or writes one object.
    fn act(
        &self,
        call: &ApiRequest,
        kind: usize,
        (namespace, name, subresource): (Option<&str>, Option<&str>, Option<&str>),
        body: &[u8],
    ) -> Result<(u16, Arc<Value>), Refusal> {
        let rules = &KINDS[kind];
        let now = (self.state.clock)();
        let mut store = self.store();
        let Some(name) = name else {
            if call.method != Method::POST {
                return Err(not_allowed());
            }
            let mut object = json_of(call, body)?;
            if let Some(namespace) = namespace.filter(|_| rules.namespaced) {
                if object["metadata"]["namespace"]
                    .as_str()
                    .is_some_and(|sent| !sent.is_empty() && sent != namespace)
                {
                    let why = "the namespace of the provided object does not match the namespace sent on the request";
                    return Err(Refusal::bad(why));
                }
                object["metadata"]["namespace"] = json!(namespace);
            }
            let made = write::create(&mut store, kind, object, (self.uid(), self.suffix()), now)?;
            return Ok((201, made));
        };
        let key: Key = (kind, store::key(kind, namespace, name));
        let present = || Refusal::not_found(&write::qualified(rules), name);
        match (call.method.as_str(), subresource) {
            ("GET", Some("scale")) => Ok((200, Arc::new(scale(store.get(&key).ok_or_else(present)?)))),
            ("GET", _) => Ok((200, Arc::clone(store.get(&key).ok_or_else(present)?))),
            ("POST", Some("eviction")) => {
                let options = DeleteOptions::read(&json_of(call, body)?["deleteOptions"]);
                eviction::evict(&mut store, &key, &options, now).map(|()| (201, Arc::new(success())))
            }
            ("POST", Some("token")) => {
                let mut request = json_of(call, body)?;
                request["status"] = json!({ "token": self.uid(), "expirationTimestamp": now + jiff::SignedDuration::from_hours(1) });
                Ok((201, Arc::new(request)))
            }
            ("DELETE", None) => {
                let options = if body.is_empty() { json!({}) } else { json_of(call, body)? };
                let mut options = DeleteOptions::read(&options);
                let grace = call.text("gracePeriodSeconds").and_then(|text| text.parse().ok());
                options.grace = options.grace.or(grace);
                let (object, gone) = if options.dry_run {
                    let version = store.get(&key).map(|object| object["metadata"]["resourceVersion"].clone());
                    let (object, gone) = write::delete(&mut store.clone(), &key, &options, now)?;
                    let mut object = Value::clone(&object);
                    object["metadata"]["resourceVersion"] = version.unwrap_or_default();
                    (Arc::new(object), gone)
                } else {
                    write::delete(&mut store, &key, &options, now)?
                };
                let status = gone && !rules.returns_deleted;
                Ok((200, if status { Arc::new(success()) } else { object }))
            }
            ("PUT" | "PATCH", _) => self.update(&mut store, &key, subresource, call, body, now),
            _ => Err(not_allowed()),
        }
    }

    fn update(
        &self,
        store: &mut Store,
        key: &Key,
        subresource: Option<&str>,
        call: &ApiRequest,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(u16, Arc<Value>), Refusal> {
        let rules = &KINDS[key.0];
        let present = store.get(key).cloned();
        let name = key.1.rsplit('/').next().unwrap_or_default();
        if call.method == Method::PUT {
            let mut new = json_of(call, body)?;
            if subresource == Some("scale") {
                let present = present.ok_or_else(|| Refusal::not_found(&write::qualified(rules), name))?;
                return scaled(store, key, (&present, &new), UpdateKind::Put);
            }
            if new["metadata"]["name"].as_str().is_some_and(|sent| sent != name) {
                return Err(Refusal::bad("the name of the object does not match the name on the URL"));
            }
            if present.is_none() && rules.create_on_update && subresource.is_none() {
                if new["metadata"]["uid"].as_str().is_some_and(|uid| !uid.is_empty()) {
                    let why = "Precondition failed: UID in precondition, no UID in object meta";
                    return Err(Refusal::conflict(&write::qualified(rules), name, why));
                }
                new["metadata"]["resourceVersion"] = Value::Null;
                set_namespace(&mut new, key);
                let made = write::create(store, key.0, new, (self.uid(), self.suffix()), now)?;
                return Ok((201, made));
            }
            return write::update(store, key, subresource, new, UpdateKind::Put).map(|new| (200, new));
        }
        if call.content_type == APPLY && rules.kind == "Secret" {
            return self.apply(store, key, &parsed(body)?, now);
        }
        let Some(old) = present else { return Err(Refusal::not_found(&write::qualified(rules), name)) };
        let mut new = if subresource == Some("scale") { scale(&old) } else { Value::clone(&old) };
        match call.content_type.as_str() {
            "application/merge-patch+json" => patch::merge(&mut new, &parsed(body)?),
            "application/strategic-merge-patch+json" if !rules.is_custom() => {
                patch::strategic(&mut new, &parsed(body)?);
            }
            "application/json-patch+json" => {
                patch::json_patch(&mut new, body).map_err(|error| match error {
                    PatchError::Unreadable(why) => Refusal::bad(why),
                    PatchError::Unfit(why) => Refusal::new(422, "Invalid", why),
                })?;
            }
            other => {
                let why = format!("the body of the request was in an unknown format: {other}");
                return Err(Refusal::new(415, "UnsupportedMediaType", why));
            }
        }
        if subresource != Some("scale") {
            return write::update(store, key, subresource, new, UpdateKind::Patch).map(|new| (200, new));
        }
        scaled(store, key, (&old, &new), UpdateKind::Patch)
    }

    fn apply(
        &self,
        store: &mut Store,
        key: &Key,
        config: &Value,
        now: Timestamp,
    ) -> Result<(u16, Arc<Value>), Refusal> {
        let Some(old) = store.get(key).cloned() else {
            let mut new = config.clone();
            set_namespace(&mut new, key);
            let made = write::create(store, key.0, new, (self.uid(), self.suffix()), now)?;
            // Nobody manages a field of an object that was made of nothing, and the next apply is the first one.
            let last = if apply::sets_nothing(config) { Value::Null } else { config.clone() };
            store.own(&made, config.clone(), last);
            return Ok((201, made));
        };
        let mut new = Value::clone(&old);
        let own = apply::apply(&mut new, &store.owned(&old), config);
        let mut applied = write::update(store, key, None, new, UpdateKind::Patch)?;
        // Who owns which field is a part of the object.
        if Arc::ptr_eq(&applied, &old) && !store.is_applied(&old, config) {
            applied = store.put(key.0, Value::clone(&old));
        }
        store.own(&applied, own, config.clone());
        Ok((200, applied))
    }
}

/// `OpenAPI` document of our own kinds.
static DEFINITIONS: LazyLock<Bytes> = LazyLock::new(|| {
    let schemas: serde_json::Map<String, Value> = kube_node_api::crds()
        .iter()
        .filter_map(|crd| {
            let schema = crd.spec.versions.first()?.schema.as_ref()?.open_api_v3_schema.as_ref()?;
            Some((format!("io.kube-node.v1alpha1.{}", crd.spec.names.kind), json!(schema)))
        })
        .collect();
    json_bytes(&json!({ "openapi": "3.0.0", "components": { "schemas": schemas } })).into()
});

/// The scale of a `NodeSet`.
fn scale(set: &Value) -> Value {
    let metadata = &set["metadata"];
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": { "name": metadata["name"], "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] },
        "spec": { "replicas": set["spec"]["replicas"] },
        "status": { "replicas": set["status"]["replicas"].as_i64().unwrap_or_default(), "selector": set["status"]["selector"] },
    })
}

/// Gives a `NodeSet` the replicas of a scale, if that one is of the present version or names none. A patch may name any UID.
fn scaled(
    store: &mut Store,
    key: &Key,
    (old, scale_of): (&Value, &Value),
    origin: UpdateKind,
) -> Result<(u16, Arc<Value>), Refusal> {
    if origin == UpdateKind::Put {
        let uid = scale_of["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()).map(ToOwned::to_owned);
        write::check(
            old,
            &DeleteOptions { uid, ..DeleteOptions::default() },
            &write::qualified(&KINDS[key.0]),
        )?;
    }
    let mut new = old.clone();
    new["metadata"]["resourceVersion"] = scale_of["metadata"]["resourceVersion"].clone();
    new["spec"]["replicas"] = scale_of["spec"]["replicas"].clone();
    // Unlike the set itself, its scale may be replaced without a version.
    write::update(store, key, None, new, UpdateKind::Patch).map(|new| (200, Arc::new(scale(&new))))
}

/// The object that a request in protobuf sends; None for a kind that no client of kube-node sends so.
pub fn object_of(body: &[u8]) -> Option<Value> {
    protobuf::read(body)
}

fn json_of(call: &ApiRequest, body: &[u8]) -> Result<Value, Refusal> {
    if call.content_type != PROTOBUF {
        return parsed(body);
    }
    protobuf::read(body).ok_or_else(|| Refusal::bad("the object provided is unrecognized"))
}

fn parsed(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad(error.to_string()))
}

/// Gives an object the namespace of the request's path.
fn set_namespace(object: &mut Value, key: &Key) {
    if let Some((namespace, _)) = key.1.split_once('/') {
        object["metadata"]["namespace"] = json!(namespace);
    }
}

fn not_allowed() -> Refusal {
    Refusal::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

impl Service<Request<kube::client::Body>> for ApiServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move { Ok(server.respond(request).await) })
    }
}
