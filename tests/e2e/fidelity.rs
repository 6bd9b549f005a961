//! What hollow nodes do that only a cluster shows: kubelets' refusals, back-offs, and what people are told of them.

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{
        ConfigMap, ContainerState, ContainerStateTerminated, ContainerStatus, Event, PersistentVolumeClaim,
        Pod, Secret,
    },
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, name, phase};

/// What the status of a pod says of its first container.
fn container(pod: &Pod) -> Option<ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first().cloned()
}

fn waits_for(state: Option<&ContainerState>) -> Option<&str> {
    state?.waiting.as_ref()?.reason.as_deref()
}

/// A node of its own, and its name.
async fn node_of(test: &str) -> (Fixture, String) {
    let own = Fixture::new(&CLUSTER, test, 1, class_spec()).await;
    let node = name(&own.settled(1).await[0]);
    (own, node)
}

async fn until(own: &Fixture, pod: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
    eventually(&format!("{pod} {what}"), LONG, async || own.pods.get(pod).await.ok().filter(&holds)).await
}

async fn event(own: &Fixture, pod: &str, reason: &str) -> Event {
    let of_it = ListParams::default().fields(&format!("involvedObject.name={pod},reason={reason}"));
    let events: Api<Event> = Api::default_namespaced(own.client.clone());
    eventually(&format!("{reason} of {pod}"), LONG, async || events.list(&of_it).await.unwrap().items.pop())
        .await
}

#[tokio::test]
async fn what_crashes_again_and_again_backs_off_and_people_are_told() {
    let (own, node) = node_of("true-crash").await;
    let annotations =
        json!({"hollow.kube-node.io/run-time": "1s", "hollow.kube-node.io/exit-reason": "OOMKilled"});
    own.pod_on(&node, "true-crash", annotations, json!({"restartPolicy": "Always"})).await;
    // The second wait: it is as long as the first, doubled, and 20 s do not pass by unseen.
    let pod = until(&own, "true-crash", "waits for the second time", |pod| {
        container(pod).is_some_and(|main| {
            main.restart_count == 2 && waits_for(main.state.as_ref()) == Some("CrashLoopBackOff")
        })
    })
    .await;
    let main = container(&pod).unwrap();
    let waiting = main.state.unwrap().waiting.unwrap().message.unwrap();
    assert!(
        waiting.starts_with("back-off 20s restarting failed container=main pod=true-crash_default("),
        "{waiting}"
    );
    let last = main.last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("OOMKilled")));
    assert_eq!((phase(&pod), main.ready), ("Running", false));
    let said = event(&own, "true-crash", "BackOff").await;
    assert_eq!(said.source.unwrap().host.as_deref(), Some(node.as_str()));
    assert_eq!(said.involved_object.field_path.as_deref(), Some("spec.containers{main}"));
    // Each start is the same event once more.
    let events: Api<Event> = Api::default_namespaced(own.client.clone());
    let starts = ListParams::default().fields("involvedObject.name=true-crash,reason=Started");
    eventually("three starts are counted", LONG, async || {
        let all = events.list(&starts).await.unwrap().items;
        (all.len() == 1 && all[0].count == Some(3)).then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_pod_that_does_not_fit_is_refused_as_by_a_kubelet() {
    let (own, node) = node_of("true-admit").await;
    let requests = |amounts: Value| json!({"containers": [{"name": "main", "image": "i", "resources": {"requests": amounts}}]});
    // Pods that are bound by hand: a scheduler would not have chosen this node.
    for (pod, spec, reason, message) in [
        (
            "true-admit-cpu",
            requests(json!({"cpu": "5"})),
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 3900",
        ),
        (
            "true-admit-memory",
            requests(json!({"memory": "64Gi"})),
            "OutOfmemory",
            "Pod was rejected: Node didn't have enough resource: memory, requested: 68719476736, used: 0, capacity: 16642998272",
        ),
        (
            "true-admit-label",
            json!({"nodeSelector": {"no-such": "label"}}),
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    ] {
        own.pod_on(&node, pod, json!({}), spec).await;
        let refused = until(&own, pod, "is refused", |pod| phase(pod) == "Failed").await;
        let status = refused.status.unwrap();
        assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some(reason), Some(message)));
        assert!(status.container_statuses.is_none() && status.conditions.unwrap_or_default().is_empty());
        assert_eq!(status.qos_class.is_some(), status.start_time.is_some());
        event(&own, pod, reason).await;
    }
    own.clean_up().await;
}

#[tokio::test]
async fn a_critical_pod_takes_the_place_of_another() {
    let (own, node) = node_of("true-preempt").await;
    let of_cpu = |cpu: &str| json!([{"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
    own.pod_on(&node, "true-usual", json!({}), json!({"containers": of_cpu("3")})).await;
    until(&own, "true-usual", "runs", |pod| phase(pod) == "Running").await;
    let critical = json!({"containers": of_cpu("2"), "priorityClassName": "system-node-critical"});
    own.pod_on(&node, "true-critical", json!({}), critical).await;
    let gone = until(&own, "true-usual", "makes room", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(gone.reason.as_deref(), Some("Preempting"));
    let target = gone.conditions.unwrap().into_iter().find(|condition| condition.type_ == "DisruptionTarget");
    assert_eq!(target.unwrap().reason.as_deref(), Some("TerminationByKubelet"));
    until(&own, "true-critical", "runs", |pod| phase(pod) == "Running").await;
    own.clean_up().await;
}

#[tokio::test]
async fn an_image_that_is_missing_is_waited_for() {
    let (own, node) = node_of("true-image").await;
    let annotations = json!({"hollow.kube-node.io/image-error": "not found"});
    own.pod_on(&node, "true-image", annotations, json!({})).await;
    let stuck = until(&own, "true-image", "backs off", |pod| {
        container(pod).is_some_and(|main| waits_for(main.state.as_ref()) == Some("ImagePullBackOff"))
    })
    .await;
    assert_eq!(phase(&stuck), "Pending");
    // As if somebody had pushed the image.
    let pushed = json!({"metadata": {"annotations": {"hollow.kube-node.io/image-error": null}}});
    own.pods.patch("true-image", &PatchParams::default(), &Patch::Merge(pushed)).await.unwrap();
    until(&own, "true-image", "runs", |pod| phase(pod) == "Running").await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_pod_waits_for_missing_objects_unless_they_are_optional() {
    let (own, node) = node_of("true-missing").await;
    let optional = |name: &str, optional: bool| json!({"name": name, "optional": optional});
    let with_variables = |is_optional: bool| {
        let from = json!([{"configMapRef": optional("true-missing", is_optional)}]);
        json!({"containers": [{"name": "main", "image": "i", "envFrom": from}]})
    };
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let with_volume = |source: &str, name: &str| {
        let volume = json!({"name": "data", source: {name: "true-missing"}});
        json!({"containers": [{"name": "main", "image": "i", "volumeMounts": mounts}], "volumes": [volume]})
    };
    own.pod_on(&node, "true-missing-env", json!({}), with_variables(false)).await;
    own.pod_on(&node, "true-missing-volume", json!({}), with_volume("secret", "secretName")).await;
    let with_claim = with_volume("persistentVolumeClaim", "claimName");
    own.pod_on(&node, "true-missing-claim", json!({}), with_claim).await;
    let mut with_optional = with_variables(true);
    with_optional["containers"][0]["volumeMounts"] = mounts.clone();
    let secret = json!({"secretName": "true-missing", "optional": true});
    with_optional["volumes"] = json!([{"name": "data", "secret": secret}]);
    own.pod_on(&node, "true-missing-optional", json!({}), with_optional).await;
    until(&own, "true-missing-optional", "runs", |pod| phase(pod) == "Running").await;
    let waits = |reason: &'static str| {
        move |pod: &Pod| container(pod).is_some_and(|main| waits_for(main.state.as_ref()) == Some(reason))
    };
    let held = until(&own, "true-missing-env", "waits", waits("CreateContainerConfigError")).await;
    let message = container(&held).unwrap().state.unwrap().waiting.unwrap().message;
    assert_eq!((phase(&held), message.as_deref()), ("Pending", Some("configmap \"true-missing\" not found")));
    until(&own, "true-missing-volume", "waits", waits("ContainerCreating")).await;
    let mount = event(&own, "true-missing-volume", "FailedMount").await.message.unwrap();
    assert_eq!(mount, "MountVolume.SetUp failed for volume \"data\" : secret \"true-missing\" not found");
    let mount = event(&own, "true-missing-claim", "FailedMount").await.message.unwrap();
    assert!(mount.ends_with("persistentvolumeclaims \"true-missing\" not found"), "{mount}");
    let object = || json!({"metadata": {"name": "true-missing"}});
    let maps: Api<ConfigMap> = Api::default_namespaced(own.client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(own.client.clone());
    create(&maps, object()).await.unwrap();
    create(&secrets, object()).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(own.client.clone());
    let resources = json!({"requests": {"storage": "1Gi"}});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": resources});
    create(&claims, json!({"metadata": {"name": "true-missing"}, "spec": spec})).await.unwrap();
    for pod in ["true-missing-env", "true-missing-volume", "true-missing-claim"] {
        until(&own, pod, "starts by itself", |pod| phase(pod) == "Running").await;
    }
    delete(&maps, "true-missing", PropagationPolicy::Background).await;
    delete(&secrets, "true-missing", PropagationPolicy::Background).await;
    delete(&claims, "true-missing", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_container_whose_image_changes_starts_again() {
    let (own, node) = node_of("true-update").await;
    own.pod_on(&node, "true-update", json!({}), json!({})).await;
    let before = until(&own, "true-update", "runs", |pod| phase(pod) == "Running").await;
    let change = json!({"spec": {"containers": [{"name": "main", "image": "example.com/main:2"}]}});
    own.pods.patch("true-update", &PatchParams::default(), &Patch::Strategic(change)).await.unwrap();
    let after = until(&own, "true-update", "has restarted", |pod| {
        container(pod).is_some_and(|main| main.restart_count == 1 && main.ready)
    })
    .await;
    let [before, after] = [before, after].map(|pod| container(&pod).unwrap());
    assert_eq!(after.image, "example.com/main:2");
    assert!(after.image_id != before.image_id && after.container_id != before.container_id);
    let last = after.last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.container_id), (143, before.container_id));
    let killing = event(&own, "true-update", "Killing").await.message.unwrap();
    assert_eq!(killing, "Container main definition changed, will be restarted");
    own.clean_up().await;
}

#[tokio::test]
async fn sidecars_count_as_containers_of_a_running_pod() {
    let (own, node) = node_of("true-three").await;
    let sidecar = |name: &str| json!({"name": name, "image": "i", "restartPolicy": "Always"});
    let containers = json!({"initContainers": [sidecar("proxy"), sidecar("logs")], "containers": [{"name": "main", "image": "i"}]});
    own.pod_on(&node, "true-three", json!({}), containers).await;
    eventually("kubectl counts all three", LONG, async || {
        let line = CLUSTER.kubectl(&["get", "pod", "true-three", "--no-headers"]);
        let columns: Vec<&str> = line.split_whitespace().take(3).collect();
        if columns == ["true-three", "3/3", "Running"] { Ok(()) } else { Err(line) }
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_job_with_sidecars_completes_and_one_with_a_deadline_does_not() {
    let (own, node) = node_of("true-jobs").await;
    let jobs: Api<Job> = Api::default_namespaced(own.client.clone());
    let probe = json!({"exec": {"command": ["true"]}, "initialDelaySeconds": 4, "periodSeconds": 1});
    let job = |name: &str, annotations: Value, more: Value| {
        let mut spec = json!({"nodeName": node, "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
            "initContainers": [{"name": "beside", "image": "i", "restartPolicy": "Always", "startupProbe": probe},
                               {"name": "first", "image": "i"}, {"name": "later", "image": "i", "restartPolicy": "Always"}],
            "containers": [{"name": "main", "image": "i"}]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let template = json!({"metadata": {"annotations": annotations}, "spec": spec});
        json!({"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template}})
    };
    let annotations = json!({"hollow.kube-node.io/run-time.first": "2s", "hollow.kube-node.io/stop-time.beside": "2s",
        "hollow.kube-node.io/stop-time.later": "2s"});
    create(&jobs, job("true-sidecar", annotations, json!({}))).await.unwrap();
    let forever = json!({"hollow.kube-node.io/run-time": "1h", "hollow.kube-node.io/run-time.fist": "2s"});
    create(&jobs, job("true-deadline", forever, json!({"activeDeadlineSeconds": 7}))).await.unwrap();
    eventually("the job completes", LONG, async || {
        (jobs.get("true-sidecar").await.unwrap().status?.succeeded == Some(1)).then_some(())
    })
    .await;
    let of = |job: &str| ListParams::default().labels(&format!("job-name={job}"));
    let done = own.pods.list(&of("true-sidecar")).await.unwrap().items.remove(0).status.unwrap();
    let all = done.init_container_statuses.into_iter().chain(done.container_statuses).flatten();
    let ends: Vec<_> = all.filter_map(|container| container.state?.terminated).collect();
    assert_eq!(ends.iter().map(|end| end.exit_code).collect::<Vec<_>>(), [143, 0, 143, 0], "{ends:?}");
    let [beside, first, later, main] = [0, 1, 2, 3].map(|at| &ends[at]);
    let began = |end: &ContainerStateTerminated| end.started_at.as_ref().unwrap().0;
    let ended = |end: &ContainerStateTerminated| end.finished_at.as_ref().unwrap().0;
    let two_seconds = jiff::SignedDuration::from_secs(2);
    assert_eq!(ended(first).duration_since(began(first)), two_seconds);
    let probed = began(first).duration_since(began(beside));
    assert!(
        probed >= 2 * two_seconds,
        "the container after a sidecar waits for its startup probe: {probed:?}"
    );
    assert!(
        began(later) >= ended(first) && began(main) >= ended(first),
        "containers start one after another"
    );
    let stopped = [ended(later).duration_since(ended(main)), ended(beside).duration_since(ended(later))];
    assert_eq!(stopped, [two_seconds; 2], "sidecars stop one after another, the last one first");
    eventually("the other one is given up", LONG, async || {
        (jobs.get("true-deadline").await.unwrap().status?.failed == Some(1)).then_some(())
    })
    .await;
    let late = own.pods.list(&of("true-deadline")).await.unwrap().items.remove(0);
    assert_eq!(late.status.as_ref().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    let mistake = event(&own, &late.metadata.name.unwrap(), "InvalidAnnotation").await.message.unwrap();
    assert!(mistake.contains("run-time.fist") && mistake.contains("no container \"fist\""), "{mistake}");
    for name in ["true-sidecar", "true-deadline"] {
        delete(&jobs, name, PropagationPolicy::Background).await;
    }
    own.clean_up().await;
}
