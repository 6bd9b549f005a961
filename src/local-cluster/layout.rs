//! Data folder of one cluster: paths, ownership check and the lock of the supervisor.
//!
//! A folder is used if it does not exist, is empty, or holds a `cluster.json` of our format. Any other folder
//! is left unchanged, and an error gives the reason.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use nix::unistd::geteuid;
use tokio::time::{Instant, sleep};

use super::{
    component::Component,
    files::create_private_dir,
    procs::ProcessId,
    state::{Damaged, State},
};

/// Files that an interrupted first start may leave in a folder without `cluster.json`.
const EARLY: [&str; 3] = ["lock", "logs", "cluster.json.tmp"];
/// Time between SIGTERM and SIGKILL of a component: kube-apiserver drains for some seconds.
pub(super) const GRACE: Duration = Duration::from_secs(20);
/// Time limit for a supervisor to end: each component may take its grace, one after another, and the real node's remains
/// are removed.
pub const STOP_LIMIT: Duration = Duration::from_secs(GRACE.as_secs() * (Component::ALL.len() as u64 + 1));

/// Wait for a lock whose holder is dead or has not yet written its pid.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// Interval of attempts to take the lock.
const LOCK_POLL: Duration = Duration::from_millis(50);

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
    pub fn new(dir: Option<&Path>) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => std::path::absolute(dir).with_context(|| not_writable(dir))?,
            None => directories::ProjectDirs::from("", "", "kube-node")
                .context("no home folder to keep the cluster in: say where with --data-dir")?
                .data_local_dir()
                .join("default"),
        };
        Ok(Self { dir })
    }

    /// Path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of a file or folder inside the data folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Path of the admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// File for cluster-autoscaler's `--cloud-config`.
    pub fn cloud_config(&self) -> PathBuf {
        self.path("cloud-config.yaml")
    }

    /// Path of a component's log.
    pub fn log(&self, name: &str) -> PathBuf {
        self.path("logs").join(format!("{name}.log"))
    }

    /// Path of `cluster.json`.
    pub(super) fn state(&self) -> PathBuf {
        self.path("cluster.json")
    }

    /// Loads the state; `None` if the folder holds no cluster.
    pub fn load(&self) -> anyhow::Result<Option<State>> {
        let path = self.state();
        let exists = path.try_exists().map_err(|error| {
            let owner = if error.kind() == ErrorKind::PermissionDenied {
                ", which another user owns, such as root after sudo kube-node up"
            } else {
                ""
            };
            anyhow::Error::new(error).context(format!("cannot read {}{owner}", path.display()))
        })?;
        exists.then(|| State::load(&path)).transpose()
    }

    /// Loads the state; `None` also for a damaged file, which tells nothing of its processes.
    pub fn load_undamaged(&self) -> anyhow::Result<Option<State>> {
        self.load().or_else(|error| if error.is::<Damaged>() { Ok(None) } else { Err(error) })
    }

    /// Creates the folder if needed, checks that it is ours, and returns its state or a new one.
    pub fn prepare(&self) -> anyhow::Result<State> {
        self.keep_others_out()?;
        match fs::read_dir(&self.dir) {
            Ok(entries) => {
                let is_new =
                    entries.flatten().all(|entry| EARLY.iter().any(|name| entry.file_name() == *name));
                ensure!(
                    is_new || self.state().exists(),
                    "{} is not empty and holds no kube-node cluster: use an empty or new folder",
                    self.dir.display()
                );
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| not_writable(&self.dir)),
        }
        let state = self.load()?.unwrap_or_else(State::new);
        create_private_dir(&self.path("logs"))
            .and_then(|()| Ok(self.open_lock()?))
            .with_context(|| not_writable(&self.dir))?;
        Ok(state)
    }

    /// Refuses a folder of another user, who could read the keys of the cluster and replace its files, and takes the right to write
    /// there from all others.
    fn keep_others_out(&self) -> anyhow::Result<()> {
        let found = match fs::metadata(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => found.with_context(|| not_writable(&self.dir))?,
        };
        let (owner, own) = (found.uid(), geteuid().as_raw());
        ensure!(
            owner == own,
            "the data folder {} belongs to the user with the ID {owner}, and this is {own}: choose another folder with --data-dir",
            self.dir.display()
        );
        let mode = found.mode() & 0o7777;
        if found.is_dir() && mode & 0o022 != 0 {
            fs::set_permissions(&self.dir, fs::Permissions::from_mode(mode & !0o022))
                .with_context(|| not_writable(&self.dir))?;
        }
        Ok(())
    }

    /// Takes the right to run the cluster. A thread of a killed supervisor may hold the lock for a moment longer.
    pub async fn lock(&self) -> anyhow::Result<DirLock> {
        let failed = || not_writable(&self.dir);
        let mut file = self.open_lock().with_context(failed)?;
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) if self.is_lock(&file).with_context(failed)? => return Ok(DirLock { _file: file }),
                // `down --delete` has deleted it, with the folder: who locks the next one would not see this lock.
                Ok(()) => file = self.open_lock().with_context(failed)?,
                Err(TryLockError::WouldBlock) => {
                    let running = self.load().ok().flatten().as_ref().and_then(supervisor);
                    if running.is_some() || Instant::now() >= deadline {
                        let pid = running.map(|id| format!(", pid {}", id.pid)).unwrap_or_default();
                        bail!("the cluster in {} is already running{pid}", self.dir.display());
                    }
                    sleep(LOCK_POLL).await;
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
            }
        }
    }

    fn open_lock(&self) -> io::Result<File> {
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(self.path("lock"))
    }

    /// Returns true if this is the file that others would lock.
    fn is_lock(&self, file: &File) -> io::Result<bool> {
        let own = file.metadata()?;
        match fs::metadata(self.path("lock")) {
            Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes the folder. Of a symbolic link or a mount point only the content goes: the rest was made by the user.
    pub fn delete(&self, lock: DirLock) -> anyhow::Result<()> {
        let failed = || format!("cannot delete {}", self.dir.display());
        let is_link = self.dir.is_symlink();
        let target = fs::canonicalize(&self.dir).with_context(failed)?;
        let deleted = if is_link { empty(&target) } else { fs::remove_dir_all(&target) };
        drop(lock);
        match deleted {
            Err(error) if error.kind() != ErrorKind::ResourceBusy => Err(error).with_context(failed),
            _ => Ok(()),
        }
    }
}

/// Deletes the content of a folder.
fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn not_writable(dir: &Path) -> String {
    format!("the data folder {} is not writable", dir.display())
}

/// The live supervisor of a cluster, if there is one.
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

    #[test]
    fn a_folder_of_another_user_is_refused_and_others_cannot_write_to_an_own_one() {
        let own = layout("own");
        fs::create_dir_all(own.dir()).unwrap();
        fs::set_permissions(own.dir(), fs::Permissions::from_mode(0o777)).unwrap();
        own.prepare().unwrap();
        assert_eq!(fs::metadata(own.dir()).unwrap().mode() & 0o777, 0o755);
        // Root gives the folder away; another user finds one of root.
        let other = if geteuid().is_root() {
            std::os::unix::fs::chown(own.dir(), Some(65_534), None).unwrap();
            own.clone()
        } else {
            Layout::new(Some(Path::new("/usr"))).unwrap()
        };
        let error = other.prepare().unwrap_err().to_string();
        assert!(
            error.contains("belongs to the user with the ID")
                && error.ends_with("choose another folder with --data-dir"),
            "{error}"
        );
        fs::remove_dir_all(own.dir()).unwrap();
    }

    #[tokio::test]
    async fn one_runs_a_folder_at_a_time() {
        let layout = layout("lock");
        let mut state = layout.prepare().unwrap();
        let lock = layout.lock().await.unwrap();
        // The lock's holder may be about to release it as long as no live supervisor is recorded.
        let (taken, ()) = tokio::join!(layout.lock(), async {
            sleep(LOCK_POLL).await;
            drop(lock);
        });
        let lock = taken.unwrap();
        let nobody = std::mem::replace(&mut state.supervisor, ProcessId::current());
        state.save(&layout.state()).unwrap();
        let error = layout.lock().await.unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(lock);
        // A program that another test has just started holds the lock until it runs.
        state.supervisor = nobody;
        state.save(&layout.state()).unwrap();
        layout.lock().await.unwrap();
        fs::remove_dir_all(layout.dir()).unwrap();
    }

    #[test]
    fn folders_of_others_are_refused_and_kept() {
        let layout = layout("foreign");
        fs::create_dir_all(layout.dir()).unwrap();
        layout.prepare().unwrap();
        // Interrupted before the state was written: the folder is still ours.
        layout.prepare().unwrap();
        fs::write(layout.path("thesis.txt"), "x").unwrap();
        let error = layout.prepare().unwrap_err().to_string();
        assert!(error.ends_with("use an empty or new folder"), "{error}");
        fs::remove_dir_all(layout.dir()).unwrap();
    }

    #[tokio::test]
    async fn a_deleted_link_loses_the_content_of_its_target() {
        let target = layout("target");
        let link = layout("link");
        let _ = fs::remove_file(link.dir());
        fs::create_dir_all(target.dir()).unwrap();
        std::os::unix::fs::symlink(target.dir(), link.dir()).unwrap();
        link.prepare().unwrap().save(&link.state()).unwrap();
        fs::create_dir_all(link.path("pki")).unwrap();
        fs::write(link.path("pki/ca.key"), "secret").unwrap();
        link.delete(link.lock().await.unwrap()).unwrap();
        assert_eq!(fs::read_dir(target.dir()).unwrap().count(), 0);
        // The folder behind the link serves the next cluster.
        link.prepare().unwrap();
        fs::remove_file(link.dir()).unwrap();
        fs::remove_dir_all(target.dir()).unwrap();
    }

    #[test]
    fn another_format_is_refused() {
        let layout = layout("format");
        fs::create_dir_all(layout.dir()).unwrap();
        fs::write(layout.state(), r#"{"formatVersion": 7}"#).unwrap();
        let error = layout.prepare().unwrap_err().to_string();
        assert!(error.contains("format 7"), "{error}");
        fs::remove_dir_all(layout.dir()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made() {
        let error = Layout::new(Some(Path::new("/proc/kube-node"))).unwrap().prepare().unwrap_err();
        assert_eq!(error.to_string(), "the data folder /proc/kube-node is not writable");
    }
}
