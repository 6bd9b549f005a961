//! The limit: a client that knows beforehand what it will write, and does only that.
//!
//! For each node, one after the other: the Node as a NodeSet makes it, its Lease, its first status, and the patch that
//! takes the taints off. Many nodes at once.

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use jiff::Timestamp;
use k8s_pb::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::Client;
use kube_node::{
    core::{birth, template::Desired},
    wire::{self, AnyObject, Body},
};
use serde_json::{Value, json};

use crate::{kwok, shared::Plane};

/// Requests under way at once; more do not make a control plane on two cores faster.
const AT_ONCE: usize = 64;
/// Where Nodes are created.
const NODES: &str = "/api/v1/nodes";

/// All four writes for each node.
pub async fn nodes_to_ready(plane: &Plane, nodes: usize) -> anyhow::Result<()> {
    let client = plane.client().await?;
    stream::iter(0..nodes)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |at| {
            let client = client.clone();
            async move {
                let name = format!("bare-{at}");
                send(&client, Method::POST, NODES, with_taints(&name, at)).await?;
                lease(&client, &name).await?;
                let status = Body::StrategicPatch(serde_json::to_vec(&ready())?);
                send(&client, Method::PATCH, &format!("/api/v1/nodes/{name}/status"), status).await?;
                let open =
                    Body::MergePatch(br#"{"metadata":{"managedFields":[{}]},"spec":{"taints":[]}}"#.to_vec());
                send(&client, Method::PATCH, &format!("/api/v1/nodes/{name}"), open).await
            }
        })
        .await
}

/// Only the Nodes, for KWOK: without taints and status of ours.
pub async fn create_all(plane: &Plane, nodes: usize) -> anyhow::Result<()> {
    let client = plane.client().await?;
    stream::iter(0..nodes)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |at| {
            let client = client.clone();
            async move {
                let name = format!("kwok-{at}");
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {
                    "name": name,
                    "labels": birth::well_known_labels(&name, None),
                    "annotations": {kwok::OWN.0: kwok::OWN.1},
                }});
                send(&client, Method::POST, NODES, Body::Options(serde_json::to_vec(&node)?)).await
            }
        })
        .await
}

fn with_taints(name: &str, cluster_size: usize) -> Body {
    let origin = birth::Origin {
        name,
        set: "bare",
        class: "bare",
        revision: "v1-0000000000",
        provider: "hollow",
        provider_id: Some(format!("hollow://{name}")),
        machine_type: Some("hollow.medium"),
        hosts: None,
        load: None,
        owner: birth::Owner { api_version: "kube-node.io/v1alpha1", uid: "0" },
        pod_cidr: None,
        cluster_size,
    };
    let mut node = birth::node(origin, &Desired::default(), Timestamp::now());
    // Nobody owns it, and nobody would take the finalizer off.
    if let Some(metadata) = &mut node.metadata {
        metadata.owner_references.clear();
        metadata.finalizers.clear();
    }
    Body::Object(wire::envelope("v1", "Node", &node))
}

async fn lease(client: &Client, name: &str) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let lease = Lease {
        metadata: Some(ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }),
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(40),
            renew_time: Some(MicroTime {
                seconds: Some(now.as_second()),
                nanos: Some(now.subsec_nanosecond()),
            }),
            ..LeaseSpec::default()
        }),
    };
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let body = Body::Object(wire::envelope("coordination.k8s.io/v1", "Lease", &lease));
    send(client, Method::POST, path, body).await
}

/// A kubelet's first status, in short.
fn ready() -> Value {
    let now = Timestamp::now();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": reason,
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let amounts = json!({"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"});
    json!({
        "metadata": {"managedFields": [{}]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "addresses": [{"type": "InternalIP", "address": "100.64.0.1"}],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "0", "containerRuntimeVersion": "containerd://2.1.0",
                "kernelVersion": "6.18", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3", "machineID": "0",
                "operatingSystem": "linux", "osImage": "hollow", "systemUUID": "0"
            },
        },
    })
}

async fn send(client: &Client, method: Method, path: &str, body: Body) -> anyhow::Result<()> {
    wire::send::<AnyObject>(client, method, path, body).await?;
    Ok(())
}
