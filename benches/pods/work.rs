//! The pods, and what a bare client does for them.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use kube_ext::transport::{self, AnyObject, Body};
use kube_node_cache::{PodView, TOKEN_VOLUME};
use serde_json::{Value, json};

use crate::{shared::Plane, status};

/// Requests under way at once: as many as ours has, with which the limit is highest, too.
const AT_ONCE: usize = 256;

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
                            "image": status::IMAGE,
                            "resources": { "requests": status::requests() },
                        }],
                        // Nodes differ in theirs; none of it is measured.
                        "tolerations": [{ "operator": "Exists" }],
                    },
                });
                let body = Body::Options(serde_json::to_vec(&pod)?);
                transport::send::<AnyObject>(
                    &client,
                    None,
                    Method::POST,
                    "/api/v1/namespaces/default/pods",
                    body,
                )
                .await?;
                anyhow::Ok(())
            }
        })
        .await
}

/// Writes one status for each: Running and Ready, as short as it goes or with all that a kubelet says.
pub async fn run_all(plane: &Plane, pods: &[Arc<PodView>], whole: bool) -> anyhow::Result<()> {
    let client = plane.client().await?;
    stream::iter(pods)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |pod| {
            let client = client.clone();
            async move {
                let status = if whole { whole_of(pod) } else { status::short() };
                let change = json!({ "metadata": { "uid": *pod.uid }, "status": status });
                let path = format!("/api/v1/namespaces/default/pods/{}/status", pod.name);
                let body = Body::StrategicPatch(serde_json::to_vec(&change)?);
                transport::send::<AnyObject>(&client, None, Method::PATCH, &path, body).await?;
                anyhow::Ok(())
            }
        })
        .await
}

fn whole_of(pod: &PodView) -> Value {
    let suffix = pod.token.unwrap_or_default();
    let volume = format!("{TOKEN_VOLUME}{}", String::from_utf8_lossy(&suffix));
    status::whole(&volume)
}
