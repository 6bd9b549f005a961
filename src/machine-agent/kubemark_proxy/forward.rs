//! Handling of one request of kubemark: forwarded, rewritten, or answered by the proxy.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::State as Part,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, Method, Request, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    request::Parts,
};
use jiff::Timestamp;
use kube::{Client, client::Body as Sent};
use kube_node_planner::fault_injection::Behaviour;
use serde_json::Value;

use super::{
    Gone, Shared, answer,
    condition_writer::{self, LookError},
    headers, lines,
    route::{Route, route},
    state::Said,
};

/// Longest request, in bytes: the API server's own limit (apiserver, `MaxRequestBodyBytes`).
const REQUEST_MAX: usize = 3 << 20;
/// Longest response that is rewritten as a whole, in bytes.
const ANSWER_MAX: usize = 4 << 20;

/// Handles a request.
pub async fn handle(Part(shared): Part<Arc<Shared>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let Some(client) = shared.client.get() else {
        let why = "kube-node kubemark-proxy: the machine has no identity yet";
        return answer::refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why);
    };
    let route = route(&head.method, head.uri.path(), head.uri.query(), &head.headers, &shared.node);
    let Ok(body) = to_bytes(body, REQUEST_MAX).await else {
        let why = format!("kube-node kubemark-proxy: a request is {REQUEST_MAX} bytes long at most");
        return answer::refusal(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &why);
    };
    let exchange = Exchange { client, shared: &shared, head, body };
    exchange.answer(route).await.unwrap_or_else(IntoResponse::into_response)
}

/// Reason for a response that is not the API server's.
enum Refusal {
    Unreachable(Box<kube::Error>),
    Gone(Gone),
    /// A response of the proxy itself.
    Own(Response),
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        Self::Unreachable(Box::new(error))
    }
}

impl From<LookError> for Refusal {
    fn from(error: LookError) -> Self {
        match error {
            LookError::Gone(gone) => Self::Gone(gone),
            LookError::Kube(error) => Self::Unreachable(error),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Unreachable(error) => match *error {
                kube::Error::Api(status) => {
                    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY);
                    answer::refusal(code, &status.reason, &status.message)
                }
                error => answer::unreachable(&error),
            },
            Self::Gone(gone) => answer::refusal(StatusCode::FORBIDDEN, "Forbidden", &gone.to_string()),
            Self::Own(response) => response,
        }
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
    async fn answer(self, route: Route) -> Result<Response, Refusal> {
        match route {
            Route::Upgrade => Err(not_implemented()),
            Route::Register => self.register().await,
            Route::Status => self.status().await,
            Route::Lease => self.lease().await,
            Route::Nodes { watch } => self.nodes(watch).await,
            Route::Write if self.is_silent() => Err(silent()),
            Route::Read | Route::Write => self.forward().await,
        }
    }

    fn is_silent(&self) -> bool {
        self.shared.state().look(Timestamp::now()).behaviour == Behaviour::Silent
    }

    /// Handles the creation of a Node, with which a kubelet begins. The machine's Node exists before its
    /// kubelet; a missing one must not be created.
    async fn register(self) -> Result<Response, Refusal> {
        condition_writer::look(self.client, self.shared).await?;
        let why = format!("nodes {:?} already exists", self.shared.node);
        Ok(answer::refusal(StatusCode::CONFLICT, "AlreadyExists", &why))
    }

    /// Handles a status that kubemark writes.
    async fn status(self) -> Result<Response, Refusal> {
        let said: Value = match content_type(&self.head.headers) {
            "application/strategic-merge-patch+json"
            | "application/merge-patch+json"
            | "application/json" => serde_json::from_slice(&self.body).map_err(|error| {
                let why = format!("kube-node kubemark-proxy: the status is no JSON: {error}");
                Refusal::Own(answer::refusal(StatusCode::BAD_REQUEST, "BadRequest", &why))
            })?,
            other => {
                let why = format!(
                    "kube-node kubemark-proxy: {other:?} is no form of a status that it can read: start kubemark with --kube-api-content-type=application/json"
                );
                return Err(Refusal::Own(answer::refusal(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "UnsupportedMediaType",
                    &why,
                )));
            }
        };
        // The condition writer is notified after the write: otherwise it might write the same. The first
        // status is the boot.
        match self.shared.change(|state| state.says(said, Timestamp::now())) {
            Said::Goes(body) => {
                let shared = Arc::clone(self.shared);
                let readable = Self { body: Bytes::from(body.to_string()), ..self };
                let answer = readable.nodes(false).await;
                shared.news.notify_one();
                answer
            }
            Said::Stays => {
                self.shared.news.notify_one();
                let mut node = condition_writer::look(self.client, self.shared).await?;
                self.shared.change(|state| state.reads(&mut node, Timestamp::now()));
                Ok(answer::json(StatusCode::OK, &node))
            }
        }
    }

    /// Handles a write of the machine's Lease. A silent machine's write is dropped, and answered as a
    /// success.
    async fn lease(self) -> Result<Response, Refusal> {
        self.shared.change(|state| state.heard(Timestamp::now()));
        self.shared.news.notify_one();
        if !self.is_silent() {
            return self.forward().await;
        }
        let code = match self.head.method {
            Method::DELETE => return Ok(answer::success()),
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
        let own = self.head.uri.path().strip_prefix("/api/v1/nodes/").is_some();
        let headers = headers::of_readable_request(&self.head.headers);
        let (mut head, body) = self.send(headers).await?.into_parts();
        head.headers = headers::of_answer(&head.headers);
        if own && head.status == StatusCode::NOT_FOUND {
            shared.change(super::state::State::is_missing);
        }
        let body = Body::new(body);
        if !head.status.is_success() || content_type(&head.headers) != "application/json" {
            return Ok(Response::from_parts(head, body));
        }
        head.headers.remove(CONTENT_LENGTH);
        if watch {
            let follow = move |line: Vec<u8>| {
                rewritten(&line, |event| shared.change(|state| state.follows(event, Timestamp::now())))
                    .unwrap_or(line)
            };
            return Ok(Response::from_parts(head, lines::rewritten(body, follow)));
        }
        let Ok(whole) = to_bytes(body, ANSWER_MAX).await else {
            let why = format!(
                "kube-node kubemark-proxy: the answer broke off, or is longer than {ANSWER_MAX} bytes"
            );
            return Err(Refusal::Own(answer::refusal(StatusCode::BAD_GATEWAY, "InternalError", &why)));
        };
        let read = rewritten(&whole, |nodes| shared.change(|state| state.reads(nodes, Timestamp::now())));
        Ok(Response::from_parts(head, read.map_or(Body::from(whole), Body::from)))
    }

    /// Forwards a request and its response as they are.
    async fn forward(self) -> Result<Response, Refusal> {
        let headers = headers::of_request(&self.head.headers);
        let (mut head, body) = self.send(headers).await?.into_parts();
        head.headers = headers::of_answer(&head.headers);
        Ok(Response::from_parts(head, Body::new(body)))
    }

    async fn send(self, headers: HeaderMap) -> Result<http::Response<Sent>, kube::Error> {
        let path = self.head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let mut request = Request::builder()
            .method(self.head.method)
            .uri(path)
            .body(Sent::from(self.body))
            .map_err(kube::Error::HttpError)?;
        *request.headers_mut() = headers;
        self.client.send(request).await
    }
}

/// A JSON text as changed by `change`, with its final newline; None if the text is not JSON.
fn rewritten(text: &[u8], change: impl FnOnce(&mut Value)) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    change(&mut value);
    let mut text_of_it = value.to_string().into_bytes();
    if text.ends_with(b"\n") {
        text_of_it.push(b'\n');
    }
    Some(text_of_it)
}

/// Media type of a body, without its parameters.
fn content_type(headers: &HeaderMap) -> &str {
    let form = headers.get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
    form.split(';').next().unwrap_or_default().trim()
}

fn not_implemented() -> Refusal {
    let why =
        "kube-node kubemark-proxy: connections are not upgraded: a kubelet needs none towards the API server";
    Refusal::Own(answer::refusal(StatusCode::NOT_IMPLEMENTED, "NotImplemented", why))
}

/// Refusal of a silent machine's request: the closest that a response comes to a cut network.
fn silent() -> Refusal {
    let why = "kube-node fault injection: the machine is in a silent phase, and writes nothing";
    Refusal::Own(answer::refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why))
}
