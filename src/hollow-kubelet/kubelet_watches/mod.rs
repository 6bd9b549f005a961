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
    future::{OptionFuture, join_all},
    stream::FuturesUnordered,
};
use kube::{Client, runtime::watcher::DefaultBackoff};
use kube_ext::{
    environment,
    error::chain,
    rate::Rate,
    watch::{Newest, WatchError, WatchEvent, WatchRequest, follow},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

pub use self::meter::Meter;
use self::{mounts::Mounts, watches::Object};
use crate::request;

/// Holds the watches of the kubelet of `node` while polled, with this client and rate limit.
pub async fn kubelet(api: (&Client, &Rate), node: &str, meter: &Meter) -> Infallible {
    let (client, _) = api;
    let mounts = Mutex::new(Mounts::default());
    let changed = Notify::new();
    let others = watches::of_kubelet(node).map(async |watch| hold(client, &watch, meter, |_| {}).await);
    let pods = watches::of_pods(node);
    let pods = hold(client, &pods, meter, |event| {
        mounts.lock().handle(&event, Instant::now());
        changed.notify_one();
    });
    tokio::select! {
        biased;
        never = pods => never,
        _ = join_all(others) => pending().await,
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
    follow(client, watch, DefaultBackoff::default(), meter, &Newest::default(), on_event, failed).await
}

/// Watches each object that pods mount once, and requests the pods' tokens.
async fn mounted(
    api: (&Client, &Rate),
    meter: &Meter,
    mounts: &Mutex<Mounts>,
    changed: &Notify,
) -> Infallible {
    let (client, rate) = api;
    let mut watches: HashMap<Object, AbortOnDropHandle<Infallible>> = HashMap::new();
    let mut calls = FuturesUnordered::new();
    loop {
        let next_call = {
            let mut mounts = mounts.lock();
            let objects = mounts.objects();
            watches.retain(|object, _| objects.contains(object));
            for object in objects {
                watches.entry(object).or_insert_with_key(|object| {
                    let (client, meter, watch) = (client.clone(), meter.clone(), watches::of_object(object));
                    let watching = async move { hold(&client, &watch, &meter, |_| {}).await };
                    AbortOnDropHandle::new(environment::spawn(watching))
                });
            }
            // Answers and failures are dropped: the next call of a token serves as well.
            let due = mounts.due(Instant::now()).into_iter();
            calls.extend(due.map(|call| request::send(client, Some(rate), vec![call])));
            mounts.next_due()
        };
        let timer = OptionFuture::from(next_call.map(sleep_until));
        tokio::select! {
            biased;
            () = changed.notified() => {}
            Some(()) = timer => {}
            Some(_) = calls.next(), if !calls.is_empty() => {}
        }
    }
}
