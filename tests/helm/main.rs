//! The chart, linted and rendered for tables of values, without a cluster. `tests/helm/installed.rs` installs it.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conventions;
mod kubernetes_versions;
mod lookups;
mod manifest;
mod platforms;
#[allow(dead_code, reason = "a part of it is for the installed chart")]
mod program;
mod refused;
mod render;
mod rendered;
mod values;
