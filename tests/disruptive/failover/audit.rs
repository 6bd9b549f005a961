//! The API server's own record of who wrote what when.

use std::path::PathBuf;

use serde_json::Value;

use kube_node_testing::{AUDIT_POLICY, TestCluster};

/// The user of [`kube_node_testing::operator::OperatorIdentity::Admin`]. The test itself acts as somebody else.
pub const ADMIN: &str = "kubernetes-admin";

/// The record that every test cluster keeps of our programs, with all that anybody writes besides.
pub struct Audit {
    policy: PathBuf,
    log: PathBuf,
}

impl Audit {
    /// Of this cluster, once it is started with [`Self::args`].
    pub fn of(cluster: &TestCluster) -> Self {
        let policy = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("failover-audit-policy-{}", std::process::id()));
        let writes = "  - level: Metadata\n    verbs: [create, update, patch, delete, deletecollection]\n";
        let (before, none) = AUDIT_POLICY.split_at(AUDIT_POLICY.rfind("  - level: None").unwrap());
        std::fs::write(&policy, [before, writes, none].concat()).unwrap();
        Self { policy, log: cluster.audit_log() }
    }

    /// For `up`.
    pub fn args(&self) -> [String; 2] {
        let policy = format!("kube-apiserver=--audit-policy-file={}", self.policy.display());
        ["--component-arg".to_owned(), policy]
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
        let describe = |event: Value| format!("{} {}", event["verb"], event["requestURI"]);
        events.filter(is_asked_for).map(describe).collect()
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.policy);
    }
}
