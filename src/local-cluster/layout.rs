//! Data folder of one cluster: paths, ownership check and the lock of the supervisor.
//!
//! A folder is used if it does not exist, is empty, or holds a `cluster.json` of our format. Any other folder
//! is left unchanged, and an error gives the reason.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    component::Component,
    files::{FileError, create_private_dir},
    procs::ProcessId,
    real_node,
    state::{State, StateError},
};

/// Files that an interrupted first start may leave in a folder without `cluster.json`.
const EARLY: [&str; 3] = ["lock", "logs", "cluster.json.tmp"];
/// Time between SIGTERM and SIGKILL of a component: kube-apiserver drains for some seconds.
pub(super) const GRACE: Duration = Duration::from_secs(20);

/// Wait for a lock whose holder is dead or has not yet written its pid.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// Interval of attempts to take the lock.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Reason why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// No home folder is known for the default data folder.
    #[error("no home folder to keep the cluster in: say where with --data-dir")]
    NoHome,
    /// The folder cannot be created or written.
    #[error("the data folder {} is not writable", path.display())]
    NotWritable {
        /// The folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The folder holds foreign files and no cluster.
    #[error("{} is not empty and holds no kube-node cluster: use an empty or new folder", path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
    /// Another process runs this cluster.
    #[error("the cluster in {} is already running{}", path.display(), pid.map(|pid| format!(", pid {pid}")).unwrap_or_default())]
    Running {
        /// The folder.
        path: PathBuf,
        /// Pid of the supervisor, if it is already written.
        pid: Option<i32>,
    },
    /// A process of an earlier run cannot be stopped.
    #[error("cannot stop {component} (pid {pid}) of an earlier run")]
    Leftover {
        /// Name of the component.
        component: &'static str,
        /// Pid of the process.
        pid: i32,
        /// Error of the operating system.
        source: nix::errno::Errno,
    },
    /// Remains of a real node of an earlier run cannot be removed.
    #[error(transparent)]
    RealNode(#[from] real_node::RemoveError),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Paths of one data folder. The folder need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    dir: PathBuf,
}

/// The right to run the cluster of a data folder. The kernel releases it when the process ends, even after a crash.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl Layout {
    /// The folder `dir`, or the user's default one.
    pub fn new(dir: Option<&Path>) -> Result<Self, LayoutError> {
        let dir = match dir {
            Some(dir) => std::path::absolute(dir)
                .map_err(|source| LayoutError::NotWritable { path: dir.to_owned(), source })?,
            None => directories::ProjectDirs::from("", "", "kube-node")
                .ok_or(LayoutError::NoHome)?
                .data_local_dir()
                .join("default"),
        };
        Ok(Self { dir })
    }

    /// Path of the folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of a file or folder inside the data folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Path of the admin's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// Path of the operator's kubeconfig.
    #[must_use]
    pub fn operator_kubeconfig(&self) -> PathBuf {
        self.path("operator.kubeconfig")
    }

    /// Path of the hollow kubelets' kubeconfig.
    #[must_use]
    pub fn hollow_kubeconfig(&self) -> PathBuf {
        self.path("hollow.kubeconfig")
    }

    /// Folder of certificates and keys.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.path("pki")
    }

    /// Folder of the certificates of the server for cluster-autoscaler and of its client.
    #[must_use]
    pub fn autoscaler_pki(&self) -> PathBuf {
        self.path("autoscaler-pki")
    }

    /// File for cluster-autoscaler's `--cloud-config`.
    #[must_use]
    pub fn cloud_config(&self) -> PathBuf {
        self.path("cloud-config.yaml")
    }

    /// Folder of the real node: its configuration and its disk.
    #[must_use]
    pub fn real_node(&self) -> PathBuf {
        self.path("real-node")
    }

    /// Path of a component's log.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.path("logs").join(format!("{name}.log"))
    }

    /// Path of `cluster.json`.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.path("cluster.json")
    }

    /// Loads the state; `None` if the folder holds no cluster.
    pub fn load(&self) -> Result<Option<State>, LayoutError> {
        match self.state().try_exists() {
            Ok(true) => Ok(Some(State::load(&self.state())?)),
            Ok(false) => Ok(None),
            Err(source) => Err(FileError::new("read", &self.state(), source).into()),
        }
    }

    /// Creates the folder if needed, checks that it is ours, and returns its state or a new one.
    pub fn prepare(&self, kubernetes_version: &str) -> Result<State, LayoutError> {
        let not_writable = |source| LayoutError::NotWritable { path: self.dir.clone(), source };
        match fs::read_dir(&self.dir) {
            Ok(entries) => {
                let foreign =
                    entries.flatten().any(|entry| !EARLY.iter().any(|name| entry.file_name() == *name));
                if foreign && !self.state().exists() {
                    return Err(LayoutError::NotOurs { path: self.dir.clone() });
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(not_writable(source)),
        }
        let state = match self.load()? {
            Some(state) => state,
            None => State::new(kubernetes_version),
        };
        state.check_kubernetes(kubernetes_version)?;
        create_private_dir(&self.path("logs")).map_err(|error| {
            not_writable(
                std::error::Error::source(&error)
                    .map_or_else(|| ErrorKind::Other.into(), |source| io::Error::other(source.to_string())),
            )
        })?;
        self.open_lock().map_err(not_writable)?;
        Ok(state)
    }

    /// Takes the right to run the cluster. A thread of a killed supervisor may hold the lock for a moment longer.
    pub async fn lock(&self) -> Result<DirLock, LayoutError> {
        let not_writable = |source| LayoutError::NotWritable { path: self.dir.clone(), source };
        let file = self.open_lock().map_err(not_writable)?;
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(DirLock { _file: file }),
                Err(TryLockError::WouldBlock) => {
                    let supervisor = self.load().ok().flatten().and_then(|state| state.supervisor);
                    let pid = supervisor.filter(|id| id.is_alive()).map(|id| id.pid);
                    if pid.is_some() || Instant::now() >= deadline {
                        return Err(LayoutError::Running { path: self.dir.clone(), pid });
                    }
                    sleep(LOCK_POLL).await;
                }
                Err(TryLockError::Error(source)) => return Err(not_writable(source)),
            }
        }
    }

    fn open_lock(&self) -> io::Result<File> {
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(self.path("lock"))
    }

    /// Stops the processes of a cluster without a supervisor, last started first. Returns the number that ran.
    ///
    /// The caller must hold the lock: otherwise this would stop a cluster under a running supervisor.
    pub async fn stop_leftovers(&self, _lock: &DirLock) -> Result<usize, LayoutError> {
        let Some(mut state) = self.load()? else { return Ok(0) };
        let mut stopped = 0;
        for component in Component::ALL.into_iter().rev() {
            let Some(id) = state.components.get(&component).copied().filter(|id| id.is_alive()) else {
                continue;
            };
            stopped += 1;
            id.terminate(GRACE).await.map_err(|source| LayoutError::Leftover {
                component: component.name(),
                pid: id.pid,
                source,
            })?;
        }
        // Also if the real node's host process is gone: processes inside the node may have outlived it.
        stopped += usize::from(real_node::remove(&self.dir).await?);
        state.components.clear();
        state.supervisor = None;
        state.save(&self.state())?;
        Ok(stopped)
    }
}

/// The live supervisor of a cluster, if there is one.
#[must_use]
pub fn supervisor(state: &State) -> Option<ProcessId> {
    state.supervisor.filter(|id| id.is_alive())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name: &str) -> Layout {
        let dir = std::env::temp_dir().join(format!("kube-node-layout-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Layout::new(Some(&dir)).unwrap()
    }

    #[tokio::test]
    async fn one_runs_a_folder_at_a_time() {
        let layout = layout("lock");
        let mut state = layout.prepare("1.36.3").unwrap();
        let lock = layout.lock().await.unwrap();
        // The lock's holder may be about to release it as long as no live supervisor is recorded.
        let (taken, ()) = tokio::join!(layout.lock(), async {
            sleep(LOCK_POLL).await;
            drop(lock);
        });
        let lock = taken.unwrap();
        state.supervisor = ProcessId::current();
        state.save(&layout.state()).unwrap();
        let error = layout.lock().await.unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(lock);
        layout.lock().await.unwrap();
        fs::remove_dir_all(layout.dir()).unwrap();
    }

    #[test]
    fn folders_of_others_are_refused_and_kept() {
        let layout = layout("foreign");
        fs::create_dir_all(layout.dir()).unwrap();
        layout.prepare("1.36.3").unwrap();
        // Interrupted before the state was written: the folder is still ours.
        layout.prepare("1.36.3").unwrap();
        fs::write(layout.path("thesis.txt"), "x").unwrap();
        assert!(matches!(layout.prepare("1.36.3"), Err(LayoutError::NotOurs { .. })));
        fs::remove_dir_all(layout.dir()).unwrap();
    }

    #[test]
    fn another_format_is_refused() {
        let layout = layout("format");
        fs::create_dir_all(layout.dir()).unwrap();
        fs::write(layout.state(), r#"{"formatVersion": 7}"#).unwrap();
        let error = layout.prepare("1.36.3").unwrap_err().to_string();
        assert!(error.contains("format 7"), "{error}");
        fs::remove_dir_all(layout.dir()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made() {
        let error = Layout::new(Some(Path::new("/proc/kube-node"))).unwrap().prepare("1.36.3").unwrap_err();
        assert!(matches!(error, LayoutError::NotWritable { .. }), "{error}");
    }
}
