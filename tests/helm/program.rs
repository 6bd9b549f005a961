//! helm, built once from the Go module pinned beside this file and kept where the programs of the control plane are.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use kube_node::cluster::Binaries;

/// The module, and which package of it is helm.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/helm");
const PACKAGE: &str = "helm.sh/helm/v4/cmd/helm";

/// The chart.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/kube-node");

/// The version that is pinned.
fn version() -> String {
    let go_mod = fs::read_to_string(format!("{MODULE}/go.mod")).unwrap();
    let line = go_mod.lines().find_map(|line| line.trim().strip_prefix("helm.sh/helm/v4 v"));
    line.expect("a version of helm").to_owned()
}

/// Where helm is, built if it is not there.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let cache = Binaries::cache_dir().unwrap();
        let dir = cache.parent().unwrap().join(format!("helm-{}", version()));
        let program = dir.join("helm");
        if !program.exists() {
            fs::create_dir_all(&dir).unwrap();
            // Whole or not at all, whoever else builds it.
            let built = dir.join(format!("helm.{}", std::process::id()));
            eprintln!("Building helm {}, once", version());
            let mut go = Command::new("go");
            go.current_dir(MODULE).env("CGO_ENABLED", "0").env("GOWORK", "off").env_remove("GOFLAGS");
            go.args(["build", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(&built).arg(PACKAGE);
            assert!(go.status().expect("go runs").success(), "helm does not build");
            fs::rename(&built, &program).unwrap();
        }
        program
    })
}

/// Runs helm, with no settings of the user's.
pub fn try_helm<A: AsRef<OsStr>>(kubeconfig: &Path, args: &[A]) -> Output {
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("helm-home");
    let mut helm = Command::new(program());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        helm.env(variable, &home);
    }
    helm.args(args).env("KUBECONFIG", kubeconfig).output().expect("helm runs")
}

/// Runs helm without a cluster.
pub fn offline(args: &[&str]) -> Output {
    try_helm(Path::new("/nonexistent"), args)
}

/// What it said, on both streams.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A copy of the chart of another version, with `change` made to it.
pub fn copy_of_chart(name: &str, version: &str, change: impl FnOnce(&Path)) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chart-{name}-{}", std::process::id()));
    let copy = dir.join("kube-node");
    copy_folder(Path::new(CHART), &copy);
    let own = format!("version: {}\n", env!("CARGO_PKG_VERSION"));
    let chart = fs::read_to_string(copy.join("Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("\n{own}")));
    // The program stays the same: its version is what the image is tagged with.
    let chart = chart.replacen(&format!("\n{own}"), &format!("\nversion: {version}\n"), 1);
    fs::write(copy.join("Chart.yaml"), chart).unwrap();
    change(&copy);
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}
