//! Keeps one process running: starts it, writes its output to its log, tells who it is to whoever notes that, starts it
//! again with growing pauses when it dies by itself, and ends it when told to.
//!
//! A task owns the process; orders reach it by a channel. When the [`ProcessSupervisor`] is dropped the process is killed.

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

/// Pause before the first restart; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A process that ran this long is sound: the next pause is the first again.
const SOUND: Duration = Duration::from_secs(30);

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ProcessSupervisorError {
    /// The program or its log cannot be opened.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The pid cannot be noted.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Told who the process is, whenever that changes.
pub(super) type Note = Box<dyn Fn(Option<ProcessId>) -> Result<(), StateError> + Send>;

/// What to run.
#[derive(Debug)]
pub(super) struct Plan {
    /// What the log calls it.
    pub name: &'static str,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub log: PathBuf,
}

/// How the process stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// The process, where there is one.
    pub id: Option<ProcessId>,
    /// How often it has died by itself.
    pub deaths: u32,
    /// What the last of these deaths was.
    pub last_death: Option<ExitStatus>,
}

enum Order {
    Start(oneshot::Sender<Result<(), ProcessSupervisorError>>),
    /// SIGTERM and this much time to obey, then SIGKILL; SIGKILL at once where there is none.
    End(Option<Duration>, oneshot::Sender<()>),
}

/// The handle of one kept process.
#[derive(Debug)]
pub(super) struct ProcessSupervisor {
    orders: mpsc::Sender<Order>,
    run: watch::Receiver<Run>,
    task: AbortHandle,
}

impl ProcessSupervisor {
    /// Nothing runs until [`Self::start`].
    pub fn new(plan: Plan, note: Note) -> Self {
        let (orders, received) = mpsc::channel(1);
        let (report, run) = watch::channel(Run::default());
        let kept = SupervisedProcess { plan, note, report, process: None, restart: None, pause: FIRST_PAUSE };
        let task = tokio::spawn(kept.obey(received)).abort_handle();
        Self { orders, run, task }
    }

    /// Starts the process where it does not run, and keeps it running from now on.
    pub async fn start(&self) -> Result<(), ProcessSupervisorError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(Order::Start(reply)).await;
        // The task ends only with the runtime.
        answer.await.unwrap_or(Ok(()))
    }

    /// Ends the process and returns when it is gone; it stays so until [`Self::start`].
    pub async fn end(&self, grace: Option<Duration>) {
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(Order::End(grace, reply)).await;
        let _ = answer.await;
    }

    /// How the process stands now.
    pub fn run(&self) -> Run {
        self.run.borrow().clone()
    }
}

impl Drop for ProcessSupervisor {
    fn drop(&mut self) {
        // With the task goes its Child, which kills on drop.
        self.task.abort();
    }
}

/// What the task owns.
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
            // For programs of ours; others do not listen to it.
            .env(memory::VARIABLE, memory::VALUE)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            // Ctrl-C in a terminal reaches the whole group of the supervisor; the order of the end is ours.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let id = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(ProcessId::of);
        self.process = Some((child, Instant::now()));
        self.report.send_modify(|run| run.id = id);
        Ok((self.note)(id)?)
    }

    /// The process is dead without having been told to.
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

    /// Says something in the log of the process, where whoever wonders about it looks.
    fn say(&self, text: &str) {
        if let Ok(mut log) = open_log(&self.plan.log) {
            let _ = writeln!(log, "kube-node: {} {text}", self.plan.name);
        }
    }
}

fn open_log(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Waits for the end of the process; for ever where there is none.
async fn died(process: &mut Option<(Child, Instant)>) -> Option<ExitStatus> {
    match process {
        Some((child, _)) => child.wait().await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits for the time of the restart; for ever where there is none.
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
