//! How many Nodes a set has to create, and which ones it gives up when it shrinks.
//!
//! Nodes that are leaving already count as gone; a reconcile creates at most [`CREATE_BATCH`] Nodes, so that none of
//! them is long and a set of thousands sees a change of its replicas in the middle of its growth.

use std::cmp::Reverse;

use crate::api::ScaleDownOrder;

/// Most Nodes that one reconcile creates.
pub const CREATE_BATCH: usize = 500;

/// What the choice of victims needs to know of a Node of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the Node.
    pub name: String,
    /// Whether a deletion was asked for already.
    pub leaving: bool,
    /// Whether an admin (`delete-first`) or cluster-autoscaler (`ToBeDeleted` taint) marked it as a victim.
    pub marked: bool,
    /// Whether its Ready condition is True.
    pub ready: bool,
    /// Pods that a drain would move.
    pub pods: usize,
    /// Creation time, in seconds since the epoch, as `metadata.creationTimestamp` has it.
    pub created: i64,
}

impl Member {
    /// A Node that was asked for and that the watch has not shown yet. Nothing is known of it, so it is the first to be
    /// given up, once it is shown.
    #[must_use]
    pub fn expected(name: String) -> Self {
        Self { name, leaving: false, marked: false, ready: false, pods: 0, created: i64::MAX }
    }
}

/// What brings the set to its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scaling {
    /// How many Nodes to create now.
    pub create: usize,
    /// How many more are missing beyond that.
    pub create_later: usize,
    /// Names of the Nodes to delete, first victim first.
    pub delete: Vec<String>,
}

/// Decides for a set that wants `replicas` Nodes and has `members`.
///
/// Victims: marked ones first, across everything else; then what is not Ready; then by `order`; ties by pods, the
/// younger, the name, so that two looks at one state choose the same victims.
#[must_use]
pub fn decide(replicas: usize, members: &[Member], order: ScaleDownOrder) -> Scaling {
    let mut staying: Vec<&Member> = members.iter().filter(|member| !member.leaving).collect();
    if let Some(missing) = replicas.checked_sub(staying.len()) {
        let create = missing.min(CREATE_BATCH);
        return Scaling { create, create_later: missing - create, delete: Vec::new() };
    }
    let surplus = staying.len() - replicas;
    staying.sort_by_cached_key(|member| victim_key(member, order));
    Scaling {
        delete: staying.into_iter().take(surplus).map(|member| member.name.clone()).collect(),
        ..Scaling::default()
    }
}

/// Sorts the first victim first.
fn victim_key(member: &Member, order: ScaleDownOrder) -> (bool, bool, i64, usize, Reverse<i64>, String) {
    let by_order = match order {
        ScaleDownOrder::LeastPods => i64::try_from(member.pods).unwrap_or(i64::MAX),
        ScaleDownOrder::Newest => member.created.saturating_neg(),
        ScaleDownOrder::Oldest => member.created,
    };
    (!member.marked, member.ready, by_order, member.pods, Reverse(member.created), member.name.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn member(name: &str, marked: bool, ready: bool, pods: usize, created: i64) -> Member {
        Member { name: name.to_owned(), leaving: false, marked, ready, pods, created }
    }

    #[test]
    fn victims_are_marked_then_unready_then_by_order() {
        let members = [
            member("busy", true, true, 9, 1),
            member("sick", false, false, 9, 2),
            member("idle", false, true, 0, 3),
            member("old", false, true, 1, 0),
        ];
        let names = |order| decide(0, &members, order).delete;
        assert_eq!(names(ScaleDownOrder::LeastPods), ["busy", "sick", "idle", "old"]);
        assert_eq!(names(ScaleDownOrder::Newest), ["busy", "sick", "idle", "old"]);
        assert_eq!(names(ScaleDownOrder::Oldest), ["busy", "sick", "old", "idle"]);
    }

    #[test]
    fn grows_in_batches() {
        assert_eq!(
            decide(1_200, &[], ScaleDownOrder::LeastPods),
            Scaling { create: 500, create_later: 700, delete: vec![] }
        );
    }

    fn members() -> impl Strategy<Value = Vec<Member>> {
        vec((any::<bool>(), any::<bool>(), any::<bool>(), 0_usize..5, 0_i64..50), 0..60).prop_map(|rows| {
            rows.into_iter()
                .enumerate()
                .map(|(i, (leaving, marked, ready, pods, created))| Member {
                    leaving,
                    ..member(&format!("n{i}"), marked, ready, pods, created)
                })
                .collect()
        })
    }

    fn order() -> impl Strategy<Value = ScaleDownOrder> {
        prop_oneof![
            Just(ScaleDownOrder::LeastPods),
            Just(ScaleDownOrder::Newest),
            Just(ScaleDownOrder::Oldest)
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// After the plan the set has its replicas, and never loses a Node while it lacks one.
        #[test]
        fn the_plan_meets_the_replicas(members in members(), replicas in 0_usize..80, order in order()) {
            let plan = decide(replicas, &members, order);
            let staying = members.iter().filter(|m| !m.leaving).count();
            prop_assert_eq!(staying + plan.create + plan.create_later - plan.delete.len(), replicas);
            prop_assert!(plan.delete.is_empty() || plan.create + plan.create_later == 0);
        }

        /// Victims are distinct, not leaving already, and nobody marked or sick outlives somebody who is neither.
        #[test]
        fn victims_are_the_right_ones(members in members(), replicas in 0_usize..80, order in order()) {
            let plan = decide(replicas, &members, order);
            let chosen: BTreeSet<&str> = plan.delete.iter().map(String::as_str).collect();
            prop_assert_eq!(chosen.len(), plan.delete.len());
            for victim in members.iter().filter(|m| chosen.contains(m.name.as_str())) {
                prop_assert!(!victim.leaving);
                for survivor in members.iter().filter(|m| !m.leaving && !chosen.contains(m.name.as_str())) {
                    prop_assert!(victim.marked || !survivor.marked);
                    if victim.marked == survivor.marked {
                        prop_assert!(!victim.ready || survivor.ready);
                    }
                }
            }
        }

        /// The order in which Nodes were observed changes nothing.
        #[test]
        fn the_order_of_observation_is_irrelevant(mut members in members(), replicas in 0_usize..80, order in order()) {
            let plan = decide(replicas, &members, order);
            members.reverse();
            prop_assert_eq!(decide(replicas, &members, order), plan);
        }
    }
}
