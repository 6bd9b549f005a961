//! Pods on hollow nodes live as on real ones.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, always, class_spec, create, delete, eventually, name, phase};

/// Keeps a pod that has ended, so that its last status can be read.
const KEPT: &str = "example.com/kept";

fn labelled(name: &str) -> serde_json::Value {
    let mut class = class_spec();
    class["template"] = json!({"labels": {"for": name}});
    class
}

#[tokio::test]
async fn a_deployment_runs_and_goes() {
    let own = Fixture::new(&CLUSTER, "pods-deployment", 4, labelled("pods-deployment")).await;
    own.settled(4).await;
    let deployments: Api<Deployment> = Api::default_namespaced(own.client.clone());
    create(
        &deployments,
        json!({"metadata": {"name": "pods-deployment"}, "spec": {
        "replicas": 60, "selector": {"matchLabels": {"app": "pods-deployment"}},
        "template": {"metadata": {"labels": {"app": "pods-deployment"}}, "spec": {
            "nodeSelector": {"for": "pods-deployment"},
            "initContainers": [{"name": "init", "image": "example.com/init:1"}],
            "containers": [{"name": "main", "image": "example.com/main:1"}]}}}}),
    )
    .await
    .unwrap();
    eventually("60 pods are available", LONG, async || {
        (deployments.get("pods-deployment").await.unwrap().status?.available_replicas == Some(60))
            .then_some(())
    })
    .await;
    let pods = own.pods.list(&ListParams::default().labels("app=pods-deployment")).await.unwrap().items;
    let ips: std::collections::BTreeSet<_> =
        pods.iter().map(|pod| pod.status.as_ref().unwrap().pod_ip.clone().unwrap()).collect();
    assert_eq!(ips.len(), 60, "each pod has an address of its own");
    let status = pods[0].status.clone().unwrap();
    let conditions: Vec<_> = status.conditions.unwrap().into_iter().map(|c| (c.type_, c.status)).collect();
    for wanted in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert!(conditions.contains(&(wanted.to_owned(), "True".to_owned())), "{wanted}: {conditions:?}");
    }
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.started == Some(true) && container.container_id.is_some());
    assert!(status.start_time.is_some() && status.host_ip.is_some());
    let init = &status.init_container_statuses.unwrap()[0];
    assert_eq!(init.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 0);
    delete(&deployments, "pods-deployment", PropagationPolicy::Background).await;
    eventually("all pods go", LONG, async || {
        let selector = ListParams::default().labels("app=pods-deployment");
        own.pods.list(&selector).await.unwrap().items.is_empty().then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn jobs_complete_or_fail_as_they_are_told() {
    let own = Fixture::new(&CLUSTER, "pods-job", 1, labelled("pods-job")).await;
    own.settled(1).await;
    let jobs: Api<Job> = Api::default_namespaced(own.client.clone());
    let job = |name: &str, exit_code: &str| {
        json!({"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {
            "metadata": {"annotations": {"hollow.kube-node.io/run-time": "2s", "hollow.kube-node.io/exit-code": exit_code}},
            "spec": {"restartPolicy": "Never", "nodeSelector": {"for": "pods-job"},
                     "containers": [{"name": "main", "image": "example.com/job:1"}]}}}})
    };
    create(&jobs, job("job-good", "0")).await.unwrap();
    create(&jobs, job("job-bad", "3")).await.unwrap();
    let good = eventually("the good one completes", LONG, async || {
        jobs.get("job-good").await.unwrap().status.filter(|status| status.succeeded == Some(1))
    })
    .await;
    let ran = good.completion_time.unwrap().0.duration_since(good.start_time.unwrap().0);
    assert!(ran >= jiff::SignedDuration::from_secs(2), "{ran:?}");
    eventually("the bad one fails", LONG, async || {
        (jobs.get("job-bad").await.unwrap().status?.failed == Some(1)).then_some(())
    })
    .await;
    let pods = own.pods.list(&ListParams::default().labels("job-name=job-bad")).await.unwrap().items;
    let status = pods[0].status.clone().unwrap();
    let ended = status.container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (3, Some("Error")));
    for name in ["job-good", "job-bad"] {
        delete(&jobs, name, PropagationPolicy::Background).await;
    }
    own.clean_up().await;
}

/// A Job whose pods on hollow nodes work for an hour; a finalizer keeps the last status of each pod.
fn job(name: &str, annotations: Value) -> Value {
    let ignored =
        json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    let mut annotations = annotations;
    annotations["hollow.kube-node.io/run-time"] = json!("1h");
    let template = json!({
        "metadata": {"annotations": annotations, "finalizers": [KEPT]},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "nodeSelector": {"for": "pods-drained"},
                 "containers": [{"name": "main", "image": "example.com/job:1"}]},
    });
    json!({"metadata": {"name": name}, "spec": {
        "backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": template}})
}

#[tokio::test]
async fn jobs_run_the_work_of_the_pods_of_a_drained_node_again() {
    let own = Fixture::new(&CLUSTER, "pods-drained", 1, labelled("pods-drained")).await;
    let node = name(&own.settled(1).await[0]);
    let jobs: Api<Job> = Api::default_namespaced(own.client.clone());
    // What the annotations say of a program that is told to stop, and the exit code that a kubelet reports.
    let programs = [
        ("drained-plain", json!({}), 143),
        ("drained-deaf", json!({"hollow.kube-node.io/stop-time": "1h"}), 137),
        ("drained-obeys", json!({"hollow.kube-node.io/exit-code": "143"}), 143),
    ];
    let pods_of = async |job: &str| {
        own.pods.list(&ListParams::default().labels(&format!("job-name={job}"))).await.unwrap().items
    };
    let running = async |job: &str, but: Option<&str>| {
        eventually(&format!("a pod of {job} runs"), LONG, async || {
            let pods = pods_of(job).await;
            let found = pods
                .iter()
                .filter(|pod| phase(pod) == "Running")
                .map(ResourceExt::name_any)
                .find(|name| Some(name.as_str()) != but);
            found.ok_or_else(|| {
                format!(
                    "{:?}",
                    pods.iter().map(|pod| (pod.name_any(), phase(pod).to_owned())).collect::<Vec<_>>()
                )
            })
        })
        .await
    };
    let mut first = Vec::new();
    for (job_name, annotations, _) in &programs {
        create(&jobs, job(job_name, annotations.clone())).await.unwrap();
    }
    for (job_name, ..) in &programs {
        first.push(running(job_name, None).await);
    }
    delete(&own.nodes, &node, PropagationPolicy::Background).await;
    // That of the Job's controller stays.
    let release = Patch::Json::<()>(
        serde_json::from_value(json!([
            {"op": "test", "path": "/metadata/finalizers/0", "value": KEPT},
            {"op": "remove", "path": "/metadata/finalizers/0"},
        ]))
        .unwrap(),
    );
    for ((job_name, _, code), first) in programs.iter().zip(&first) {
        let status = eventually(&format!("{first} has failed"), LONG, async || {
            let pod = own.pods.get(first).await.unwrap();
            if phase(&pod) == "Failed" { Ok(pod.status.unwrap()) } else { Err(phase(&pod).to_owned()) }
        })
        .await;
        let ended =
            status.container_statuses.as_ref().and_then(|all| all[0].state.as_ref()?.terminated.as_ref());
        assert_eq!(ended.map(|ended| ended.exit_code), Some(*code), "{job_name}");
        let conditions = status.conditions.unwrap_or_default();
        let cause = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget");
        assert_eq!(
            cause.and_then(|cause| cause.reason.as_deref()),
            Some("EvictionByEvictionAPI"),
            "{job_name}"
        );
        own.pods.patch(first, &PatchParams::default(), &release).await.unwrap();
    }
    for ((job_name, _, code), first) in programs.iter().zip(&first) {
        let second = running(job_name, Some(first)).await;
        // The work of this one is done. The annotated exit code holds for this end, too, and fails that Job.
        own.pods.patch(&second, &PatchParams::default(), &release).await.unwrap();
        let end = json!({"metadata": {"annotations": {"hollow.kube-node.io/run-time": "1s"}}});
        own.pods.patch(&second, &PatchParams::default(), &Patch::Merge(end)).await.unwrap();
        let completes = *job_name != "drained-obeys";
        let done = eventually(&format!("{job_name} ends"), LONG, async || {
            let status = jobs.get(job_name).await.unwrap().status.unwrap_or_default();
            let is_over = status.completion_time.is_some() || status.failed == Some(1);
            if is_over { Ok(status) } else { Err(status) }
        })
        .await;
        let counts = if completes { (Some(1), None) } else { (None, Some(1)) };
        assert_eq!((done.succeeded, done.failed), counts, "{job_name}, with code {code}");
        delete(&jobs, job_name, PropagationPolicy::Background).await;
    }
    own.clean_up().await;
}

#[tokio::test]
async fn a_deleted_pod_has_its_grace() {
    let own = Fixture::new(&CLUSTER, "pods-grace", 1, labelled("pods-grace")).await;
    let node = name(&own.settled(1).await[0]);
    own.pod_on(
        &node,
        "pods-grace",
        json!({"hollow.kube-node.io/stop-time": "1h"}),
        json!({"terminationGracePeriodSeconds": 4}),
    )
    .await;
    eventually("it runs", LONG, async || {
        (phase(&own.pods.get("pods-grace").await.unwrap()) == "Running").then_some(())
    })
    .await;
    delete(&own.pods, "pods-grace", PropagationPolicy::Background).await;
    always("it has its grace", Duration::from_secs(2), async || {
        own.pods.get_opt("pods-grace").await.unwrap().is_some_and(|pod| phase(&pod) == "Running")
    })
    .await;
    eventually("it is killed after that", Duration::from_secs(20), async || {
        own.pods.get_opt("pods-grace").await.unwrap().is_none().then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn what_others_wrote_about_a_pod_is_put_right() {
    let own = Fixture::new(&CLUSTER, "pods-repair", 1, labelled("pods-repair")).await;
    let node = name(&own.settled(1).await[0]);
    own.pod_on(&node, "pods-repair", json!({}), json!({})).await;
    let ready = |pod: &k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    eventually("it is Ready", LONG, async || {
        ready(&own.pods.get("pods-repair").await.unwrap()).then_some(())
    })
    .await;
    // As the node lifecycle controller does for the pods of a node that it takes for dead.
    let marked =
        json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}});
    own.pods.patch_status("pods-repair", &PatchParams::default(), &Patch::Strategic(marked)).await.unwrap();
    eventually("it is Ready again", LONG, async || {
        ready(&own.pods.get("pods-repair").await.unwrap()).then_some(())
    })
    .await;
    own.clean_up().await;
}
