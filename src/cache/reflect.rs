//! Keeps a cache filled by a watch, for as long as the process lives.

use std::{collections::BTreeSet, fmt::Debug, pin::pin, sync::Arc};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::{Cache, View};

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
    let mut events = pin!(watcher(api, config).default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
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
                    let source = Box::new(error);
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
    Ok(())
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
