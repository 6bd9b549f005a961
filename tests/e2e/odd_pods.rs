//! Pods that an API server takes and few clients can read.

use http::{
    Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use k8s_pb::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::client::Body;
use kube_ext::transport::envelope;
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, eventually, name, phase};

/// In the place of which there are bytes that are not UTF-8.
const PLACE: &str = "\u{e000}\u{e001}";

/// Creates a pod on a Node whose annotations and message are no text. JSON could not say it; protobuf does.
async fn create(own: &Fixture, pod: &str, node: &str) {
    let annotations = [("example.com/odd", PLACE), ("hollow.kube-node.io/stop-time", "1s")];
    let object = Pod {
        metadata: Some(ObjectMeta {
            name: Some(pod.to_owned()),
            annotations: annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            containers: vec![Container {
                name: Some("a".to_owned()),
                image: Some("registry.k8s.io/pause:3.10".to_owned()),
                working_dir: Some(PLACE.to_owned()),
                ..Container::default()
            }],
            node_name: Some(node.to_owned()),
            ..PodSpec::default()
        }),
        status: None,
    };
    let mut bytes = envelope("v1", "Pod", &object);
    let place = PLACE.as_bytes();
    let mut replaced = 0;
    while let Some(at) = bytes.windows(place.len()).position(|part| part == place) {
        bytes[at..at + place.len()].fill(0xff);
        replaced += 1;
    }
    assert_eq!(replaced, 2);
    // The ServiceAccount of a namespace comes a little after it.
    eventually("the pod is taken", LONG, async || {
        let request = Request::post("/api/v1/namespaces/default/pods")
            .header(CONTENT_TYPE, "application/vnd.kubernetes.protobuf")
            .header(ACCEPT, "application/json")
            .body(Body::from(bytes.clone()))
            .unwrap();
        own.client.send(request).await.unwrap().status().is_success().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_is_no_text_runs_and_holds_no_drain_up() {
    let own = Fixture::without_set(&CLUSTER, "odd-pods", class_spec()).await;
    own.create_set(1, json!({"drain": {"timeout": "30s"}})).await;
    let node = name(&own.settled(1).await[0]);
    create(&own, "odd", &node).await;
    eventually("it runs", LONG, async || {
        (phase(&own.pods.get("odd").await.unwrap()) == "Running").then_some(())
    })
    .await;
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    own.settled(0).await;
    assert!(own.pods.get_opt("odd").await.unwrap().is_none());
    own.clean_up().await;
}
