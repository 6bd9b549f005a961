//! Step: the named controller, and no other one, accepts the class.

use std::time::Instant;

use anyhow::bail;
use kube::api::{Patch, PatchParams};
use kube_ext::call::call;
use kube_node_api::NodeClass;
use serde_json::json;

use crate::{
    contract,
    objects::{self, CONDITION},
    test_run::TestRun,
};

/// Field manager of a condition that the controller must leave unchanged.
const MANAGER: &str = "kube-node-conformance";

/// Creates the classes and returns the revision; `None` if no controller has accepted the class.
pub(super) async fn accept(test_run: &TestRun) -> anyhow::Result<Option<String>> {
    test_run.create(&test_run.classes, objects::class_of_nobody(&test_run.run)).await?;
    let begun = Instant::now();
    let class = serde_json::to_value(objects::class(&test_run.run, &test_run.given))?;
    test_run.create(&test_run.classes, class).await?;
    // Server-side apply, since other managers write conditions of the same list concurrently.
    let condition = json!({
        "type": CONDITION, "status": "True", "reason": "Watched", "message": "somebody else's",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let apply = json!({
        "apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass", "metadata": {"name": test_run.run},
        "status": {"conditions": [condition]},
    });
    let (params, apply) = (PatchParams::apply(MANAGER), Patch::Apply(apply));
    let patched = test_run.classes.patch_status(&test_run.run, &params, &apply);
    call(format_args!("write the status of NodeClass {}", test_run.run), patched).await?;
    let Ok(class) = test_run.class_is(|class| accepted(class).is_some()).await? else {
        let controller = test_run.controller();
        test_run.broken(
            &contract::ACCEPTS,
            format!("nobody has set it: does the NodeController {controller} run?"),
        );
        return Ok(None);
    };
    let (status, message) = accepted(&class).unwrap_or_default();
    if status != "True" {
        bail!("the controller does not serve this class: {message}; take one that it serves");
    }
    test_run
        .kept(&contract::ACCEPTS, format!("True after {:.1} s: {message}", begun.elapsed().as_secs_f32()));
    test_run.revision(None).await.map(Some)
}

/// Status and message of the condition Accepted.
fn accepted(class: &NodeClass) -> Option<(String, String)> {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let found = conditions.into_iter().find(|condition| condition.type_ == "Accepted")?;
    Some((found.status.clone(), format!("{}: {}", found.reason, found.message)))
}

/// `observedGeneration` of the condition Accepted.
pub(super) fn generation(class: &NodeClass) -> Option<i64> {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|condition| condition.type_ == "Accepted")?.observed_generation
}

/// Clause 1.3, checked at the end.
pub(super) async fn others_stay(test_run: &TestRun) -> anyhow::Result<Result<String, String>> {
    let read = |name: String| async move {
        call(format!("read NodeClass {name}"), test_run.classes.get(&name)).await
    };
    let class = read(test_run.run.clone()).await?;
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    if !conditions.into_iter().any(|condition| condition.type_ == CONDITION) {
        return Ok(Err(format!("somebody else's condition {CONDITION} was taken away")));
    }
    if accepted(&read(objects::of_nobody(&test_run.run)).await?).is_some() {
        return Ok(Err(format!("a class of the controller {} was accepted", objects::NOBODY)));
    }
    Ok(Ok("somebody else's condition and class are as they were".to_owned()))
}
