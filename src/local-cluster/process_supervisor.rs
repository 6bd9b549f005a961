//! Process supervisor: starts one process, writes its output to a log, reports its identity to a callback,
//! restarts it with growing pauses when it dies, and ends it on request.
//!
//! A task owns the process. Dropping the [`ProcessSupervisor`] kills the process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use kube::runtime::utils::ResetTimerBackoff;
use kube_ext::{backoff::Backoff, memory};
use nix::sys::signal::Signal;
use tokio::{
    process::{Child, Command},
    sync::{oneshot, watch},
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::procs::ProcessId;

/// Pauses before restarts: the first one, and the longest one.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// After this time without a restart the pause is the first one again.
const SOUND: Duration = Duration::from_secs(30);

/// Pause before a process is recorded again that could not be.
const RECORD_PAUSE: Duration = Duration::from_secs(1);

/// Callback with the identity of the process, called at each change.
pub(super) type RecordProcess = Box<dyn Fn(Option<ProcessId>) -> anyhow::Result<()> + Send + Sync>;

/// Program, arguments and log of a process.
#[derive(Debug)]
pub(super) struct ProcessSpec {
    /// Name in the log.
    pub name: &'static str,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub log: PathBuf,
}

/// State of the process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessStatus {
    /// Identity of the running process.
    pub id: Option<ProcessId>,
    /// Number of deaths without a request to end.
    pub deaths: u32,
    /// Exit status of the last such death.
    pub last_death: Option<ExitStatus>,
}

/// Handle of one supervised process.
#[derive(Debug)]
pub(super) struct ProcessSupervisor {
    /// Present state of the process.
    pub status: watch::Receiver<ProcessStatus>,
    /// Takes the time between SIGTERM and SIGKILL.
    stop: oneshot::Sender<Duration>,
    /// Aborting the task drops its Child, which has `kill_on_drop`.
    task: AbortOnDropHandle<()>,
}

impl ProcessSupervisor {
    /// Starts the process and keeps it running.
    pub fn start(spec: ProcessSpec, record: RecordProcess) -> anyhow::Result<Self> {
        let (sender, status) = watch::channel(ProcessStatus::default());
        let process = SupervisedProcess { spec, record, status: sender };
        let child = process.spawn()?;
        process.record_current()?;
        let (stop, stopped) = oneshot::channel();
        let task = AbortOnDropHandle::new(tokio::spawn(process.supervise(child, stopped)));
        Ok(Self { status, stop, task })
    }

    /// Ends the process and returns when it is gone.
    pub async fn end(self, grace: Duration) {
        let _ = self.stop.send(grace);
        let _ = self.task.await;
    }
}

/// State owned by the task.
struct SupervisedProcess {
    spec: ProcessSpec,
    record: RecordProcess,
    status: watch::Sender<ProcessStatus>,
}

impl SupervisedProcess {
    async fn supervise(self, mut child: Child, mut stopped: oneshot::Receiver<Duration>) {
        let mut pauses = ResetTimerBackoff::new(PAUSES, SOUND);
        let mut is_recorded = true;
        loop {
            let exit = loop {
                tokio::select! {
                    exit = child.wait() => break exit.ok(),
                    Ok(grace) = &mut stopped => return self.end(child, grace).await,
                    () = sleep(RECORD_PAUSE), if !is_recorded => is_recorded = self.record_current().is_ok(),
                }
            };
            let end = exit.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
            self.log(&format!("ended by itself ({end})"));
            self.changed(|status| {
                *status = ProcessStatus { id: None, deaths: status.deaths + 1, last_death: exit };
            });
            child = loop {
                let pause = pauses.next().unwrap_or_default();
                self.log(&format!("starts again in {pause:.1?}"));
                tokio::select! {
                    () = sleep(pause) => {}
                    Ok(_) = &mut stopped => return,
                }
                match self.spawn() {
                    Ok(child) => break child,
                    Err(error) => self.log(&format!("{error:#}")),
                }
            };
            // A full disk must not keep the component down: it is recorded later.
            let log = |error: &anyhow::Error| self.log(&format!("cannot be recorded: {error:#}"));
            is_recorded = self.record_current().inspect_err(log).is_ok();
        }
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let child = self.command().and_then(|mut command| command.spawn());
        let child = child.with_context(|| format!("cannot run {}", self.spec.program.display()))?;
        let id = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(ProcessId::of);
        self.status.send_modify(|status| status.id = id);
        Ok(child)
    }

    /// Records the identity of the running process.
    fn record_current(&self) -> anyhow::Result<()> {
        (self.record)(self.status.borrow().id)
    }

    fn command(&self) -> io::Result<Command> {
        let log = open_log(&self.spec.log)?;
        let mut command = Command::new(&self.spec.program);
        command
            .args(&self.spec.args)
            // Memory settings for our own programs; other programs ignore the variable.
            .env(memory::VARIABLE, memory::VALUE)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C in a terminal signals the supervisor's whole process group. A group of its own keeps the
            // stop order ours.
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }

    async fn end(&self, mut child: Child, grace: Duration) {
        let id = self.status.borrow().id;
        let ended = id.is_some_and(|id| id.signal(Signal::SIGTERM).is_ok())
            && timeout(grace, child.wait()).await.is_ok();
        if !ended {
            let _ = child.kill().await;
        }
        self.changed(|status| status.id = None);
    }

    /// Changes the state after an end of the process.
    fn changed(&self, change: impl FnOnce(&mut ProcessStatus)) {
        if let Err(error) = (self.record)(None) {
            self.log(&error.to_string());
        }
        self.status.send_modify(change);
    }

    /// Writes a line to the log of the process, the first place where an unexpected restart is looked up.
    fn log(&self, text: &str) {
        if let Ok(mut log) = open_log(&self.spec.log) {
            let _ = writeln!(log, "kube-node: {} {text}", self.spec.name);
        }
    }
}

fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A supervisor of a running shell script, its folder, and the identity that it has reported last.
    fn start(name: &str, script: &str) -> (ProcessSupervisor, PathBuf, Arc<Mutex<Option<ProcessId>>>) {
        let dir = std::env::temp_dir().join(format!("kube-node-supervisor-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let recorded = Arc::new(Mutex::new(None));
        let spec = ProcessSpec {
            name: "etcd",
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            log: dir.join("log"),
        };
        let into = recorded.clone();
        let record = Box::new(move |id| {
            *into.lock() = id;
            Ok(())
        });
        (ProcessSupervisor::start(spec, record).unwrap(), dir, recorded)
    }

    async fn wait(
        status: &mut watch::Receiver<ProcessStatus>,
        condition: impl FnMut(&ProcessStatus) -> bool,
    ) -> ProcessStatus {
        timeout(Duration::from_secs(20), status.wait_for(condition)).await.unwrap().unwrap().clone()
    }

    async fn has_output(dir: &Path) {
        while std::fs::read_to_string(dir.join("log")).unwrap_or_default().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_dies_is_started_again_and_what_is_stopped_is_not() {
        let (supervisor, dir, recorded) = start("restart", "echo hello; exec sleep 60");
        let mut status = supervisor.status.clone();
        let first = status.borrow().id.unwrap();
        has_output(&dir).await;
        assert_eq!(*recorded.lock(), Some(first));
        first.signal(Signal::SIGKILL).unwrap();
        wait(&mut status, |status| status.deaths == 1 && status.id.is_none()).await;
        let second = wait(&mut status, |status| status.id.is_some()).await.id.unwrap();
        assert_ne!(first, second);
        supervisor.end(Duration::from_secs(10)).await;
        assert!(!second.is_alive());
        assert_eq!(*recorded.lock(), None);
        assert_eq!(status.borrow().deaths, 1, "an ordered end is no death");
        let log = std::fs::read_to_string(dir.join("log")).unwrap();
        assert!(log.contains("hello\n") && log.contains("ended by itself (signal: 9"), "{log}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed() {
        let (supervisor, dir, _) = start("deaf", "trap '' TERM; echo set; while :; do sleep 1; done");
        let id = supervisor.status.borrow().id.unwrap();
        has_output(&dir).await;
        supervisor.end(Duration::from_millis(200)).await;
        assert!(!id.is_alive());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn a_process_that_cannot_be_recorded_is_started_again_and_recorded_later() {
        let dir = std::env::temp_dir().join(format!("kube-node-supervisor-full-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (is_full, recorded) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(None)));
        let spec = ProcessSpec {
            name: "etcd",
            program: "/bin/sleep".into(),
            args: vec!["60".into()],
            log: dir.join("log"),
        };
        let (full, into) = (Arc::clone(&is_full), Arc::clone(&recorded));
        let record = Box::new(move |id| {
            anyhow::ensure!(!*full.lock(), "no space left on device");
            *into.lock() = id;
            Ok(())
        });
        let supervisor = ProcessSupervisor::start(spec, record).unwrap();
        let mut status = supervisor.status.clone();
        let first = status.borrow().id.unwrap();
        *is_full.lock() = true;
        first.signal(Signal::SIGKILL).unwrap();
        let second = wait(&mut status, |status| status.deaths == 1 && status.id.is_some()).await.id.unwrap();
        let log = dir.join("log");
        while !std::fs::read_to_string(&log).unwrap().contains("cannot be recorded: no space left on device")
        {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(second.is_alive() && *recorded.lock() == Some(first));
        *is_full.lock() = false;
        timeout(Duration::from_secs(20), async {
            while *recorded.lock() != Some(second) {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
        supervisor.end(Duration::from_secs(10)).await;
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn the_process_goes_with_its_supervisor() {
        let (supervisor, dir, _) = start("drop", "exec sleep 60");
        let id = supervisor.status.borrow().id.unwrap();
        drop(supervisor);
        assert!(id.wait_gone(Duration::from_secs(10)).await);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn a_program_that_is_not_there() {
        let dir = std::env::temp_dir();
        let spec = ProcessSpec {
            name: "etcd",
            program: "/nonexistent/etcd".into(),
            args: Vec::new(),
            log: dir.join(format!("kube-node-never-{}.log", std::process::id())),
        };
        let log = spec.log.clone();
        let error = ProcessSupervisor::start(spec, Box::new(|_| Ok(()))).unwrap_err();
        assert_eq!(error.to_string(), "cannot run /nonexistent/etcd");
        std::fs::remove_file(log).unwrap();
    }
}
