//! What a kubelet is to an API server besides its writes: the watches that it holds, by a connection of its own, and the
//! tokens that it requests for its pods. For testing API servers.
//!
//! What comes is counted and dropped: a machine of [`crate::hollow`] goes by the caches of its process, whoever it is to the
//! API server. Only which Secrets and `ConfigMaps` its pods mount is remembered, since a kubelet watches each of these.

mod frames;
mod meter;
mod mounts;
mod reflector;
mod watches;

use std::{
    collections::HashMap,
    convert::Infallible,
    future::pending,
    sync::{Mutex, PoisonError},
};

use futures::{
    StreamExt,
    future::{AbortHandle, Abortable, join_all},
    stream::FuturesUnordered,
};
use kube::Client;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

pub use self::meter::Meter;
use self::{
    mounts::{Mounts, TokenCall},
    reflector::follow,
    watches::{Object, Watch},
};
use crate::runtime::rate::Rate;

/// Holds the watches of the kubelet of `node`, for as long as it is polled, by its client and as fast as that may ask.
pub async fn kubelet(road: (&Client, &Rate), node: &str, meter: &Meter) -> Infallible {
    let (client, _) = road;
    let mounts = Mutex::new(Mounts::default());
    let news = Notify::new();
    let pods = Watch::pods(node);
    let own = join_all(Watch::of_kubelet(node).into_iter().map(async |watch| {
        follow(client, &watch, meter, |_| {}).await;
    }));
    let pods = follow(client, &pods, meter, |told| {
        mounts.lock().unwrap_or_else(PoisonError::into_inner).told(&told, Instant::now());
        news.notify_one();
    });
    tokio::select! {
        never = pods => never,
        _ = own => pending().await,
        never = mounted(road, meter, &mounts, &news) => never,
    }
}

/// Watches what pods mount, each object once, and requests their tokens.
async fn mounted(road: (&Client, &Rate), meter: &Meter, mounts: &Mutex<Mounts>, news: &Notify) -> Infallible {
    let (client, _) = road;
    let mut held: HashMap<Object, AbortHandle> = HashMap::new();
    let mut watches = FuturesUnordered::new();
    let mut calls = FuturesUnordered::new();
    loop {
        let next_call = {
            let mut mounts = mounts.lock().unwrap_or_else(PoisonError::into_inner);
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
                let watch = Watch::object(&object);
                let following = async move { follow(client, &watch, meter, |_| {}).await };
                watches.push(Abortable::new(following, registration));
                held.insert(object, handle);
            }
            calls.extend(mounts.due(Instant::now()).into_iter().map(|call: TokenCall| call.send(road)));
            mounts.next_due()
        };
        let timer = async {
            match next_call {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = news.notified() => {}
            () = timer => {}
            Some(_) = watches.next(), if !watches.is_empty() => {}
            Some(()) = calls.next(), if !calls.is_empty() => {}
        }
    }
}
