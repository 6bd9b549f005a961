//! Step: the named controller, and no other one, accepts the class.

use std::time::Instant;

use anyhow::bail;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube_ext::call::call;
use kube_node_api::NodeClass;
use serde_json::json;

use crate::{checks::Checked, contract, manifests, test_run::TestRun};

/// Field manager of a condition that the controller must leave unchanged.
const MANAGER: &str = "kube-node-conformance";

/// Creates the classes and returns the revision; `None` if no controller has accepted the class.
pub(super) async fn accept(run: &TestRun) -> anyhow::Result<Option<String>> {
    run.create(&run.classes, manifests::class_of_nobody(&run.name)).await?;
    let begun = Instant::now();
    let class = serde_json::to_value(manifests::class(&run.name, &run.given))?;
    run.create(&run.classes, class).await?;
    // Server-side apply, since other managers write conditions of the same list concurrently.
    let condition = json!({
        "type": manifests::CONDITION, "status": "True", "reason": "Watched", "message": "somebody else's",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let apply = json!({
        "apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass", "metadata": {"name": run.name},
        "status": {"conditions": [condition]},
    });
    let (params, apply) = (PatchParams::apply(MANAGER), Patch::Apply(apply));
    let patched = run.classes.patch_status(&run.name, &params, &apply);
    call(format_args!("write the status of NodeClass {}", run.name), patched).await?;
    let class = run.class_is(|class| accepted(class).is_some()).await?.ok();
    let Some(Condition { status, reason, message, .. }) = class.as_ref().and_then(accepted) else {
        let why = format!("nobody has set it: does the NodeController {} run?", run.given.node_controller);
        run.fail(contract::ACCEPTS, why);
        return Ok(None);
    };
    if status != "True" {
        bail!("the controller does not serve this class: {reason}: {message}; take one that it serves");
    }
    let took = begun.elapsed().as_secs_f32();
    run.pass(contract::ACCEPTS, format!("True after {took:.1} s: {reason}: {message}"));
    run.revision(None).await.map(Some)
}

fn condition<'a>(class: &'a NodeClass, r#type: &str) -> Option<&'a Condition> {
    class.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == r#type)
}

fn accepted(class: &NodeClass) -> Option<&Condition> {
    condition(class, "Accepted")
}

/// `observedGeneration` of the condition Accepted.
pub(super) fn generation(class: &NodeClass) -> Option<i64> {
    accepted(class)?.observed_generation
}

/// Clause 1.3, checked at the end.
pub(super) async fn others_stay(run: &TestRun) -> anyhow::Result<Checked> {
    let read = async |name: &str| call(format_args!("read NodeClass {name}"), run.classes.get(name)).await;
    if condition(&read(&run.name).await?, manifests::CONDITION).is_none() {
        return Ok(Err(format!("somebody else's condition {} was taken away", manifests::CONDITION)));
    }
    if accepted(&read(&manifests::of_nobody(&run.name)).await?).is_some() {
        return Ok(Err(format!("a class of the controller {} was accepted", manifests::NOBODY)));
    }
    Ok(Ok("somebody else's condition and class are as they were".to_owned()))
}
