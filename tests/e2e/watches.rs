//! Watches in protobuf, against the API server.

use std::convert::Infallible;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, api::PropagationPolicy};
use kube_ext::{
    transport::{self, Body},
    watch::{self, InitialList, WatchEvent, WatchRequest},
};
use kube_node_cache::{NodeView, PodView, Protobuf, ProtobufNode, ProtobufPod};
use prost::Message;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, phase};

/// One object as it is read from each of its forms.
async fn both<T: Message + Default + DeserializeOwned>(client: &Client, path: &str) -> [T; 2] {
    let request = http::Request::get(path).body(vec![]).unwrap();
    let json = client.request::<T>(request).await.unwrap();
    let protobuf = transport::send::<T>(client, None, http::Method::GET, path, Body::None).await.unwrap();
    [json, protobuf]
}

#[tokio::test]
async fn both_forms_of_a_node_and_of_a_pod_say_the_same() {
    let mut class = class_spec();
    class["template"] = json!({"labels": {"for": "forms"}, "annotations": {"a": "b"},
        "taints": [{"key": "k", "value": "v", "effect": "PreferNoSchedule"}, {"key": "l", "effect": "PreferNoSchedule"}]});
    let own = Fixture::new(&CLUSTER, "forms", 1, class).await;
    let node = own.settled(1).await.remove(0);
    let node = node.metadata.name.unwrap();
    let probe = json!({"initialDelaySeconds": 1, "periodSeconds": 2, "successThreshold": 2, "exec": {"command": ["true"]}});
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    let terms = json!([{"matchExpressions": [{"key": "for", "operator": "In", "values": ["forms"]}],
                        "matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    let spec = json!({
        "initContainers": [
            {"name": "first", "image": "example.com/first:1"},
            {"name": "beside", "image": "example.com/beside:1", "restartPolicy": "Always"},
        ],
        "containers": [{
            "name": "main", "image": "example.com/main:1", "resources": resources, "readinessProbe": probe,
            "startupProbe": {"tcpSocket": {"port": 80}}, "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }, {"name": "crashes", "image": "example.com/crashes:1"}],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "map", "configMap": {"name": "none", "optional": true}}],
        "activeDeadlineSeconds": 3600, "hostNetwork": false, "os": {"name": "linux"}, "nodeSelector": {"for": "forms"},
        "readinessGates": [{"conditionType": "example.com/gate"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
        "tolerations": [{"operator": "Exists"}, {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"}],
    });
    let told =
        json!({"hollow.kube-node.io/run-time.crashes": "1s", "hollow.kube-node.io/exit-code.crashes": "3"});
    own.pod_on(&node, "forms", told, spec).await;
    eventually("a container has started again", LONG, async || {
        let pod = own.pods.get("forms").await.unwrap();
        let crashed = pod.status.as_ref()?.container_statuses.iter().flatten().any(|c| c.restart_count >= 1);
        (phase(&pod) == "Running" && crashed).then_some(())
    })
    .await;

    eventually("both forms of one state of the pod", LONG, async || {
        let path = "/api/v1/namespaces/default/pods/forms";
        let [json, protobuf] = both::<ProtobufPod>(&own.client, path).await.map(PodView::from);
        // A write may have come between the two.
        (json.resource_version == protobuf.resource_version).then(|| {
            let spec = &protobuf.spec;
            assert_eq!(
                (spec.containers.len(), spec.init_containers.len(), spec.requests.milli_cpu),
                (2, 2, 100)
            );
            assert!(
                protobuf.has_empty_dir && protobuf.token.is_some() && protobuf.status.start_time.is_some()
            );
            assert_eq!(json, protobuf);
        })
    })
    .await;
    eventually("both forms of one state of its Node", LONG, async || {
        let [json, protobuf] =
            both::<ProtobufNode>(&own.client, &NodeView::path(&node)).await.map(NodeView::from);
        // Beside the two taints of the template, kube-controller-manager's `not-ready` stays until it has seen the Node
        // become ready.
        let settled = protobuf.taints.len() == 2;
        (settled && json.resource_version == protobuf.resource_version).then(|| {
            assert!(protobuf.is_ready() && protobuf.created.is_some() && protobuf.owner().is_some());
            assert!(protobuf.pod_cidr.is_some() && protobuf.kubelet_port != 0);
            assert_eq!(json, protobuf);
        })
    })
    .await;
    own.clean_up().await;
}

/// What a watch told.
#[derive(Debug, PartialEq)]
enum Observed {
    InitialList,
    Came(String),
    Went(String),
    Complete,
}

#[tokio::test]
async fn a_watch_begins_with_all_pages_of_a_list_or_with_a_stream_of_it() {
    let client = CLUSTER.client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create(&namespaces, json!({"metadata": {"name": "watches"}})).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "watches");
    // More than a page.
    let names: Vec<String> = (0..501).map(|at| format!("map-{at:03}")).collect();
    stream::iter(&names)
        .for_each_concurrent(32, |name| {
            let (maps, label) = (maps.clone(), json!({"of": "watches"}));
            async move {
                create(&maps, json!({"metadata": {"name": name, "labels": label}})).await.unwrap();
            }
        })
        .await;
    create(&maps, json!({"metadata": {"name": "other"}})).await.unwrap();
    for initial_list in [InitialList::List, InitialList::Stream] {
        let watch = WatchRequest {
            path: "/api/v1/namespaces/watches/configmaps".to_owned(),
            field_selector: Some("metadata.name!=map-007".to_owned()),
            label_selector: Some("of=watches".to_owned()),
            initial_list,
            min_timeout: LONG,
        };
        let (sender, mut heard) = mpsc::unbounded_channel();
        let followed = client.clone();
        let following = tokio::spawn(async move {
            let on_event = |told: WatchEvent<'_>| {
                let _ = sender.send(match told {
                    WatchEvent::InitialList => Observed::InitialList,
                    WatchEvent::Complete => Observed::Complete,
                    WatchEvent::Object { raw, deleted } => {
                        let map = k8s_pb::api::core::v1::ConfigMap::decode(raw).unwrap();
                        let name = map.metadata.unwrap().name.unwrap();
                        if deleted { Observed::Went(name) } else { Observed::Came(name) }
                    }
                });
            };
            let failed = |_| Ok::<(), Infallible>(());
            let newest = watch::Newest::default();
            watch::follow(&followed, &watch, watch::vital_backoff(), &(), &newest, on_event, failed).await
        });
        let mut next = async || timeout(LONG, heard.recv()).await.unwrap().unwrap();
        assert_eq!(next().await, Observed::InitialList);
        let mut came = Vec::new();
        loop {
            match next().await {
                Observed::Came(name) => came.push(name),
                Observed::Complete => break,
                other => panic!("{initial_list:?}: {other:?}"),
            }
        }
        came.sort();
        assert_eq!(came, names.iter().filter(|name| **name != "map-007").cloned().collect::<Vec<_>>());
        let late = json!({"metadata": {"name": "late", "labels": {"of": "watches"}}});
        create(&maps, late).await.unwrap();
        assert_eq!(next().await, Observed::Came("late".to_owned()));
        delete(&maps, "late", PropagationPolicy::Background).await;
        assert_eq!(next().await, Observed::Went("late".to_owned()));
        following.abort();
    }
    delete(&namespaces, "watches", PropagationPolicy::Background).await;
}
