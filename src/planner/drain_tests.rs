//! Tests of the order of evictions and of blocked drains.

use kube_node_api::GoDuration;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::test_fixtures::at;

const REACHABLE: DrainProgress = DrainProgress { began: Timestamp::UNIX_EPOCH, unreachable: false };

fn id(name: &str) -> PodId {
    PodId { namespace: "default".into(), name: name.into(), uid: name.into() }
}

fn pod(name: &str, priority: i32) -> Pod {
    Pod { id: id(name), priority, ..Pod::default() }
}

fn timeout(seconds: u64) -> Drain {
    Drain { timeout: Some(GoDuration(Duration::from_secs(seconds))), ..Drain::default() }
}

#[test]
fn the_lowest_priority_leaves_first() {
    let policy = Drain::default();
    let mut pods = vec![pod("b", 0), pod("a", 0), pod("system", 2_000), pod("batch", -10)];
    assert_eq!(plan(&pods, &policy, REACHABLE, at(0)).evict, [id("batch")]);
    pods[3].gone_by = Some(at(30));
    assert_eq!(plan(&pods, &policy, REACHABLE, at(1)).evict, [], "it is there until it has ended");
    pods[3].finished = true;
    assert_eq!(plan(&pods, &policy, REACHABLE, at(2)).evict, [id("a"), id("b")]);
    let last = plan(&pods[2..], &policy, REACHABLE, at(3));
    assert_eq!((last.evict, last.left), (vec![id("system")], vec![id("system")]));
}

#[test]
fn what_the_set_keeps_is_not_evicted() {
    let policy = Drain {
        delete_empty_dir_data: Some(false),
        unmanaged_pods: Some(UnmanagedPods::Keep),
        ..Drain::default()
    };
    let pods = [
        Pod { empty_dir: true, ..pod("data", 0) },
        Pod { fate: Fate::Ends, ..pod("alone", 0) },
        Pod { opted_out: true, empty_dir: true, ..pod("stubborn", 9) },
        pod("other", 0),
    ];
    let plan = plan(&pods, &policy, REACHABLE, at(0));
    assert_eq!(plan.evict, [id("other")]);
    let blocked: Vec<_> = plan.blocked.iter().map(|b| (b.obstacle.into(), &*b.pod.name)).collect();
    assert_eq!(blocked, [("PodOptedOut", "stubborn"), ("EmptyDirData", "data"), ("UnmanagedPod", "alone")]);
    assert_eq!(super::plan(&pods, &Drain::default(), REACHABLE, at(0)).blocked.len(), 1);
}

#[test]
fn a_pod_that_somebody_deletes_blocks_nothing() {
    let pods = [Pod { opted_out: true, gone_by: Some(at(30)), ..pod("a", 0) }];
    let plan = plan(&pods, &Drain::default(), REACHABLE, at(0));
    assert!(plan.blocked.is_empty() && !plan.is_done());
}

#[test]
fn after_the_timeout_all_are_deleted_and_then_given_up() {
    let pods = [
        Pod { opted_out: true, ..pod("a", 0) },
        Pod { gone_by: Some(at(3_600)), ..pod("slow", 0) },
        Pod { gone_by: Some(at(80)), ..pod("nearly", 5) },
        Pod { fate: Fate::Stays, ..pod("daemon", 0) },
    ];
    let before = plan(&pods, &timeout(60), REACHABLE, at(59));
    assert!(before.force.is_empty() && before.blocked.len() == 1);
    let over = plan(&pods, &timeout(60), REACHABLE, at(60));
    assert_eq!(over.force, [id("a"), id("slow")]);
    assert!(over.blocked.is_empty() && over.evict.is_empty() && !over.is_done());
    assert!(plan(&pods, &timeout(60), REACHABLE, at(90)).is_done());
    assert!(!plan(&pods, &Drain::default(), REACHABLE, at(1_000_000)).is_done(), "never without a timeout");
}

#[test]
fn a_kubelet_that_nobody_hears_from_holds_nothing_up() {
    let silent = DrainProgress { unreachable: true, ..REACHABLE };
    let pods = [Pod { gone_by: Some(at(30)), ..pod("a", 0) }, pod("b", 1)];
    assert_eq!(plan(&pods, &Drain::default(), silent, at(29)).evict, []);
    let after = plan(&pods, &Drain::default(), silent, at(30));
    assert_eq!((after.evict, after.left, after.bound.len()), (vec![id("b")], vec![id("b")], 2));
    let end = plan(&pods[..1], &Drain::default(), silent, at(30));
    assert!(end.is_done() && !end.awaits_volumes && end.bound == [id("a")]);
    assert!(
        !plan(&pods[..1], &Drain::default(), REACHABLE, at(30)).is_done(),
        "a kubelet that speaks may be slow"
    );
}

fn pods() -> impl Strategy<Value = Vec<Pod>> {
    let one = (any::<[bool; 3]>(), 0_usize..3, -2_i32..3, prop::option::of(0_i64..200));
    vec(one, 0..12).prop_map(|pods| {
        pods.into_iter()
            .enumerate()
            .map(|(i, ([finished, opted_out, empty_dir], fate, priority, gone_by))| Pod {
                id: id(&format!("pod-{i}")),
                fate: [Fate::Stays, Fate::Moves, Fate::Ends][fate],
                finished,
                opted_out,
                empty_dir,
                priority,
                gone_by: gone_by.map(at),
            })
            .collect()
    })
}

fn policies() -> impl Strategy<Value = Drain> {
    (prop::option::of(0_u64..150), any::<[bool; 2]>()).prop_map(|(seconds, [deletes_data, keeps])| Drain {
        timeout: seconds.and_then(|seconds| timeout(seconds).timeout),
        delete_empty_dir_data: Some(deletes_data),
        unmanaged_pods: keeps.then_some(UnmanagedPods::Keep),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// In every state: pods that stay are never touched, protected pods not before the timeout; only the
    /// lowest priority leaves; each pod that keeps the machine alive is leaving, waits for a lower priority,
    /// or is reported as blocked.
    #[test]
    fn nobody_leaves_who_may_not(pods in pods(), policy in policies(), unreachable: bool, now in 0_i64..250) {
        let progress = DrainProgress { unreachable, ..REACHABLE };
        let plan = plan(&pods, &policy, progress, at(now));
        let over = policy.timeout.is_some_and(|timeout| at(now) >= Timestamp::UNIX_EPOCH + timeout.0);
        let left: Vec<&Pod> = pods.iter().filter(|pod| plan.left.contains(&pod.id)).collect();
        let lowest = left.iter().map(|pod| pod.priority).min();
        for pod in &pods {
            let evicted = plan.evict.contains(&pod.id);
            let forced = plan.force.contains(&pod.id);
            let blocked = plan.blocked.iter().any(|blockage| blockage.pod == pod.id);
            if pod.fate == Fate::Stays || pod.finished {
                prop_assert!(!evicted && !forced && !blocked && !plan.bound.contains(&pod.id));
                continue;
            }
            prop_assert!(plan.bound.contains(&pod.id));
            prop_assert!(!forced || over);
            let remaining = pod.opted_out
                || (pod.empty_dir && policy.delete_empty_dir_data == Some(false))
                || (pod.fate == Fate::Ends && policy.unmanaged_pods == Some(UnmanagedPods::Keep));
            if evicted {
                prop_assert!(!remaining && !over && pod.gone_by.is_none() && Some(pod.priority) == lowest);
            }
            prop_assert!(!blocked || (remaining && !over));
            if plan.left.contains(&pod.id) && pod.gone_by.is_none() {
                prop_assert!(evicted || forced || blocked || Some(pod.priority) > lowest);
            }
        }
        prop_assert!(plan.left.iter().all(|pod| plan.bound.contains(pod)));
        prop_assert!(unreachable || plan.left == plan.bound);
    }

    /// A drain whose pods can be evicted ends after one round per priority and one more.
    #[test]
    fn it_ends(pods in pods()) {
        let mut pods: Vec<Pod> = pods.into_iter().map(|pod| Pod { opted_out: false, gone_by: None, ..pod }).collect();
        for _ in 0..6 {
            let plan = plan(&pods, &Drain::default(), REACHABLE, at(0));
            pods.retain(|pod| !plan.evict.contains(&pod.id));
        }
        prop_assert!(plan(&pods, &Drain::default(), REACHABLE, at(0)).is_done());
    }
}
