//! How many hollow machines this process has the memory for.
//!
//! A Node is born whether or not a process has room for its machine, and a kernel kills whoever exceeds a limit: so the
//! process itself refuses machines beyond a maximum that follows from the limit.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What a machine is counted as, in bytes of memory. Measured (docs/benchmarks.md): 4 KiB for a machine with what is known of
/// its Node (51 MiB with 5,000 machines, 71 MiB with 10,000), and 2.5 KiB for a pod (120 MiB with 20,000 pods besides). So
/// there is room for four pods on each.
const MACHINE: u64 = 16 << 10;
/// How many of these a machine takes that stands alone: 145 KiB for its connection and watches (docs/scale-testing.md).
pub const ALONE: usize = 10;
/// What the process takes without machines: 31 MiB by the same figures, twice for lists and bursts.
const BASE: u64 = 64 << 20;
/// Machines that any process takes.
const LEAST: usize = 100;
/// A limit of cgroup v1 beyond this, in bytes, says that there is none.
const UNLIMITED: u64 = 1 << 60;

/// The most machines for a process that may use `limit` bytes: a quarter of it stays free, for Nodes and pods of others, which
/// the process knows too, and for Nodes that wait.
#[must_use]
pub fn machines(limit: u64) -> usize {
    let free = (limit / 4 * 3).saturating_sub(BASE);
    usize::try_from(free / MACHINE).unwrap_or(usize::MAX).max(LEAST)
}

/// The bytes of memory that this process may use: the least limit of its cgroups, else all that the machine has. None where
/// neither can be read.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    memory_limit_in(Path::new("/"))
}

fn memory_limit_in(root: &Path) -> Option<u64> {
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = cgroups.lines().filter_map(files).flatten();
    let limits = limits.filter_map(|file| limit(&fs::read_to_string(root.join(file)).ok()?));
    limits.chain(fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| total(&text))).min()
}

/// The files that limit the memory of a cgroup and of those around it; `line` is one of `/proc/self/cgroup`. In a container
/// the path may be that of the host, whose files are not to be seen: the mount itself is the container's cgroup then.
fn files(line: &str) -> Option<Vec<PathBuf>> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (mount, file) = if number == "0" && controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return None;
    };
    let below = Path::new(path.trim_start_matches('/'));
    Some(below.ancestors().map(|part| Path::new(mount).join(part).join(file)).collect())
}

/// A limit in bytes; None for `max` and for what stands for it.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_maximum_follows_from_the_memory() {
        for (limit, machines_) in
            [(0, 100), (64 * MIB, 100), (128 * MIB, 2_048), (512 * MIB, 20_480), (4_096 * MIB, 192_512)]
        {
            assert_eq!(machines(limit), machines_, "{limit}");
        }
        assert!(machines(u64::MAX) > 1_000_000);
        // What that many take by the figures measured, with two pods each, is within the limit.
        let used = 31 * MIB + 20_480 * (4 + 2 * 5 / 2) * 1_024;
        assert!(used < 512 * MIB, "{used}");
    }

    /// A file system with these files; each test has one of its own.
    fn root(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("kube-node-capacity-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    /// Its name, the files that there are, and what follows from them.
    type Case = (&'static str, Vec<(&'static str, &'static str)>, Option<u64>);

    #[test]
    fn the_least_limit_counts_that_can_be_read() {
        let meminfo = ("proc/meminfo", "MemTotal:        1024 kB\nMemFree:  1 kB\n");
        let v2 = ("proc/self/cgroup", "0::/kubepods/pod1/c\n");
        let v1 = ("proc/self/cgroup", "12:pids:/x\n5:cpu,memory:/docker/c\n0::/\n");
        let unlimited = "9223372036854771712\n";
        let cases: Vec<Case> = vec![
            ("own", vec![meminfo, v2, ("sys/fs/cgroup/kubepods/pod1/c/memory.max", "5000\n")], Some(5_000)),
            (
                "around",
                vec![
                    meminfo,
                    v2,
                    ("sys/fs/cgroup/kubepods/pod1/c/memory.max", "max\n"),
                    ("sys/fs/cgroup/kubepods/pod1/memory.max", "4000\n"),
                    ("sys/fs/cgroup/kubepods/memory.max", "6000\n"),
                ],
                Some(4_000),
            ),
            ("container", vec![meminfo, v2, ("sys/fs/cgroup/memory.max", "3000\n")], Some(3_000)),
            (
                "v1",
                vec![meminfo, v1, ("sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes", "7000\n")],
                Some(7_000),
            ),
            (
                "v1-none",
                vec![meminfo, v1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited)],
                Some(1 << 20),
            ),
            ("none", vec![meminfo, v2], Some(1 << 20)),
            ("nothing", vec![v2, ("sys/fs/cgroup/memory.max", "max\n")], None),
        ];
        for (name, files, expected) in cases {
            let root = root(name, &files);
            assert_eq!(memory_limit_in(&root), expected, "{name}");
            fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_limit().is_some_and(|limit| limit > MIB));
    }
}
