//! A NodeController that knows what it wrote does not write it once more, for the state before it.
//!
//! Inputs: patches as they were answered, and when their process heard so. Output: a violation. A NodeController's patches
//! are lists of steps; a NodeSetController leaves this to the version that its merge patches name.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use kube_node_testing::api_server::ApiServer;
use serde_json::Value;
use tokio::time::Instant;

use crate::sent::Sent;

/// Last patch of each Node that was accepted, by path.
#[derive(Default)]
pub struct Patches(BTreeMap<String, Accepted>);

/// A patch, and the version of the Node with it.
struct Accepted {
    sent: Sent,
    version: Value,
    /// When its process heard so.
    heard: Option<Instant>,
}

impl Patches {
    /// Notes that a process hears that its write succeeded.
    pub fn heard(&mut self, sent: &Sent) {
        let is_it = |last: &&mut Accepted| {
            let last = &last.sent;
            last.at == sent.at && last.identity() == sent.identity() && last.body == sent.body
        };
        if let Some(last) = self.0.get_mut(&sent.path).filter(is_it) {
            last.heard = Some(Instant::now());
        }
    }

    /// Checks a patch that was answered.
    pub fn check(&mut self, server: &ApiServer, sent: &Sent, code: StatusCode) -> Option<String> {
        let node = sent.path.strip_prefix("/api/v1/nodes/")?;
        if sent.method != Method::PATCH || !sent.json().is_array() {
            return None;
        }
        let version = server.object("", "nodes", None, node)?["metadata"]["resourceVersion"].clone();
        if code.is_success() {
            self.0.insert(sent.path.clone(), Accepted { sent: sent.clone(), version, heard: None });
            return None;
        }
        let is_refused = matches!(code, StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY);
        let last = self.0.get(&sent.path).filter(|last| is_refused && last.version == version)?;
        let is_same = last.sent.process == sent.process && last.sent.body == sent.body;
        let is_repeated = is_same && last.heard.is_some_and(|heard| heard < sent.at);
        is_repeated.then(|| format!("{} repeats its patch of {}", sent.process, sent.path))
    }
}
