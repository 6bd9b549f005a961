//! The pods, and what a bare client does for them.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use jiff::Timestamp;
use kube_node::{
    cache::PodView,
    wire::{self, AnyObject, Body},
};
use serde_json::json;

use crate::shared::Plane;

/// Requests under way at once.
const AT_ONCE: usize = 64;

/// Creates so many pods, each bound to the next of the nodes.
pub async fn create(plane: &Plane, nodes: &[Arc<str>], pods: usize) -> anyhow::Result<()> {
    let client = plane.client().await?;
    stream::iter((0..pods).zip(nodes.iter().cycle()))
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |(at, node)| {
            let client = client.clone();
            async move {
                let pod = json!({
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": { "name": format!("pod-{at}"), "labels": { "app": "load" } },
                    "spec": {
                        "nodeName": **node,
                        "containers": [{
                            "name": "main",
                            "image": "registry.k8s.io/pause:3.10",
                            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                        }],
                        // Nodes differ in theirs; none of it is measured.
                        "tolerations": [{ "operator": "Exists" }],
                    },
                });
                let body = Body::Options(serde_json::to_vec(&pod)?);
                wire::send::<AnyObject>(&client, Method::POST, "/api/v1/namespaces/default/pods", body)
                    .await?;
                anyhow::Ok(())
            }
        })
        .await
}

/// Writes one status for each: Running and Ready, as short as it goes.
pub async fn run_all(plane: &Plane, pods: &[Arc<PodView>]) -> anyhow::Result<()> {
    let client = plane.client().await?;
    stream::iter(pods)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |pod| {
            let client = client.clone();
            async move {
                let now = Timestamp::now();
                let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"]
                    .map(|kind| json!({ "type": kind, "status": "True", "lastTransitionTime": now }));
                let status = json!({
                    "metadata": { "uid": *pod.uid },
                    "status": {
                        "phase": "Running",
                        "startTime": now,
                        "hostIP": "100.64.0.1",
                        "hostIPs": [{ "ip": "100.64.0.1" }],
                        "podIP": "10.128.0.1",
                        "podIPs": [{ "ip": "10.128.0.1" }],
                        "conditions": conditions,
                        "containerStatuses": [{
                            "name": "main",
                            "image": "registry.k8s.io/pause:3.10",
                            "imageID": "registry.k8s.io/pause@sha256:0",
                            "containerID": "containerd://0",
                            "ready": true,
                            "started": true,
                            "restartCount": 0,
                            "state": { "running": { "startedAt": now } },
                        }],
                    },
                });
                let path = format!("/api/v1/namespaces/default/pods/{}/status", pod.name);
                let body = Body::StrategicPatch(serde_json::to_vec(&status)?);
                wire::send::<AnyObject>(&client, Method::PATCH, &path, body).await?;
                anyhow::Ok(())
            }
        })
        .await
}
