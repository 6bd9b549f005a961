//! What a real node leaves behind when it ends, in whatever way: nothing. Two clusters run side by side first.
//!
//! A target of its own: what this machine has is compared before and after. Only the real nodes of other clusters are left
//! out, by their names.

// No runtime runs here, and a test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
    thread::sleep,
    time::{Duration, Instant},
};

use kube_node_testing::{harness, trials};
use local_cluster::{procs::ProcessId, real_node};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// How processes of these clusters are called: what lies in their folders, programs of a node, and sandboxes. Those of other
/// things on this machine come and go as they like.
const PROCESSES: [&str; 6] =
    ["/teardown-", "containerd", "kubelet", "kube-proxy", "runc", "/kube-node pause"];
/// The clusters here.
const CLUSTERS: [&str; 3] = ["one", "other", "killed"];

struct Cluster {
    dir: PathBuf,
}

impl Cluster {
    fn up(name: &str) -> Self {
        let cluster = Self { dir: data_dir(name) };
        cluster.start();
        cluster
    }

    /// Starts it, and a pod on its node.
    fn start(&self) {
        let since = Instant::now();
        let parent = std::process::id().to_string();
        let up = self.kube_node(&[
            "up",
            "--detach",
            "--without-operator",
            "--real-node",
            "--with-parent",
            &parent,
        ]);
        assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
        println!("{}: up after {:.1} s", self.dir.display(), since.elapsed().as_secs_f64());
        let image = format!("--image={}", local_cluster::images::KUBE_NODE);
        let limit = Instant::now() + Duration::from_mins(1);
        // A new namespace has no service account for a moment; an old cluster still has the pod.
        while !self.kubectl(&["run", "sleeper", &image, "--", "pause"]).status.success()
            && !self.kubectl(&["get", "pod", "sleeper"]).status.success()
        {
            assert!(Instant::now() < limit, "no pod can be made");
            sleep(Duration::from_millis(200));
        }
        let ready = self.kubectl(&[
            "wait",
            "--for=condition=Ready",
            "--timeout=90s",
            "pod/sleeper",
            "node/real-node",
        ]);
        assert!(ready.status.success(), "{}", String::from_utf8_lossy(&ready.stderr));
    }

    fn kube_node(&self, args: &[&str]) -> Output {
        let (command, rest) = args.split_first().unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        run.arg(command).arg("--data-dir").arg(&self.dir).args(rest).output().unwrap()
    }

    fn kubectl(&self, args: &[&str]) -> Output {
        self.kube_node(&[&["kubectl", "--"], args].concat())
    }

    fn down(&self, more: &[&str]) {
        let down = self.kube_node(&[&["down"], more].concat());
        assert!(down.status.success(), "down failed:\n{}", String::from_utf8_lossy(&down.stderr));
    }

    /// Processes that `cluster.json` names: the supervisor first.
    fn recorded(&self) -> Vec<Pid> {
        let state: Value = serde_json::from_slice(&fs::read(self.dir.join("cluster.json")).unwrap()).unwrap();
        let components = state["components"].as_object().unwrap().values();
        let all = std::iter::once(&state["supervisor"]).chain(components);
        all.map(|process| Pid::from_raw(i32::try_from(process["pid"].as_i64().unwrap()).unwrap())).collect()
    }
}

fn data_dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("teardown-{name}-{}", std::process::id()))
}

/// Whether a name is that of another cluster's link or cgroup.
fn is_foreign(text: &str) -> bool {
    ["kube-node-", "kn-"].iter().any(|prefix| {
        text.match_indices(prefix).any(|(at, _)| {
            let id = text[at + prefix.len()..].chars().take(8).collect::<String>();
            let is_id = id.len() == 8 && id.chars().all(|c| c.is_ascii_hexdigit());
            is_id && CLUSTERS.iter().all(|name| real_node::id_of(&data_dir(name)) != id)
        })
    })
}

/// What a node may leave on a machine.
#[derive(PartialEq, Eq)]
struct Traces {
    processes: BTreeSet<String>,
    mounts: BTreeSet<String>,
    links: String,
    routes: String,
    network_namespaces: BTreeSet<PathBuf>,
    packet_filters: String,
    cgroups: BTreeSet<String>,
    kernel_settings: Vec<String>,
}

impl Traces {
    /// Once the cluster of the test binary before has ended; one that stays does not matter.
    fn at_rest() -> Self {
        let limit = Instant::now() + Duration::from_mins(2);
        let mut last = Self::of_this_machine();
        loop {
            sleep(Duration::from_secs(3));
            let now = Self::of_this_machine();
            if now == last {
                return now;
            }
            assert!(
                Instant::now() < limit,
                "something else on this machine starts or ends: these tests need it alone"
            );
            last = now;
        }
    }

    fn of_this_machine() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut cgroups = BTreeSet::new();
        folders(Path::new("/sys/fs/cgroup"), &mut cgroups);
        let settings =
            ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"];
        Self {
            processes: processes(),
            mounts: mounts.lines().map(str::to_owned).collect(),
            links: ours(&said("ip", &["-o", "-brief", "link"])),
            routes: ours(&said("ip", &["-4", "route", "show", "table", "all"])),
            network_namespaces: network_namespaces(),
            packet_filters: said("nft", &["-s", "list", "ruleset"]),
            cgroups,
            kernel_settings: settings
                .map(|name| fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap())
                .to_vec(),
        }
    }
}

/// Only what differs: all of it would fill pages.
fn unchanged(before: &Traces, what: &str) {
    let after = Traces::of_this_machine();
    let differences = |one: &BTreeSet<String>, other: &BTreeSet<String>| -> Vec<String> {
        one.symmetric_difference(other).cloned().collect()
    };
    assert_eq!(differences(&before.processes, &after.processes), [""; 0], "processes {what}");
    assert_eq!(differences(&before.mounts, &after.mounts), [""; 0], "mounts {what}");
    assert_eq!(before.links, after.links, "links {what}");
    assert_eq!(before.routes, after.routes, "routes {what}");
    assert_eq!(before.network_namespaces, after.network_namespaces, "network namespaces {what}");
    assert_eq!(before.packet_filters, after.packet_filters, "packet filters {what}");
    assert_eq!(differences(&before.cgroups, &after.cgroups), [""; 0], "cgroups {what}");
    assert_eq!(before.kernel_settings, after.kernel_settings, "kernel settings {what}");
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}: run tests/real-node/install.sh"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ours(lines: &str) -> String {
    lines.split_inclusive('\n').filter(|line| !is_foreign(line)).collect()
}

/// Of those that are not inside another cluster's node, or half outside as `unshare` is.
fn of_every_process<T>(read: impl Fn(&Path) -> Option<T>) -> Vec<T> {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let processes = entries.filter(|path| {
        let cgroups = fs::read_to_string(path.join("cgroup")).unwrap_or_default();
        let command_line = fs::read_to_string(path.join("cmdline")).unwrap_or_default();
        let outside = command_line.starts_with("unshare") && !command_line.contains("/teardown-");
        path.file_name().unwrap().to_string_lossy().bytes().all(|c| c.is_ascii_digit())
            && !is_foreign(&cgroups)
            && !outside
    });
    processes.filter_map(|path| read(&path)).collect()
}

fn processes() -> BTreeSet<String> {
    of_every_process(|process| {
        let command_line = fs::read_to_string(process.join("cmdline")).ok()?.replace('\0', " ");
        let program = command_line.split(' ').next()?.rsplit('/').next()?.to_owned();
        let ours = PROCESSES
            .iter()
            .any(|name| program.starts_with(name) || command_line.contains(name) && name.contains('/'));
        ours.then(|| format!("{} {command_line}", process.display()))
    })
    .into_iter()
    .collect()
}

fn network_namespaces() -> BTreeSet<PathBuf> {
    of_every_process(|process| fs::read_link(process.join("ns/net")).ok()).into_iter().collect()
}

fn folders(at: &Path, all: &mut BTreeSet<String>) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_foreign(&entry.path().to_string_lossy()) {
            all.insert(entry.path().display().to_string());
            folders(&entry.path(), all);
        }
    }
}

/// SIGKILL, and a moment until they are gone.
fn strike(pids: &[Pid]) {
    for &pid in pids {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    while pids.iter().any(|pid| ProcessId::of(pid.as_raw()).is_some()) {
        sleep(Duration::from_millis(10));
    }
}

fn main() -> ExitCode {
    harness::run("teardown", trials! { blocking nothing_stays }, Vec::new())
}

/// In one test, so that they come one after another.
fn nothing_stays() {
    let before = Traces::at_rest();
    two_at_once(&before);
    let cluster = Cluster::up("killed");
    killed_supervisor(&before, &cluster);
    killed_all_but_the_first_process(&before, &cluster);
    a_start_after_a_crash(&before, &cluster);
    a_start_without_a_real_node(&before, &cluster);
}

fn two_at_once(before: &Traces) {
    let (one, other) = (Cluster::up("one"), Cluster::up("other"));
    let during = Traces::of_this_machine();
    assert_eq!(during.mounts, before.mounts, "mounts are the node's own");
    assert_eq!(during.packet_filters, before.packet_filters, "and so are packet filters");
    assert_eq!(during.kernel_settings, before.kernel_settings, "and the kernel's settings are nobody's");
    assert_eq!(
        during.links.lines().count(),
        before.links.lines().count() + 2,
        "one link a node: {}",
        during.links
    );
    assert!(during.network_namespaces.len() > before.network_namespaces.len() + 2);
    one.down(&["--delete"]);
    let ready =
        other.kubectl(&["wait", "--for=condition=Ready", "--timeout=30s", "node/real-node", "pod/sleeper"]);
    assert!(ready.status.success(), "the other one is not concerned");
    other.down(&["--delete"]);
    unchanged(before, "after down");
}

fn killed_supervisor(before: &Traces, cluster: &Cluster) {
    strike(&cluster.recorded()[..1]);
    cluster.down(&[]);
    unchanged(before, "after SIGKILL of the supervisor");
}

fn killed_all_but_the_first_process(before: &Traces, cluster: &Cluster) {
    cluster.start();
    strike(&cluster.recorded());
    cluster.down(&[]);
    unchanged(before, "after SIGKILL of all that is recorded");
}

fn a_start_after_a_crash(before: &Traces, cluster: &Cluster) {
    cluster.start();
    strike(&cluster.recorded());
    cluster.start();
    assert_eq!(Traces::of_this_machine().links.lines().count(), before.links.lines().count() + 1);
    cluster.down(&[]);
    unchanged(before, "after a crash, a start and down");
}

/// The Node of the start before would stay, not Ready, for ever.
fn a_start_without_a_real_node(before: &Traces, cluster: &Cluster) {
    let parent = std::process::id().to_string();
    let up = cluster.kube_node(&["up", "--detach", "--without-operator", "--with-parent", &parent]);
    assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
    let said = String::from_utf8(cluster.kubectl(&["get", "nodes"]).stderr).unwrap();
    assert!(said.contains("No resources found"), "{said}");
    let status = String::from_utf8(cluster.kube_node(&["status"]).stdout).unwrap();
    assert!(!status.contains("kubelet"), "{status}");
    cluster.down(&["--delete"]);
    unchanged(before, "after a start without a real node");
}
