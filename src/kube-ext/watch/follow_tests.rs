//! Tests of one watch, with servers that record its requests.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, stream};
use kube::core::Status;
use parking_lot::Mutex;

use super::{
    super::{frames::tests::bookmark, vital_backoff},
    *,
};

#[test]
fn a_watch_goes_on_only_where_nothing_was_said_against_it() {
    let refused =
        |code| WatchError::Transport(TransportError::Refused(Status::default().with_code(code).boxed()));
    let away = WatchError::from(unreachable(kube::Error::LinesCodecMaxLineLengthExceeded));
    assert!(away.keeps_place() && refused(429).keeps_place());
    let over = [WatchError::Expired, WatchError::AtOnce, WatchError::NoLists, refused(403), refused(500)];
    for ended in over.into_iter().chain([refused(504), WatchError::Transport(TransportError::NoEnvelope)]) {
        assert!(!ended.keeps_place(), "{ended}");
    }
}

/// Times and queries of the watch requests until the second failure. The server sends a bookmark that
/// ends the initial list, then these bookmarks a minute apart, then nothing.
async fn watches(bookmarks: &[&str]) -> Vec<(Duration, String)> {
    let frames: Vec<_> = bookmarks.iter().map(|version| Bytes::from(bookmark(version, false))).collect();
    let (begin, requests) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let into = Arc::clone(&requests);
    let server = tower::service_fn(move |request: Request<Body>| {
        into.lock().push((begin.elapsed(), request.uri().query().unwrap().to_owned()));
        let list = stream::iter([Bytes::from(bookmark("6", true))]);
        let later = stream::iter(frames.clone()).then(async |frame| {
            sleep(Duration::from_mins(1)).await;
            frame
        });
        let all = list.chain(later.boxed()).chain(stream::pending()).map(Ok::<_, Infallible>);
        let body = axum::body::Body::from_stream(all);
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let watch = WatchRequest {
        path: "/api/v1/nodes".to_owned(),
        field_selector: None,
        label_selector: None,
        initial_list: InitialList::Stream,
        min_timeout: Duration::from_mins(5),
    };
    let mut failures = 0;
    let failed = |ended: WatchError| {
        assert!(matches!(ended, WatchError::Silent(_)), "{ended}");
        failures += 1;
        if failures == 2 { Err(()) } else { Ok(()) }
    };
    let client = Client::new(server, "default");
    follow(&client, &watch, vital_backoff(), &(), &Newest::default(), |_| {}, failed).await;
    let requests = requests.lock();
    requests.clone()
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_its_bookmarks_is_made_anew_where_it_was() {
    let [_, (at, query)] = &watches(&["7", "8"]).await[..] else { panic!("two watches") };
    // The bookmarks came after one and two minutes.
    assert!((240..245).contains(&at.as_secs()), "{at:?}");
    assert!(query.contains("resourceVersion=8&"), "{query}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sends_no_bookmarks_may_be_silent_for_the_life_of_a_watch() {
    let [(_, first), (at, query)] = &watches(&[]).await[..] else { panic!("two watches") };
    let life = first.split('&').find_map(|part| part.strip_prefix("timeoutSeconds=")).unwrap();
    let life: u64 = life.parse().unwrap();
    assert!((300..600).contains(&life) && (life + 5..life + 8).contains(&at.as_secs()), "{life} {at:?}");
    assert!(query.contains("resourceVersion=6&"), "{query}");
}

/// Times and queries of the requests to a server that gives these answers; ends with the first request beyond them.
async fn requests(answers: Vec<Response<Vec<u8>>>) -> Vec<(Duration, String)> {
    let (begin, requests) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let (into, left) = (Arc::clone(&requests), Arc::new(Mutex::new(answers.into_iter())));
    let server = tower::service_fn(move |request: Request<Body>| {
        into.lock().push((begin.elapsed(), request.uri().query().unwrap().to_owned()));
        let answer = left.lock().next().map(|answer| answer.map(Body::from));
        async { answer.ok_or_else(|| std::io::Error::other("no answer is left")) }
    });
    let watch = WatchRequest {
        path: "/api/v1/nodes".to_owned(),
        field_selector: None,
        label_selector: None,
        initial_list: InitialList::List,
        min_timeout: Duration::from_mins(5),
    };
    let failed = |ended: WatchError| match ended {
        WatchError::Transport(TransportError::Unreachable(_)) => Err(()),
        _ => Ok(()),
    };
    let client = Client::new(server, "default");
    follow(&client, &watch, vital_backoff(), &(), &Newest::default(), |_| {}, failed).await;
    let requests = requests.lock();
    requests.clone()
}

fn listed(version: &str) -> Response<Vec<u8>> {
    let metadata = ListMeta { resource_version: Some(version.to_owned()), ..ListMeta::default() };
    let list = AnyList { metadata: Some(metadata), items: vec![] };
    Response::new(transport::envelope("v1", "NodeList", &list))
}

fn refusal(code: u16, message: &str, retry_after: Option<u16>) -> Response<Vec<u8>> {
    let status = Status::failure(message, "").with_code(code);
    let answer = Response::builder().status(code);
    let answer = match retry_after {
        Some(seconds) => answer.header(RETRY_AFTER, seconds),
        None => answer,
    };
    answer.body(serde_json::to_vec(&status).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_later_list_is_not_older_than_the_watch_and_of_the_latest_state_where_that_is_not_there() {
    let too_large = "Too large resource version: 9, current: 3";
    let seen = [bookmark("8", false), bookmark("9", false)].concat();
    let answers = vec![
        listed("7"),
        Response::new(seen),
        refusal(500, "", None),
        refusal(504, "etcd is late", None),
        refusal(504, too_large, Some(1)),
        listed("3"),
        refusal(410, "too old", None),
    ];
    let queries = requests(answers).await.into_iter().map(|(_, query)| query);
    let of = |query: String| match query.split_once("resourceVersion=") {
        _ if !query.contains("watch=true") => query,
        Some((_, from)) => format!("watch {}", from.split('&').next().unwrap_or_default()),
        None => "watch".to_owned(),
    };
    let not_older = "limit=500&resourceVersion=9&resourceVersionMatch=NotOlderThan";
    let latest = "limit=500";
    assert_eq!(
        queries.map(of).collect::<Vec<_>>(),
        [latest, "watch 7", "watch 9", not_older, not_older, latest, "watch 3", latest]
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_is_sent_again_when_the_api_server_asks_for_that() {
    let answers = vec![
        refusal(503, "starting", Some(20)),
        listed("7"),
        refusal(503, "stopping", Some(20)),
        refusal(500, "no time is named", None),
    ];
    let requests = requests(answers).await;
    let [list, list_again, watch, watch_again, other] = &requests[..] else { panic!("{requests:?}") };
    let waits = [(list, list_again), (watch, watch_again), (watch_again, other)];
    let waits = waits.map(|((before, _), (after, _))| after.saturating_sub(*before).as_secs() >= 20);
    assert_eq!(waits, [true, true, false], "{requests:?}");
    assert!(watch_again.1.contains("resourceVersion=7&"), "{watch_again:?}");
}
