//! The record of what the programs of a test cluster ask of its API server. `cargo run --example rights` reads those of
//! all test binaries, once they have run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// Where the record of a cluster with its data in `dir` is.
pub fn log(dir: &Path) -> PathBuf {
    let cluster = dir.file_name().expect("a cluster has a folder").to_string_lossy();
    let name = format!("{}-{cluster}.log", env!("CARGO_CRATE_NAME"));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("audit").join(name)
}

/// What the user of this name asked for, as far as the record of a cluster with its data in `dir` goes: verb and URI.
pub fn calls_of(dir: &Path, user: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(log(dir)).expect("a record");
    let calls = text.lines().filter(|line| line.contains(user)).filter_map(|line| {
        let event: Value = serde_json::from_str(line).ok()?;
        let is_its = event["user"]["username"] == user;
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        is_its.then(|| (text("verb"), text("requestURI")))
    });
    calls.collect()
}

/// What `up` is given for a cluster with its data in `dir`, so that its record is in a file of its own.
pub fn arguments(dir: &Path) -> Vec<String> {
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bed/audit.yaml");
    let log = log(dir);
    fs::create_dir_all(log.parent().expect("a folder")).expect("a folder for records");
    let own = [
        format!("--audit-policy-file={policy}"),
        format!("--audit-log-path={}", log.display()),
        // Some clusters have it: whoever names an owner that blocks deletion needs one more right. None of ours does.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned(),
    ];
    own.into_iter().flat_map(|own| ["--component-arg".to_owned(), format!("kube-apiserver={own}")]).collect()
}
