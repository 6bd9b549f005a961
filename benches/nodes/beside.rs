//! What is there beside the nodes that are measured: Nodes that are not hollow, each with a status and a Lease that is renewed
//! as a kubelet does; a `CSIDriver`; fewer policies.

use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    storage::v1::CSIDriver,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use kube_ext::transport::{self, Body};
use serde_json::json;
use tokio::time::{Instant, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    bare::{AT_ONCE, Held, NODES, lease, ready, send, with_taints},
    shared::Plane,
};

/// Time between two renewals of a Lease, as kubelets have it.
const RENEW: Duration = Duration::from_secs(10);
/// Time until policies have learned of the Nodes, or are gone, and the control plane has nothing left to do from its start.
pub const SETTLE: Duration = Duration::from_secs(20);

/// Creates so many Nodes. Their Leases are renewed until what is returned is dropped.
pub async fn create(plane: &Plane, count: usize) -> anyhow::Result<Option<AbortOnDropHandle<()>>> {
    if count == 0 {
        return Ok(None);
    }
    let client = plane.client().await?;
    let held: Vec<Held> = stream::iter(0..count)
        .map(|at| create_one(&client, at))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(Some(AbortOnDropHandle::new(tokio::spawn(renew(client, held)))))
}

/// The taint of a Node without a kubelet stays, so that nobody counts it as one of those that are measured.
async fn create_one(client: &Client, at: usize) -> anyhow::Result<Held> {
    let name = format!("beside-{at}");
    let mut node = with_taints(&name, at);
    if let Some(metadata) = &mut node.metadata {
        metadata.labels.retain(|key, _| !key.starts_with("kube-node.io/"));
        metadata.annotations.clear();
    }
    send(client, Method::POST, NODES, Body::Object(transport::envelope("v1", "Node", &node))).await?;
    let held = lease(client, name.clone(), None).await?;
    let status = Body::StrategicPatch(serde_json::to_vec(&ready())?);
    send(client, Method::PATCH, &format!("{NODES}/{name}/status"), status).await?;
    Ok(held)
}

/// Renews one Lease after the other, all of them within [`RENEW`].
async fn renew(client: Client, mut held: Vec<Held>) {
    let mut ticks = interval(RENEW / u32::try_from(held.len()).unwrap_or(u32::MAX));
    let mut failed = None;
    loop {
        for one in &mut held {
            ticks.tick().await;
            match lease(&client, one.name.clone(), Some(one.version.clone())).await {
                Ok(renewed) => *one = renewed,
                Err(error) => {
                    if failed.replace(Instant::now()).is_none() {
                        eprintln!("a Lease beside is not renewed: {error:#}");
                    }
                }
            }
        }
    }
}

/// Creates a `CSIDriver`, of which no node has the driver.
pub async fn csi_driver(plane: &Plane) -> anyhow::Result<()> {
    let drivers: Api<CSIDriver> = Api::all(plane.client().await?);
    let driver: CSIDriver =
        serde_json::from_value(json!({ "metadata": { "name": "csi.example.com" }, "spec": {} }))?;
    drivers.create(&PostParams::default(), &driver).await?;
    Ok(())
}

/// Takes away the policies of these names with their bindings.
pub async fn without_policies(plane: &Plane, names: &[String]) -> anyhow::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let client = plane.client().await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client);
    for binding in bindings.list(&ListParams::default()).await? {
        if names.contains(&binding.spec.policy_name) {
            bindings.delete(&binding.name_any(), &DeleteParams::default()).await?;
        }
    }
    for name in names {
        let deleted = policies.delete(name, &DeleteParams::default()).await;
        deleted.with_context(|| format!("policy {name} cannot be deleted"))?;
    }
    Ok(())
}
