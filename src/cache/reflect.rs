//! Reflectors: fill a cache from a watch for as long as the process lives.

use std::{error::Error, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use kube_ext::{
    error::{chain, refusal},
    watch::{self, InitialList, WatchError, WatchEvent, WatchRequest},
};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::{Cache, Protobuf, View};

/// Minimum lifetime of a watch (client-go `tools/cache`); the maximum is twice that.
const LEAST_LIFE: Duration = Duration::from_mins(5);
/// Lifetime of a JSON watch, in seconds. kube's watcher gives up a watch that is silent for 5 s longer, so a
/// dead watch is detected within 120 s, and a live one never is taken for dead, whether its server sends
/// bookmarks or not.
const JSON_LIFE: u32 = 115;

/// Permanent failure of a watch: a missing permission, or a kind that is not installed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ReflectError {
    message: String,
    /// Error of the API server, which names user and verb.
    source: Box<dyn Error + Send + Sync>,
}

/// Fills `cache` from a protobuf watch of the objects that `config` selects. Returns only if the first list
/// fails permanently.
///
/// A watch that breaks later is retried with backoff, whatever the reason: a permission may be granted again.
pub async fn run_protobuf<V: Protobuf>(
    client: Client,
    config: watcher::Config,
    cache: Arc<Cache<V>>,
) -> Result<(), ReflectError> {
    let watch = WatchRequest {
        path: V::PATH.to_owned(),
        field_selector: config.field_selector,
        label_selector: config.label_selector,
        initial_list: InitialList::List,
        min_timeout: LEAST_LIFE,
    };
    let kind = V::KIND;
    let on_event = |event: WatchEvent<'_>| match event {
        WatchEvent::InitialList => cache.begin_list(),
        WatchEvent::Object { raw, deleted } => match V::read(raw) {
            Ok(view) if deleted => cache.remove(&view.key()),
            Ok(view) => cache.apply(view),
            Err(error) => warn!(kind, %error, "an object cannot be decoded, and is left out"),
        },
        WatchEvent::Complete => cache.complete_list(),
    };
    let failed = |error: WatchError| go_on(error.code().filter(|_| !cache.in_sync()), kind, error);
    loop {
        let following =
            watch::follow(&client, &watch, watch::vital_backoff(), &(), &cache.newest, on_event, failed);
        tokio::select! {
            biased;
            error = following => return Err(error),
            () = cache.relist_wanted.notified() => {}
        }
    }
}

/// Fills `cache` from a JSON watch of `api`, the only encoding of custom resources; returns as
/// [`run_protobuf`] does.
pub async fn run<K, V>(api: Api<K>, config: watcher::Config, cache: Arc<Cache<V>>) -> Result<(), ReflectError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    V: View + From<K>,
{
    let config = config.timeout(JSON_LIFE);
    let kind = K::plural(&());
    loop {
        let following = async {
            let mut events = pin!(watcher(api.clone(), config.clone()).backoff(watch::vital_backoff()));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => cache.begin_list(),
                    Ok(Event::InitDone) => cache.complete_list(),
                    Ok(Event::InitApply(object) | Event::Apply(object)) => cache.apply(V::from(object)),
                    Ok(Event::Delete(object)) => cache.remove(&V::from(object).key()),
                    Err(error) => {
                        let code = refusal(&error).map(|status| status.code).filter(|_| !cache.in_sync());
                        go_on(code, &kind, error)?;
                    }
                }
            }
            Ok::<(), ReflectError>(())
        };
        tokio::select! {
            biased;
            ended = following => return ended,
            () = cache.relist_wanted.notified() => {}
        }
    }
}

/// Returns an error if retrying is pointless; `code` is the HTTP status of a refusal before the first list.
fn go_on(
    code: Option<u16>,
    kind: &str,
    error: impl Error + Send + Sync + 'static,
) -> Result<(), ReflectError> {
    let message = match code {
        Some(403) => format!(
            "may not list and watch {kind}: grant the operator that right (see the chart's ClusterRole)"
        ),
        Some(404) => format!(
            "the API server has no {kind}: install the CustomResourceDefinitions first (kube-node crds | kubectl apply --server-side -f -)"
        ),
        _ => {
            warn!(kind, error = chain(&error), "watch failed, trying again");
            return Ok(());
        }
    };
    Err(ReflectError { message, source: Box::new(error) })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures::stream;
    use http::{Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::CustomObject;
    use kube_node_api::NodeClass;

    #[tokio::test(start_paused = true)]
    async fn a_silent_watch_in_json_is_restarted_within_two_minutes() {
        let watches = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&watches);
        let server = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let body = if is_watch {
                into.lock().push(Instant::now());
                axum::body::Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())
            } else {
                let list = json!({
                    "apiVersion": "kube-node.io/v1alpha1",
                    "kind": "NodeClassList",
                    "metadata": {"resourceVersion": "5"},
                    "items": [],
                });
                axum::body::Body::from(list.to_string())
            };
            async { Ok::<_, Infallible>(Response::new(body)) }
        });
        let api: Api<CustomObject<NodeClass>> = Api::all(Client::new(server, "default"));
        let cache: Arc<Cache<CustomObject<NodeClass>>> = Arc::default();
        let watch = timeout(Duration::from_mins(6), run(api, watcher::Config::default(), Arc::clone(&cache)));
        assert!(watch.await.is_err() && cache.in_sync());
        let watches = watches.lock();
        let waits: Vec<u64> = watches.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
        assert!(waits.len() >= 2 && waits.iter().all(|wait| (115..125).contains(wait)), "{waits:?}");
    }
}
