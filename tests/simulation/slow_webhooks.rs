//! Slow admission webhooks and heartbeats: what they concern is late or nothing, and everything else is as quick as without.
//!
//! Each test compares times of one run, on paused time: machines and their load do not matter.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube_ext::environment::{self, Environment, within};
use kube_node_api::names::LABEL_REVISION;
use kube_node_controllers::autoscaler::InProcess;
use kube_node_testing::{api_server::ApiServer, simulated_time::SimulatedTime};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::{
    actions::CLASSES,
    objects::name,
    process::{NAMESPACE, options},
    reconciliations,
};

/// Enough for all Nodes of a test.
const CIDRS: &str = "10.0.0.0/8";
const SETS: &str = "/apis/kube-node.io/v1alpha1/nodesets";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// Time of a usual request.
const WAY: Duration = Duration::from_millis(5);
/// The class of most sets.
const SMALL: &str = "/apis/kube-node.io/v1alpha1/nodeclasses/small";
/// Label of a template that changes.
const TEMPLATE_LABEL: &str = "example.com/template";
/// The operators' patches of that label.
const CHANGES_OF_TEMPLATES: IsSlow = |method, _, body| {
    let is_of_label = |text: &[u8]| text == TEMPLATE_LABEL.as_bytes();
    *method == Method::PATCH && body.windows(TEMPLATE_LABEL.len()).any(is_of_label)
};
/// Slower by this factor than alone, and a set counts as held up.
const SLOWER: f64 = 1.5;

/// Most writes of Nodes by eight sets at once: each begins with its share of 64 beside those before it, and one share is left.
const MOST_WRITES: usize = 64 / 2 + 64 / 3 + 64 / 4 + 64 / 5 + 64 / 6 + 64 / 7 + 64 / 8 + 64 / 9;

/// Returns true if a slow webhook sees this request; by method, path and body.
type IsSlow = fn(&Method, &str, &[u8]) -> bool;

/// The way to an API server some of whose requests are seen by a webhook that takes long.
#[derive(Clone)]
struct Webhooks {
    server: ApiServer,
    is_slow: IsSlow,
    takes: Duration,
    calls: Arc<Calls>,
}

/// Calls of the webhook.
#[derive(Default)]
struct Calls {
    active: AtomicUsize,
    /// Most of them at once.
    most: AtomicUsize,
}

impl Calls {
    async fn call(&self, takes: Duration) {
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(active, Ordering::Relaxed);
        sleep(takes).await;
        self.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service<Request<kube::client::Body>> for Webhooks {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let Self { mut server, is_slow, takes, calls } = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            sleep(WAY).await;
            if is_slow(&head.method, head.uri.path(), &body) {
                calls.call(takes).await;
            }
            server.call(Request::from_parts(head, kube::client::Body::from(body.to_vec()))).await
        })
    }
}

/// Runs an operator behind webhooks, and its users until they end.
fn simulate(is_slow: IsSlow, takes: Duration, users: impl AsyncFnOnce(&Users)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // From the beginning.
    reconciliations::count();
    runtime.block_on(async {
        let time: Arc<dyn Environment> = Arc::new(SimulatedTime::new(0));
        let run = async {
            let server = ApiServer::new(0, environment::now);
            let calls = Arc::<Calls>::default();
            let users_of = Users(server.clone(), Arc::clone(&calls));
            for name in ["kube-system", "kube-node-lease", NAMESPACE, "kubemark", "default"] {
                users_of.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}));
            }
            let spec = json!({"nodeController": "hollow", "capacity": {"cpu": "4", "pods": "110"}});
            users_of.create(CLASSES, &json!({"metadata": {"name": "small"}, "spec": spec}));
            let client = Client::new(Webhooks { server, is_slow, takes, calls }, "default");
            let mut options = options(client, "operator".to_owned(), InProcess::default(), CIDRS);
            options.election = None;
            options.max_machines = 10_000;
            let stop = CancellationToken::new();
            let mut operator = pin!(kube_node_operator::run(options, stop));
            tokio::select! {
                biased;
                ended = &mut operator => panic!("the operator ended by itself: {ended:?}"),
                () = users(&users_of) => {}
            }
        };
        Box::pin(within(time, run)).await;
    });
}

/// Users, at the API server without webhooks, and the calls of the webhooks.
struct Users(ApiServer, Arc<Calls>);

impl Users {
    fn create(&self, path: &str, object: &Value) {
        let (code, answer) = self.0.write(Method::POST, path, object);
        assert_eq!(code, 201, "{answer}");
    }

    fn create_set(&self, name: &str, replicas: usize) {
        self.create_set_of("small", name, replicas);
    }

    fn create_set_of(&self, class: &str, name: &str, replicas: usize) {
        let spec = json!({"nodeClassName": class, "replicas": replicas});
        self.create(SETS, &json!({"metadata": {"name": name}, "spec": spec}));
    }

    /// Gives the class a template that its Nodes do not have yet.
    fn change_template(&self) {
        self.patch(SMALL, &json!({"spec": {"template": {"labels": {TEMPLATE_LABEL: "changed"}}}}));
    }

    fn patch(&self, path: &str, change: &Value) {
        let (code, answer) = self.0.write(Method::PATCH, path, change);
        assert_eq!(code, 200, "{answer}");
    }

    /// Most calls of the webhooks at once so far.
    fn most_calls(&self) -> usize {
        self.1.most.load(Ordering::Relaxed)
    }

    /// The Nodes of a set.
    fn nodes(&self, set: &str) -> Vec<Arc<Value>> {
        let mut nodes = self.0.objects("", "nodes");
        nodes.retain(|node| node["metadata"]["labels"]["kube-node.io/nodeset"] == set);
        nodes
    }

    fn names(&self, set: &str) -> BTreeSet<String> {
        self.nodes(set).iter().map(|node| name(node)).collect()
    }

    /// Waits until a set has so many Nodes, which all take pods.
    async fn settled(&self, set: &str, count: usize) {
        let settled = async {
            loop {
                let nodes = self.nodes(set);
                if nodes.len() == count && nodes.iter().all(|node| takes_pods(node)) {
                    return;
                }
                sleep(WAY).await;
            }
        };
        timeout(Duration::from_mins(20), settled).await.unwrap();
    }

    fn scale(&self, set: &str, replicas: usize) {
        self.patch(&format!("{SETS}/{set}"), &json!({"spec": {"replicas": replicas}}));
    }

    /// Scales a set, and returns how long it takes until all of its Nodes take pods.
    async fn scaled(&self, set: &str, replicas: usize) -> Duration {
        let begin = Instant::now();
        self.scale(set, replicas);
        self.settled(set, replicas).await;
        begin.elapsed()
    }
}

fn takes_pods(node: &Value) -> bool {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
        && node["metadata"]["deletionTimestamp"].is_null()
}

fn is_as_quick(alone: Duration, beside: Duration) {
    println!("alone {alone:?}, beside slow calls {beside:?}");
    // The interval between two reconciliations of a set is no more than chance.
    let alone = alone.max(Duration::from_secs(1));
    assert!(beside <= alone.mul_f64(SLOWER), "alone {alone:?}, beside slow calls {beside:?}");
}

#[test]
fn drains_behind_a_slow_webhook_hold_up_no_new_node() {
    let evictions: IsSlow = |_, path, _| path.ends_with("/eviction");
    simulate(evictions, Duration::from_secs(10), async |users| {
        users.create_set("leaving", 40);
        users.create_set("new", 0);
        users.settled("leaving", 40).await;
        for (number, node) in users.nodes("leaving").iter().enumerate() {
            for pod in 0..10 {
                let spec = json!({"nodeName": node["metadata"]["name"], "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "example.com/main:1"}]});
                users.create(
                    PODS,
                    &json!({"metadata": {"name": format!("pod-{number}-{pod}")}, "spec": spec}),
                );
            }
        }
        sleep(Duration::from_secs(5)).await;
        let alone = users.scaled("new", 20).await;
        users.scaled("new", 0).await;
        users.scale("leaving", 0);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(users.nodes("leaving").len(), 40, "all of them are being drained");
        is_as_quick(alone, users.scaled("new", 20).await);
        users.settled("leaving", 0).await;
    });
}

#[test]
fn a_provider_behind_a_slow_webhook_holds_up_no_node_of_another() {
    let of_machines: IsSlow =
        |method, path, _| *method != Method::GET && path.starts_with("/api/v1/namespaces/kubemark/");
    simulate(of_machines, Duration::from_secs(25), async |users| {
        let spec = json!({"nodeController": "kubemark", "capacity": {"cpu": "4", "pods": "110"}});
        users.create(CLASSES, &json!({"metadata": {"name": "in-pods"}, "spec": spec}));
        users.create_set_of("in-pods", "slow", 0);
        users.create_set("new", 0);
        sleep(Duration::from_secs(5)).await;
        let alone = users.scaled("new", 20).await;
        users.scaled("new", 0).await;
        users.scale("slow", 60);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(users.nodes("slow").len(), 60, "all of them wait for their machine");
        is_as_quick(alone, users.scaled("new", 20).await);
    });
}

#[test]
fn large_sets_behind_a_slow_webhook_hold_up_no_small_set() {
    let creations: IsSlow = |method, path, body| {
        *method == Method::POST && path == "/api/v1/nodes" && body.windows(6).any(|text| text == b"large-")
    };
    simulate(creations, Duration::from_secs(5), async |users| {
        users.create_set("small", 3);
        users.settled("small", 3).await;
        sleep(Duration::from_secs(5)).await;
        let alone = users.scaled("small", 5).await;
        users.scaled("small", 3).await;
        for number in 0..8 {
            users.create_set(&format!("large-{number}"), 5_000);
        }
        sleep(Duration::from_secs(8)).await;
        is_as_quick(alone, users.scaled("small", 5).await);
        let most = users.most_calls();
        assert!(most <= MOST_WRITES, "{most} creations at once");
    });
}

#[test]
fn slow_changes_of_templates_hold_up_no_new_node() {
    simulate(CHANGES_OF_TEMPLATES, Duration::from_secs(10), async |users| {
        users.create_set("growing", 3);
        users.settled("growing", 3).await;
        let alone = users.scaled("growing", 5).await;
        users.scaled("growing", 3).await;
        users.change_template();
        is_as_quick(alone, users.scaled("growing", 5).await);
    });
}

#[test]
fn no_node_is_created_for_a_rollout_that_was_called_off_during_slow_writes() {
    called_off_rollout_creates_nothing(CHANGES_OF_TEMPLATES);
}

#[test]
fn no_node_is_created_for_a_rollout_that_was_called_off_while_its_revision_was_stored() {
    called_off_rollout_creates_nothing(|_, path, body| {
        path.ends_with("/controllerrevisions") && body.windows(9).any(|text| text == br#""cpu":"8""#)
    });
}

/// Rolls a class while these requests are slow, and pins its set to the revision of its Nodes before they are answered.
fn called_off_rollout_creates_nothing(is_slow: IsSlow) {
    simulate(is_slow, Duration::from_secs(10), async |users| {
        users.create_set("pinned", 3);
        users.settled("pinned", 3).await;
        let revision = users.nodes("pinned")[0]["metadata"]["labels"][LABEL_REVISION].clone();
        users.change_template();
        users.patch(SMALL, &json!({"spec": {"capacity": {"cpu": "8"}}}));
        sleep(Duration::from_secs(2)).await;
        users.patch(&format!("{SETS}/pinned"), &json!({"spec": {"revision": revision}}));
        let pinned = Instant::now();
        let mut seen = users.names("pinned");
        while pinned.elapsed() < Duration::from_mins(1) {
            sleep(WAY).await;
            let names = users.names("pinned");
            if pinned.elapsed() > Duration::from_secs(1) {
                let new: Vec<_> = names.difference(&seen).collect();
                assert!(new.is_empty(), "{new:?} created {:?} after the set was pinned", pinned.elapsed());
            }
            seen = names;
        }
        assert_eq!(seen.len(), 3);
        assert!(users.most_calls() > 0, "the webhook is called");
    });
}

#[test]
fn heartbeats_start_no_reconciliation_of_a_set() {
    simulate(
        |_, _, _| false,
        Duration::ZERO,
        async |users| {
            users.create_set("quiet", 50);
            users.settled("quiet", 50).await;
            sleep(Duration::from_mins(1)).await;
            let before = reconciliations::of_sets();
            assert!(before > 0, "they are counted");
            for _ in 0..60 {
                sleep(Duration::from_secs(1)).await;
                for node in users.nodes("quiet") {
                    let mut conditions = node["status"]["conditions"].clone();
                    for condition in conditions.as_array_mut().unwrap() {
                        condition["lastHeartbeatTime"] =
                            json!(environment::now().strftime("%FT%TZ").to_string());
                    }
                    let path = format!("/api/v1/nodes/{}/status", node["metadata"]["name"].as_str().unwrap());
                    users.patch(&path, &json!({"status": {"conditions": conditions}}));
                }
            }
            assert_eq!(reconciliations::of_sets() - before, 0, "in a minute in which nothing changes");
        },
    );
}
