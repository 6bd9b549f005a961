//! Taints of a Node during initialization: removal of ours, together with the not-ready taint.
//!
//! Input: the Node's taints and its initialization state. Output: the whole new list, since taints are one
//! atomic list. The list is written under a resourceVersion precondition; taints of others stay unchanged.
//!
//! `kube-node.io/uninitialized` is created with both effects. NoExecute goes with the first status of a
//! kubelet, so that DaemonSets such as a CNI can start; NoSchedule goes at Ready=True with a fresh Lease.
//! Both go in one write if only the first Lease was missing.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::Time};
use kube_node_api::names::{TAINT_OUT_OF_SERVICE, TAINT_UNINITIALIZED};

/// Taint that API server admission adds to every new Node and the node lifecycle controller removes at
/// Ready=True. Removing it together with ours saves one write per Node.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Taint effect by which kube-controller-manager evicts pods without a matching toleration.
const NO_EXECUTE: &str = "NoExecute";

/// Progress of a Node's initialization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Initialization {
    /// No kubelet has posted a status, or only its first Lease is missing.
    Awaited,
    /// A kubelet has posted a status that is not Ready, or its Lease is not fresh.
    Registered,
    /// Ready=True with a fresh Lease.
    Ready,
}

/// Taints of a new Node besides those of the templates.
pub fn at_birth() -> Vec<Taint> {
    ["NoSchedule", NO_EXECUTE].map(uninitialized).to_vec()
}

fn uninitialized(effect: &str) -> Taint {
    Taint { key: TAINT_UNINITIALIZED.to_owned(), effect: effect.to_owned(), ..Taint::default() }
}

/// The list to write; None if no taint of ours has to go. Never adds a taint.
pub fn advance(current: &[Taint], state: Initialization) -> Option<Vec<Taint>> {
    let ours_leaves = |taint: &Taint| {
        taint.key == TAINT_UNINITIALIZED
            && match state {
                Initialization::Awaited => false,
                Initialization::Registered => taint.effect == NO_EXECUTE,
                Initialization::Ready => true,
            }
    };
    if !current.iter().any(ours_leaves) {
        // The not-ready taint alone is left to the node lifecycle controller.
        return None;
    }
    let goes_along = |taint: &Taint| state == Initialization::Ready && taint.key == NOT_READY;
    Some(current.iter().filter(|taint| !ours_leaves(taint) && !goes_along(taint)).cloned().collect())
}

/// The list with the out-of-service taint: it tells kube-controller-manager that nothing runs on the Node.
pub(super) fn with_out_of_service(current: &[Taint], now: Timestamp) -> Vec<Taint> {
    let mut taints: Vec<Taint> = current.iter().filter(|taint| !is_out_of_service(taint)).cloned().collect();
    taints.push(Taint {
        key: TAINT_OUT_OF_SERVICE.to_owned(),
        value: Some("nodeshutdown".to_owned()),
        effect: NO_EXECUTE.to_owned(),
        time_added: Some(Time(now)),
    });
    taints
}

/// Time of the out-of-service taint; None also if the taint was set without a time.
pub fn out_of_service_since(current: &[Taint]) -> Option<Timestamp> {
    current.iter().find(|taint| is_out_of_service(taint))?.time_added.as_ref().map(|time| time.0)
}

fn is_out_of_service(taint: &Taint) -> bool {
    taint.key == TAINT_OUT_OF_SERVICE && taint.effect == NO_EXECUTE
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
    }

    fn born(others: &[Taint]) -> Vec<Taint> {
        [at_birth(), others.to_vec()].concat()
    }

    #[test]
    fn a_silent_machine_keeps_both() {
        assert_eq!(advance(&born(&[]), Initialization::Awaited), None);
    }

    #[test]
    fn the_first_status_lets_daemonsets_in_but_no_other_pods() {
        let left = advance(&born(&[taint(NOT_READY, "NoSchedule")]), Initialization::Registered);
        assert_eq!(left, Some(vec![uninitialized("NoSchedule"), taint(NOT_READY, "NoSchedule")]));
    }

    #[test]
    fn ready_takes_not_ready_along_in_one_write() {
        let user = taint("dedicated", "NoSchedule");
        assert_eq!(
            advance(&born(&[taint(NOT_READY, "NoSchedule"), user.clone()]), Initialization::Ready),
            Some(vec![user])
        );
    }

    #[test]
    fn not_ready_alone_is_left_to_its_controller() {
        assert_eq!(advance(&[taint(NOT_READY, "NoExecute")], Initialization::Ready), None);
    }

    #[test]
    fn out_of_service_is_set_once_and_has_its_time() {
        let at = Timestamp::from_second(7).unwrap();
        let by_hand = taint(TAINT_OUT_OF_SERVICE, NO_EXECUTE);
        let before = [taint("dedicated", "NoSchedule"), by_hand];
        assert_eq!(out_of_service_since(&before), None);
        let after = with_out_of_service(&before, at);
        assert_eq!((after.len(), out_of_service_since(&after)), (2, Some(at)));
        assert_eq!(after[0], before[0]);
    }

    proptest! {
        /// Taints of others keep their order in every state; a second reconciliation changes nothing.
        #[test]
        fn others_are_untouched(keys in vec("[a-z]{1,6}", 0..6), state in 0_usize..3) {
            let state = [Initialization::Awaited, Initialization::Registered, Initialization::Ready][state];
            let others: Vec<Taint> = keys.iter().map(|key| taint(key, "NoSchedule")).collect();
            let left = advance(&born(&others), state).unwrap_or_else(|| born(&others));
            let remaining: Vec<Taint> = left.iter().filter(|t| t.key != TAINT_UNINITIALIZED).cloned().collect();
            prop_assert_eq!(remaining, others);
            prop_assert_eq!(advance(&left, state), None);
        }
    }
}
