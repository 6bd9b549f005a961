//! Cgroups of one real node, below one parent `/kube-node-<id>` in every mounted hierarchy (version 1,
//! version 2, or both). The node's own processes are in `system` below the parent, pods in `kubepods`. A
//! process of the node cannot leave the parent, so killing every process below it ends the node, whatever the
//! processes are called.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::procs::ProcessId;

/// Time limit for killed processes and their cgroups to disappear.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// Cgroup of the node's own processes.
const SYSTEM: &str = "system";

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    /// True for version 2.
    unified: bool,
    /// True if the cpuset controller of version 1 is here: a process may join its cgroups only after their
    /// CPUs were set.
    cpuset: bool,
}

/// The cgroups of one node.
#[derive(Debug)]
pub(super) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    name: String,
}

impl Cgroups {
    /// The cgroups of the node with this ID, whether they exist or not.
    pub fn of(id: &str) -> anyhow::Result<Self> {
        let mounts =
            fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts of cgroups")?;
        Ok(Self { hierarchies: parse_mounts(&mounts), name: format!("kube-node-{id}") })
    }

    /// Path of the parent for the kubelet's `cgroupRoot`.
    pub fn root(&self) -> anyhow::Result<String> {
        ensure!(
            !self.hierarchies.is_empty(),
            "no cgroups are mounted on this machine: a real node needs them"
        );
        Ok(format!("/{}", self.name))
    }

    /// Makes the parent and the cgroup of the node's own processes.
    pub fn create(&self) -> anyhow::Result<()> {
        for hierarchy in &self.hierarchies {
            let parent = hierarchy.mount.join(&self.name);
            let system = parent.join(SYSTEM);
            fs::create_dir_all(&parent).with_context(|| failed("create", &parent))?;
            if hierarchy.unified {
                delegate(&hierarchy.mount);
                delegate(&parent);
            }
            fs::create_dir_all(&system).with_context(|| failed("create", &system))?;
        }
        Ok(())
    }

    /// Moves this process into the cgroup of the node's own processes. Its child processes start there too.
    pub fn join(&self) -> anyhow::Result<()> {
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| !hierarchy.cpuset) {
            let path = hierarchy.mount.join(&self.name).join(SYSTEM).join("cgroup.procs");
            fs::write(&path, "0").with_context(|| failed("join", &path))?;
        }
        Ok(())
    }

    /// Paths of the parent, one in each hierarchy.
    fn parents(&self) -> impl Iterator<Item = PathBuf> {
        self.hierarchies.iter().map(|hierarchy| hierarchy.mount.join(&self.name))
    }

    /// Returns true if the parent exists in some hierarchy.
    pub fn exist(&self) -> bool {
        self.parents().any(|parent| parent.exists())
    }

    /// Pids of the node's own processes, without those of pods.
    pub fn system_processes(&self) -> BTreeSet<i32> {
        self.parents().flat_map(|parent| processes_in(&parent.join(SYSTEM))).collect()
    }

    /// Kills every process below the parent and removes the cgroups.
    pub async fn remove(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            // The parent and all folders below it, of every hierarchy.
            let folders: Vec<PathBuf> = self.parents().flat_map(|parent| folders_below(&parent)).collect();
            let pids: BTreeSet<i32> = folders.iter().flat_map(|folder| processes_in(folder)).collect();
            for process in pids.iter().copied().filter_map(ProcessId::of) {
                process
                    .signal(Signal::SIGKILL)
                    .with_context(|| format!("cannot end the process {} of a real node", process.pid))?;
            }
            // The kernel releases a cgroup some moments after its last process.
            let removed = folders.iter().rev().try_for_each(fs::remove_dir);
            if removed.is_ok() || Instant::now() >= deadline {
                return removed.with_context(|| format!("cannot end the processes {pids:?} of a real node"));
            }
            sleep(POLL).await;
        }
    }
}

fn failed(action: &str, path: &Path) -> String {
    format!("cannot {action} the cgroup {}", path.display())
}

/// Enables every available controller for the children. Errors are ignored: the kubelet reports a controller it lacks.
fn delegate(folder: &Path) {
    let controllers = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_ascii_whitespace() {
        let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// A folder and all folders below it, parents first.
fn folders_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let below = below.flat_map(|entry| folders_below(&entry.path()));
    std::iter::once(folder.to_owned()).chain(below).collect()
}

/// Pids in a cgroup that are visible in this PID namespace (others read as 0).
fn processes_in(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid != 0).collect()
}

/// Hierarchies in `/proc/self/mountinfo`, each once even if mounted twice.
fn parse_mounts(mounts: &str) -> Vec<Hierarchy> {
    let mut hierarchies = Vec::new();
    for hierarchy in mounts.lines().filter_map(parse_mount) {
        if !hierarchies.contains(&hierarchy) {
            hierarchies.push(hierarchy);
        }
    }
    hierarchies
}

/// Hierarchy in a line of `/proc/self/mountinfo`; `None` if another file system is mounted.
fn parse_mount(line: &str) -> Option<Hierarchy> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let (mount, kind) = (left.split(' ').nth(4)?, right.next()?);
    let cpuset = right.nth(1).is_some_and(|options| options.split(',').any(|option| option == "cpuset"));
    let unified = kind == "cgroup2";
    (unified || kind == "cgroup").then(|| Hierarchy { mount: mount.into(), unified, cpuset })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &str, unified: bool, cpuset: bool) -> Hierarchy {
        Hierarchy { mount: path.into(), unified, cpuset }
    }

    #[test]
    fn hierarchies_of_both_versions() {
        let one = "\
            30 24 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            32 30 0:28 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
            33 30 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
            34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(
            parse_mounts(one),
            [
                mount("/sys/fs/cgroup/cpuset", false, true),
                mount("/sys/fs/cgroup/memory", false, false),
                mount("/sys/fs/cgroup/unified", true, false),
            ]
        );
        let two = "35 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parse_mounts(two), [mount("/sys/fs/cgroup", true, false)]);
        assert!(parse_mounts("36 24 0:5 / / rw - ext4 /dev/vda rw\n").is_empty());
    }

    #[test]
    fn parents_come_before_what_is_below() {
        let dir = std::env::temp_dir().join(format!("kube-node-cgroups-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::create_dir_all(dir.join("c")).unwrap();
        let folders = folders_below(&dir);
        let at = |path: &Path| folders.iter().position(|folder| folder == path).unwrap();
        assert_eq!(folders.len(), 4);
        assert!(at(&dir) < at(&dir.join("a")) && at(&dir.join("a")) < at(&dir.join("a/b")));
        assert!(folders_below(&dir.join("nowhere")).is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }
}
