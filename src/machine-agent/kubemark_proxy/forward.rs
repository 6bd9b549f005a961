//! Handling of one request of kubemark: forwarded, rewritten, or answered by the proxy.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use hollow_kubelet::fault_injection::Behaviour;
use http::{
    HeaderMap, Method, Request, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    request::Parts,
};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::{
    Shared,
    condition_writer::read_node,
    headers, lines,
    refusal::{self, Refusal},
    route::{Route, route},
    state::NodeState,
};

/// Longest request, in bytes: the API server's own limit (apiserver, `MaxRequestBodyBytes`).
const REQUEST_MAX: usize = 3 << 20;
/// Longest response that is rewritten as a whole, in bytes.
const RESPONSE_MAX: usize = 4 << 20;

/// Media types of a status that kubemark writes: patches, or the whole Node.
const STATUS_FORMS: [&str; 3] =
    ["application/strategic-merge-patch+json", "application/merge-patch+json", "application/json"];

/// Handles a request.
pub async fn handle(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let Some(client) = shared.client.get() else {
        let why = "the machine has no identity yet";
        return Err(Refusal::by_proxy(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why));
    };
    let route = route(&head.method, head.uri.path(), head.uri.query(), &head.headers, &shared.node);
    let body = to_bytes(body, REQUEST_MAX).await.map_err(|_| {
        let why = format!("a request is {REQUEST_MAX} bytes long at most");
        Refusal::by_proxy(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &why)
    })?;
    let exchange = Exchange { client, shared: &shared, head, body };
    match route {
        Route::Upgrade => {
            let why = "connections are not upgraded: a kubelet needs none towards the API server";
            Err(Refusal::by_proxy(StatusCode::NOT_IMPLEMENTED, "NotImplemented", why))
        }
        Route::Register => exchange.register().await,
        Route::Status => exchange.status().await,
        Route::Lease => exchange.lease().await,
        Route::Nodes { watch } => exchange.nodes(watch).await,
        // The closest that a response comes to a cut network.
        Route::Write if exchange.is_silent() => {
            let why = "kube-node fault injection: the machine is in a silent phase, and writes nothing";
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why))
        }
        Route::Read | Route::Write => exchange.forward().await,
    }
}

/// A request under way.
struct Exchange<'a> {
    client: &'a Client,
    shared: &'a Arc<Shared>,
    head: Parts,
    body: Bytes,
}

impl Exchange<'_> {
    fn is_silent(&self) -> bool {
        self.shared.state.lock().presence(Timestamp::now()).behaviour == Behaviour::Silent
    }

    /// Handles the creation of a Node, with which a kubelet begins. The machine's Node exists before its
    /// kubelet; a missing one must not be created.
    async fn register(self) -> Result<Response, Refusal> {
        read_node(self.client, self.shared).await?;
        let message = format!("nodes {:?} already exists", self.shared.node);
        Err(Refusal::new(StatusCode::CONFLICT, "AlreadyExists", &message))
    }

    /// Handles a status that kubemark writes.
    async fn status(self) -> Result<Response, Refusal> {
        let form = content_type(&self.head.headers);
        if !STATUS_FORMS.contains(&form) {
            let why = format!(
                "{form:?} is no form of a status that it can read: start kubemark with --kube-api-content-type=application/json"
            );
            return Err(Refusal::by_proxy(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", &why));
        }
        let status: Value = serde_json::from_slice(&self.body).map_err(|error| {
            let why = format!("the status is no JSON: {error}");
            Refusal::by_proxy(StatusCode::BAD_REQUEST, "BadRequest", &why)
        })?;
        // The condition writer is notified after the write: otherwise it might write the same. The first
        // status is the boot.
        let (client, shared) = (self.client, self.shared);
        if let Some(body) = shared.change(|state| state.write_status(status, Timestamp::now())) {
            let answer = Self { body: Bytes::from(body.to_string()), ..self }.nodes(false).await;
            shared.changed.notify_one();
            return answer;
        }
        shared.changed.notify_one();
        let mut node = read_node(client, shared).await?;
        shared.change(|state| state.rewrite_read(&mut node, Timestamp::now()));
        Ok(refusal::json(StatusCode::OK, &node))
    }

    /// Handles a write of the machine's Lease. A silent machine's write is dropped, and answered as a
    /// success.
    async fn lease(self) -> Result<Response, Refusal> {
        self.shared.change(|state| state.record_heartbeat(Timestamp::now()));
        self.shared.changed.notify_one();
        if !self.is_silent() {
            return self.forward().await;
        }
        let code = match self.head.method {
            Method::DELETE => {
                let success =
                    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" });
                return Ok(refusal::json(StatusCode::OK, &success));
            }
            Method::POST => StatusCode::CREATED,
            _ => StatusCode::OK,
        };
        let mut response = (code, self.body).into_response();
        if let Some(form) = self.head.headers.get(CONTENT_TYPE) {
            response.headers_mut().insert(CONTENT_TYPE, form.clone());
        }
        Ok(response)
    }

    /// Forwards a request whose response contains Nodes, and rewrites those.
    async fn nodes(self, watch: bool) -> Result<Response, Refusal> {
        let shared = Arc::clone(self.shared);
        let own = self.head.uri.path().starts_with("/api/v1/nodes/");
        let headers = headers::of_readable_request(&self.head.headers);
        let (mut head, body) = self.send(headers).await?.into_parts();
        if own && head.status == StatusCode::NOT_FOUND {
            shared.change(NodeState::mark_deleted);
        }
        if !head.status.is_success() || content_type(&head.headers) != "application/json" {
            return Ok(Response::from_parts(head, body));
        }
        head.headers.remove(CONTENT_LENGTH);
        if watch {
            let follow = move |line: &[u8]| {
                rewritten(line, |event| shared.change(|state| state.rewrite_event(event, Timestamp::now())))
            };
            return Ok(Response::from_parts(head, lines::rewritten(body, follow)));
        }
        let whole = to_bytes(body, RESPONSE_MAX).await.map_err(|_| {
            let why = format!("the answer broke off, or is longer than {RESPONSE_MAX} bytes");
            Refusal::by_proxy(StatusCode::BAD_GATEWAY, "InternalError", &why)
        })?;
        let read =
            rewritten(&whole, |nodes| shared.change(|state| state.rewrite_read(nodes, Timestamp::now())));
        Ok(Response::from_parts(head, Body::from(read)))
    }

    /// Forwards a request and its response as they are.
    async fn forward(self) -> Result<Response, Refusal> {
        let headers = headers::of_request(&self.head.headers);
        Ok(self.send(headers).await?)
    }

    async fn send(self, headers: HeaderMap) -> kube::Result<Response> {
        let mut request = Request::new(kube::client::Body::from(self.body));
        *request.method_mut() = self.head.method;
        *request.uri_mut() = self.head.uri;
        *request.headers_mut() = headers;
        let (mut head, body) = self.client.send(request).await?.into_parts();
        head.headers = headers::of_response(&head.headers);
        Ok(Response::from_parts(head, Body::new(body)))
    }
}

/// A JSON text as changed by `change`. A text that is not JSON stays as it is.
fn rewritten(text: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice(text) else { return text.to_vec() };
    change(&mut value);
    value.to_string().into_bytes()
}

/// Media type of a body, without its parameters.
fn content_type(headers: &HeaderMap) -> &str {
    let form = headers.get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
    form.split(';').next().unwrap_or_default().trim()
}
