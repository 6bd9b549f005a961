//! Properties of every pod lifecycle, whatever the annotations and the events from outside.

use std::{collections::BTreeMap, iter, sync::Arc};

use proptest::prelude::*;

use super::*;

/// External change of a pod.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Deleted {
        grace: i64,
    },
    Marked,
    Preempted,
    /// Another image of the first container.
    Image,
    /// A time without syncs.
    Outage {
        seconds: i64,
    },
    Nothing,
}

fn blows() -> impl Strategy<Value = Vec<(i64, Blow)>> {
    let blow = prop_oneof![
        (0_i64..30).prop_map(|grace| Blow::Deleted { grace }),
        Just(Blow::Marked),
        Just(Blow::Preempted),
        Just(Blow::Image),
        (1_i64..60).prop_map(|seconds| Blow::Outage { seconds }),
        Just(Blow::Nothing),
    ];
    prop::collection::vec((0_i64..90, blow), 0..4)
}

fn any_annotations() -> impl Strategy<Value = Vec<(String, String)>> {
    let what = prop::sample::select(vec!["run-time", "start-time", "ready-time", "stop-time"]);
    let time = (0_u32..25).prop_map(|seconds| format!("{seconds}s"));
    let timed = (what, time).prop_map(|(what, time)| (what.to_owned(), time));
    let other = prop::sample::select(vec![
        ("exit-code", "0"),
        ("exit-code", "1"),
        ("exit-reason", "OOMKilled"),
        ("image-error", "no"),
        ("start-error", "no"),
        ("ready-time", "never"),
        ("run-time", "wrong"),
    ]);
    let any =
        prop_oneof![4 => timed, 1 => other.prop_map(|(what, value)| (what.to_owned(), value.to_owned()))];
    let of = prop::sample::select(vec!["", ".a", ".b", ".x", ".s"]);
    prop::collection::vec((any, of).prop_map(|((what, value), of)| (format!("{what}{of}"), value)), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A written status is final for its moment: a second sync at the same time writes nothing, and nothing
    /// changes before the announced time. Phases and conditions of progress never go back, restarts never
    /// decrease, a back-off doubles with a restart at most, what runs has the image of the spec, and a deleted pod
    /// ends within its grace period.
    #[test]
    fn every_life_is_sound(
        policy in prop::sample::select(vec![RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never]),
        annotations in any_annotations(),
        has_inits in any::<bool>(),
        startup in prop::option::of(0_i32..9),
        deadline in prop::option::of(1_u64..100),
        blows in blows(),
    ) {
        let annotations: BTreeMap<String, String> = annotations.into_iter().collect();
        let annotations: Vec<(&str, &str)> = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let mut spec = spec(policy, &annotations);
        spec.active_deadline = deadline.map(Duration::from_secs);
        spec.containers[0].startup = startup.map(probe);
        if has_inits {
            spec.init_containers = [container("x"), Container { startup: startup.map(probe), ..sidecar("s") }].into();
        }
        let mut pod = pod(spec);
        let (mut preempted, mut announced) = (None, Some(at(0)));
        let mut silent_until = 0;
        let rank = |phase: &str| match phase { "Pending" => 0, "Running" => 1, _ => 2 };
        for second in iter::successors(Some(0), |second| Some(second + 1)).take(200) {
            let mut has_other_image = false;
            for (_, blow) in blows.iter().filter(|(when, _)| *when == second) {
                match *blow {
                    Blow::Deleted { grace } if pod.deleted_at.is_none_or(|before| at(second + grace) < before) => {
                        pod = deleted(pod, second, grace);
                    }
                    Blow::Marked if !pod.is_finished() => {
                        for condition in pod.status.conditions.iter_mut().filter(|c| &*c.r#type == "Ready") {
                            condition.status = "False".into();
                        }
                    }
                    Blow::Preempted if pod.status.start_time.is_some() => preempted = preempted.or(Some(second)),
                    Blow::Image => {
                        Arc::make_mut(&mut pod.spec).containers[0].image = format!("other:{second}").into();
                        has_other_image = true;
                    }
                    Blow::Outage { seconds } => silent_until = second + seconds,
                    _ => {}
                }
                announced = Some(at(second));
            }
            if second < silent_until {
                announced = Some(at(silent_until));
                continue;
            }
            let step = sync_preempted(&pod, preempted, second);
            if announced != Some(at(second)) {
                prop_assert!(step.status.is_none() && !step.delete, "unannounced at {second}: {:?}", step.status);
            }
            prop_assert!(step.again.is_none_or(|again| again > at(second)));
            announced = step.again;
            if let Some(status) = step.status {
                let before = std::mem::replace(&mut pod.status, status);
                let status = &pod.status;
                prop_assert!(rank(&before.phase) <= rank(&status.phase), "{} {}", before.phase, status.phase);
                prop_assert!(!before.has("Initialized") || status.has("Initialized"), "initialized once and for all");
                prop_assert!(status.start_time.is_some() && (before.start_time.is_none() || before.start_time == status.start_time));
                prop_assert!(before.pod_ip.is_none() || before.pod_ip == status.pod_ip);
                for (old, new) in before.containers.iter().zip(&status.containers) {
                    prop_assert!(old.restarts <= new.restarts && new.restarts <= old.restarts + 1 + i32::from(has_other_image));
                    prop_assert!(!new.ready || new.started);
                }
                let first = &status.containers[0];
                if let ContainerState::Waiting { back_off: Some(back_off), .. } = &first.state {
                    let longest = first.restarts.checked_sub(1).map_or(0, |doublings| 10 << doublings.min(5));
                    prop_assert!(back_off.as_secs() <= longest, "{back_off:?} after {} restarts", first.restarts);
                }
                if matches!(&first.state, ContainerState::Running { .. }) && step.stopping != Stopping::All {
                    prop_assert_eq!(&*first.image, patch::whole_name(&pod.spec.containers[0].image));
                }
                let is_ready = status.has("Ready");
                prop_assert_eq!(is_ready, status.containers.iter().all(|container| container.ready) && !pod.is_finished()
                    && status.init_containers.get(1).is_none_or(|sidecar| sidecar.ready));
                for condition in &status.conditions {
                    let old = before.condition(&condition.r#type);
                    let moved = old.is_none_or(|old| old.status != condition.status);
                    prop_assert_eq!(moved, old.and_then(|old| old.since) != condition.since || condition.since == Some(at(second)) && moved);
                }
                let settled = sync_preempted(&pod, preempted, second);
                prop_assert!(settled.status.is_none(), "{:?}\n{:?}", settled.status, pod.status);
            }
            if step.delete {
                prop_assert!(pod.is_finished() && pod.deleted_at.is_some());
                return Ok(());
            }
            prop_assert!(pod.deleted_at.is_none_or(|end| at(second) < end), "it is past its grace");
        }
        prop_assert!(preempted.is_none() && deadline.is_none() || pod.is_finished());
    }
}

proptest! {
    /// Clients that may write a pod may write any time and any grace period into it: a sync must not panic.
    #[test]
    fn any_time_may_be_shown(
        times in prop::array::uniform4(prop::sample::select(vec![
            Timestamp::MIN, at(-60), at(0), at(60), Timestamp::MAX,
        ])),
        spans in prop::array::uniform3(prop::sample::select(vec![0, 30, i64::MAX])),
        annotations in any_annotations(),
        is_deleted in any::<bool>(),
        booted in prop::bool::ANY,
    ) {
        let annotations: BTreeMap<String, String> = annotations.into_iter().collect();
        let annotations: Vec<(&str, &str)> = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let mut spec = spec(RestartPolicy::Always, &annotations);
        let [grace, hook, active] = spans.map(|span| Duration::from_secs(span.unsigned_abs()));
        (spec.grace, spec.active_deadline) = (grace, Some(active));
        spec.containers[0].pre_stop = hook;
        let mut pod = pod(spec);
        let [start, since, end, deleted_at] = times;
        (pod.deleted_at, pod.grace_seconds) = (is_deleted.then_some(deleted_at), Some(spans[0]));
        pod.status.start_time = Some(start);
        let last = Terminated {
            exit_code: 1,
            crashes: 1,
            reason: "Error".into(),
            started: Some(since),
            finished: Some(end),
        };
        let view = |name: &str, state| ContainerView {
            name: name.into(),
            ready: false,
            started: true,
            restarts: 1,
            image: "docker.io/library/i:latest".into(),
            crashes: 0,
            state,
            last: Some(Box::new(last.clone())),
        };
        pod.status.containers = [
            view("a", ContainerState::Running { since: Some(since) }),
            view("b", ContainerState::Terminated(last.clone())),
        ].into();
        let context = SyncContext {
            host_ip: HOST,
            ip: IP,
            defaults: &ContainerDefaults::default(),
            booted: booted.then_some(end),
            preempted: None,
            missing: &[],
        };
        for second in 0..3 {
            if let Some(status) = sync_pod(&pod, context, at(second)).status {
                pod.status = status;
            }
        }
    }
}
