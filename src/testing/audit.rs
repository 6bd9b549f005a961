//! The audit logs of test clusters: the calls of our programs. `cargo run --example rights` reads those of all test
//! binaries after the tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::TestCluster;

/// The audit policy of test clusters.
pub const POLICY: &str = include_str!("audit.yaml");

impl TestCluster {
    /// The file of the audit log.
    pub fn audit_log(&self) -> PathBuf {
        let cluster = self.dir.file_name().expect("a cluster has a folder").to_string_lossy();
        let name = format!("{}-{cluster}.log", self.target.name);
        Path::new(self.target.tmp_dir).join("audit").join(name)
    }

    /// Calls of the user of this name, so far as they are logged: verb and URI.
    pub fn calls_of(&self, user: &str) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.audit_log()).expect("an audit log");
        let calls = text.lines().filter(|line| line.contains(user)).filter_map(|line| {
            let event: Value = serde_json::from_str(line).ok()?;
            let is_its = event["user"]["username"] == user;
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            is_its.then(|| (text("verb"), text("requestURI")))
        });
        calls.collect()
    }

    /// Arguments of `up` for an audit log in a file of its own.
    pub(crate) fn audit_arguments(&self) -> Vec<String> {
        let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/audit.yaml");
        let log = self.audit_log();
        fs::create_dir_all(log.parent().expect("a folder")).expect("a folder for audit logs");
        let own = [
            format!("--audit-policy-file={policy}"),
            format!("--audit-log-path={}", log.display()),
            // With this plugin, which some clusters have, an owner that blocks deletion needs one more right. None of ours does.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned(),
        ];
        own.into_iter()
            .flat_map(|own| ["--component-arg".to_owned(), format!("kube-apiserver={own}")])
            .collect()
    }
}
