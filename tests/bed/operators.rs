//! Operators as processes of this test, told apart by name.

use std::{
    fs::File,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, ExitStatus},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{Bed, LONG, eventually, http};

/// By which identity an operator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The `ServiceAccounts` of the chart: it has their rights, and no more.
    ServiceAccounts,
    /// The admin: the audit log tells it from the others.
    Admin,
}

/// One operator; killed when dropped.
pub struct Operator {
    pub name: String,
    child: Child,
    admin: u16,
    autoscaler: u16,
    log: PathBuf,
}

impl Operator {
    pub fn start(cluster: &Bed, name: &str, who: Who, args: &[&str]) -> Self {
        Self::start_in(cluster, name, who, args, &[])
    }

    /// With variables of the environment besides.
    pub fn start_in(
        cluster: &Bed,
        name: &str,
        who: Who,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let (admin, autoscaler) = (free_port(), free_port());
        let log = cluster.dir.join(format!("operator-{name}.log"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        command.arg("operator").args(args).env("POD_NAME", name).stderr(File::create(&log).unwrap());
        command.envs(environment.iter().copied());
        command.args(["--admin-address", &format!("127.0.0.1:{admin}"), "--autoscaler-plaintext"]);
        command.args(["--autoscaler-address", &format!("127.0.0.1:{autoscaler}")]);
        let file = |file: &str| cluster.dir.join(file);
        match who {
            Who::Admin => command.arg("--kubeconfig").arg(file("kubeconfig")),
            Who::ServiceAccounts => command
                .arg("--kubeconfig")
                .arg(file("operator.kubeconfig"))
                .arg("--hollow-kubeconfig")
                .arg(file("hollow.kubeconfig")),
        };
        Self { name: name.to_owned(), child: command.spawn().unwrap(), admin, autoscaler, log }
    }

    fn asked(&self, path: &str) -> Option<String> {
        http::get(format!("http://127.0.0.1:{}/{path}", self.admin))
    }

    pub async fn is_ready(&self) {
        eventually(&format!("{} is ready", self.name), LONG, async || self.asked("readyz")).await;
    }

    /// What `/leader` says.
    pub fn standing(&self) -> Option<Value> {
        Some(serde_json::from_str(&self.asked("leader")?).unwrap())
    }

    pub fn leads_now(&self) -> bool {
        self.standing().is_some_and(|standing| standing["leading"] == true)
    }

    pub async fn leads(&self) {
        eventually(&format!("{} leads", self.name), LONG, async || self.leads_now().then_some(())).await;
    }

    pub fn metric(&self, name: &str) -> Option<usize> {
        let metrics = self.asked("metrics")?;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        Some(line.parse().unwrap())
    }

    /// Whether cluster-autoscaler may connect.
    pub fn serves_autoscaler(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.autoscaler)).is_ok()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub async fn ends_in_good_order(&mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.ends().await.success(), "{}", self.said());
    }

    /// How it ended, where it has.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub async fn ends(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(&what, LONG, async || self.has_ended()).await
    }

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
