//! A request of a process on its way to the API server.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::Method;
use serde_json::Value;
use tokio::time::Instant;

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Sent {
    pub process: String,
    pub method: Method,
    pub path: String,
    pub body: Bytes,
    pub at: Instant,
    /// True if its client was told that nobody answers, and it arrives nevertheless.
    pub is_given_up: bool,
    /// The body as JSON, once somebody has asked for it.
    json: Arc<OnceLock<Value>>,
}

impl Sent {
    pub fn new(process: &str, method: &Method, path: &str, body: Bytes) -> Self {
        let (process, method, path) = (process.to_owned(), method.clone(), path.to_owned());
        Self { process, method, path, body, at: Instant::now(), is_given_up: false, json: Arc::default() }
    }

    /// The body as JSON; null for protobuf, which creations and renewals are.
    pub fn json(&self) -> &Value {
        self.json.get_or_init(|| serde_json::from_slice(&self.body).unwrap_or_default())
    }

    /// What it has in common with its repetitions.
    pub fn identity(&self) -> [String; 3] {
        [self.process.clone(), self.method.to_string(), self.path.clone()]
    }

    /// Returns true if it reports whether a Node is Ready.
    pub fn is_of_kubelet(&self) -> bool {
        let body = self.json();
        let conditions = body["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|one| one["type"] == "Ready")
    }
}
