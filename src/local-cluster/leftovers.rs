//! Processes of a data folder, found by their command lines and open files in `/proc`, for a `cluster.json` that is gone,
//! is damaged or lacks some of them.
//!
//! Processes whose entries in `/proc` cannot be read, such as those of other users, are left out.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::{
    addresses::Addresses,
    component::Component,
    flags,
    layout::{self, DirLock, GRACE, Layout},
    procs::ProcessId,
    real_node,
};

/// Suffix of the link of a file that was deleted while it is open.
const DELETED: &[u8] = b" (deleted)";

impl Layout {
    /// The live supervisor of the folder: the recorded one, else the one that is found by its open lock.
    pub fn supervisor(&self) -> Option<ProcessId> {
        let recorded = self.load().ok().flatten().as_ref().and_then(layout::supervisor);
        recorded.or_else(|| supervisor_of(self))
    }

    /// Returns true if the folder has a state file, even a damaged one, or processes run in the folder.
    pub fn is_used(&self) -> bool {
        self.state().exists() || self.supervisor().is_some() || !components(self).is_empty()
    }

    /// Stops the processes of a cluster without a supervisor, recorded or not, last started first. Returns the number that
    /// ran.
    ///
    /// The caller must hold the lock: otherwise this would stop a cluster under a running supervisor.
    pub async fn stop_leftovers(&self, _lock: &DirLock) -> anyhow::Result<usize> {
        let recorded = self.load_undamaged()?.unwrap_or_default().components;
        let recorded = recorded.into_iter().filter(|(_, id)| id.is_alive());
        let running: BTreeSet<_> = recorded.chain(components(self)).collect();
        for &(component, id) in running.iter().rev() {
            let ended = id.terminate(GRACE).await;
            ended.with_context(|| format!("cannot stop {component} (pid {}) of an earlier run", id.pid))?;
        }
        // Also if the real node's host process is gone: processes inside the node may have outlived it.
        let has_node = real_node::remove(&real_node::id_of(self.dir())).await?;
        Ok(running.len() + usize::from(has_node))
    }

    /// Removes the processes from the state, after they have ended. A damaged file stays as it is.
    pub fn forget_processes(&self, _lock: &DirLock) -> anyhow::Result<()> {
        let Some(mut state) = self.load_undamaged()? else { return Ok(()) };
        state.components.clear();
        (state.supervisor, state.ready) = (None, false);
        state.save(&self.state())
    }
}

/// Components that run with the arguments of this folder.
fn components(layout: &Layout) -> Vec<(Component, ProcessId)> {
    let processes = processes().into_iter().filter_map(|pid| {
        let component = component(layout, &command_line(pid)?)?;
        Some((component, ProcessId::of(pid)?))
    });
    processes.collect()
}

/// The `up` that has this folder's lock open.
fn supervisor_of(layout: &Layout) -> Option<ProcessId> {
    let lock = layout.path("lock");
    let is_up = |pid: &i32| command_line(*pid).is_some_and(|args| args.get(1).is_some_and(|arg| arg == "up"));
    let own = i32::try_from(std::process::id()).ok();
    let mut others = processes().into_iter().filter(|pid| Some(*pid) != own);
    others.find(|pid| is_up(pid) && has_open(*pid, &lock)).and_then(ProcessId::of)
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Program and arguments of a process.
fn command_line(pid: i32) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let args = text.strip_suffix(&[0]).unwrap_or(&text).split(|&byte| byte == 0);
    Some(args.map(|arg| String::from_utf8_lossy(arg).into_owned()).collect())
}

/// The component that a command line starts in this folder.
fn component(layout: &Layout, command_line: &[String]) -> Option<Component> {
    let (program, args) = command_line.split_first()?;
    let program = Path::new(program).file_name()?.to_str()?;
    // Ports differ from start to start; every argument with a path in the folder is the same.
    let dir = format!("{}/", layout.dir().display());
    Component::ALL.iter().copied().find(|component| {
        let flags = flags::of(*component, layout, &Addresses::default());
        let mut in_folder = flags.iter().filter(|flag| flag.contains(&dir));
        let is_program = match component {
            Component::Operator => args.first().is_some_and(|arg| *arg == flags[0]),
            // Other processes of the real node have the same path.
            Component::RealNode => args.starts_with(&flags[..2]),
            _ => program == component.name(),
        };
        is_program && in_folder.all(|flag| args.contains(flag))
    })
}

/// Returns true if the process has the file open, which may be deleted by now.
fn has_open(pid: i32, file: &Path) -> bool {
    let resolved = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut open = links.filter_map(|link| fs::read_link(link.path()).ok()).map(undeleted);
    open.any(|open| open == resolved || open == file)
}

fn undeleted(link: PathBuf) -> PathBuf {
    let bytes = link.into_os_string().into_vec();
    OsStr::from_bytes(bytes.strip_suffix(DELETED).unwrap_or(&bytes)).into()
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::{Command, Stdio},
        time::Duration,
    };

    use tokio::time::sleep;

    use super::*;

    fn line(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn components_are_known_by_their_arguments_in_the_folder() {
        let layout = Layout::new(Some(Path::new("/data/one"))).unwrap();
        for &component in Component::ALL {
            let program = match component {
                Component::Operator | Component::RealNode => "/bin/kube-node",
                _ => component.name(),
            };
            let mut words = vec![program.to_owned()];
            words.extend(flags::of(component, &layout, &Addresses::default()));
            words.push("--v=4".to_owned());
            assert_eq!(super::component(&layout, &words), Some(component));
            let other = Layout::new(Some(Path::new("/data/on"))).unwrap();
            assert_eq!(super::component(&other, &words), None, "{component} of a folder with a longer name");
        }
        let own = ["kube-node", "operator", "--kubeconfig=/data/one/operator.kubeconfig"];
        assert_eq!(super::component(&layout, &line(&own)), None, "an operator of the user's own");
        let init = ["kube-node", "real-node", "init", "/data/one/real-node"];
        assert_eq!(super::component(&layout, &line(&init)), None, "a process inside the real node");
    }

    #[test]
    fn an_open_file_is_found_before_and_after_the_deletion_of_the_file() {
        let own = i32::try_from(std::process::id()).unwrap();
        let path = std::env::temp_dir().join(format!("kube-node-open-{own}"));
        let file = fs::File::create(&path).unwrap();
        assert!(has_open(own, &path));
        fs::remove_file(&path).unwrap();
        assert!(has_open(own, &path));
        drop(file);
        assert!(!has_open(own, &path));
    }

    #[tokio::test]
    async fn processes_that_no_state_records_are_stopped() {
        let dir = std::env::temp_dir().join(format!("kube-node-unrecorded-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let layout = Layout::new(Some(&dir)).unwrap();
        layout.prepare().unwrap();
        let lock = layout.lock().await.unwrap();
        for state in [None, Some("{\"formatVersion\": 1, \"ports\""), Some("")] {
            if let Some(text) = state {
                fs::write(layout.state(), text).unwrap();
            }
            let mut etcd = Command::new("/bin/sh")
                .arg0("etcd")
                .args(["-c", "read line"])
                .args(flags::of(Component::Etcd, &layout, &Addresses::default()))
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let id = i32::try_from(etcd.id()).unwrap();
            // Until the program of the right name runs.
            while components(&layout).is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
            assert!(layout.is_used());
            assert_eq!(layout.stop_leftovers(&lock).await.unwrap(), 1, "{state:?}");
            assert!(ProcessId::of(id).is_none(), "{state:?}");
            etcd.wait().unwrap();
            layout.forget_processes(&lock).unwrap();
            assert_eq!(fs::read_to_string(layout.state()).ok().as_deref(), state, "a damaged file stays");
        }
        layout.delete(lock).unwrap();
        assert!(!layout.dir().exists() && !layout.is_used());
    }
}
