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

use kube_ext::memory;
use nix::sys::signal::Signal;
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{procs::ProcessId, state::StateError};

/// Pause before the first restart; each further restart doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After this run time the pause before a restart is reset to the first one.
const SOUND: Duration = Duration::from_secs(30);

/// Reason why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ProcessSupervisorError {
    /// The program or its log file cannot be opened.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The process identity cannot be recorded.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Callback with the identity of the process, called at each change.
pub(super) type Note = Box<dyn Fn(Option<ProcessId>) -> Result<(), StateError> + Send>;

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

enum Order {
    Start(oneshot::Sender<Result<(), ProcessSupervisorError>>),
    /// SIGTERM, then SIGKILL after this duration; SIGKILL at once if `None`.
    End(Option<Duration>, oneshot::Sender<()>),
}

/// Handle of one supervised process.
#[derive(Debug)]
pub(super) struct ProcessSupervisor {
    orders: mpsc::Sender<Order>,
    run: watch::Receiver<Run>,
    task: AbortHandle,
}

impl ProcessSupervisor {
    /// Creates the supervisor. The process runs after [`Self::start`].
    pub fn new(plan: Plan, note: Note) -> Self {
        let (orders, received) = mpsc::channel(1);
        let (report, run) = watch::channel(Run::default());
        let kept = SupervisedProcess { plan, note, report, process: None, restart: None, pause: FIRST_PAUSE };
        let task = tokio::spawn(kept.obey(received)).abort_handle();
        Self { orders, run, task }
    }

    /// Starts the process if it does not run, and keeps it running from now on.
    pub async fn start(&self) -> Result<(), ProcessSupervisorError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(Order::Start(reply)).await;
        // The task ends only with the runtime, so a missing answer is no failed start.
        answer.await.unwrap_or(Ok(()))
    }

    /// Ends the process and returns when it is gone. It stays down until [`Self::start`].
    pub async fn end(&self, grace: Option<Duration>) {
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(Order::End(grace, reply)).await;
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
    async fn obey(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Start(reply)) => {
                        self.pause = FIRST_PAUSE;
                        let started = if self.process.is_some() { Ok(()) } else { self.spawn() };
                        let _ = reply.send(started);
                    }
                    Some(Order::End(grace, reply)) => {
                        self.end(grace).await;
                        let _ = reply.send(());
                    }
                    None => return,
                },
                status = died(&mut self.process) => self.bury(status),
                () = due(self.restart) => if let Err(error) = self.spawn() {
                    self.say(&format!("{error}; next attempt in {:?}", self.pause));
                    self.restart_later();
                },
            }
        }
    }

    fn spawn(&mut self) -> Result<(), ProcessSupervisorError> {
        self.restart = None;
        let failed = |source| ProcessSupervisorError::Spawn { program: self.plan.program.clone(), source };
        let log = open_log(&self.plan.log).map_err(failed)?;
        let child = Command::new(&self.plan.program)
            .args(&self.plan.args)
            // Memory settings for our own programs; other programs ignore the variable.
            .env(memory::VARIABLE, memory::VALUE)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            // Ctrl-C in a terminal signals the supervisor's whole process group. A group of its own keeps the
            // stop order ours.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let id = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(ProcessId::of);
        self.process = Some((child, Instant::now()));
        self.report.send_modify(|run| run.id = id);
        Ok((self.note)(id)?)
    }

    /// Records a death that was not requested, and schedules the restart.
    fn bury(&mut self, status: Option<ExitStatus>) {
        let ran = self.process.take().map(|(_, since)| since.elapsed()).unwrap_or_default();
        if ran >= SOUND {
            self.pause = FIRST_PAUSE;
        }
        let end = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
        self.say(&format!("ended by itself ({end}); starts again in {:?}", self.pause));
        if let Err(error) = (self.note)(None) {
            self.say(&error.to_string());
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

    async fn end(&mut self, grace: Option<Duration>) {
        self.restart = None;
        let Some((mut child, _)) = self.process.take() else { return };
        let id = self.report.borrow().id;
        let obeyed = match (grace, id) {
            (Some(grace), Some(id)) => {
                id.signal(Signal::SIGTERM).is_ok() && timeout(grace, child.wait()).await.is_ok()
            }
            _ => false,
        };
        if !obeyed {
            let _ = child.kill().await;
        }
        self.report.send_modify(|run| run.id = None);
        if let Err(error) = (self.note)(None) {
            self.say(&error.to_string());
        }
    }

    /// Writes a line to the log of the process, the first place where an unexpected restart is looked up.
    fn say(&self, text: &str) {
        if let Ok(mut log) = open_log(&self.plan.log) {
            let _ = writeln!(log, "kube-node: {} {text}", self.plan.name);
        }
    }
}

fn open_log(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Waits for the end of the process; forever if there is none.
async fn died(process: &mut Option<(Child, Instant)>) -> Option<ExitStatus> {
    match process {
        Some((child, _)) => child.wait().await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits for the time of the restart; forever if none is scheduled.
async fn due(restart: Option<Instant>) {
    match restart {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        component::Component,
        state::{State, StateFile},
    };

    fn keeper(name: &str, script: &str) -> (ProcessSupervisor, PathBuf, Arc<StateFile>) {
        let dir = std::env::temp_dir().join(format!("kube-node-keeper-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let state = Arc::new(StateFile::new(dir.join("cluster.json"), State::new("1.36.3")));
        let plan = Plan {
            name: "etcd",
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            log: dir.join("log"),
        };
        let noted = state.clone();
        let note = Box::new(move |id| noted.note(Component::Etcd, id));
        (ProcessSupervisor::new(plan, note), dir, state)
    }

    async fn wait(keeper: &ProcessSupervisor, what: impl FnMut(&Run) -> bool) -> Run {
        let mut run = keeper.run.clone();
        timeout(Duration::from_secs(20), run.wait_for(what)).await.unwrap().unwrap().clone()
    }

    async fn has_spoken(dir: &std::path::Path) {
        while std::fs::read_to_string(dir.join("log")).unwrap_or_default().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_dies_is_started_again_and_what_is_stopped_is_not() {
        let (keeper, dir, state) = keeper("restart", "echo hello; exec sleep 60");
        keeper.start().await.unwrap();
        let first = keeper.run().id.unwrap();
        has_spoken(&dir).await;
        assert_eq!(state.get().components[&Component::Etcd], first);
        first.signal(Signal::SIGKILL).unwrap();
        wait(&keeper, |run| run.deaths == 1 && run.id.is_none()).await;
        let second = wait(&keeper, |run| run.id.is_some()).await.id.unwrap();
        assert_ne!(first, second);
        keeper.end(Some(Duration::from_secs(10))).await;
        assert!(!second.is_alive());
        assert!(state.get().components.is_empty());
        assert_eq!(keeper.run().deaths, 1, "an ordered end is no death");
        let log = std::fs::read_to_string(dir.join("log")).unwrap();
        assert!(log.contains("hello\n") && log.contains("ended by itself (signal: 9"), "{log}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed() {
        let (keeper, dir, _) = keeper("deaf", "trap '' TERM; echo set; while :; do sleep 1; done");
        keeper.start().await.unwrap();
        let id = keeper.run().id.unwrap();
        has_spoken(&dir).await;
        keeper.end(Some(Duration::from_millis(200))).await;
        assert!(!id.is_alive());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn the_process_goes_with_its_keeper() {
        let (keeper, dir, _) = keeper("drop", "exec sleep 60");
        keeper.start().await.unwrap();
        let id = keeper.run().id.unwrap();
        drop(keeper);
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
