//! The limit: a client that knows beforehand what it will write, and does only that.
//!
//! For each node, one after the other: the Node as a NodeSet makes it, its Lease, its first status, and the patch that
//! takes the taints off. Many nodes at once. While it lasts, each Lease is renewed before its 40 s are over.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use jiff::Timestamp;
use k8s_pb::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::Client;
use kube_ext::transport::{self, AnyObject, Body};
use kube_node_planner::{node_builder, revision::ResolvedMachine, template::DesiredTemplate};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::{kwok, shared::Plane};

/// Requests under way at once; more do not make a control plane on two cores faster.
pub const AT_ONCE: usize = 64;
/// Where Nodes are created.
pub const NODES: &str = "/api/v1/nodes";
/// Where their Leases are created.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Age at which a Lease is renewed: the last moment that is safe.
const RENEWED_AT: Duration = Duration::from_secs(30);

/// A Lease that was written.
pub struct Held {
    pub name: String,
    pub version: String,
    renewed: Instant,
}

/// All four writes for each node.
pub async fn nodes_to_ready(plane: &Plane, nodes: usize) -> anyhow::Result<()> {
    let client = &plane.client().await?;
    let (held, leases) = mpsc::unbounded_channel();
    let held = &held;
    let made = stream::iter(0..nodes).map(Ok).try_for_each_concurrent(AT_ONCE, |at| async move {
        let name = name_of(at);
        let node = Body::Object(transport::envelope("v1", "Node", &with_taints(&name, at)));
        send(client, Method::POST, NODES, node).await?;
        held.send(lease(client, name.clone(), None).await?)?;
        let status = Body::StrategicPatch(serde_json::to_vec(&ready())?);
        send(client, Method::PATCH, &format!("/api/v1/nodes/{name}/status"), status).await?;
        let open = Body::MergePatch(br#"{"spec":{"taints":[]}}"#.to_vec());
        send(client, Method::PATCH, &format!("/api/v1/nodes/{name}"), open).await?;
        Ok(())
    });
    let due = stream::unfold(leases, |mut leases| async move {
        let lease: Held = leases.recv().await?;
        sleep_until(lease.renewed + RENEWED_AT).await;
        Some((Ok(lease), leases))
    });
    let kept = due.try_for_each_concurrent(AT_ONCE, |due: Held| async move {
        Ok(held.send(lease(client, due.name, Some(due.version)).await?)?)
    });
    tokio::select! {
        made = made => made,
        kept = kept => kept,
    }
}

/// Name of a node.
pub fn name_of(at: usize) -> String {
    format!("bare-{at}")
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
                    "labels": node_builder::well_known_labels(&name, None),
                    "annotations": {kwok::OWN.0: kwok::OWN.1},
                }});
                send(&client, Method::POST, NODES, Body::Options(serde_json::to_vec(&node)?)).await?;
                anyhow::Ok(())
            }
        })
        .await
}

/// A Node as a NodeSet makes it.
pub fn with_taints(name: &str, cluster_size: usize) -> Node {
    let machine = ResolvedMachine {
        node_controller: "hollow".to_owned(),
        machine_type: Some("hollow.medium".to_owned()),
        ..ResolvedMachine::default()
    };
    let origin = node_builder::NodeOrigin {
        name,
        blueprint: node_builder::Blueprint {
            set: "bare",
            class: "bare",
            revision: "v1-0000000000",
            machine: &machine,
            template: &DesiredTemplate::default(),
        },
        provider_id: Some(format!("hollow://{name}")),
        owner_api_version: "kube-node.io/v1alpha1",
        owner_uid: "0",
        pod_cidr: None,
        cluster_size,
    };
    let mut node = node_builder::node(origin, Timestamp::now());
    // Nobody owns it, and nobody would take the finalizer off.
    if let Some(metadata) = &mut node.metadata {
        metadata.owner_references.clear();
        metadata.finalizers.clear();
    }
    node
}

/// Creates a Lease, or renews the one of `version`.
pub async fn lease(client: &Client, name: String, version: Option<String>) -> anyhow::Result<Held> {
    let (method, path) = match version {
        None => (Method::POST, LEASES.to_owned()),
        Some(_) => (Method::PUT, format!("{LEASES}/{name}")),
    };
    let mut lease = renewed_lease(&name);
    lease.metadata.get_or_insert_default().resource_version = version;
    let renewed = Instant::now();
    let body = Body::Object(transport::envelope("coordination.k8s.io/v1", "Lease", &lease));
    Ok(Held { name, version: send(client, method, &path, body).await?, renewed })
}

/// A Lease that is renewed now.
pub fn renewed_lease(name: &str) -> Lease {
    let now = Timestamp::now();
    Lease {
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
    }
}

/// A patch to a kubelet's first status, in short.
pub fn ready() -> Value {
    let now = Timestamp::now();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": reason,
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let amounts = json!({"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"});
    json!({
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

/// The version that the write made.
pub async fn send(client: &Client, method: Method, path: &str, body: Body) -> anyhow::Result<String> {
    Ok(transport::send::<AnyObject>(client, None, method, path, body).await?.into_version())
}
