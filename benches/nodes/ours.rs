//! kube-node: one write, `replicas: N`.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kube_node_api::{NodeClass, NodeSet};
use serde_json::json;

use crate::shared::Plane;

/// Scales the set that `up` has made.
pub async fn scale_to(plane: &Plane, nodes: usize) -> anyhow::Result<()> {
    let sets: Api<NodeSet> = Api::all(plane.client().await?);
    let change = Patch::Merge(json!({ "spec": { "replicas": nodes } }));
    sets.patch_scale("hollow-nodes", &PatchParams::default(), &change).await?;
    Ok(())
}

/// Events of pods are left out: they are three writes each.
#[allow(dead_code)]
pub async fn without_events(plane: &Plane) -> anyhow::Result<()> {
    let classes: Api<NodeClass> = Api::all(plane.client().await?);
    let change = Patch::Merge(json!({ "spec": { "hollow": { "containers": { "events": "None" } } } }));
    classes.patch("hollow", &PatchParams::default(), &change).await?;
    Ok(())
}
