//! Pods on hollow nodes live as on real ones.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job};
use kube::{
    Api,
    api::{EvictParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, always, class_spec, create, delete, eventually, name, phase};

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

#[tokio::test]
async fn a_job_runs_the_work_of_an_evicted_pod_again() {
    let own = Fixture::new(&CLUSTER, "pods-evicted", 1, labelled("pods-evicted")).await;
    own.settled(1).await;
    let jobs: Api<Job> = Api::default_namespaced(own.client.clone());
    let ignored =
        json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    let job = json!({"metadata": {"name": "job-evicted"}, "spec": {
        "backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": {
            "metadata": {"annotations": {"hollow.kube-node.io/run-time": "1h"}},
            "spec": {"restartPolicy": "Never", "nodeSelector": {"for": "pods-evicted"},
                     "containers": [{"name": "main", "image": "example.com/job:1"}]}}}});
    create(&jobs, job).await.unwrap();
    let of_job = ListParams::default().labels("job-name=job-evicted");
    let running = async |but: Option<&str>| {
        let pods = own.pods.list(&of_job).await.unwrap().items.into_iter();
        let mut running = pods.filter(|pod| phase(pod) == "Running").map(|pod| pod.metadata.name.unwrap());
        running.find(|name| Some(name.as_str()) != but)
    };
    let first = eventually("the first pod runs", LONG, async || running(None).await).await;
    own.pods.evict(&first, &EvictParams::default()).await.unwrap();
    let second = eventually("the work begins again", LONG, async || running(Some(&first)).await).await;
    // The work of this one is done.
    let end = json!({"metadata": {"annotations": {"hollow.kube-node.io/run-time": "1s"}}});
    own.pods.patch(&second, &PatchParams::default(), &Patch::Merge(end)).await.unwrap();
    let done = eventually("the job completes", LONG, async || {
        jobs.get("job-evicted").await.unwrap().status.filter(|status| status.completion_time.is_some())
    })
    .await;
    assert_eq!((done.succeeded, done.failed), (Some(1), None));
    delete(&jobs, "job-evicted", PropagationPolicy::Background).await;
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
