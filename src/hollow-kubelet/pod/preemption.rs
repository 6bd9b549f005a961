//! Preemption for a critical pod: the fewest pods of the lowest `qosClass`, and of these the smallest
//! (pkg/kubelet/preemption/preemption.go).

use std::{cmp::Ordering, sync::Arc};

use kube_node_cache::{PodView, Qos};

use super::allocatable::{Shortage, request_of};

/// Remaining shortages: amounts by resource, all above zero.
type Needs<'a> = Vec<(&'a str, i64)>;

/// UIDs of the pods to preempt for `pod`, or the kubelet's message if no set of pods suffices.
pub fn victims(pod: &PodView, others: &[&PodView], short: &[Shortage]) -> Result<Vec<Arc<str>>, String> {
    let needs: Needs<'_> = short.iter().map(|short| (short.resource.as_str(), short.missing())).collect();
    let of = |qos: Qos| -> Vec<&PodView> {
        let is_victim = |other: &&&PodView| other.status.qos == qos && is_preemptable(other, pod);
        others.iter().filter(is_victim).copied().collect()
    };
    let [best_effort, burstable, guaranteed] = [Qos::BestEffort, Qos::Burstable, Qos::Guaranteed].map(of);
    let lesser = [&best_effort[..], &burstable].concat();
    let unmet = less(&needs, &[&lesser[..], &guaranteed].concat());
    if !unmet.is_empty() {
        let list = unmet.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), "));
        let list = list.collect::<Vec<_>>().concat();
        return Err(format!(
            "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [{list}]"
        ));
    }
    // Each class gives what the lower ones cannot, even if all their pods went.
    let of_guaranteed = fewest(guaranteed, less(&needs, &lesser));
    let of_burstable = fewest(burstable, less(&needs, &[&best_effort[..], &of_guaranteed].concat()));
    let of_best_effort = fewest(best_effort, less(&needs, &[&of_burstable[..], &of_guaranteed].concat()));
    let all = of_best_effort.into_iter().chain(of_burstable).chain(of_guaranteed);
    Ok(all.map(|victim| Arc::clone(&victim.uid)).collect())
}

/// Returns true if `pod` may be preempted for `to`.
fn is_preemptable(pod: &PodView, to: &PodView) -> bool {
    (to.is_critical() && !pod.is_critical()) || to.priority > pod.priority
}

/// Shortages that remain once these pods are gone.
fn less<'a>(needs: &Needs<'a>, gone: &[&PodView]) -> Needs<'a> {
    let left = |(resource, amount): &(&'a str, i64)| {
        let freed = gone.iter().map(|pod| request_of(pod, resource)).fold(0, i64::saturating_add);
        (*resource, amount.saturating_sub(freed))
    };
    needs.iter().map(left).filter(|(_, amount)| *amount > 0).collect()
}

/// Few pods that cover the shortages, chosen one by one by the largest contribution; all of them if they do
/// not suffice.
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

/// Distance of a pod from covering the shortages: each resource counts alike, whatever its unit.
#[allow(clippy::cast_precision_loss)] // shares of amounts: a billionth more or less does not matter
fn distance(needs: &Needs<'_>, pod: &PodView) -> f64 {
    let share = |(resource, amount): &(&str, i64)| {
        let left = amount.saturating_sub(request_of(pod, resource)).max(0) as f64;
        (left / *amount as f64).powi(2)
    };
    needs.iter().map(share).sum()
}

fn size(pod: &PodView) -> (i64, i64) {
    (request_of(pod, "memory"), request_of(pod, "cpu"))
}
