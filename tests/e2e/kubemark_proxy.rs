//! An upstream kubemark behind its proxy: what the cluster sees of it, and what it cannot do.

use std::{process::Command, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{Api, api::PropagationPolicy};
use serde_json::{Value, json};

use crate::{CLUSTER, kubemark::Kubemark};
use kube_node_testing::{
    Fixture, LONG, always, condition, delete, eventually,
    fault_injection::{FaultTarget, is_disrupted},
    git_version,
    http::{self, Request},
    phase,
};

#[tokio::test]
async fn it_is_the_machine_that_was_asked_for() {
    let kubemark = Kubemark::start(&CLUSTER, "kubemark-plain", &Value::Null).await;
    let node = kubemark.ready().await;
    assert_eq!(node.spec.as_ref().unwrap().provider_id.as_deref(), Some("kubemark://kubemark-plain"));
    let status = node.status.unwrap();
    let info = status.node_info.unwrap();
    assert_eq!(info.container_runtime_version, "containerd://2.1.0");
    assert_eq!(info.kubelet_version, git_version(), "what the image is");
    assert_eq!(info.boot_id.parse::<uuid::Uuid>().unwrap().get_version_num(), 7);
    let (capacity, allocatable) = (status.capacity.unwrap(), status.allocatable.unwrap());
    assert_eq!((capacity["cpu"].0.as_str(), capacity["memory"].0.as_str()), ("4", "16Gi"));
    assert_eq!((allocatable["cpu"].0.as_str(), allocatable["memory"].0.as_str()), ("3900m", "15Gi"));
    assert_eq!(allocatable["pods"].0, "110", "what nobody asked for is kubemark's own");
    assert_eq!(capacity["example.com/gpu"].0, "2", "what kubemark has no flag for");

    // It believes that all it said was written: else it would write again every ten seconds.
    // What its flags do not say, such as example.com/gpu, it sees at its second look, and says once.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let heard = |node: &Node| condition(node, "Ready").unwrap().last_heartbeat_time.clone();
    let last = heard(&kubemark.now().await);
    let leases: Api<Lease> = Api::namespaced(CLUSTER.client().await, "kube-node-lease");
    let renewed = leases.get("kubemark-plain").await.unwrap().spec.unwrap().renew_time;
    always("its Node is left alone", Duration::from_secs(22), async || heard(&kubemark.now().await) == last)
        .await;
    assert_ne!(leases.get("kubemark-plain").await.unwrap().spec.unwrap().renew_time, renewed);

    let own = Fixture::nothing(&CLUSTER, "kubemark-plain").await;
    own.pod_on("kubemark-plain", "kubemark-plain", json!({}), json!({})).await;
    eventually("its pod runs", LONG, async || {
        let pod: Pod = own.pods.get("kubemark-plain").await.unwrap();
        (phase(&pod) == "Running").then_some(())
    })
    .await;
    delete(&own.pods, "kubemark-plain", PropagationPolicy::Background).await;
    kubemark.clean_up().await;
}

#[tokio::test]
async fn what_dies_goes_on_where_it_was() {
    let failures =
        json!({"unhealthyDuration": "20s", "healthyDuration": "15s", "turnUnhealthyPeriodically": true});
    let mut kubemark = Kubemark::start(&CLUSTER, "kubemark-killed", &failures).await;
    let first = eventually("it is reported", LONG, async || {
        let node = kubemark.now().await;
        condition(&node, "Ready").filter(|ready| is_disrupted(ready))?;
        Some(node)
    })
    .await;
    let boot = |node: &Node| node.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id.clone();
    let booted = boot(&first);
    let (second, _) = booted.parse::<uuid::Uuid>().unwrap().get_timestamp().unwrap().to_unix();
    kubemark.proxy.as_mut().unwrap().kill();
    kubemark.start_proxy();
    let healthy = kubemark.ready().await;
    let since = |node| condition(node, "Ready").unwrap().last_transition_time.as_ref().unwrap().0.as_second();
    let late = since(&healthy) - i64::try_from(second).unwrap() - 20;
    assert!((0..=2).contains(&late), "the phase ended {late} s late");
    assert_eq!(boot(&healthy), booted);

    // A kubelet that starts again finds its Node and takes it on. Nobody speaks for it in between.
    kubemark.kubelet.as_mut().unwrap().kill();
    kubemark.start_kubelet();
    let sick = eventually("the next phase", LONG, async || {
        let node = kubemark.now().await;
        condition(&node, "Ready").filter(|ready| is_disrupted(ready))?;
        Some(node)
    })
    .await;
    let late = since(&sick) - i64::try_from(second).unwrap() - 35;
    assert!((0..=2).contains(&late), "the phase began {late} s late");
    assert_eq!(sick.metadata.uid, first.metadata.uid);
    assert!(kubemark.said("kubemark.log").contains("Node was previously registered"));
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(CLUSTER.client().await);
    let of_it = kube::api::ListParams::default().fields("involvedObject.name=kubemark-killed");
    let reasons: Vec<_> =
        events.list(&of_it).await.unwrap().items.into_iter().filter_map(|event| event.reason).collect();
    assert!(!reasons.contains(&"Rebooted".to_owned()), "{reasons:?}");
    kubemark.clean_up().await;
}

#[tokio::test]
async fn a_node_that_was_deleted_does_not_come_back() {
    let mut kubemark = Kubemark::start(&CLUSTER, "kubemark-gone", &Value::Null).await;
    kubemark.ready().await;
    kubemark.stage.remove("kubemark-gone").await;
    assert_eq!(kubemark.proxy_ended().await, 1);
    let gone = "error: Node kubemark-gone was deleted: this machine has nothing to do any more, and does not create it again";
    assert_eq!(kubemark.said("proxy.log").lines().last(), Some(gone), "what its pod shows");

    // Both start again, as containers do. The certificate is kept, and as good as before.
    kubemark.kubelet.as_mut().unwrap().kill();
    kubemark.start_proxy();
    kubemark.start_kubelet();
    assert_eq!(kubemark.proxy_ended().await, 1);
    assert_eq!(kubemark.said("proxy.log").lines().last(), Some(gone));
    always("no Node comes back", Duration::from_secs(5), async || {
        kubemark.stage.nodes.get_opt("kubemark-gone").await.unwrap().is_none()
    })
    .await;

    // Another Node of this name is another machine's.
    kubemark.stage.node("kubemark-gone").await;
    kubemark.start_proxy();
    assert_eq!(kubemark.proxy_ended().await, 1);
    let said = kubemark.said("proxy.log");
    assert!(said.lines().last().unwrap().contains("it was deleted and made anew"), "{said}");
    kubemark.clean_up().await;
}

#[tokio::test]
async fn whoever_is_inside_the_pod_is_the_machine_and_nobody_else() {
    let kubemark = Kubemark::start(&CLUSTER, "kubemark-inside", &Value::Null).await;
    kubemark.ready().await;
    let url = format!("http://127.0.0.1:{}/readyz", kubemark.probe_port);
    assert_eq!(http::get(url).as_deref(), Some("ok"), "kubemark may start");
    let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let post =
        |request: Request, body| request.method("POST").header("Content-Type", "application/json").body(body);
    let who = kubemark.ask("/apis/authentication.k8s.io/v1/selfsubjectreviews", |request| {
        post(request, review).bearer("x").header("Impersonate-User", "admin")
    });
    assert_eq!(who["status"]["userInfo"]["username"], "system:node:kubemark-inside", "{who}");
    let nodes = kubemark.ask("/api/v1/nodes", |request| request);
    assert_eq!(nodes["reason"], "Forbidden", "Node authorization holds: {nodes}");
    let upgraded = kubemark
        .ask("/api/v1/pods", |request| request.header("Connection", "Upgrade").header("Upgrade", "SPDY/3.1"));
    assert_eq!((&upgraded["code"], &upgraded["reason"]), (&json!(501), &json!("NotImplemented")));
    let status = "/api/v1/nodes/kubemark-inside/status";
    let refused = kubemark.ask(status, |request| {
        request.method("PUT").header("Content-Type", "application/vnd.kubernetes.protobuf").body("k8s")
    });
    assert_eq!(refused["code"], 415, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("--kube-api-content-type=application/json"));
    let refused = kubemark.ask("/api/v1/pods", |request| {
        request.method("POST").header("Content-Type", "application/json").body(vec![b'x'; (3 << 20) + 1])
    });
    assert_eq!(refused["code"], 413, "{refused}");
    let again = kubemark.ask("/api/v1/nodes", |request| post(request, "{}"));
    assert_eq!(again["reason"], "AlreadyExists", "{again}");
    kubemark.clean_up().await;
}

#[tokio::test]
async fn it_says_why_it_cannot_serve() {
    let kubemark = Kubemark::prepared("kubemark-bad", &Value::Null).await;
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        said.lines().last().unwrap_or_default().to_owned()
    };
    let proxy = |more: &[&str]| {
        let dir = kubemark.dir.to_str().unwrap();
        let args = [&["kubemark-proxy", "--machine-dir", dir, "--node", "kubemark-bad"], more].concat();
        said(Command::new(env!("CARGO_BIN_EXE_kube-node")).args(args))
    };
    assert!(proxy(&["--listen", "0.0.0.0:0"]).contains("0.0.0.0:0 is no loopback address"));
    let taken = format!("127.0.0.1:{}", CLUSTER.state()["ports"]["apiserver"]);
    assert!(proxy(&["--listen", &taken]).contains(&format!("cannot listen on {taken}")));
    let nowhere = proxy(&["--state-dir", "/proc/nowhere", "--listen", "127.0.0.1:0"]);
    assert!(nowhere.contains("it must be a folder that this user may write"), "{nowhere}");
    std::fs::remove_file(kubemark.dir.join("machine.json")).unwrap();
    assert!(said(&mut kubemark.proxy_command()).contains("machine.json: --machine-dir must name the folder"));
    kubemark.clean_up().await;
}
