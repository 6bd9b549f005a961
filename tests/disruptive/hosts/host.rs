//! A host as a process of the test.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::atomic::{AtomicUsize, Ordering},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{CLUSTER, GROUP};
use kube_node_testing::{LONG, eventually, http, logs};

/// Killed when dropped.
pub struct Host {
    pub name: String,
    child: Child,
    log: PathBuf,
}

impl Host {
    pub fn start(name: &str) -> Self {
        Self::start_as(name, &CLUSTER.dir.join("hollow-host.kubeconfig"))
    }

    pub fn start_as(name: &str, kubeconfig: &Path) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let start = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = CLUSTER.dir.join(format!("host-{name}-{start}.log"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        command.args(["hollow-host", "--hosts", GROUP, "--name", name, "--kubeconfig"]).arg(kubeconfig);
        command.arg("--admin-address=127.0.0.1:0");
        // Below the ports that clusters choose.
        command.args(["--kubelet-address", "127.0.0.1", "--kubelet-ports", "12000-19999"]);
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { name: name.to_owned(), child, log }
    }

    pub fn get(&self, path: &str) -> Option<String> {
        let address = logs::reported_address(&self.log, "listens for probes and scrapes")?;
        http::get(format!("http://{address}/{path}"))
    }

    /// The value of a metric without labels; None where nobody answers.
    pub fn metric(&self, name: &str) -> Option<usize> {
        let metrics = self.get("metrics")?;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        Some(line.parse().unwrap())
    }

    pub async fn is_ready(&self) {
        eventually(&format!("{} is ready", self.name), LONG, async || self.get("readyz")).await;
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    pub async fn ends(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(&what, LONG, async || self.child.try_wait().unwrap()).await
    }

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
