//! Test clusters: real control planes with the operator, started by `kube-node up`.
//!
//! A cluster ends with the process of its tests: `up --with-parent` stops it.

use std::{
    ops::Deref,
    path::PathBuf,
    process::{Command, Output},
    sync::Mutex,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{http, logs, release};

/// A test binary, as cargo describes it to that binary alone; made by [`test_target!`](crate::test_target).
#[derive(Clone, Copy, Debug)]
pub struct TestTarget {
    /// Path of kube-node.
    pub program: &'static str,
    /// Folder for files of tests.
    pub tmp_dir: &'static str,
    /// Name of the test binary.
    pub name: &'static str,
}

/// The [`TestTarget`] that calls it.
#[macro_export]
macro_rules! test_target {
    () => {
        $crate::TestTarget {
            program: env!("CARGO_BIN_EXE_kube-node"),
            tmp_dir: env!("CARGO_TARGET_TMPDIR"),
            name: env!("CARGO_CRATE_NAME"),
        }
    };
}

/// Held while a cluster starts. Five that start at once with a real node kept an API server on two cores from answering
/// for longer than clients wait.
static STARTING: Mutex<()> = Mutex::new(());

/// A cluster.
#[derive(Debug)]
pub struct TestCluster {
    /// Its data.
    pub dir: PathBuf,
    pub(crate) target: TestTarget,
}

impl TestCluster {
    /// The running cluster of a suite. Suites of one binary have clusters of their own. Its data stays when it ends, until
    /// the next run of the suite: with a real node it has a gigabyte. The logs of a failed run stay longer.
    pub fn shared(target: TestTarget, suite: &str, args: &[&str]) -> Self {
        let prefix = format!("cluster-{suite}");
        remove_data_of_ended_runs(target, &prefix);
        let cluster = Self::in_folder(target, &prefix);
        cluster.up(args);
        cluster
    }

    fn in_folder(target: TestTarget, name: &str) -> Self {
        let dir = PathBuf::from(target.tmp_dir).join(format!("{name}-{}", std::process::id()));
        Self { dir, target }
    }

    /// Starts the cluster, without nodes, until this process ends.
    pub fn up(&self, args: &[&str]) {
        logs::register(&self.dir, self.target.program);
        let parent = std::process::id().to_string();
        let json = "operator=--log-format=json";
        let version = ["--kubernetes-version", release().version()];
        let own = ["up", "--detach", "--nodes", "0", "--with-parent", &parent, "--component-arg", json];
        let audit = self.audit_arguments();
        let audit: Vec<&str> = audit.iter().map(String::as_str).collect();
        let alone = STARTING.lock().expect("no start panics");
        let up = self.kube_node(&[&own, &version[..], &audit, args].concat());
        drop(alone);
        assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
    }

    /// Stops the cluster; its data stays.
    pub fn down(&self) {
        let down = self.kube_node(&["down"]);
        assert!(down.status.success(), "down failed:\n{}", String::from_utf8_lossy(&down.stderr));
    }

    /// Runs `kube-node COMMAND --data-dir DIR ARGS`.
    pub fn kube_node(&self, args: &[&str]) -> Output {
        let (command, rest) = args.split_first().expect("a command");
        Command::new(self.target.program)
            .arg(command)
            .arg("--data-dir")
            .arg(&self.dir)
            .args(rest)
            .output()
            .expect("kube-node runs")
    }

    /// Runs kubectl; its standard output.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(args);
        assert!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs kubectl, which may fail.
    pub fn try_kubectl(&self, args: &[&str]) -> Output {
        self.kube_node(&[&["kubectl", "--"], args].concat())
    }

    /// A client of the admin. Each test has a runtime of its own, and a client lives in one.
    pub async fn client(&self) -> Client {
        self.client_of(None, &[]).await
    }

    /// A client that acts as `user` of these groups.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> Client {
        self.client_of(Some(user.to_owned()), groups).await
    }

    async fn client_of(&self, user: Option<String>, groups: &[&str]) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.dir.join("kubeconfig")).expect("a kubeconfig");
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.auth_info.impersonate = user;
        config.auth_info.impersonate_groups =
            (!groups.is_empty()).then(|| groups.iter().map(|&group| group.to_owned()).collect());
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    /// What `cluster.json` says.
    pub fn state(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.dir.join("cluster.json")).unwrap()).unwrap()
    }

    /// The process of a component, where there is one.
    pub fn pid(&self, component: &str) -> Option<Pid> {
        let pid = self.state()["components"][component]["pid"].as_i64()?;
        Some(Pid::from_raw(i32::try_from(pid).unwrap()))
    }

    /// SIGKILL; whether there was a process to kill.
    pub fn kill(&self, component: &str) -> bool {
        self.pid(component).is_some_and(|pid| kill(pid, Signal::SIGKILL).is_ok())
    }

    /// The operator's metrics.
    pub fn metrics(&self) -> String {
        let port = self.state()["ports"]["operator"].as_u64().unwrap();
        http::get(format!("http://127.0.0.1:{port}/metrics")).unwrap_or_default()
    }
}

fn remove_data_of_ended_runs(target: TestTarget, prefix: &str) {
    for entry in std::fs::read_dir(target.tmp_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let run = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_prefix('-')?.parse().ok());
        if run.is_some_and(|run| kill(Pid::from_raw(run), None) == Err(Errno::ESRCH)) {
            let folder = entry.path();
            if logs::is_kept(&folder) {
                logs::delete_all_but_logs(&folder);
            } else {
                let _ = std::fs::remove_dir_all(folder);
            }
        }
    }
}

/// A cluster of one test, deleted with it. The logs of a failed test stay.
#[derive(Debug)]
pub struct TemporaryCluster(TestCluster);

impl TemporaryCluster {
    /// A running cluster; `name` is unique in the test binary.
    pub fn start(target: TestTarget, name: &str, args: &[&str]) -> Self {
        let cluster = Self::folder(target, name);
        cluster.up(args);
        cluster
    }

    /// A cluster that is not started yet.
    pub fn folder(target: TestTarget, name: &str) -> Self {
        Self(TestCluster::in_folder(target, name))
    }
}

impl Deref for TemporaryCluster {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.0
    }
}

impl Drop for TemporaryCluster {
    fn drop(&mut self) {
        if logs::is_kept(&self.dir) {
            self.kube_node(&["down"]);
            logs::delete_all_but_logs(&self.dir);
            return;
        }
        self.kube_node(&["down", "--delete"]);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
