//! The API server's own record of who wrote what when.

use std::path::PathBuf;

use serde_json::{Value, json};

/// The user of [`crate::operators::Who::Admin`]. The test itself acts as somebody else.
pub const ADMIN: &str = "kubernetes-admin";

pub struct Audit {
    policy: PathBuf,
    log: PathBuf,
}

impl Audit {
    /// Nothing is recorded until a cluster is started with [`Self::args`].
    pub fn new() -> Self {
        let file = |kind: &str| {
            let name = format!("takeover-audit-{kind}-{}", std::process::id());
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
        };
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
                {"level": "None"},
            ],
        });
        std::fs::write(file("policy"), policy.to_string()).unwrap();
        Self { policy: file("policy"), log: file("log") }
    }

    /// For `up`.
    pub fn args(&self) -> Vec<String> {
        let path = |flag: &str, path: &PathBuf| {
            ["--component-arg".to_owned(), format!("kube-apiserver=--{flag}={}", path.display())]
        };
        [path("audit-policy-file", &self.policy), path("audit-log-path", &self.log)].concat()
    }

    /// What this user has written from then on, each as verb and path.
    pub fn writes_of(&self, user: &str, since: jiff::Timestamp) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_asked_for = |event: &Value| {
            let received: jiff::Timestamp =
                event["requestReceivedTimestamp"].as_str().unwrap().parse().unwrap();
            event["user"]["username"] == user && event["impersonatedUser"].is_null() && received >= since
        };
        let says = |event: Value| format!("{} {}", event["verb"], event["requestURI"]);
        events.filter(is_asked_for).map(says).collect()
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.policy);
        let _ = std::fs::remove_file(&self.log);
    }
}
