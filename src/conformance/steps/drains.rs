//! Step: two Nodes are deleted by hand. A disruption budget protects a pod on the first; pods on the second
//! may not be evicted.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::ResourceExt;
use kube_ext::{call::call, objects::delete};
use kube_node_api::{GoDuration, names};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    checks::{self, Checked, is_leaving},
    contract,
    manifests::{self, OWNER},
    record::{History, of_name},
    test_run::TestRun,
    user_commands::machines_of,
};

/// Name of the pod that a disruption budget protects.
const GUARDED: &str = "guarded";
/// Names of the pods that may not be evicted; each name is the reason.
const PROTECTED: [&str; 3] = ["opted-out", "with-data", "unmanaged"];
/// Name of the pod that may be evicted.
const PLAIN: &str = "plain";
/// Inaccuracy of the API server's times, which are whole seconds.
const SLACK: Duration = Duration::from_secs(1);

pub(super) async fn drain(run: &TestRun) -> anyhow::Result<()> {
    let nodes = run.at_work().into_iter().filter(|node| run.is_of_set(node)).collect::<Vec<_>>();
    let [first, second, ..] = &nodes[..] else {
        run.skip(contract::EVICTIONS, "there are no two Nodes to drain");
        return Ok(());
    };
    if !pods(run, first, second).await? {
        return Ok(());
    }
    let timeout = GoDuration(run.timeouts().drain());
    let drain = json!({"timeout": timeout, "deleteEmptyDirData": false, "unmanagedPods": "Keep"});
    run.set_spec(json!({ "drain": drain })).await?;
    // By now a controller that watches the NodeSet has seen the change, too.
    let _ = run.set_is(|_| true).await?;
    sleep(SLACK).await;
    for node in [first, second] {
        delete(&run.nodes, &node.name_any()).await?;
    }
    let (budget, ()) = tokio::join!(budget(run, first), settings(run, second));
    budget?;
    run.set_spec(json!({"drain": null})).await
}

/// Creates the pods. Returns true if all of them run.
async fn pods(run: &TestRun, first: &Node, second: &Node) -> anyhow::Result<bool> {
    let owner = run.create(&run.config_maps, json!({"metadata": {"name": OWNER}})).await?.uid;
    let image = run.args.image.as_str();
    let (first, second) = (first.name_any(), second.name_any());
    let pod = |name, node| manifests::pod(name, node, image, owner.as_deref());
    let (mut opted_out, mut with_data) = (pod(PROTECTED[0], &second), pod(PROTECTED[1], &second));
    opted_out["metadata"]["annotations"] = json!({names::ANNOTATION_DO_NOT_EVICT: "true"});
    with_data["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    let unmanaged = manifests::pod(PROTECTED[2], &second, image, None);
    let all = [pod(GUARDED, &first), opted_out, with_data, unmanaged, pod(PLAIN, &second)];
    let count = all.len();
    for pod in all {
        run.create(&run.pods, pod).await?;
    }
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": GUARDED}}});
    run.create(&run.budgets, json!({"metadata": {"name": GUARDED}, "spec": spec})).await?;
    let running = run.seen_pods.until(run.limit(), |all| {
        let pods = all.values().filter_map(History::last);
        let bare = pods.filter(|pod| pod.labels().get("app") != Some(&"daemons".into()));
        (bare.filter(|pod| is_ready(pod)).count() == count).then_some(())
    });
    if running.await.is_none() {
        let all = run.seen_pods.all();
        let late = all.values().filter_map(History::last).find(|pod| !is_ready(pod));
        let (pod, namespace) = (late.map(ResourceExt::name_any).unwrap_or_default(), &run.name);
        let why = format!(
            "pod {pod} of image {image} does not run on its Node: see kubectl -n {namespace} describe pod; or give --image"
        );
        for clause in
            [contract::CORDON, contract::EVICTIONS, contract::SETTINGS, contract::BLOCKED, contract::LINGERS]
        {
            run.skip(clause, &why);
        }
        return Ok(false);
    }
    // Until the budget has counted its pods, no eviction is allowed: the pod would be protected for another reason.
    let healthy = async || {
        let budget = call("read the disruption budget", run.budgets.get(GUARDED)).await?;
        Ok(budget.status.and_then(|status| status.current_healthy))
    };
    let counted = run.until(healthy, |healthy| *healthy == Some(1)).await?;
    anyhow::ensure!(counted.is_ok(), "no controller counts disruption budgets in this cluster");
    Ok(true)
}

/// Clauses 5.1, 5.2, 5.4, 5.5 and 5.6: the drain of a Node with a pod that a disruption budget protects.
async fn budget(run: &TestRun, node: &Node) -> anyhow::Result<()> {
    let name = node.name_any();
    let blocked = run.seen.until(run.limit(), |all| {
        let history = of_name(all, &name).next()?;
        if history.gone.is_some() {
            return Some(None);
        }
        let message = checks::obstacle(history.last()?, names::CONDITION_DRAINED);
        message.filter(|message| message.contains(GUARDED)).map(Some)
    });
    let blocked = blocked.await;
    if !matches!(blocked, Some(None)) {
        let deleted = run.seen.of(&name).and_then(|history| history.since(is_leaving));
        sleep_until(deleted.unwrap_or_else(Instant::now) + run.timeouts().observation()).await;
    }
    let is_gone = run.seen.of(&name).is_none_or(|history| history.gone.is_some());
    let evicted = run.seen_pods.of(GUARDED).is_none_or(|pod| {
        pod.gone.is_some() || pod.last().is_some_and(|pod| deletion_requested(pod).is_some())
    });
    match blocked {
        Some(Some(message)) => run.pass(contract::BLOCKED, message),
        _ if is_gone || evicted => run.skip(contract::BLOCKED, "nothing held the drain up"),
        _ => run.fail(contract::BLOCKED, format!("{name} waits for pod {GUARDED} and does not say so")),
    }
    if is_gone || evicted {
        let what = if evicted { "its pod was deleted" } else { "it went with its pod on it" };
        run.fail(contract::EVICTIONS, format!("{name}: {what}, past the pod's disruption budget"));
    }
    let went_too_early = format!("{name} was gone with pod {GUARDED} on it");
    if is_gone {
        run.fail(contract::LINGERS, went_too_early);
        return Ok(());
    }
    if run.machines().await?.is_some_and(|lines| machines_of(&lines, node).is_empty()) {
        run.fail(contract::LINGERS, format!("the machine of {name} was gone with pod {GUARDED} on it"));
    }
    delete(&run.budgets, GUARDED).await?;
    let Some(gone) = run.seen.gone(&name, run.limit()).await else {
        run.fail(contract::LEAVES, format!("{name} is still there, and nothing holds its drain up"));
        return Ok(());
    };
    // List at once: as long as the Node existed, its machine may have existed, too.
    match run.machines().await? {
        Some(lines) if machines_of(&lines, node).is_empty() => {
            run.pass(contract::FINALIZER_LAST, format!("{name} went after its machine"));
        }
        Some(_) => run.fail(contract::FINALIZER_LAST, format!("{name} is gone, and its machine is there")),
        None => run.skip(contract::FINALIZER_LAST, "needs --machines"),
    }
    if !evicted {
        let seen = format!("{name} waited for the budget of pod {GUARDED}, and for no DaemonSet");
        run.pass(contract::EVICTIONS, seen);
    }
    run.checked(contract::CORDON, checks::cordoned_first(&run.seen.states(&name)));
    let is_pod_gone =
        run.seen_pods.of(GUARDED).is_some_and(|pod| pod.gone.is_some_and(|at| at <= gone + SLACK));
    let lingered = is_pod_gone.then(|| format!("{name} went after its pod"));
    run.checked(contract::LINGERS, lingered.ok_or(went_too_early));
    Ok(())
}

/// Clause 5.3: the drain of a Node with pods that may not be evicted before the NodeSet's drain timeout.
async fn settings(run: &TestRun, node: &Node) {
    let name = node.name_any();
    let is_gone = run.seen.gone(&name, run.limit() + run.timeouts().drain()).await.is_some();
    match evicted_in_time(run, &name, is_gone) {
        Ok(_) if !is_gone => {
            run.fail(contract::LEAVES, format!("{name} is still there, and its drain.timeout is over"));
        }
        checked => run.checked(contract::SETTINGS, checked),
    }
}

/// Checks the times at which the deletion of each pod was requested.
fn evicted_in_time(run: &TestRun, name: &str, is_gone: bool) -> Checked {
    let history = run.seen.of(name);
    let deleted = history.as_ref().and_then(|node| node.last()?.metadata.deletion_timestamp.as_ref());
    let deleted = deleted.ok_or_else(|| format!("{name} went with its pods on it"))?.0;
    let timeout = run.timeouts().drain();
    let requested = |pod: &str| run.seen_pods.states(pod).iter().find_map(deletion_requested);
    let mut last = None;
    for pod in PROTECTED {
        let Some(at) = requested(pod) else {
            let why = if is_gone { "went with it" } else { "was not deleted, and drain.timeout is over" };
            return Err(format!("{name}: pod {pod} {why}"));
        };
        let after = at.duration_since(deleted).unsigned_abs();
        if at < deleted || after + SLACK < timeout {
            return Err(format!(
                "{name}: pod {pod} was deleted after {after:.0?}, and drain.timeout is {timeout:?}"
            ));
        }
        last = last.max(Some(at));
    }
    if requested(PLAIN).is_none_or(|plain| Some(plain) >= last) {
        return Err(format!(
            "{name}: pod {PLAIN}, which nothing protects, was not evicted before drain.timeout was over"
        ));
    }
    Ok(format!("pods {} of {name} stayed until drain.timeout was over", PROTECTED.join(", ")))
}

/// Time of the deletion request of a pod, by the API server's clock.
fn deletion_requested(pod: &Pod) -> Option<Timestamp> {
    let by = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    by.checked_sub(k8s_openapi::jiff::SignedDuration::from_secs(grace)).ok()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
