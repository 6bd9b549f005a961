//! Keeps a cache filled by a watch, for as long as the process lives.

use std::{collections::BTreeSet, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        utils::{Backoff, ResetTimerBackoff},
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::{Cache, View};

/// The first wait of a broken watch.
const FIRST_WAIT: Duration = Duration::from_millis(400);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A watch that held this long is sound: the next wait is the first again.
const CALM: Duration = Duration::from_secs(30);

/// Why a watch cannot go on: the operator lacks the right, or the kind is not installed.
#[derive(Debug, thiserror::Error)]
pub enum ReflectError {
    /// The API server refuses.
    #[error("may not list and watch {kind}: grant the operator that right (see the chart's ClusterRole)")]
    Forbidden {
        /// Plural of the kind.
        kind: String,
        /// What the API server says; it names user and verb.
        #[source]
        source: Box<watcher::Error>,
    },
    /// The API server does not know the kind.
    #[error(
        "the API server has no {kind}: install the CustomResourceDefinitions first (kube-node crds | kubectl apply --server-side -f -)"
    )]
    NotInstalled {
        /// Plural of the kind.
        kind: String,
        /// What the API server says.
        #[source]
        source: Box<watcher::Error>,
    },
}

/// Fills `cache` from a watch of `api`; comes back only when the first list shows that it never can.
///
/// A watch that breaks later is made anew with a back-off, whatever the reason: rights may come back.
pub async fn run<K, V>(api: Api<K>, config: watcher::Config, cache: Arc<Cache<V>>) -> Result<(), ReflectError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    V: View + From<K>,
{
    let kind = K::plural(&()).into_owned();
    while !follow(&api, &config, &cache, &kind).await? {}
    Ok(())
}

/// Fills `cache` until a new list is wanted of it; whether the watch has ended.
async fn follow<K, V>(
    api: &Api<K>,
    config: &watcher::Config,
    cache: &Cache<V>,
    kind: &str,
) -> Result<bool, ReflectError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    V: View + From<K>,
{
    let patience = ResetTimerBackoff::new(Patience::default(), CALM);
    let mut events = pin!(watcher(api.clone(), config.clone()).backoff(patience));
    let mut listed = BTreeSet::new();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = cache.anew.notified() => return Ok(false),
        };
        let Some(event) = event else { return Ok(true) };
        match event {
            Ok(Event::Init) => {
                listed.clear();
                cache.relisting();
            }
            Ok(Event::InitApply(object)) => {
                let view = V::from(object);
                listed.insert(view.key());
                cache.apply(view);
            }
            Ok(Event::InitDone) => {
                cache.relisted(&listed);
                listed = BTreeSet::new();
            }
            Ok(Event::Apply(object)) => cache.apply(V::from(object)),
            Ok(Event::Delete(object)) => cache.remove(&key(&object)),
            Err(error) => {
                if !cache.in_sync()
                    && let Some(code) = status_code(&error)
                {
                    let (source, kind) = (Box::new(error), kind.to_owned());
                    match code {
                        403 => return Err(ReflectError::Forbidden { kind, source }),
                        404 => return Err(ReflectError::NotInstalled { kind, source }),
                        _ => warn!(kind, error = %source, "watch failed, trying again"),
                    }
                } else {
                    warn!(kind, %error, "watch failed, trying again");
                }
            }
        }
    }
}

/// How long a broken watch waits before it is made anew; longer after each further failure. Everything here lives by
/// watches, so [`LONGEST_WAIT`] is short, where kube's own default is 30 s; and the waits are spread, so that the watches of
/// a process do not all come at once.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
}

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        Some(wait.mul_f64(rand::random_range(0.5..=1.0)))
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// As [`View::key`] has it.
fn key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    object
        .namespace()
        .map_or_else(|| object.name_any(), |namespace| format!("{namespace}/{}", object.name_any()))
}

/// The HTTP status of a refusal by the API server.
fn status_code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}
