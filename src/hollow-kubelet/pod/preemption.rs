//! Who makes room for a critical pod: of those that rely least on what they request the fewest, and of these the smallest
//! (pkg/kubelet/preemption/preemption.go).

use std::{cmp::Ordering, sync::Arc};

use kube_node_cache::{PodView, Qos};

use super::admission::{Shortage, taken};

/// What is still missing: amounts by resource, all above zero.
type Needs<'a> = Vec<(&'a str, i64)>;

/// The UIDs of the pods that make room for `pod`; why there are none, in a kubelet's words.
pub fn victims(pod: &PodView, neighbours: &[&PodView], short: &[Shortage]) -> Result<Vec<Arc<str>>, String> {
    let needs: Needs<'_> = short.iter().map(|short| (short.resource.as_str(), short.missing())).collect();
    let of = |qos: Qos| -> Vec<&PodView> {
        let yields = |other: &&&PodView| other.status.qos == qos && makes_room(other, pod);
        neighbours.iter().filter(yields).copied().collect()
    };
    let [best_effort, burstable, guaranteed] = [Qos::BestEffort, Qos::Burstable, Qos::Guaranteed].map(of);
    let none = |needs: &Needs<'_>| {
        let list = needs.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), "));
        let list = list.collect::<Vec<_>>().concat();
        format!(
            "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [{list}]"
        )
    };
    let lesser = [&best_effort[..], &burstable].concat();
    let unmet = less(&needs, &[&lesser[..], &guaranteed].concat());
    if !unmet.is_empty() {
        return Err(none(&unmet));
    }
    // Each class gives what the ones below cannot, even if all of them went.
    let of_guaranteed = fewest(guaranteed, less(&needs, &lesser));
    let of_burstable = fewest(burstable, less(&needs, &[&best_effort[..], &of_guaranteed].concat()));
    let of_best_effort = fewest(best_effort, less(&needs, &[&of_burstable[..], &of_guaranteed].concat()));
    let all = of_best_effort.into_iter().chain(of_burstable).chain(of_guaranteed);
    Ok(all.map(|victim| Arc::clone(&victim.uid)).collect())
}

/// Whether a pod yields to another.
fn makes_room(pod: &PodView, to: &PodView) -> bool {
    (to.is_critical() && !pod.is_critical()) || to.priority > pod.priority
}

/// What is missing once these pods are gone.
fn less<'a>(needs: &Needs<'a>, gone: &[&PodView]) -> Needs<'a> {
    let left = |(resource, amount): &(&'a str, i64)| {
        let freed = gone.iter().map(|pod| taken(pod, resource)).fold(0, i64::saturating_add);
        (*resource, amount.saturating_sub(freed))
    };
    needs.iter().map(left).filter(|(_, amount)| *amount > 0).collect()
}

/// Few pods that give what is missing, one after another the one that gives most of it; all of them where they do not
/// suffice.
fn fewest<'a>(mut pods: Vec<&'a PodView>, mut needs: Needs<'_>) -> Vec<&'a PodView> {
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        let nearest = pods.iter().enumerate().min_by(|(_, one), (_, other)| {
            let nearer = distance(&needs, one).partial_cmp(&distance(&needs, other));
            nearer.unwrap_or(Ordering::Equal).then_with(|| size(one).cmp(&size(other)))
        });
        let Some((at, _)) = nearest else { break };
        let pod = pods.swap_remove(at);
        needs = less(&needs, &[pod]);
        chosen.push(pod);
    }
    chosen
}

/// How far a pod is from giving what is missing: each resource counts alike, whatever its unit.
#[allow(clippy::cast_precision_loss)] // shares of amounts: a billionth more or less does not matter
fn distance(needs: &Needs<'_>, pod: &PodView) -> f64 {
    let share = |(resource, amount): &(&str, i64)| {
        let left = amount.saturating_sub(taken(pod, resource)).max(0) as f64;
        (left / *amount as f64).powi(2)
    };
    needs.iter().map(share).sum()
}

fn size(pod: &PodView) -> (i64, i64) {
    (taken(pod, "memory"), taken(pod, "cpu"))
}
