//! Routes of a kubelet's HTTP server, for requests that are authorized already.
//!
//! A request carries the machine ([`ServedMachine`]) and the slot of its connection as extensions. One for streams gets a permit of its
//! namespace too. An upgrade holds slot and permit for as long as its streams.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter, get, on, post},
};
use futures::StreamExt;
use http::{StatusCode, Uri, header::CONTENT_TYPE};
use kube_ext::environment;
use kube_node_cache::{Container, PodView};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Server,
    access::Refusal,
    exec::{self, SessionKind},
    log_follower::LogFollower,
    logs::LogOptions,
    port_forward,
    query::Query,
    stats::Stats,
    usage,
};
use crate::{
    pod::{
        output::{Run, container},
        patch,
    },
    served_machine::ServedMachine,
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Response to another method than those of a route.
pub const METHOD_NOT_ALLOWED: (StatusCode, &str) =
    (StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");

type Machine = Extension<Arc<ServedMachine>>;

/// Name of a path in metrics, and the subresources of the Node, one of which must be granted, as in kubelet
/// 1.36 (pkg/kubelet/server/auth.go). Both follow from the first segment.
pub fn endpoint(path: &str) -> (&'static str, &'static [&'static str]) {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (root, rest) = path.split_once('/').unwrap_or((path, ""));
    match root {
        "pods" => ("pods", &["pods", "proxy"]),
        "runningpods" => ("other", &["pods", "proxy"]),
        "healthz" => ("healthz", &["healthz", "proxy"]),
        "configz" => ("other", &["configz", "proxy"]),
        "flagz" => ("other", &["configz"]),
        "stats" => ("stats-summary", &["stats"]),
        "metrics" if rest == "resource" => ("metrics-resource", &["metrics"]),
        "metrics" => ("metrics", &["metrics"]),
        "logs" => ("other", &["log"]),
        "checkpoint" => ("other", &["checkpoint"]),
        "statusz" => ("other", &["statusz"]),
        "containerLogs" => ("containerLogs", &["proxy"]),
        "exec" => ("exec", &["proxy"]),
        "attach" => ("attach", &["proxy"]),
        "run" => ("run", &["proxy"]),
        "portForward" => ("portForward", &["proxy"]),
        _ => ("other", &["proxy"]),
    }
}

/// Router of all machines' requests.
pub fn router(server: &Arc<Server>) -> Router {
    let stream = |kind| {
        let handler = move |State(server): State<Arc<Server>>,
                            machine: Machine,
                            target: Path<Target>,
                            mut request: Request| async move {
            let pod = target.pod(&machine)?;
            request.extensions_mut().insert(Arc::new(server.streams.take(&target.namespace)?));
            exec::answer(&server.shutdown, &machine, &pod, &target.container, kind, request)
        };
        on(MethodFilter::GET.or(MethodFilter::POST), handler)
    };
    let stats = |r#type: &'static str, read: fn(&Stats<'_>) -> String| {
        get(async move |State(server): State<Arc<Server>>, Extension(machine): Machine| {
            ([(CONTENT_TYPE, r#type)], read_stats(&server, &machine, read))
        })
    };
    let (exec, attach) = (stream(SessionKind::Exec), stream(SessionKind::Attach));
    let port_forward = on(MethodFilter::GET.or(MethodFilter::POST), port_forward);
    #[expect(
        clippy::redundant_closure_for_method_calls,
        reason = "the method alone is not general over the lifetime of its type"
    )]
    let routes: [(&str, MethodRouter<Arc<Server>>); 17] = [
        ("/healthz", get("ok")),
        ("/healthz/ping", get("ok")),
        ("/healthz/log", get("ok")),
        ("/healthz/syncloop", get("ok")),
        ("/pods", get(pods)),
        ("/metrics", stats(prometheus::TEXT_FORMAT, |stats| stats.kubelet())),
        ("/metrics/resource", stats(prometheus::TEXT_FORMAT, |stats| stats.resources())),
        ("/stats/summary", stats(JSON, |stats| stats.summary().to_string())),
        ("/containerLogs/{namespace}/{pod}/{container}", get(logs)),
        ("/run/{namespace}/{pod}/{container}", post(run)),
        ("/run/{namespace}/{pod}/{uid}/{container}", post(run)),
        ("/exec/{namespace}/{pod}/{container}", exec.clone()),
        ("/exec/{namespace}/{pod}/{uid}/{container}", exec),
        ("/attach/{namespace}/{pod}/{container}", attach.clone()),
        ("/attach/{namespace}/{pod}/{uid}/{container}", attach),
        ("/portForward/{namespace}/{pod}", port_forward.clone()),
        ("/portForward/{namespace}/{pod}/{uid}", port_forward),
    ];
    // A slash at the end has no meaning; an extra one elsewhere makes another path.
    let add = |router: Router<_>, (path, handler): (&str, MethodRouter<_>)| {
        router.route(&format!("{path}/"), handler.clone()).route(path, handler)
    };
    routes
        .into_iter()
        .fold(Router::new(), add)
        .method_not_allowed_fallback(async || METHOD_NOT_ALLOWED)
        .fallback(unserved)
        .with_state(Arc::clone(server))
}

/// Answers a path that kubelets serve and hollow kubelets do not, or one that nobody serves.
async fn unserved(uri: Uri) -> (StatusCode, &'static str) {
    let path = uri.path().trim_start_matches('/');
    let segments: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').collect();
    match *segments {
        ["metrics", "cadvisor" | "probes" | "slis"]
        | ["configz" | "flagz" | "statusz" | "runningpods" | "spec" | "stats"]
        | ["checkpoint" | "logs" | "debug", ..] => {
            (StatusCode::NOT_IMPLEMENTED, "a hollow kubelet does not serve this\n")
        }
        _ => (StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// A pod and a container, as a path names them.
#[derive(Deserialize)]
struct Target {
    namespace: String,
    pod: String,
    uid: Option<String>,
    /// Empty if the path names only a pod.
    #[serde(default)]
    container: String,
}

impl Target {
    /// `namespace/name` of the pod.
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }

    /// The pod.
    fn pod(&self, machine: &ServedMachine) -> Result<Arc<PodView>, Refusal> {
        let refused = |why: &str| (StatusCode::NOT_FOUND, why.to_owned());
        let pod = machine.pod(&self.key()).ok_or_else(|| refused("pod does not exist"))?;
        match &self.uid {
            Some(uid) if **uid != *pod.uid => Err(refused("pod not found")),
            _ => Ok(pod),
        }
    }
}

async fn port_forward(
    State(server): State<Arc<Server>>,
    Extension(machine): Machine,
    Path(target): Path<Target>,
    mut request: Request,
) -> Result<Response, Refusal> {
    let pod = target.pod(&machine)?;
    request.extensions_mut().insert(Arc::new(server.streams.take(&target.namespace)?));
    port_forward::answer(&server.shutdown, &machine, &pod, request)
}

async fn run(
    State(server): State<Arc<Server>>,
    Extension(machine): Machine,
    Path(target): Path<Target>,
    uri: Uri,
) -> Result<impl IntoResponse, Refusal> {
    let pod = target.pod(&machine)?;
    let _permit = server.streams.take(&target.namespace)?;
    let query = Query::of(&uri);
    let command = query.first("cmd").unwrap_or_default().split(' ').map(ToOwned::to_owned).collect();
    let (output, code) = exec::run(&machine, &pod, &target.container, command).await?;
    if code == 0 {
        return Ok(([(CONTENT_TYPE, JSON)], output));
    }
    let output = String::from_utf8_lossy(&output);
    Err((StatusCode::INTERNAL_SERVER_ERROR, format!("command exited with {code}: {output}")))
}

async fn logs(
    State(server): State<Arc<Server>>,
    Extension(machine): Machine,
    Path(target): Path<Target>,
    uri: Uri,
) -> Result<impl IntoResponse, Refusal> {
    let now = environment::now();
    let Target { pod: pod_name, container: name, .. } = &target;
    let options = LogOptions::read(&Query::of(&uri), now).map_err(|(code, why)| (code, why.to_owned()))?;
    let none = |message: String| (StatusCode::NOT_FOUND, message);
    let pod = machine.pod(&target.key()).ok_or_else(|| none(format!("pod {pod_name:?} does not exist")))?;
    let found = container(&pod, name)
        .ok_or_else(|| none(format!("container {name:?} not found in pod {pod_name:?}")))?;
    let run = Run::logged(&pod, &found, options.previous).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let follower = LogFollower::new(&machine, &pod, &found, run, options, now);
    // A client that reads slowly holds its connection, whether it follows the log or not.
    let permit = server.streams.take(&target.namespace)?;
    let held = follower.stream().map(move |chunk| {
        let _ = &permit;
        chunk
    });
    Ok(([(CONTENT_TYPE, TEXT)], Body::from_stream(held)))
}

/// Resource usage of the machine and its pods, passed to `read`.
fn read_stats(server: &Server, machine: &ServedMachine, read: fn(&Stats<'_>) -> String) -> String {
    let now = environment::now();
    let pods = machine.pods.by_index(&machine.node);
    let defaults = &machine.settings.containers;
    let used: Vec<_> = pods.iter().filter_map(|pod| usage::of_pod(pod, defaults)).collect();
    let capacity = &machine.shape.capacity;
    let usage = usage::of_machine(capacity, machine.booted, &used);
    read(&Stats {
        node: &machine.node,
        cpu_nanos: server.machines.cpu_time(machine, usage.nano_cores, now),
        usage,
        memory: usage::memory_capacity(capacity),
        pods: &used,
        now,
    })
}

/// Pods of the machine, with the fields that the cache keeps.
async fn pods(Extension(machine): Machine) -> impl IntoResponse {
    let items = machine.pods.by_index(&machine.node).into_iter().map(|pod| {
        let mut patch: Value =
            serde_json::from_slice(&patch::patch(&pod, &pod.status, None)).unwrap_or_default();
        let mut status = patch["status"].take();
        if let Some(status) = status.as_object_mut() {
            status.remove("$setElementOrder/conditions");
        }
        let containers = |containers: &[Container]| -> Vec<Value> {
            containers.iter().map(|one| json!({ "name": *one.name, "image": one.image })).collect()
        };
        json!({
            "metadata": { "name": *pod.name, "namespace": *pod.namespace, "uid": *pod.uid },
            "spec": {
                "nodeName": *pod.node,
                "containers": containers(&pod.spec.containers),
                "initContainers": containers(&pod.spec.init_containers),
            },
            "status": status,
        })
    });
    let items: Vec<Value> = items.collect();
    let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items });
    ([(CONTENT_TYPE, JSON)], list.to_string())
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, net::Ipv4Addr};

    use axum::body::to_bytes;
    use kube::Client;
    use kube_node_api::Resources;
    use prometheus::Registry;
    use tower::{ServiceExt, service_fn};

    use jiff::Timestamp;

    use super::*;
    use crate::{
        pod::allocatable::Allocatable, served_machine::ServedMachines, server::ServerOptions, shape::Shape,
    };

    struct NoMachines;

    impl ServedMachines for NoMachines {
        fn get(&self, _: &str) -> Option<ServedMachine> {
            None
        }

        fn cpu_time(&self, _: &ServedMachine, _: u64, _: Timestamp) -> u64 {
            1
        }
    }

    fn no_client() -> Client {
        let service = service_fn(async |_: http::Request<kube::client::Body>| {
            Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        Client::new(service, "default")
    }

    fn machine() -> ServedMachine {
        let shape = Shape {
            capacity: Resources::new(),
            allocatable: Resources::new(),
            parsed: Allocatable::default(),
            kubelet_version: String::new(),
            container_runtime: String::new(),
        };
        ServedMachine {
            uid: "u".into(),
            node: "n".into(),
            shape: Arc::new(shape),
            settings: Arc::default(),
            booted: Timestamp::UNIX_EPOCH,
            pods: Arc::default(),
        }
    }

    #[tokio::test]
    async fn paths_are_a_kubelets() {
        let options = ServerOptions {
            address: Ipv4Addr::LOCALHOST.into(),
            ports: "10200-10201".parse().unwrap(),
            tls_dir: None,
        };
        let server = Server::new(no_client(), Arc::new(NoMachines), options, &Registry::new()).unwrap();
        let (router, machine) = (router(&Arc::new(server)), Arc::new(machine()));
        let (no_pod, no_page) = ("pod does not exist", "404 page not found\n");
        let (no_method, unserved) = (METHOD_NOT_ALLOWED.1, "a hollow kubelet does not serve this\n");
        for (method, path, code, expected) in [
            ("GET", "/healthz", 200, "ok"),
            ("GET", "/healthz/syncloop", 200, "ok"),
            ("GET", "/pods", 200, "PodList"),
            ("GET", "/pods/", 200, "PodList"),
            ("POST", "/pods", 405, no_method),
            ("GET", "/metrics", 200, "kubelet_node_name"),
            ("GET", "/metrics/resource", 200, "node_cpu_usage_seconds_total"),
            ("GET", "/stats/summary", 200, "nodeName"),
            ("GET", "/containerLogs/default/web/main", 404, "pod \"web\" does not exist"),
            ("GET", "/exec/default/web/main", 404, no_pod),
            ("POST", "/exec/default/web/u-1/main", 404, no_pod),
            ("PUT", "/exec/default/web/main", 405, no_method),
            ("GET", "/attach/default/web/main", 404, no_pod),
            ("POST", "/run/default/web/main", 404, no_pod),
            ("GET", "/run/default/web/main", 405, no_method),
            ("POST", "/portForward/default/web", 404, no_pod),
            ("GET", "/portForward/default/web/u-1", 404, no_pod),
            ("GET", "/logs/", 501, unserved),
            ("GET", "/configz", 501, unserved),
            ("GET", "/metrics/cadvisor", 501, unserved),
            ("GET", "/metrics/../exec/default/web/main", 404, no_page),
            ("GET", "/exec/default/web", 404, no_page),
            ("GET", "//metrics", 404, no_page),
            ("GET", "//exec/default/web/main", 404, no_page),
            ("GET", "/metrics//", 404, no_page),
            ("GET", "//", 404, no_page),
            ("GET", "/", 404, no_page),
        ] {
            let request = Request::builder().method(method).uri(path).extension(Arc::clone(&machine));
            let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(response.status(), code, "{method} {path}");
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            let body = String::from_utf8(body.to_vec()).unwrap();
            assert!(body.contains(expected), "{method} {path}: {body}");
        }
    }

    #[test]
    fn the_subresources_to_grant_are_a_kubelets() {
        for (path, name, subresources) in [
            ("/pods", "pods", &["pods", "proxy"][..]),
            ("/pods/", "pods", &["pods", "proxy"]),
            ("/podsandmore", "other", &["proxy"]),
            ("/runningpods/", "other", &["pods", "proxy"]),
            ("/healthz", "healthz", &["healthz", "proxy"]),
            ("/healthz/syncloop", "healthz", &["healthz", "proxy"]),
            ("/configz", "other", &["configz", "proxy"]),
            ("/flagz", "other", &["configz"]),
            ("/metrics", "metrics", &["metrics"]),
            ("/metrics/resource", "metrics-resource", &["metrics"]),
            ("/metrics/none", "metrics", &["metrics"]),
            ("//metrics", "other", &["proxy"]),
            ("/stats/summary", "stats-summary", &["stats"]),
            ("/logs/", "other", &["log"]),
            ("/containerLogs/default/a/b", "containerLogs", &["proxy"]),
            ("/exec/default/a/b", "exec", &["proxy"]),
            ("/", "other", &["proxy"]),
            ("", "other", &["proxy"]),
        ] {
            assert_eq!(endpoint(path), (name, subresources), "{path}");
        }
    }
}
