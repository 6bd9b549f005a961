//! Kubelets' endpoints of hollow nodes, as kubectl and readers of metrics use them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Instant,
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api,
    api::{LogParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, http::Request, name, phase};

/// A node of its own with a pod `test` that runs, which these annotations are about.
async fn pod_on_a_node(test: &str, annotations: Value, more: Value) -> (Fixture, Node) {
    let own = Fixture::new(&CLUSTER, test, 1, class_spec()).await;
    let node = own.settled(1).await.remove(0);
    own.pod_on(&name(&node), test, annotations, more).await;
    eventually(&format!("{test} runs"), LONG, async || {
        (phase(&own.pods.get(test).await.unwrap()) == "Running").then_some(())
    })
    .await;
    (own, node)
}

/// What kubectl says on its way out, and its exit code.
fn failed(args: &[&str]) -> (String, Option<i32>) {
    let output = CLUSTER.try_kubectl(args);
    assert!(!output.status.success(), "kubectl {args:?}");
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

/// kubectl in the background; it ends with the handle.
struct Kubectl(Child);

impl Kubectl {
    fn start(args: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_kube-node"))
            .arg("kubectl")
            .arg("--data-dir")
            .arg(&CLUSTER.dir)
            .arg("--")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("kubectl runs"))
    }

    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap)
    }
}

impl Drop for Kubectl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Address and port of a Node's kubelet.
fn endpoint(node: &Node) -> (String, i32) {
    let status = node.status.as_ref().unwrap();
    let address = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP").unwrap();
    let endpoint = status.daemon_endpoints.as_ref().unwrap().kubelet_endpoint.as_ref().unwrap();
    (address.address.clone(), endpoint.port)
}

/// A request to a kubelet directly.
fn ask(node: &Node, path: &str) -> Request {
    let (address, port) = endpoint(node);
    Request::get(format!("https://{address}:{port}{path}"))
}

/// One by the identity that kube-apiserver has for kubelets.
fn ask_as_apiserver(node: &Node, path: &str) -> Request {
    let [certificate, key] = pki("kubelet-client");
    ask(node, path).identity(&certificate, &key)
}

/// Files of an identity of the cluster.
fn pki(name: &str) -> [String; 2] {
    ["crt", "key"].map(|ending| CLUSTER.dir.join(format!("pki/{name}.{ending}")).display().to_string())
}

#[tokio::test]
async fn logs_are_those_of_a_kubelet() {
    let annotations = json!({"hollow.kube-node.io/log-line": "ready to serve", "hollow.kube-node.io/log-interval": "100ms"});
    let containers = json!({"containers": [
        {"name": "main", "image": "example.com/main:1"},
        {"name": "slow", "image": "example.com/slow:1"},
    ]});
    let (own, node) = pod_on_a_node("end-logs", annotations, containers).await;
    let logs = |more: &[&str]| CLUSTER.kubectl(&[&["logs", "end-logs", "-c", "main"], more].concat());
    let lines: Vec<String> =
        Kubectl::start(&["logs", "end-logs", "-c", "main", "-f"]).lines().take(5).collect();
    assert_eq!(lines, ["ready to serve"; 5]);
    assert_eq!(logs(&["--tail=2"]), "ready to serve\nready to serve\n");
    assert_eq!(logs(&["--limit-bytes=5"]), "ready");
    let timed = logs(&["--tail=1", "--timestamps"]);
    let (time, line) = timed.split_once(' ').unwrap();
    assert!(time.ends_with('Z') && line == "ready to serve\n", "{timed}");
    assert!(logs(&[&format!("--since-time={time}")]).lines().count() >= 1);
    assert!(logs(&["--since=1s"]).lines().count() <= 21);
    let (error, _) = failed(&["logs", "end-logs", "-c", "main", "--previous"]);
    assert!(
        error.contains("previous terminated container \"main\" in pod \"end-logs\" not found"),
        "{error}"
    );

    let annotations = json!({"hollow.kube-node.io/start-time": "10m"});
    own.pod_on(&name(&node), "end-waits", annotations, json!({})).await;
    eventually("end-waits waits", LONG, async || {
        own.pods.get("end-waits").await.unwrap().status?.container_statuses
    })
    .await;
    let (error, _) = failed(&["logs", "end-waits"]);
    let why = "container \"main\" in pod \"end-waits\" is waiting to start: ContainerCreating";
    assert!(error.contains(why), "{error}");

    // One that has ended once has a log before the one that it has now.
    let annotations = json!({"hollow.kube-node.io/run-time": "1s", "hollow.kube-node.io/log-line": "once"});
    own.pod_on(&name(&node), "end-again", annotations, json!({"restartPolicy": "Always"})).await;
    eventually("end-again has run twice", LONG, async || {
        let statuses = own.pods.get("end-again").await.unwrap().status?.container_statuses?;
        (statuses.first()?.restart_count > 0).then_some(())
    })
    .await;
    assert_eq!(CLUSTER.kubectl(&["logs", "end-again", "--previous"]), "once\n");
    // It ends with its container.
    let all: Vec<String> = Kubectl::start(&["logs", "end-again", "-f"]).lines().collect();
    assert!(!all.is_empty());
    own.clean_up().await;
}

/// More than a process serves at once.
const STREAMS: usize = 1_100;

/// A person with `pods/log` and `pods/exec` in one namespace holds all that they can get.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_opens_all_streams_leaves_those_of_others_to_them() {
    let annotations = json!({"hollow.kube-node.io/log-interval": "10s"});
    let (own, node) = pod_on_a_node("end-shares", annotations.clone(), json!({})).await;
    let tenants: Api<Namespace> = Api::all(own.client.clone());
    create(&tenants, json!({"metadata": {"name": "end-shares-tenant"}})).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(own.client.clone(), "end-shares-tenant");
    let spec = json!({
        "nodeName": name(&node), "containers": [{"name": "main", "image": "example.com/main:1"}],
        "tolerations": [{"operator": "Exists"}],
    });
    eventually("the namespace has its account", LONG, async || {
        create(&pods, json!({"metadata": {"name": "tenant", "annotations": annotations}, "spec": spec}))
            .await
            .ok()
    })
    .await;
    eventually("its pod runs", LONG, async || {
        (phase(&pods.get("tenant").await.unwrap()) == "Running").then_some(())
    })
    .await;
    let follow = LogParams { follow: true, ..LogParams::default() };
    let opened: Vec<_> = stream::iter(0..STREAMS)
        .map(|_| async { pods.log_stream("tenant", &follow).await.map_err(|error| error.to_string()) })
        .buffer_unordered(32)
        .collect()
        .await;
    let (held, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    let why = refused.into_iter().find_map(Result::err).expect("not all of them are opened");
    assert!(why.contains("namespace end-shares-tenant has "), "{why}");

    let began = Instant::now();
    assert!(own.pods.logs("end-shares", &LogParams::default()).await.unwrap().starts_with("line 0 of "));
    let (of_log, answered) = (began.elapsed(), Instant::now());
    assert_eq!(CLUSTER.kubectl(&["exec", "end-shares", "--", "echo", "here"]), "here\n");
    let of_command = answered.elapsed();
    println!(
        "{} streams are held; a log of another namespace takes {of_log:?}, a command {of_command:?}",
        held.len()
    );
    drop(held);
    delete(&tenants, "end-shares-tenant", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn commands_run_with_their_streams_and_exit_codes() {
    let annotations = json!({
        "hollow.kube-node.io/exec-exit-code": "7",
        "hollow.kube-node.io/log-line": "tick", "hollow.kube-node.io/log-interval": "100ms",
    });
    let env = json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "GREETING", "value": "hello $(POD)"}]);
    let containers = json!([{"name": "main", "image": "example.com/main:1", "env": env}]);
    let (own, _) = pod_on_a_node("end-exec", annotations, json!({"containers": containers})).await;
    let exec = |command: &[&str]| CLUSTER.kubectl(&[&["exec", "end-exec", "--"], command].concat());
    assert_eq!(exec(&["echo", "a", "b"]), "a b\n");
    assert_eq!(exec(&["printenv", "GREETING"]), "hello end-exec\n");
    assert_eq!(exec(&["sh", "-c", "hostname; sleep 0.1 && echo on"]), "end-exec\non\n");
    let (error, code) = failed(&["exec", "end-exec", "--", "sh", "-c", "exit 3"]);
    assert_eq!(code, Some(3), "{error}");
    let (error, code) = failed(&["exec", "end-exec", "--", "pg_dump"]);
    assert!(code == Some(7) && error.contains("exit code 7"), "{error}");
    // As clients before WebSockets do it.
    let mut old = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    let old = old
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
        .arg("kubectl")
        .arg("--data-dir")
        .arg(&CLUSTER.dir);
    let old = old.args(["--", "exec", "end-exec", "--", "echo", "old"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&old.stdout), "old\n", "{}", String::from_utf8_lossy(&old.stderr));

    let mut cat = Kubectl::start(&["exec", "-i", "end-exec", "--", "cat"]);
    let mut stdin = cat.0.stdin.take().unwrap();
    let mut lines = cat.lines();
    stdin.write_all(b"to and fro\n").unwrap();
    assert_eq!(lines.next().unwrap(), "to and fro");
    drop(stdin);
    assert_eq!(lines.next(), None);
    assert!(cat.0.wait().unwrap().success());

    let attached: Vec<String> = Kubectl::start(&["attach", "end-exec"]).lines().take(2).collect();
    assert_eq!(attached, ["tick"; 2]);
    let (error, _) = failed(&["exec", "end-exec", "-c", "none", "--", "true"]);
    assert!(error.contains("none"), "{error}");
    own.clean_up().await;
}

#[tokio::test]
async fn ports_lead_to_a_page_that_names_the_pod() {
    let (own, node) = pod_on_a_node("end-ports", json!({}), json!({})).await;
    let mut forward = Kubectl::start(&["port-forward", "end-ports", ":8080", "--address=127.0.0.1"]);
    // It says each connection, and would end if nobody read that.
    let mut lines = forward.lines();
    let line = lines.next().unwrap();
    let port: u16 =
        line.strip_prefix("Forwarding from 127.0.0.1:").unwrap().split(' ').next().unwrap().parse().unwrap();
    for _ in 0..3 {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let page = format!("hollow pod default/end-ports on node {}, port 8080\n", name(&node));
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with(&page), "{answer}");
    }
    own.clean_up().await;
}

#[tokio::test]
async fn what_is_used_is_told_to_whoever_may_ask() {
    let annotations = json!({"hollow.kube-node.io/cpu": "250m", "hollow.kube-node.io/memory": "64Mi"});
    let (own, node) = pod_on_a_node("end-usage", annotations, json!({})).await;
    let summary = format!("/api/v1/nodes/{}/proxy/stats/summary", name(&node));
    let summary: Value = serde_json::from_str(&CLUSTER.kubectl(&["get", "--raw", &summary])).unwrap();
    assert_eq!(summary["node"]["nodeName"], name(&node));
    let pods = summary["pods"].as_array().unwrap();
    let own_pod = pods.iter().find(|pod| pod["podRef"]["name"] == "end-usage").unwrap();
    assert_eq!(own_pod["containers"][0]["memory"]["workingSetBytes"], 64 << 20);

    // Two ServiceAccounts, one of which may read metrics.
    let may = "end-usage";
    CLUSTER.kubectl(&["create", "serviceaccount", may]);
    CLUSTER.kubectl(&["create", "serviceaccount", "end-usage-not"]);
    CLUSTER.kubectl(&["create", "clusterrole", may, "--verb=get", "--resource=nodes/metrics"]);
    CLUSTER.kubectl(&[
        "create",
        "clusterrolebinding",
        may,
        "--clusterrole=end-usage",
        "--serviceaccount=default:end-usage",
    ]);
    let token = |account| CLUSTER.kubectl(&["create", "token", account]).trim().to_owned();
    let (may, may_not) = (token(may), token("end-usage-not"));
    let counter = || {
        let (code, metrics) = ask(&node, "/metrics/resource").bearer(&may).answer().unwrap();
        assert_eq!(code, 200, "{metrics}");
        let of =
            "container_cpu_usage_seconds_total{container=\"main\",namespace=\"default\",pod=\"end-usage\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(of)).expect(&metrics).to_owned();
        let (value, millis) = line.split_once(' ').unwrap();
        (value.parse::<f64>().unwrap(), millis.parse::<f64>().unwrap() / 1_000.0)
    };
    let first = counter();
    let second = eventually("a second passes", LONG, async || {
        Some(counter()).filter(|second| second.1 - first.1 >= 1.0)
    })
    .await;
    let (used, time) = (second.0 - first.0, second.1 - first.1);
    // It is written with the milliseconds of its time.
    assert!((used / time - 0.25).abs() < 0.001, "{used} core-seconds in {time} s");
    let (code, its) = ask(&node, "/metrics").bearer(&may).answer().unwrap();
    let label = format!("kubelet_node_name{{node=\"{}\"}} 1", name(&node));
    assert!(code == 200 && its.lines().any(|line| line == label), "{its}");
    assert!(!its.contains("kube_node_"), "those of the process are nobody's but its own: {its}");
    for (path, token, code) in [
        ("/metrics/resource", Some(&*may_not), 403),
        ("/metrics/resource", None, 401),
        ("/metrics/resource", Some("wrong"), 401),
        ("/pods", Some(&may), 403),
        ("/containerLogs/default/end-usage/main", Some(&may), 403),
        ("/healthz", None, 401),
        // What is authorized is what is served.
        ("//metrics", Some(&may), 403),
        ("/run/default/end-usage/main?cmd=true", Some(&may), 403),
    ] {
        let request = ask(&node, path);
        let request = token.map_or(request.clone(), |token| request.bearer(token));
        assert_eq!(request.answer().unwrap().0, code, "{path} {token:?}");
    }
    let (_, why) = ask(&node, "/pods").bearer(&may).answer().unwrap();
    let reader = "system:serviceaccount:default:end-usage";
    assert_eq!(
        why,
        format!("Forbidden (user={reader}, verb=get, resource=nodes, subresource(s)=[pods proxy])\n")
    );

    // Certificates: one of the cluster's authority, and one of nobody's.
    let (code, pods) = ask_as_apiserver(&node, "/pods").answer().unwrap();
    assert_eq!(code, 200);
    let pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(pods["items"][0]["metadata"]["name"], "end-usage");
    for (path, method, expected) in [
        ("//metrics", "GET", (404, "404 page not found\n")),
        ("/run/default/end-usage/main?cmd=true", "GET", (405, "405: Method Not Allowed")),
        ("/run/default/end-usage/main?cmd=true", "POST", (200, "")),
        ("/configz", "GET", (501, "a hollow kubelet does not serve this\n")),
        (
            "/containerLogs/default/end-usage/main?tailLines=x",
            "GET",
            (400, r#"{"message": "Unable to decode query."}"#),
        ),
        (
            "/containerLogs/default/end-usage/main?tailLines=-1",
            "GET",
            (422, r#"{"message": "Invalid request."}"#),
        ),
        (
            "/containerLogs/default/end-usage/none",
            "GET",
            (404, "container \"none\" not found in pod \"end-usage\""),
        ),
    ] {
        let (code, answer) = ask_as_apiserver(&node, path).method(method).answer().unwrap();
        assert_eq!((code, &*answer), expected, "{path}");
    }
    let [certificate, key] = pki("front-proxy-client");
    let strange = ask(&node, "/pods").identity(&certificate, &key);
    assert_eq!(strange.answer(), None, "the authority is another one");
    CLUSTER.kubectl(&["delete", "clusterrolebinding,clusterrole", "end-usage"]);
    own.clean_up().await;
}

#[tokio::test]
async fn a_kubelet_answers_for_its_own_pods() {
    let own = Fixture::new(&CLUSTER, "end-own", 2, class_spec()).await;
    let nodes = own.settled(2).await;
    own.pod_on(&name(&nodes[0]), "end-own", json!({}), json!({})).await;
    eventually("end-own runs", LONG, async || {
        (phase(&own.pods.get("end-own").await.unwrap()) == "Running").then_some(())
    })
    .await;
    assert_ne!(endpoint(&nodes[0]).1, endpoint(&nodes[1]).1);
    let path = "/containerLogs/default/end-own/main";
    let [here, there] = [0, 1].map(|node: usize| ask_as_apiserver(&nodes[node], path).answer().unwrap());
    assert_eq!(here.0, 200, "{}", here.1);
    assert_eq!(there, (404, "pod \"end-own\" does not exist".to_owned()));
    own.clean_up().await;
}
