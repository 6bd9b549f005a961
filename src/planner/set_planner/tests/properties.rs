//! Invariants in any state.

use proptest::{collection::vec, prelude::*};

use super::*;

fn members() -> impl Strategy<Value = Vec<NodeState<'static>>> {
    let one = (0_usize..3, 0_usize..3, any::<[bool; 6]>(), prop::option::of(0..NOW), 0_usize..5, 0..NOW);
    vec(one, 0..40).prop_map(|rows| {
        let names = names(rows.len());
        let rows = rows.into_iter().zip(names);
        rows.map(
            |(
                (stage, revision, [started, marked, skip, refused, unprotected, named], ready, pods, created),
                name,
            )| {
                NodeState {
                    stage: [DeletionStage::Staying, DeletionStage::PendingDrain, DeletionStage::Draining]
                        [stage],
                    ready_since: ready.map(at),
                    started,
                    marked,
                    skip_remediation: skip,
                    deletion_refused: refused && pods == 0,
                    unprotected: unprotected && stage == 0 && pods == 2,
                    victim: named && pods == 1,
                    pods,
                    created: at(created),
                    conditions: ready.map_or_else(|| silent(name, "").conditions, |_| Vec::new()),
                    ..node(name, ["new", "old", "older"][revision])
                }
            },
        )
        .collect()
    })
}

fn any_wanted() -> impl Strategy<Value = DesiredState<'static>> {
    let budget =
        (0_usize..6, 0_usize..6).prop_filter("of nothing", |(surge, unavailable)| surge + unavailable > 0);
    let room = prop::option::of(0_usize..10);
    let times = (room, 0_u64..60, prop::option::of(0_u64..20_000), prop::option::of(0_u64..20_000));
    let flags = (any::<bool>(), any::<bool>());
    (0_usize..50, budget, 0_usize..4, 0_usize..10, flags, 0_usize..20, 1_usize..5, times).prop_map(
        |(
            replicas,
            (surge, unavailable),
            pace,
            keep,
            (first, is_node_group),
            max_unhealthy,
            max_repairs,
            (room, min_ready, age, startup),
        )| {
            let mut wanted = nursing(replicas);
            wanted.budget = Budget { surge, unavailable };
            wanted.pace = [
                RolloutMode::Rolling { keep: 0 },
                RolloutMode::Rolling { keep },
                RolloutMode::OnDelete,
                RolloutMode::Held,
            ][pace];
            wanted.replacement =
                if first { ReplacementOrder::DeleteFirst } else { ReplacementOrder::SurgeFirst };
            wanted.is_node_group = is_node_group;
            wanted.class_room = room.map(|left| ClassRoom { left, limit: 50 });
            wanted.max_unhealthy = max_unhealthy;
            wanted.max_repairs = max_repairs;
            wanted.min_ready = Duration::from_secs(min_ready);
            wanted.rules.expire_after = age.map(Duration::from_secs);
            wanted.rules.startup_timeout = startup.map(Duration::from_secs);
            wanted
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    /// In any state: the budget holds, no Node goes twice, and the order of the Nodes does not matter.
    #[test]
    fn the_budget_holds(mut members in members(), wanted in any_wanted(), expected in 0_usize..5) {
        let plan = decide(&wanted, &members, expected, at(NOW));
        prop_assert_eq!(check(&plan, &wanted, &members, expected, at(NOW)), Ok(()));
        members.reverse();
        prop_assert_eq!(decide(&wanted, &members, expected, at(NOW)), plan);
    }

    /// A set that does not shrink loses no available Node beyond its budget, marked Nodes included.
    #[test]
    fn a_mark_does_not_pass_the_budget_by(mut members in members(), wanted in any_wanted(), expected in 0_usize..5) {
        for member in &mut members {
            // A victim's replica is gone already.
            member.victim = false;
        }
        let is_kept = |member: &&NodeState<'_>| member.stage == DeletionStage::Staying && member.revision == "new";
        let replicas = wanted.replicas.max(members.iter().filter(is_kept).count());
        let pace = RolloutMode::Rolling { keep: 0 };
        let wanted = DesiredState { replicas, pace, ..wanted };
        let plan = decide(&wanted, &members, expected, at(NOW));
        let floor = match wanted.replacement {
            ReplacementOrder::SurgeFirst => wanted.budget.floor(replicas),
            ReplacementOrder::DeleteFirst => replicas.saturating_sub(wanted.budget.unavailable.max(1)),
        };
        let goes = |name| plan.drain_permits.contains(&name) || plan.delete.iter().any(|deletion| deletion.name == name);
        let is_available = |member: &&NodeState<'_>| {
            member.available_in(wanted.min_ready, at(NOW)).is_some_and(|left| left.is_zero())
        };
        let (lost, left): (Vec<_>, Vec<_>) = members.iter().filter(is_available).partition(|member| goes(member.name));
        prop_assert!(lost.is_empty() || left.len() >= floor, "{} go, {} are left of {floor}", lost.len(), left.len());
    }

    /// Repairs in flight never exceed their limit, whatever the unhealthy condition is.
    #[test]
    fn repairs_in_flight_are_limited(mut members in members(), wanted in any_wanted(), ready in vec(any::<bool>(), 40)) {
        for (member, ready) in members.iter_mut().zip(ready).filter(|(member, _)| !member.conditions.is_empty()) {
            // A condition beside Ready, which the rules of the set name in the place of Ready.
            member.ready_since = ready.then(|| at(0));
        }
        let plan = decide(&wanted, &members, 0, at(NOW));
        let is_unhealthy = |member: &&NodeState<'_>| {
            member.stage != DeletionStage::Staying && member.started && !member.skip_remediation
                && !member.conditions.is_empty()
        };
        let before = members.iter().filter(is_unhealthy).count();
        let repairs = plan.delete.iter().filter(|deletion| deletion.cause.is_some_and(DisruptionReason::is_repair)).count();
        prop_assert!(repairs == 0 || before + repairs <= wanted.max_repairs, "{repairs} beside {before}");
    }

    /// A set with missing, surplus or outdated Nodes and no action always reports a wait.
    #[test]
    fn no_wait_is_silent(mut members in members(), wanted in any_wanted()) {
        // Refused writes are reported elsewhere.
        for member in &mut members {
            member.deletion_refused = false;
        }
        let plan = plan(&wanted, &members);
        let idle = plan.create == 0 && plan.delete.is_empty() && plan.drain_permits.is_empty();
        let unmet = plan.counts.available < wanted.replicas || plan.counts.staying > wanted.replicas
            || plan.counts.to_replace > 0 || plan.counts.leaving > 0;
        if idle && unmet {
            prop_assert!(!plan.waits.is_empty());
        }
    }
}
