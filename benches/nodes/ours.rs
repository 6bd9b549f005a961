//! kube-node: one write, `replicas: N`.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kube_node::api::NodeSet;
use serde_json::json;

use crate::shared::Plane;

/// Scales the set that `up` has made.
pub async fn scale_to(plane: &Plane, nodes: usize) -> anyhow::Result<()> {
    let sets: Api<NodeSet> = Api::all(plane.client().await?);
    let change = Patch::Merge(json!({ "spec": { "replicas": nodes } }));
    sets.patch_scale("hollow-nodes", &PatchParams::default(), &change).await?;
    Ok(())
}
