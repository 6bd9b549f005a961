//! Kubelet watches: simulated API load of a kubelet besides its writes, for testing API servers.
//!
//! Each machine holds a kubelet's watches over its own connection and requests the tokens of its pods. Events
//! are counted and dropped: a machine of [`crate`] follows the caches of its process, whatever its identity.
//! Only the Secrets and `ConfigMaps` that its pods mount are remembered, since a kubelet watches each.

mod meter;
mod mounts;
mod watches;

use std::{collections::HashMap, convert::Infallible, future::pending};

use futures::{
    StreamExt,
    future::{AbortHandle, Abortable, OptionFuture, join_all},
    stream::FuturesUnordered,
};
use kube::{Client, runtime::watcher::DefaultBackoff};
use kube_ext::{
    error::chain,
    rate::Rate,
    watch::{WatchError, WatchEvent, WatchRequest, follow},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::debug;

pub use self::meter::Meter;
use self::{mounts::Mounts, watches::Object};
use crate::request;

/// Holds the watches of the kubelet of `node` while polled, with this client and rate limit.
pub async fn kubelet(api: (&Client, &Rate), node: &str, meter: &Meter) -> Infallible {
    let (client, _) = api;
    let mounts = Mutex::new(Mounts::default());
    let changed = Notify::new();
    let own = join_all(watches::of_kubelet(node).map(async |watch| {
        hold(client, &watch, meter, |_| {}).await;
    }));
    let pods = watches::of_pods(node);
    let pods = hold(client, &pods, meter, |event| {
        mounts.lock().handle(&event, Instant::now());
        changed.notify_one();
    });
    tokio::select! {
        never = pods => never,
        _ = own => pending().await,
        never = mounted(api, meter, &mounts, &changed) => never,
    }
}

/// Holds a watch across all failures.
async fn hold(
    client: &Client,
    watch: &WatchRequest,
    meter: &Meter,
    on_event: impl FnMut(WatchEvent<'_>),
) -> Infallible {
    let failed = |error: WatchError| {
        debug!(path = watch.path, error = chain(&error), "a watch ended");
        Ok(())
    };
    follow(client, watch, DefaultBackoff::default(), meter, on_event, failed).await
}

/// Watches each object that pods mount once, and requests the pods' tokens.
async fn mounted(
    api: (&Client, &Rate),
    meter: &Meter,
    mounts: &Mutex<Mounts>,
    changed: &Notify,
) -> Infallible {
    let (client, rate) = api;
    let mut held: HashMap<Object, AbortHandle> = HashMap::new();
    let mut watches = FuturesUnordered::new();
    let mut calls = FuturesUnordered::new();
    loop {
        let next_call = {
            let mut mounts = mounts.lock();
            let wanted = mounts.objects();
            held.retain(|object, handle| {
                let stays = wanted.contains(object);
                if !stays {
                    handle.abort();
                }
                stays
            });
            for object in wanted {
                if held.contains_key(&object) {
                    continue;
                }
                let (handle, registration) = AbortHandle::new_pair();
                let watch = watches::of_object(&object);
                let following = async move { hold(client, &watch, meter, |_| {}).await };
                watches.push(Abortable::new(following, registration));
                held.insert(object, handle);
            }
            // Answers and failures are dropped: the next call of a token serves as well.
            let due = mounts.due(Instant::now()).into_iter();
            calls.extend(due.map(|call| request::send(client, Some(rate), vec![call])));
            mounts.next_due()
        };
        let timer = OptionFuture::from(next_call.map(sleep_until));
        tokio::select! {
            () = changed.notified() => {}
            Some(()) = timer => {}
            Some(_) = watches.next(), if !watches.is_empty() => {}
            Some(_) = calls.next(), if !calls.is_empty() => {}
        }
    }
}
