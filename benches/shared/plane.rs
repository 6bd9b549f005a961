//! A fresh control plane for each measurement, from the same command that users run.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

/// The program that cargo has built beside the benchmark.
pub const KUBE_NODE: &str = env!("CARGO_BIN_EXE_kube-node");
/// Longest that the API server takes to notice what became of a policy.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);

pub struct Plane {
    program: PathBuf,
    dir: PathBuf,
}

impl Plane {
    /// Starts one with the operator and no nodes; `more` are further arguments of `up`.
    pub fn start(program: &Path, more: &[&str]) -> anyhow::Result<Self> {
        Self::up(program, &[&["--nodes", "0"], more].concat())
    }

    /// Starts one for others, who pay for nothing of ours.
    pub fn without_operator(more: &[&str]) -> anyhow::Result<Self> {
        let plane = Self::up(Path::new(KUBE_NODE), &[&["--without-operator"], more].concat())?;
        plane.kubectl(&[
            "delete",
            "validatingadmissionpolicybindings,validatingadmissionpolicies",
            "--all",
        ])?;
        plane.lets_nodes_in()?;
        Ok(plane)
    }

    /// Waits until the API server has noticed that there are no policies any more: it would refuse what a client creates.
    fn lets_nodes_in(&self) -> anyhow::Result<()> {
        let file = self.dir.join("probe.json");
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "probe" } });
        std::fs::write(&file, node.to_string())?;
        let begin = Instant::now();
        loop {
            match self.kubectl(&["create", "--dry-run=server", "--filename", &file.to_string_lossy()]) {
                Err(_) if begin.elapsed() < NOTICE_LIMIT => {}
                ended => return ended,
            }
        }
    }

    fn up(program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}-{count}", std::process::id()));
        let plane = Self { program: program.to_owned(), dir };
        let parent = std::process::id().to_string();
        plane.run("up", &[&["--detach", "--with-parent", &parent], arguments].concat())?;
        Ok(plane)
    }

    /// Runs kubectl as the admin.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.run("kubectl", &[&["--"], arguments].concat())
    }

    fn run(&self, command: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let output = Command::new(&self.program)
            .arg(command)
            .arg("--data-dir")
            .arg(&self.dir)
            .args(arguments)
            .output()
            .with_context(|| format!("{} does not run", self.program.display()))?;
        if !output.status.success() {
            bail!("kube-node {command} failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    fn state(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(self.dir.join("cluster.json"))?)?)
    }

    pub fn pid(&self, component: &str) -> anyhow::Result<u32> {
        let pid = self.state()?["components"][component]["pid"].as_u64().context("it does not run")?;
        Ok(u32::try_from(pid)?)
    }

    /// A port of 127.0.0.1 on which a component answers.
    pub fn port(&self, component: &str) -> anyhow::Result<u64> {
        self.state()?["ports"][component].as_u64().with_context(|| format!("{component} has no port"))
    }

    /// A client of the admin, whom the API server does not limit.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig())?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Age of the Lease that was renewed the longest ago, in seconds.
    pub async fn oldest_lease(&self) -> anyhow::Result<f64> {
        let leases: Api<Lease> = Api::namespaced(self.client().await?, "kube-node-lease");
        let listed = leases.list(&ListParams::default()).await?;
        let now = jiff::Timestamp::now();
        let ages = listed
            .items
            .into_iter()
            .filter_map(|lease| lease.spec?.renew_time)
            .map(|renewed| now.duration_since(renewed.0).as_secs_f64());
        Ok(ages.fold(0.0, f64::max))
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if let Err(error) = self.run("down", &["--delete"]) {
            eprintln!("{error:#}");
        }
    }
}
