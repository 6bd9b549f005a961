//! Operators as processes of this test, told apart by name.

use std::{
    fs::File,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, ExitStatus},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{LONG, TestCluster, eventually, http, logs};

/// By which identity an operator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorIdentity {
    /// The `ServiceAccounts` of the chart: it has their rights, and no more.
    ServiceAccounts,
    /// The admin: the audit log tells it from the others.
    Admin,
}

/// One operator; killed when dropped.
pub struct OperatorProcess {
    /// Its `POD_NAME`, and a part of the name of its log.
    pub name: String,
    child: Child,
    log: PathBuf,
}

impl OperatorProcess {
    /// Starts an operator with further arguments.
    pub fn start(cluster: &TestCluster, name: &str, identity: OperatorIdentity, args: &[&str]) -> Self {
        Self::start_in(cluster, name, identity, args, &[])
    }

    /// With variables of the environment besides.
    pub fn start_in(
        cluster: &TestCluster,
        name: &str,
        identity: OperatorIdentity,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let log = cluster.dir.join(format!("operator-{name}.log"));
        let mut command = Command::new(cluster.target.program);
        command.arg("operator").args(args).env("POD_NAME", name).stderr(File::create(&log).unwrap());
        command.envs(environment.iter().copied());
        command.args(["--admin-address=127.0.0.1:0", "--autoscaler-plaintext"]);
        command.arg("--autoscaler-address=127.0.0.1:0");
        let file = |file: &str| cluster.dir.join(file);
        match identity {
            OperatorIdentity::Admin => command.arg("--kubeconfig").arg(file("kubeconfig")),
            OperatorIdentity::ServiceAccounts => command
                .arg("--kubeconfig")
                .arg(file("operator.kubeconfig"))
                .arg("--hollow-kubeconfig")
                .arg(file("hollow.kubeconfig")),
        };
        Self { name: name.to_owned(), child: command.spawn().unwrap(), log }
    }

    fn get(&self, path: &str) -> Option<String> {
        http::get(format!("http://{}/{path}", self.address("listens for probes and scrapes")?))
    }

    fn address(&self, message: &str) -> Option<SocketAddr> {
        logs::reported_address(&self.log, message)
    }

    /// Waits until it is ready.
    pub async fn is_ready(&self) {
        eventually(&format!("{} is ready", self.name), LONG, async || self.get("readyz")).await;
    }

    /// What `/leader` says.
    pub fn leader_status(&self) -> Option<Value> {
        Some(serde_json::from_str(&self.get("leader")?).unwrap())
    }

    /// Whether it leads, by its own account.
    pub fn leads_now(&self) -> bool {
        self.leader_status().is_some_and(|leader_status| leader_status["leading"] == true)
    }

    /// Waits until it leads.
    pub async fn leads(&self) {
        eventually(&format!("{} leads", self.name), LONG, async || self.leads_now().then_some(())).await;
    }

    /// The value of a metric without labels, or with them in its name.
    pub fn metric(&self, name: &str) -> Option<usize> {
        let metrics = self.get("metrics")?;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        Some(line.parse().unwrap())
    }

    /// Whether cluster-autoscaler may connect.
    pub fn serves_autoscaler(&self) -> bool {
        let address = self.address("listens for cluster-autoscaler");
        address.is_some_and(|address| TcpStream::connect(address).is_ok())
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// SIGTERM; waits for a successful end.
    pub async fn ends_in_good_order(&mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.ends().await.success(), "{}", self.said());
    }

    /// How it ended, where it has.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub async fn ends(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(&what, LONG, async || self.has_ended()).await
    }

    /// Its log.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
