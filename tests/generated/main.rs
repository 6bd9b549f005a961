//! What is generated is that of the code: the definitions in crds/, the reference in docs/reference, and the chart's README.
//!
//! `KUBE_NODE_WRITE=1 cargo test --test generated` writes these pages instead of comparing them; the definitions it is made
//! from come first: `cargo run -- crds --output-dir crds`.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chart;
mod commands;
mod kinds;
mod markdown;
mod names;
mod schema;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Folder of the reference.
const REFERENCE: &str = "docs/reference";

/// The folder of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compares a page with what is stored in a folder of the repository, or stores it.
fn is_stored(folder: &str, name: &str, page: &str) {
    let path = format!("{folder}/{name}.md");
    if env::var_os("KUBE_NODE_WRITE").is_some() {
        fs::create_dir_all(root().join(folder)).unwrap();
        return fs::write(root().join(path), page).unwrap();
    }
    let stored = fs::read_to_string(root().join(&path)).unwrap_or_default();
    assert!(stored == page, "{path} is stale: run `KUBE_NODE_WRITE=1 cargo test --test generated`");
}

#[test]
fn definitions() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("crds-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let program = env!("CARGO_BIN_EXE_kube-node");
    let status = Command::new(program).args(["crds", "--output-dir"]).arg(&dir).status().unwrap();
    assert!(status.success());
    for file in ["nodeclasses.yaml", "nodesets.yaml"] {
        let wanted = fs::read_to_string(dir.join(file)).unwrap();
        let stored = read(&format!("crds/{file}"));
        assert!(wanted == stored, "crds/{file} is stale: run `cargo run -- crds --output-dir crds`");
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn pages_of_kinds() {
    for kind in ["nodeclass", "nodeset"] {
        for (version, page) in kinds::pages(kind) {
            is_stored(REFERENCE, &format!("{kind}-{version}"), &page);
        }
    }
}

#[test]
fn page_of_names() {
    is_stored(REFERENCE, "names", &names::page());
}

#[test]
fn page_of_commands() {
    is_stored(REFERENCE, "commands", &commands::page());
}

#[test]
fn pages_of_the_chart() {
    is_stored(REFERENCE, "chart", &chart::page());
    is_stored("charts/kube-node", "README", &chart::readme());
}
