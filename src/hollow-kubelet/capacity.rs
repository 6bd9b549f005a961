//! Maximum number of hollow machines for the memory of this process.
//!
//! A Node is created whether or not a process has room for its machine, and the kernel kills a process that
//! exceeds a memory limit. The process therefore refuses machines beyond a maximum derived from the limit.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Memory counted per machine, in bytes. Measured (docs/benchmarks.md): 4 KiB for a machine with its Node in
/// the cache (51 MiB with 5,000 machines, 71 MiB with 10,000), and 2.5 KiB for a pod (120 MiB with 20,000
/// pods besides). This leaves room for four pods per machine.
const MACHINE: u64 = 16 << 10;
/// Machines that count as much as one with a dedicated client: 145 KiB for its connection and watches
/// (docs/scale-testing.md).
pub const DEDICATED: usize = 10;
/// Memory of the process without machines, in bytes: 31 MiB as measured, doubled for lists and bursts.
const BASE: u64 = 64 << 20;
/// Number of machines that any process accepts.
const LEAST: usize = 100;
/// A cgroup v1 limit of this many bytes or more means no limit.
const UNLIMITED: u64 = 1 << 60;

/// Maximum number of machines for a process that may use `limit` bytes. A quarter stays free for foreign
/// Nodes and pods, which the process caches too, and for Nodes that wait.
pub fn machines(limit: u64) -> usize {
    let free = (limit / 4 * 3).saturating_sub(BASE);
    usize::try_from(free / MACHINE).unwrap_or(usize::MAX).max(LEAST)
}

/// Memory limit of this process in bytes: the smallest of its cgroups' limits and the machine's memory. None
/// if neither can be read.
pub fn memory_limit() -> Option<u64> {
    memory_limit_in(Path::new("/"))
}

fn memory_limit_in(root: &Path) -> Option<u64> {
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = cgroups.lines().filter_map(files).flatten();
    let limits = limits.filter_map(|file| limit(&fs::read_to_string(root.join(file)).ok()?));
    limits.chain(fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| total(&text))).min()
}

/// Memory limit files of a cgroup and of its ancestors; `line` is one of `/proc/self/cgroup`. In a container
/// the path may be the host's, whose files are not visible: then the mount is the container's cgroup.
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

/// Limit in bytes; None for `max` and its cgroup v1 equivalent.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
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
        // Memory of that many machines with two pods each, by the measured figures, is within the limit.
        let used = 31 * MIB + 20_480 * (4 + 2 * 5 / 2) * 1_024;
        assert!(used < 512 * MIB, "{used}");
    }

    /// Creates a file system with these files; each test has its own.
    fn root(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("kube-node-capacity-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    /// Name, files and expected limit.
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
