//! Step: two Nodes are deleted by hand. A disruption budget protects a pod on the first; pods on the second
//! may not be evicted.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Node, Pod},
    jiff::Timestamp,
};
use kube::{ResourceExt, api::DeleteParams};
use kube_ext::call::call;
use kube_node_api::{GoDuration, names};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    checks::{self, is_leaving},
    contract,
    objects::{self, DRAIN_TIMEOUT, LINGERS, OWNER},
    record::History,
    test_run::TestRun,
    user_commands::machines_of,
};

/// Name of the pod that a disruption budget protects.
const GUARDED: &str = "guarded";
/// Names of the pods that may not be evicted; each name is the reason.
const KEPT: [&str; 3] = ["opted-out", "with-data", "unmanaged"];
/// Name of the pod that may be evicted.
const PLAIN: &str = "plain";
/// Observation time of a blocked drain, counted from the earliest time at which the machine may go.
const LOOKED_AT: Duration = Duration::from_secs(3);
/// Inaccuracy of the API server's times, which are whole seconds.
const SLACK: Duration = Duration::from_secs(1);

pub(super) async fn drain(test_run: &TestRun) -> anyhow::Result<()> {
    let nodes = test_run.at_work().into_iter().filter(|node| test_run.is_of_set(node)).collect::<Vec<_>>();
    let [first, second, ..] = &nodes[..] else {
        test_run.unseen(&contract::EVICTIONS, "there are no two Nodes to drain");
        return Ok(());
    };
    if !pods(test_run, first, second).await? {
        return Ok(());
    }
    let timeout = GoDuration(DRAIN_TIMEOUT).to_string();
    let protects =
        json!({"drain": {"timeout": timeout, "deleteEmptyDirData": false, "unmanagedPods": "Keep"}});
    test_run.set_spec(protects).await?;
    // By now a controller that watches the NodeSet has seen the change, too.
    let _ = test_run.set_is(|_| true).await?;
    sleep(SLACK).await;
    for node in [first, second] {
        let name = node.name_any();
        call(format_args!("delete Node {name}"), test_run.nodes.delete(&name, &DeleteParams::default()))
            .await?;
    }
    let (budget, settings) = tokio::join!(budget(test_run, first), settings(test_run, second));
    budget.and(settings)?;
    test_run.set_spec(json!({"drain": null})).await
}

/// Creates the pods. Returns true if all of them run.
async fn pods(test_run: &TestRun, first: &Node, second: &Node) -> anyhow::Result<bool> {
    let owner: ConfigMap =
        test_run.create(&test_run.config_maps, json!({"metadata": {"name": OWNER}})).await?;
    let (owner, image) = (owner.uid(), test_run.args.image.as_str());
    let (first, second) = (first.name_any(), second.name_any());
    let with = |name: &str, change: fn(&mut Value)| {
        let mut pod = objects::pod(name, &second, image, owner.as_deref());
        change(&mut pod);
        pod
    };
    let all = [
        objects::pod(GUARDED, &first, image, owner.as_deref()),
        with(KEPT[0], |pod| pod["metadata"]["annotations"] = json!({names::ANNOTATION_DO_NOT_EVICT: "true"})),
        with(KEPT[1], |pod| pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}])),
        objects::pod(KEPT[2], &second, image, None),
        with(PLAIN, |_| {}),
    ];
    let count = all.len();
    for pod in all {
        test_run.create(&test_run.pods, pod).await?;
    }
    let guard = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": GUARDED}}});
    test_run.create(&test_run.budgets, json!({"metadata": {"name": GUARDED}, "spec": guard})).await?;
    let run = test_run.seen_pods.until(test_run.limit(), |all| {
        let bare = all
            .values()
            .filter_map(|history| history.last())
            .filter(|pod| pod.labels().get("app") != Some(&"daemons".into()));
        (bare.filter(|pod| is_ready(pod)).count() == count).then_some(())
    });
    if run.await.is_none() {
        let all = test_run.seen_pods.all();
        let late = all.values().filter_map(|history| history.last()).find(|pod| !is_ready(pod));
        let name = late.map(ResourceExt::name_any).unwrap_or_default();
        let why = format!(
            "pod {name} of image {image} does not run on its Node: see kubectl -n {} describe pod; or give --image",
            test_run.run
        );
        for clause in [
            &contract::CORDON,
            &contract::EVICTIONS,
            &contract::SETTINGS,
            &contract::BLOCKED,
            &contract::LINGERS,
        ] {
            test_run.unseen(clause, why.clone());
        }
        return Ok(false);
    }
    let begun = Instant::now();
    loop {
        let guard = call("read the disruption budget", test_run.budgets.get(GUARDED)).await?;
        // Until the budget has counted its pods, no eviction is allowed: the pod would be protected for
        // another reason.
        if guard.status.is_some_and(|status| status.current_healthy == Some(1)) {
            return Ok(true);
        }
        anyhow::ensure!(
            begun.elapsed() < test_run.limit(),
            "no controller counts disruption budgets in this cluster"
        );
        sleep(SLACK).await;
    }
}

/// Clauses 5.1, 5.2, 5.4, 5.5 and 5.6: the drain of a Node with a pod that a disruption budget protects.
async fn budget(test_run: &TestRun, node: &Node) -> anyhow::Result<()> {
    let name = node.name_any();
    let says = |node: &Node| {
        let (status, reason, message) = checks::condition(node, names::CONDITION_DRAINED)?;
        (status == "False" && !reason.is_empty() && message.contains(GUARDED))
            .then(|| format!("{reason}: {message}"))
    };
    let blocked = test_run.seen.until(test_run.limit(), |all| {
        let history =
            all.values().find(|history| history.last().is_some_and(|last| last.name_any() == name))?;
        if history.gone.is_some() { Some(None) } else { history.last().and_then(says).map(Some) }
    });
    let blocked = blocked.await;
    let asked = test_run.seen.of(&name).and_then(|history| history.since(is_leaving));
    let over = asked.unwrap_or_else(Instant::now) + LINGERS + LOOKED_AT;
    if !matches!(blocked, Some(None)) {
        tokio::time::sleep_until(over).await;
    }
    let is_gone = test_run.seen.of(&name).is_none_or(|history| history.gone.is_some());
    let pod = test_run.seen_pods.of(GUARDED);
    let evicted = pod
        .as_ref()
        .is_none_or(|pod| pod.gone.is_some() || pod.last().is_some_and(|pod| requested(pod).is_some()));
    match blocked {
        Some(Some(said)) => test_run.kept(&contract::BLOCKED, said),
        _ if is_gone || evicted => test_run.unseen(&contract::BLOCKED, "nothing held the drain up"),
        _ => {
            test_run
                .broken(&contract::BLOCKED, format!("{name} waits for pod {GUARDED} and does not say so"));
        }
    }
    if is_gone || evicted {
        let what = if evicted { "its pod was deleted" } else { "it went with its pod on it" };
        test_run.broken(&contract::EVICTIONS, format!("{name}: {what}, past the pod's disruption budget"));
    }
    if is_gone {
        test_run.broken(&contract::LINGERS, format!("{name} was gone with pod {GUARDED} on it"));
        return Ok(());
    }
    if let Some(lines) = test_run.machines().await?
        && machines_of(&lines, node).is_empty()
    {
        test_run
            .broken(&contract::LINGERS, format!("the machine of {name} was gone with pod {GUARDED} on it"));
    }
    call("delete the disruption budget", test_run.budgets.delete(GUARDED, &DeleteParams::default())).await?;
    let Some(gone) = test_run.seen.gone(&name, test_run.limit()).await else {
        test_run.broken(&contract::LEAVES, format!("{name} is still there, and nothing holds its drain up"));
        return Ok(());
    };
    // List at once: as long as the Node existed, its machine may have existed, too.
    match test_run.machines().await? {
        Some(lines) => {
            let is_gone = machines_of(&lines, node).is_empty();
            let went =
                if is_gone { Ok(()) } else { Err(format!("{name} is gone, and its machine is there")) };
            test_run
                .judged(&contract::FINALIZER_LAST, went.map(|()| format!("{name} went after its machine")));
        }
        None => test_run.unseen(&contract::FINALIZER_LAST, "needs --machines"),
    }
    if !evicted {
        test_run.kept(
            &contract::EVICTIONS,
            format!("{name} waited for the budget of pod {GUARDED}, and for no DaemonSet"),
        );
    }
    let states = test_run.seen.of(&name).map(|history| history.states()).unwrap_or_default();
    test_run.judged(&contract::CORDON, checks::cordoned_first(&states));
    let with_pod =
        test_run.seen_pods.of(GUARDED).and_then(|pod| pod.gone).is_none_or(|pod| pod > gone + SLACK);
    let went = if with_pod {
        Err(format!("{name} was gone with pod {GUARDED} on it"))
    } else {
        Ok(format!("{name} went after its pod"))
    };
    test_run.judged(&contract::LINGERS, went);
    Ok(())
}

/// Clause 5.3: the drain of a Node with pods that may not be evicted before the NodeSet's drain timeout.
async fn settings(test_run: &TestRun, node: &Node) -> anyhow::Result<()> {
    let name = node.name_any();
    let is_gone = test_run.seen.gone(&name, test_run.limit() + DRAIN_TIMEOUT).await.is_some();
    let history = test_run.seen.of(&name);
    let deleted =
        history.as_ref().and_then(History::last).and_then(|node| node.metadata.deletion_timestamp.clone());
    let Some(deleted) = deleted.map(|time| time.0) else {
        test_run.broken(&contract::SETTINGS, format!("{name} went with its pods on it"));
        return Ok(());
    };
    let mut last = None;
    for pod in KEPT {
        let Some(asked) = test_run.seen_pods.of(pod).as_ref().and_then(first_requested) else {
            let why = if is_gone { "went with it" } else { "was not deleted, and drain.timeout is over" };
            test_run.broken(&contract::SETTINGS, format!("{name}: pod {pod} {why}"));
            return Ok(());
        };
        let after = asked.duration_since(deleted).unsigned_abs();
        if asked < deleted || after + SLACK < DRAIN_TIMEOUT {
            test_run.broken(
                &contract::SETTINGS,
                format!(
                    "{name}: pod {pod} was deleted after {after:.0?}, and drain.timeout is {DRAIN_TIMEOUT:?}"
                ),
            );
            return Ok(());
        }
        last = last.max(Some(asked));
    }
    let plain = test_run.seen_pods.of(PLAIN).as_ref().and_then(first_requested);
    if plain.is_none_or(|plain| Some(plain) >= last) {
        test_run.broken(
            &contract::SETTINGS,
            format!(
                "{name}: pod {PLAIN}, which nothing protects, was not evicted before drain.timeout was over"
            ),
        );
    } else if is_gone {
        test_run.kept(
            &contract::SETTINGS,
            format!("pods {} of {name} stayed until drain.timeout was over", KEPT.join(", ")),
        );
    } else {
        test_run.broken(&contract::LEAVES, format!("{name} is still there, and its drain.timeout is over"));
    }
    Ok(())
}

/// Time of the deletion request of a pod, by the API server's clock.
fn requested(pod: &Pod) -> Option<Timestamp> {
    let by = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    by.checked_sub(k8s_openapi::jiff::SignedDuration::from_secs(grace)).ok()
}

fn first_requested(pod: &History<Pod>) -> Option<Timestamp> {
    pod.states().iter().find_map(requested)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
