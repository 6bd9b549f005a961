//! Process supervisor: starts one process, writes its output to a log, reports its identity to a callback,
//! restarts it with growing pauses when it dies, and ends it on request.
//!
//! A task owns the process; commands reach the task by a channel. Dropping the [`ProcessSupervisor`] kills
//! the process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use kube_ext::memory;
use nix::sys::signal::Signal;
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
    time::{Instant, sleep_until, timeout},
};

use super::procs::ProcessId;

/// Pause before the first restart; each further restart doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After this run time the pause before a restart is reset to the first one.
const SOUND: Duration = Duration::from_secs(30);

/// Callback with the identity of the process, called at each change.
pub(super) type Note = Box<dyn Fn(Option<ProcessId>) -> anyhow::Result<()> + Send>;

/// Program, arguments and log of a process.
#[derive(Debug)]
pub(super) struct Plan {
    /// Name in the log.
    pub name: &'static str,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub log: PathBuf,
}

/// State of the process.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// Identity of the running process.
    pub id: Option<ProcessId>,
    /// Number of deaths without a request to end.
    pub deaths: u32,
    /// Exit status of the last such death.
    pub last_death: Option<ExitStatus>,
}

enum Request {
    Start(oneshot::Sender<anyhow::Result<()>>),
    /// SIGTERM, then SIGKILL after this duration.
    End(Duration, oneshot::Sender<()>),
}

/// Handle of one supervised process.
#[derive(Debug)]
pub(super) struct ProcessSupervisor {
    requests: mpsc::Sender<Request>,
    run: watch::Receiver<Run>,
    task: AbortHandle,
}

impl ProcessSupervisor {
    /// Creates the supervisor. The process runs after [`Self::start`].
    pub fn new(plan: Plan, note: Note) -> Self {
        let (requests, received) = mpsc::channel(1);
        let (report, run) = watch::channel(Run::default());
        let process =
            SupervisedProcess { plan, note, report, process: None, restart: None, pause: FIRST_PAUSE };
        let task = tokio::spawn(process.supervise(received)).abort_handle();
        Self { requests, run, task }
    }

    /// Starts the process if it does not run, and keeps it running from now on.
    pub async fn start(&self) -> anyhow::Result<()> {
        let (reply, answer) = oneshot::channel();
        let _ = self.requests.send(Request::Start(reply)).await;
        // The task ends only with the runtime, so a missing answer is no failed start.
        answer.await.unwrap_or(Ok(()))
    }

    /// Ends the process and returns when it is gone. It stays down until [`Self::start`].
    pub async fn end(&self, grace: Duration) {
        let (reply, answer) = oneshot::channel();
        let _ = self.requests.send(Request::End(grace, reply)).await;
        let _ = answer.await;
    }

    /// Present state of the process.
    pub fn run(&self) -> Run {
        self.run.borrow().clone()
    }
}

impl Drop for ProcessSupervisor {
    fn drop(&mut self) {
        // Aborting the task drops its Child, which has kill_on_drop.
        self.task.abort();
    }
}

/// State owned by the task.
struct SupervisedProcess {
    plan: Plan,
    note: Note,
    report: watch::Sender<Run>,
    process: Option<(Child, Instant)>,
    restart: Option<Instant>,
    pause: Duration,
}

impl SupervisedProcess {
    async fn supervise(mut self, mut requests: mpsc::Receiver<Request>) {
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(Request::Start(reply)) => {
                        self.pause = FIRST_PAUSE;
                        let started = if self.process.is_some() { Ok(()) } else { self.spawn() };
                        let _ = reply.send(started);
                    }
                    Some(Request::End(grace, reply)) => {
                        self.end(grace).await;
                        let _ = reply.send(());
                    }
                    None => return,
                },
                status = exit(&mut self.process) => self.died(status),
                () = sleep_until(self.restart.unwrap_or_else(Instant::now)), if self.restart.is_some() => if let Err(error) = self.spawn() {
                    self.log(&format!("{error:#}; next attempt in {:?}", self.pause));
                    self.restart_later();
                },
            }
        }
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        self.restart = None;
        let child = self.command().and_then(|mut command| command.spawn());
        let child = child.with_context(|| format!("cannot run {}", self.plan.program.display()))?;
        let id = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(ProcessId::of);
        self.process = Some((child, Instant::now()));
        self.report.send_modify(|run| run.id = id);
        (self.note)(id)
    }

    fn command(&self) -> io::Result<Command> {
        let log = open_log(&self.plan.log)?;
        let mut command = Command::new(&self.plan.program);
        command
            .args(&self.plan.args)
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

    /// Records a death that was not requested, and schedules the restart.
    fn died(&mut self, status: Option<ExitStatus>) {
        let ran = self.process.take().map(|(_, since)| since.elapsed()).unwrap_or_default();
        if ran >= SOUND {
            self.pause = FIRST_PAUSE;
        }
        let end = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
        self.log(&format!("ended by itself ({end}); starts again in {:?}", self.pause));
        if let Err(error) = (self.note)(None) {
            self.log(&error.to_string());
        }
        self.report.send_modify(|run| {
            run.id = None;
            run.deaths += 1;
            run.last_death = status;
        });
        self.restart_later();
    }

    fn restart_later(&mut self) {
        self.restart = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    async fn end(&mut self, grace: Duration) {
        self.restart = None;
        let Some((mut child, _)) = self.process.take() else { return };
        let id = self.report.borrow().id;
        let ended = id.is_some_and(|id| id.signal(Signal::SIGTERM).is_ok())
            && timeout(grace, child.wait()).await.is_ok();
        if !ended {
            let _ = child.kill().await;
        }
        self.report.send_modify(|run| run.id = None);
        if let Err(error) = (self.note)(None) {
            self.log(&error.to_string());
        }
    }

    /// Writes a line to the log of the process, the first place where an unexpected restart is looked up.
    fn log(&self, text: &str) {
        if let Ok(mut log) = open_log(&self.plan.log) {
            let _ = writeln!(log, "kube-node: {} {text}", self.plan.name);
        }
    }
}

fn open_log(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Waits for the end of the process; forever if there is none.
async fn exit(process: &mut Option<(Child, Instant)>) -> Option<ExitStatus> {
    match process {
        Some((child, _)) => child.wait().await.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A supervisor of a shell script, its folder, and the identity that it has reported last.
    fn supervisor(name: &str, script: &str) -> (ProcessSupervisor, PathBuf, Arc<Mutex<Option<ProcessId>>>) {
        let dir = std::env::temp_dir().join(format!("kube-node-supervisor-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let reported = Arc::new(Mutex::new(None));
        let plan = Plan {
            name: "etcd",
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            log: dir.join("log"),
        };
        let noted = reported.clone();
        let note = Box::new(move |id| {
            *noted.lock() = id;
            Ok(())
        });
        (ProcessSupervisor::new(plan, note), dir, reported)
    }

    async fn wait(supervised: &ProcessSupervisor, what: impl FnMut(&Run) -> bool) -> Run {
        let mut run = supervised.run.clone();
        timeout(Duration::from_secs(20), run.wait_for(what)).await.unwrap().unwrap().clone()
    }

    async fn has_spoken(dir: &std::path::Path) {
        while std::fs::read_to_string(dir.join("log")).unwrap_or_default().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_dies_is_started_again_and_what_is_stopped_is_not() {
        let (supervised, dir, reported) = supervisor("restart", "echo hello; exec sleep 60");
        supervised.start().await.unwrap();
        let first = supervised.run().id.unwrap();
        has_spoken(&dir).await;
        assert_eq!(*reported.lock(), Some(first));
        first.signal(Signal::SIGKILL).unwrap();
        wait(&supervised, |run| run.deaths == 1 && run.id.is_none()).await;
        let second = wait(&supervised, |run| run.id.is_some()).await.id.unwrap();
        assert_ne!(first, second);
        supervised.end(Duration::from_secs(10)).await;
        assert!(!second.is_alive());
        assert_eq!(*reported.lock(), None);
        assert_eq!(supervised.run().deaths, 1, "an ordered end is no death");
        let log = std::fs::read_to_string(dir.join("log")).unwrap();
        assert!(log.contains("hello\n") && log.contains("ended by itself (signal: 9"), "{log}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed() {
        let (supervised, dir, _) = supervisor("deaf", "trap '' TERM; echo set; while :; do sleep 1; done");
        supervised.start().await.unwrap();
        let id = supervised.run().id.unwrap();
        has_spoken(&dir).await;
        supervised.end(Duration::from_millis(200)).await;
        assert!(!id.is_alive());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn the_process_goes_with_its_supervisor() {
        let (supervised, dir, _) = supervisor("drop", "exec sleep 60");
        supervised.start().await.unwrap();
        let id = supervised.run().id.unwrap();
        drop(supervised);
        assert!(id.wait_gone(Duration::from_secs(10)).await);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn a_program_that_is_not_there() {
        let dir = std::env::temp_dir();
        let plan = Plan {
            name: "etcd",
            program: "/nonexistent/etcd".into(),
            args: Vec::new(),
            log: dir.join(format!("kube-node-never-{}.log", std::process::id())),
        };
        let log = plan.log.clone();
        let error = ProcessSupervisor::new(plan, Box::new(|_| Ok(()))).start().await.unwrap_err();
        assert_eq!(error.to_string(), "cannot run /nonexistent/etcd");
        std::fs::remove_file(log).unwrap();
    }
}
