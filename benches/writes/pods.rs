//! The kinds of writes of pods that are compared: the status that is written once all runs.

use k8s_pb::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStatus, HostIp, Pod, PodCondition, PodIp, PodStatus,
        ResourceRequirements, VolumeMountStatus,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use serde_json::{Value, json};

use crate::{
    forms::{Call, Form, JSON, PROTOBUF, State, Tracking, put, status_of},
    objects::Kind,
    status,
};

/// Writes of pods.
pub fn pods() -> Vec<Form<Pod>> {
    let short = ("short status of a pod", State::Created);
    let whole = ("whole status of a pod", State::Created);
    vec![
        Form::of(short, "strategic patch", Tracking::On, |pod| {
            Call::strategic(status_of(pod), &json!({ "status": status::short() }))
        }),
        Form::of(whole, "strategic patch", Tracking::On, |pod| {
            Call::strategic(status_of(pod), &json!({ "status": whole_of(&pod.json) }))
        }),
        Form::of(whole, "merge patch", Tracking::On, |pod| {
            Call::merge(status_of(pod), &json!({ "status": whole_of(&pod.json) }))
        }),
        Form::of(whole, "JSON patch", Tracking::On, |pod| {
            let change = json!([
                { "op": "test", "path": "/metadata/uid", "value": pod.json["metadata"]["uid"] },
                { "op": "replace", "path": "/status", "value": whole_of(&pod.json) },
            ]);
            Call::json(status_of(pod), &change)
        }),
        Form::of(whole, "PUT, JSON", Tracking::On, |pod| {
            let mut json = pod.json.clone();
            json["status"] = whole_of(&pod.json);
            put(status_of(pod), JSON, json.to_string().into_bytes())
        }),
        Form::of(whole, "PUT, protobuf", Tracking::On, |pod| {
            let mut protobuf = pod.protobuf.clone();
            protobuf.status = Some(whole_protobuf(&pod.json));
            put(status_of(pod), PROTOBUF, protobuf.sealed())
        }),
    ]
}

fn whole_of(pod: &Value) -> Value {
    let volume = &pod["spec"]["containers"][0]["volumeMounts"][0]["name"];
    status::whole(volume.as_str().unwrap_or_default())
}

/// The same as [`whole_of`].
fn whole_protobuf(pod: &Value) -> PodStatus {
    let json = whole_of(pod);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let time = Some(Time { seconds: Some(jiff::Timestamp::now().as_second()), nanos: None });
    let amounts = |amounts: &Value| {
        let amounts = amounts.as_object().into_iter().flatten();
        amounts.map(|(name, amount)| (name.clone(), Quantity { string: text(amount) })).collect()
    };
    let resources = ResourceRequirements {
        requests: amounts(&json["resources"]["requests"]),
        ..ResourceRequirements::default()
    };
    let conditions = json["conditions"].as_array().into_iter().flatten().map(|condition| PodCondition {
        r#type: text(&condition["type"]),
        status: text(&condition["status"]),
        observed_generation: condition["observedGeneration"].as_i64(),
        last_transition_time: time,
        ..PodCondition::default()
    });
    let of = &json["containerStatuses"][0];
    let mount = &of["volumeMounts"][0];
    let container = ContainerStatus {
        name: text(&of["name"]),
        image: text(&of["image"]),
        image_id: text(&of["imageID"]),
        container_id: text(&of["containerID"]),
        ready: Some(true),
        started: Some(true),
        restart_count: Some(0),
        state: Some(ContainerState {
            running: Some(ContainerStateRunning { started_at: time }),
            ..ContainerState::default()
        }),
        last_state: Some(ContainerState::default()),
        allocated_resources: amounts(&of["allocatedResources"]),
        resources: Some(resources.clone()),
        volume_mounts: vec![VolumeMountStatus {
            name: text(&mount["name"]),
            mount_path: text(&mount["mountPath"]),
            read_only: Some(true),
            recursive_read_only: text(&mount["recursiveReadOnly"]),
        }],
        ..ContainerStatus::default()
    };
    PodStatus {
        phase: text(&json["phase"]),
        observed_generation: json["observedGeneration"].as_i64(),
        start_time: time,
        host_ip: text(&json["hostIP"]),
        host_ips: vec![HostIp { ip: text(&json["hostIP"]) }],
        pod_ip: text(&json["podIP"]),
        pod_ips: vec![PodIp { ip: text(&json["podIP"]) }],
        conditions: conditions.collect(),
        container_statuses: vec![container],
        allocated_resources: amounts(&json["allocatedResources"]),
        resources: Some(resources),
        ..PodStatus::default()
    }
}
