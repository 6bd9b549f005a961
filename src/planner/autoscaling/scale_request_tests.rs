use super::*;
use crate::autoscaling::{increase, tests::snapshot};

#[test]
fn what_was_written_counts_until_the_watch_shows_it() {
    let mut cache = WriteCache::default();
    let (before, after) =
        (snapshot(3), SetSnapshot { generation: 2, version: "2".to_owned(), ..snapshot(5) });
    assert_eq!(cache.current(&before), Some(&before));
    cache.read(after.clone());
    assert_eq!(cache.current(&before), Some(&after));
    // The change of another client, which the watch shows after ours.
    let later = SetSnapshot { generation: 3, version: "3".to_owned(), ..snapshot(4) };
    assert_eq!(cache.current(&later), Some(&later));
    // A request that names a Node above the replicas changes the victims alone, which the generation does not count.
    let victims = ["a".to_owned()].into();
    let named = SetSnapshot { version: "4".to_owned(), victims, ..later.clone() };
    cache.read(named.clone());
    assert_eq!(cache.current(&later), Some(&named));
    // A recreated set of the same name.
    let other = SetSnapshot { uid: "other".to_owned(), ..snapshot(1) };
    assert_eq!(cache.current(&other), Some(&other));
}

#[test]
fn a_write_without_a_response_is_settled_first() {
    let mut cache = WriteCache::default();
    let on = snapshot(3);
    cache.lost(on.clone());
    assert_eq!(cache.current(&on), None);
    assert!(!cache.settles(&on), "it may happen yet: the set has the version that it names");
    let fenced = SetSnapshot { version: "2".to_owned(), ..on.clone() };
    assert!(cache.settles(&fenced));
    cache.read(fenced.clone());
    assert_eq!(cache.current(&on), Some(&fenced));
}

/// Runs a scale request against these responses; returns the last step and the calls.
fn carried_out(
    mut request: ScaleRequest,
    cache: &mut WriteCache,
    responses: Vec<ApiResponse>,
) -> (ScaleStep, Vec<ApiCall>) {
    let mut calls = Vec::new();
    let mut response = ApiResponse::Begun;
    let mut responses = responses.into_iter();
    loop {
        let grow = |snapshot: &SetSnapshot| increase(snapshot, 2).map(Some);
        match request.next(response, cache, || Ok(snapshot(3)), grow, "s") {
            ScaleStep::ApiCall(call) => calls.push(call),
            end => return (end, calls),
        }
        response = responses.next().expect("a call too many");
    }
}

#[test]
fn a_scale_request_is_one_write() {
    let written = SetSnapshot { generation: 2, version: "2".to_owned(), ..snapshot(5) };
    let mut cache = WriteCache::default();
    let (end, calls) =
        carried_out(ScaleRequest::of_number(), &mut cache, vec![ApiResponse::Stands(written.clone())]);
    assert_eq!((end, calls.len()), (ScaleStep::Done, 1));
    assert_eq!(cache.current(&snapshot(3)), Some(&written));
}

#[test]
fn a_conflict_over_the_status_is_no_obstacle_and_one_over_the_spec_is() {
    let written = ApiResponse::Stands(SetSnapshot { generation: 2, version: "3".to_owned(), ..snapshot(5) });
    let status = ApiResponse::Stands(SetSnapshot { version: "2".to_owned(), ..snapshot(3) });
    let responses = vec![ApiResponse::Conflict, status, written];
    let (end, calls) = carried_out(ScaleRequest::of_number(), &mut WriteCache::default(), responses);
    assert_eq!(end, ScaleStep::Done);
    assert!(matches!(&calls[2], ApiCall::Write { on, .. } if on.version == "2"), "{calls:?}");

    // Already raised, perhaps by the same request to an earlier process.
    let raised =
        || ApiResponse::Stands(SetSnapshot { generation: 2, version: "2".to_owned(), ..snapshot(5) });
    let responses = vec![ApiResponse::Conflict, raised()];
    let (end, _) = carried_out(ScaleRequest::of_number(), &mut WriteCache::default(), responses);
    assert_eq!(end, ScaleStep::Failed(ScaleFailure::Changed));
    let again = ApiResponse::Stands(SetSnapshot { generation: 3, version: "3".to_owned(), ..snapshot(7) });
    let responses = vec![ApiResponse::Conflict, raised(), again];
    assert_eq!(
        carried_out(ScaleRequest::of_names(), &mut WriteCache::default(), responses).0,
        ScaleStep::Done
    );
}

#[test]
fn a_number_that_was_computed_for_another_size_is_refused() {
    let done =
        || vec![ApiResponse::Stands(SetSnapshot { generation: 2, version: "2".to_owned(), ..snapshot(5) })];
    let changed = ScaleStep::Failed(ScaleFailure::Changed);
    let end = |told: &SetSnapshot, request| {
        let mut cache = WriteCache::default();
        cache.tell(told);
        carried_out(request, &mut cache, done())
    };
    // The watch shows 3 replicas; 1 was the last answer. Which Nodes go does not depend on the size.
    assert_eq!(end(&snapshot(1), ScaleRequest::of_number()), (changed.clone(), vec![]));
    assert_eq!(end(&snapshot(1), ScaleRequest::of_names()).0, ScaleStep::Done);
    assert_eq!(end(&snapshot(3), ScaleRequest::of_number()).0, ScaleStep::Done);
    let recreated = SetSnapshot { uid: "other".to_owned(), ..snapshot(1) };
    assert_eq!(end(&recreated, ScaleRequest::of_number()).0, ScaleStep::Done);
    // A complete request is an answer, too: the watch that lags behind it is known to.
    let mut cache = WriteCache::default();
    cache.tell(&snapshot(3));
    assert_eq!(carried_out(ScaleRequest::of_number(), &mut cache, done()).0, ScaleStep::Done);
    let again =
        vec![ApiResponse::Stands(SetSnapshot { generation: 3, version: "3".to_owned(), ..snapshot(7) })];
    assert_eq!(carried_out(ScaleRequest::of_number(), &mut cache, again).0, ScaleStep::Done);
    // A user scales.
    cache.read(SetSnapshot { generation: 4, version: "4".to_owned(), ..snapshot(9) });
    assert_eq!(carried_out(ScaleRequest::of_number(), &mut cache, done()), (changed, vec![]));
}

#[test]
fn a_lost_response_is_followed_to_its_end() {
    let done = || ApiResponse::Stands(SetSnapshot { generation: 2, version: "2".to_owned(), ..snapshot(5) });
    let untouched = || ApiResponse::Stands(snapshot(3));
    let fenced = || ApiResponse::Stands(SetSnapshot { version: "2".to_owned(), ..snapshot(3) });
    let of = |responses| {
        let mut cache = WriteCache::default();
        let (end, calls) = carried_out(ScaleRequest::of_number(), &mut cache, responses);
        (end, calls, cache.unsettled().is_some())
    };
    // The write was applied.
    let (end, calls, open) = of(vec![ApiResponse::Nothing, done()]);
    assert_eq!((end, calls.len(), open), (ScaleStep::Done, 2, false));
    // The write was not applied and can no longer be: it is sent again.
    let (end, calls, _) = of(vec![ApiResponse::Nothing, untouched(), fenced(), done()]);
    assert_eq!(end, ScaleStep::Done);
    assert!(
        matches!(calls[2], ApiCall::Fence { .. }) && matches!(calls[3], ApiCall::Write { .. }),
        "{calls:?}"
    );
    // The write was applied during the fencing.
    let (end, calls, _) = of(vec![ApiResponse::Nothing, untouched(), ApiResponse::Conflict, done()]);
    assert_eq!((end, calls.len()), (ScaleStep::Done, 4));
    // The outcome is unknown: the next request settles it first.
    let (end, _, open) = of(vec![ApiResponse::Nothing, ApiResponse::Nothing]);
    assert_eq!((end, open), (ScaleStep::Failed(ScaleFailure::Open), true));
    // Another client has changed the spec, before or after the write.
    let other = ApiResponse::Stands(SetSnapshot { generation: 3, version: "7".to_owned(), ..snapshot(4) });
    assert_eq!(of(vec![ApiResponse::Nothing, other]).0, ScaleStep::Failed(ScaleFailure::Open));
    // The set is gone.
    let (end, _, open) = of(vec![ApiResponse::Nothing, ApiResponse::NoGroup]);
    assert_eq!((end, open), (ScaleStep::Refused(ScaleRefusal::no_group("s")), false));
}

#[test]
fn a_refused_fence_leaves_the_size_known_and_every_request_refused() {
    let mut cache = WriteCache::default();
    let stands = || ApiResponse::Stands(snapshot(3));
    let lost = vec![ApiResponse::Nothing, stands(), ApiResponse::Refused];
    let (end, _) = carried_out(ScaleRequest::of_number(), &mut cache, lost);
    assert_eq!(end, ScaleStep::Failed(ScaleFailure::NotFenced));
    assert_eq!(cache.current(&snapshot(3)), Some(&snapshot(3)), "the other groups need an answer");
    assert!(cache.unsettled().is_some());
    let (end, calls) =
        carried_out(ScaleRequest::of_number(), &mut cache, vec![stands(), ApiResponse::Refused]);
    assert_eq!((end, calls.len()), (ScaleStep::Failed(ScaleFailure::NotFenced), 2), "nothing is written");
    // The lost write arrives after all: another number of replicas than that of the last answer.
    cache.tell(&snapshot(3));
    let arrived = SetSnapshot { generation: 2, version: "2".to_owned(), ..snapshot(5) };
    assert_eq!(cache.current(&arrived), Some(&arrived));
    let (end, _) = carried_out(ScaleRequest::of_number(), &mut cache, vec![ApiResponse::Stands(arrived)]);
    assert_eq!((end, cache.unsettled()), (ScaleStep::Failed(ScaleFailure::Changed), None));
}
