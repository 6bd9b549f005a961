//! Requests to a kubelet, and their answers.

use std::sync::Arc;

use axum::body::Body;
use http::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use hyper::body::Incoming;
use jiff::Timestamp;
use kube_node_cache::PodView;
use kube_node_planner::quantity;
use serde_json::{Value, json};

use super::{
    Server,
    access::Refusal,
    connection::Caller,
    exec::{self, Kind},
    log_follower::Following,
    logs::{LogOptions, Unwanted},
    port_forward,
    route::{Query, Route, Target},
    stats::Stats,
    usage::{self, PodUsage},
};
use crate::{
    pod::{
        output::{Found, Run, container},
        patch,
    },
    served_machine::ServedMachine,
};

/// Content type of JSON.
const JSON: &str = "application/json";
/// Content type of plain text.
const TEXT: &str = "text/plain; charset=utf-8";

/// Answer with this content type.
pub fn answer_of(status: StatusCode, r#type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(r#type));
    answer
}

/// Answer in plain text.
pub fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    answer_of(status, TEXT, text.into())
}

/// Answers a request to the kubelet of a machine.
pub async fn answer(
    server: Arc<Server>,
    caller: Caller,
    seen: ServedMachine,
    request: Request<Incoming>,
) -> Response<Body> {
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    let route = Route::of(&path);
    let endpoint = route.name();
    let token = bearer(request.headers()).map(ToOwned::to_owned);
    let shown = (caller.user(Timestamp::now()), token.as_deref());
    let asked = (&method, route.subresources());
    let answer = match server.access.check(&seen.node, asked, shown, caller.address).await {
        Ok(()) if !caller.place.admit().await => {
            text(StatusCode::SERVICE_UNAVAILABLE, "too many clients of hollow kubelets: try again later")
        }
        Ok(()) => serve(&server, &caller, seen, route, request).await,
        Err(Refusal::Unauthenticated) => text(StatusCode::UNAUTHORIZED, "Unauthorized"),
        Err(Refusal::Forbidden(why)) => text(StatusCode::FORBIDDEN, why),
        Err(Refusal::Unknown(why)) => text(StatusCode::INTERNAL_SERVER_ERROR, why),
    };
    server.metrics.answered(endpoint, answer.status().as_u16());
    answer
}

/// Bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

async fn serve(
    server: &Arc<Server>,
    caller: &Caller,
    seen: ServedMachine,
    route: Route<'_>,
    request: Request<Incoming>,
) -> Response<Body> {
    let methods: &[Method] = match route {
        Route::Exec(_) | Route::Attach(_) | Route::PortForward(_) => &[Method::GET, Method::POST],
        Route::Run(_) => &[Method::POST],
        _ => &[Method::GET],
    };
    if !methods.contains(request.method()) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    let now = Timestamp::now();
    match route {
        Route::Healthz => text(StatusCode::OK, "ok"),
        Route::Pods => answer_of(StatusCode::OK, JSON, pods(&seen).to_string()),
        Route::Metrics => answer_of(
            StatusCode::OK,
            prometheus::TEXT_FORMAT,
            with_stats(server, &seen, now, |stats| Body::from(stats.kubelet())),
        ),
        Route::ResourceMetrics => answer_of(
            StatusCode::OK,
            prometheus::TEXT_FORMAT,
            with_stats(server, &seen, now, |stats| Body::from(stats.metrics())),
        ),
        Route::Summary => answer_of(
            StatusCode::OK,
            JSON,
            with_stats(server, &seen, now, |stats| stats.summary().to_string()),
        ),
        Route::Logs(target) => logs(&seen, &target, &Query::of(request.uri()), now),
        Route::Exec(target) => stream(server, caller, &seen, &target, Kind::Exec, request),
        Route::Attach(target) => stream(server, caller, &seen, &target, Kind::Attach, request),
        Route::Run(target) => run(&seen, &target, &Query::of(request.uri())).await,
        Route::PortForward(target) => match pod(&seen, &target) {
            Ok(pod) => port_forward::answer(server, caller, &seen, &pod, request),
            Err(answer) => *answer,
        },
        Route::Unserved(_) => text(StatusCode::NOT_IMPLEMENTED, "a hollow kubelet does not serve this\n"),
        Route::Unknown(_) => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// Pod of a target, or the answer that there is none.
fn pod(seen: &ServedMachine, target: &Target<'_>) -> Result<Arc<PodView>, Box<Response<Body>>> {
    let none = || Box::new(text(StatusCode::NOT_FOUND, "pod does not exist"));
    let pod = seen.pod(&target.pod).ok_or_else(none)?;
    if target.uid.is_some_and(|uid| *pod.uid != *uid) {
        return Err(Box::new(text(StatusCode::NOT_FOUND, "pod not found")));
    }
    Ok(pod)
}

/// Running container of a target, or the answer that there is none.
fn running<'a>(pod: &'a PodView, target: &Target<'_>) -> Result<Found<'a>, Box<Response<Body>>> {
    let found = container(pod, target.container);
    let runs = |found: &Found<'_>| found.view.is_some_and(|view| Run::current(view).is_some());
    found.filter(runs).ok_or_else(|| {
        let why = format!("container not found ({:?})", target.container);
        Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, why))
    })
}

fn stream(
    server: &Arc<Server>,
    caller: &Caller,
    seen: &ServedMachine,
    target: &Target<'_>,
    kind: Kind,
    request: Request<Incoming>,
) -> Response<Body> {
    let found = pod(seen, target).and_then(|pod| {
        running(&pod, target)?;
        Ok(pod)
    });
    match found {
        Ok(pod) => exec::answer(server, caller, seen, &pod, target.container, kind, request),
        Err(answer) => *answer,
    }
}

async fn run(seen: &ServedMachine, target: &Target<'_>, query: &Query<'_>) -> Response<Body> {
    let pod = match pod(seen, target) {
        Ok(pod) => pod,
        Err(answer) => return *answer,
    };
    if let Err(answer) = running(&pod, target) {
        return *answer;
    }
    let command = query.first("cmd").unwrap_or_default();
    let command = command.split(' ').map(ToOwned::to_owned).collect();
    let (said, code) = exec::run(seen, &pod, target.container, command).await;
    if code == 0 {
        answer_of(StatusCode::OK, JSON, said)
    } else {
        text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("command exited with {code}: {}", String::from_utf8_lossy(&said)),
        )
    }
}

fn logs(seen: &ServedMachine, target: &Target<'_>, query: &Query<'_>, now: Timestamp) -> Response<Body> {
    let (_, name) = target.pod.split_once('/').unwrap_or_default();
    let wanted = match LogOptions::read(query.pairs(), now) {
        Ok(wanted) => wanted,
        Err(Unwanted::Undecodable) => {
            return text(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#);
        }
        Err(Unwanted::Invalid) => {
            return text(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#);
        }
    };
    let Some(pod) = seen.pod(&target.pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist"));
    };
    let Some(found) = container(&pod, target.container) else {
        let why = format!("container {:?} not found in pod {name:?}", target.container);
        return text(StatusCode::NOT_FOUND, why);
    };
    match Run::logged(&pod, &found, wanted.previous) {
        Ok(run) => {
            let following = Following::new(seen, &pod, &found, run, wanted, now);
            answer_of(StatusCode::OK, TEXT, Body::from_stream(following.stream()))
        }
        Err(why) => text(StatusCode::BAD_REQUEST, why),
    }
}

/// Resource usage of the machine and its pods, passed to `read`.
fn with_stats<T>(
    server: &Server,
    seen: &ServedMachine,
    now: Timestamp,
    read: impl FnOnce(&Stats<'_>) -> T,
) -> T {
    let pods = seen.pods.by_index(&seen.node);
    let defaults = &seen.settings.containers;
    let used: Vec<PodUsage<'_>> = pods.iter().filter_map(|pod| usage::of_pod(pod, defaults)).collect();
    let capacity = &seen.shape.capacity;
    let memory = capacity.get("memory").and_then(|amount| quantity::nanos(amount).ok()).unwrap_or_default();
    let machine = usage::of_machine(capacity, seen.booted, &used);
    read(&Stats {
        node: &seen.node,
        counted: server.machines.cpu_time(seen, machine.nano_cores, now),
        machine,
        memory: u64::try_from(memory / 1_000_000_000).unwrap_or_default(),
        pods: &used,
        now,
    })
}

/// Pods of the machine, with the fields that the cache keeps.
fn pods(seen: &ServedMachine) -> Value {
    let items = seen.pods.by_index(&seen.node).into_iter().map(|pod| {
        let shown: Value = serde_json::from_slice(&patch::patch(&pod, &pod.status, None)).unwrap_or_default();
        let mut status = shown["status"].clone();
        if let Some(status) = status.as_object_mut() {
            status.remove("$setElementOrder/conditions");
        }
        let named = |containers: &[kube_node_cache::Container]| -> Vec<Value> {
            containers.iter().map(|one| json!({ "name": *one.name, "image": one.image })).collect()
        };
        json!({
            "metadata": { "name": *pod.name, "namespace": *pod.namespace, "uid": *pod.uid },
            "spec": {
                "nodeName": *pod.node,
                "containers": named(&pod.spec.containers),
                "initContainers": named(&pod.spec.init_containers),
            },
            "status": status,
        })
    });
    json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_follows_bearer() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc ").as_deref(), Some("abc"));
        for none in ["Basic abc", "Bearer ", "Bearer", ""] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
