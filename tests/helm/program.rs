//! helm, with no settings of the user's, and copies of the chart.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use kube_node_testing::go_program::GoProgram;

const HELM: GoProgram = GoProgram {
    name: "helm",
    folder: "tests/helm",
    module: "helm.sh/helm/v4",
    package: "helm.sh/helm/v4/cmd/helm",
};

/// The chart.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/kube-node");

/// Variables that name the folders of a user's settings.
pub const HELM_VARIABLES: [&str; 3] = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];

/// Where helm is.
pub fn helm_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| HELM.path().expect("helm is built"))
}

/// Runs helm, with no settings of the user's.
pub fn try_helm<A: AsRef<OsStr>>(kubeconfig: &Path, args: &[A]) -> Output {
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("helm-home");
    let mut helm = Command::new(helm_program());
    for variable in HELM_VARIABLES {
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
