//! Shares of the streams that clients hold open: logs, sessions of `exec` and `attach`, connections of `port-forward`.
//!
//! Input: the namespace of a pod. Output: a permit, held for as long as the stream.
//!
//! Invariant: a namespace holds fewer streams than are left for all others. So a first tenant gets half of them at most, the next
//! one half of the rest, and so on: a dynamic threshold, as switches share a buffer (Choudhury and Hahne, 1998). Right to `pods/exec`
//! in one namespace is no right to keep others from their logs.

use std::{collections::HashMap, sync::Arc};

use http::StatusCode;
use parking_lot::Mutex;

use super::{access::Refusal, connection_slots::ADMITTED};

/// Streams of all namespaces. The other connections are left to metrics and short requests.
const STREAMS: usize = ADMITTED / 4 * 3;

/// Streams that are held, by namespace.
#[derive(Default)]
pub struct StreamShares(Mutex<HashMap<String, usize>>);

/// The right to a stream.
pub struct StreamPermit {
    shares: Arc<StreamShares>,
    namespace: String,
}

impl StreamShares {
    /// A permit for a stream of this namespace, or the refusal if the namespace holds its share.
    pub fn take(self: &Arc<Self>, namespace: &str) -> Result<StreamPermit, Refusal> {
        let mut held = self.0.lock();
        let (own, all) = (held.get(namespace).copied().unwrap_or(0), held.values().sum::<usize>());
        if own >= STREAMS - all {
            drop(held);
            let message = format!(
                "namespace {namespace} has {own} logs, commands and connections open on hollow nodes, and {} are left for all others: close some",
                STREAMS - all
            );
            // As for other quotas. kube-apiserver passes the sentence on with this code, and replaces it with others.
            return Err((StatusCode::FORBIDDEN, message));
        }
        *held.entry(namespace.to_owned()).or_default() += 1;
        drop(held);
        Ok(StreamPermit { shares: Arc::clone(self), namespace: namespace.to_owned() })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut held = self.shares.0.lock();
        if let Some(own) = held.get_mut(&self.namespace) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_opens_all_streams_gets_half_of_those_that_are_left() {
        let shares = Arc::new(StreamShares::default());
        let all_of =
            |namespace: &str| -> Vec<_> { std::iter::from_fn(|| shares.take(namespace).ok()).collect() };
        let first = all_of("first");
        let others = ["second", "third", "fourth", "fifth"].map(all_of);
        assert_eq!(first.len(), STREAMS / 2);
        assert_eq!(others.each_ref().map(Vec::len), [4, 8, 16, 32].map(|part| STREAMS / part));
        let (code, message) = shares.take("first").err().unwrap();
        assert_eq!(code, StatusCode::FORBIDDEN);
        assert_eq!(
            message,
            "namespace first has 384 logs, commands and connections open on hollow nodes, and 24 are left for all others: close some"
        );
        drop((first, others));
        assert!(shares.0.lock().is_empty(), "no namespace is remembered");
        assert_eq!(all_of("first").len(), STREAMS / 2);
    }
}
