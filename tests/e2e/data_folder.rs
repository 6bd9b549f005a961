//! The data folder of `kube-node up`: what a further start, a full disk, a lost state and a signal leave in it.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::{Command, Output, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use kube_node_testing::{TemporaryCluster, test_target};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kube-node");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pid(id: u64) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

/// Starts the cluster again, without a number of nodes. Returns what it prints on standard error.
fn start_again(cluster: &TemporaryCluster) -> String {
    let parent = std::process::id().to_string();
    let up = cluster.kube_node(&["up", "--detach", "--with-parent", &parent]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    text(&up.stderr)
}

/// Runs a command on the folder while no file may get a byte.
fn on_a_full_disk(cluster: &TemporaryCluster, args: &[&str]) -> Output {
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let dir = cluster.dir.to_str().unwrap();
    let command = [&["-c", script, "sh", PROGRAM], args, &["--data-dir", dir]].concat();
    Command::new("sh").args(command).output().unwrap()
}

/// Processes whose command line has the folder.
fn processes(cluster: &TemporaryCluster) -> Vec<String> {
    let dir = format!("{}/", cluster.dir.display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| text(&line).replace('\0', " ")).filter(|line| line.contains(&dir)).collect()
}

#[test]
fn a_further_start_keeps_what_users_changed_and_the_number_of_nodes() {
    let cluster = TemporaryCluster::start(test_target!(), "further-start", &[]);
    let cpu = ["get", "nodeclass", "hollow", "-o", "jsonpath={.spec.capacity.cpu}"];
    let replicas = ["get", "nodeset", "hollow-nodes", "-o", "jsonpath={.spec.replicas}"];
    let patch = json!({"spec": {"capacity": {"cpu": "64"}}}).to_string();
    cluster.kubectl(&["patch", "nodeclass", "hollow", "--type=merge", "-p", &patch]);
    cluster.down();
    let said = start_again(&cluster);
    let note = "NodeClass hollow stays as it is, with spec.capacity.cpu 64 instead of 4; to change it: kubectl patch nodeclass hollow ";
    assert!(said.contains(note), "{said}");
    assert_eq!((cluster.kubectl(&cpu), cluster.kubectl(&replicas)), ("64".to_owned(), "0".to_owned()));

    // The suite starts its clusters with no nodes; without its NodeSet the cluster still remembers.
    cluster.kubectl(&["delete", "nodeset", "hollow-nodes"]);
    cluster.kubectl(&["delete", "nodeclass", "hollow"]);
    cluster.down();
    start_again(&cluster);
    assert_eq!((cluster.kubectl(&cpu), cluster.kubectl(&replicas)), ("4".to_owned(), "0".to_owned()));
}

#[test]
fn a_full_disk_and_a_lost_state_leave_no_process_and_lose_no_state() {
    let cluster = TemporaryCluster::start(test_target!(), "lost-state", &["--without-operator"]);
    let path = cluster.dir.join("cluster.json");
    let down = on_a_full_disk(&cluster, &["down"]);
    assert_eq!(down.status.code(), Some(1), "{}", text(&down.stderr));
    assert!(text(&down.stderr).contains("cannot write"), "{}", text(&down.stderr));
    assert_eq!(processes(&cluster), [""; 0]);
    assert_eq!(cluster.state()["formatVersion"], 1);
    assert!(!cluster.dir.join("cluster.json.tmp").exists());

    // Its supervisor is killed, and its state is gone.
    let parent = std::process::id().to_string();
    let up = cluster.kube_node(&["up", "--detach", "--without-operator", "--with-parent", &parent]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    assert!(text(&up.stdout).contains("no operator runs") && !text(&up.stdout).contains("kubectl scale"));
    let supervisor = cluster.state()["supervisor"]["pid"].as_u64().unwrap();
    let etcd = cluster.state()["components"]["etcd"]["pid"].as_u64().unwrap();
    kill(pid(supervisor), Signal::SIGKILL).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!processes(&cluster).is_empty());
    let down = cluster.kube_node(&["down"]);
    assert!(text(&down.stdout).contains(" has ended."), "{} {}", text(&down.stdout), text(&down.stderr));
    assert_eq!(processes(&cluster), [""; 0], "etcd was pid {etcd}");
    // A folder with a damaged state goes as well, on a disk that is full.
    fs::write(&path, "{\"formatVersion\": 1,").unwrap();
    let status = cluster.kube_node(&["status"]);
    assert!(text(&status.stderr).contains("cluster.json is damaged (kube-node down --delete --data-dir "));
    let down = on_a_full_disk(&cluster, &["down", "--delete"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert!(!cluster.dir.exists());
}

#[test]
fn down_waits_until_each_process_that_does_not_end_is_killed() {
    let cluster = TemporaryCluster::start(test_target!(), "deaf", &[]);
    let components = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "operator"];
    for component in components {
        // It gets SIGTERM, and does nothing about it.
        kill(cluster.pid(component).unwrap(), Signal::SIGSTOP).unwrap();
    }
    let down = cluster.kube_node(&["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert_eq!(processes(&cluster), [""; 0]);
}

#[test]
fn a_start_on_a_full_disk_names_the_file_and_leaves_no_process() {
    for (up, file) in
        [(&["up", "--without-operator"][..], "cluster.json"), (&["up", "--detach"], "logs/up.log")]
    {
        let cluster = TemporaryCluster::folder(test_target!(), "full-disk");
        let up = on_a_full_disk(&cluster, up);
        assert_eq!(up.status.code(), Some(1), "{}", text(&up.stderr));
        let path = cluster.dir.join(file);
        let sentence =
            format!("error: cannot write {}: free space there, or choose another folder: ", path.display());
        assert!(text(&up.stderr).contains(&sentence), "{}", text(&up.stderr));
        assert_eq!(processes(&cluster), [""; 0]);
    }
}

#[test]
fn a_folder_of_another_user_is_named_with_its_owner() {
    let cluster = TemporaryCluster::folder(test_target!(), "another-user");
    fs::create_dir_all(&cluster.dir).unwrap();
    fs::write(cluster.dir.join("cluster.json"), "{}").unwrap();
    // Of a folder without any permission nobody reads a file, and root only by a capability.
    fs::set_permissions(&cluster.dir, fs::Permissions::from_mode(0o000)).unwrap();
    let capabilities = ["--bounding-set", "-dac_override,-dac_read_search", "--"];
    let is_root = nix::unistd::geteuid().is_root();
    let command = |args: &[&str]| -> Output {
        let mut command = Command::new(if is_root { "setpriv" } else { PROGRAM });
        command.args(capabilities.iter().chain(&[PROGRAM]).filter(|_| is_root)).args(args);
        command.arg("--data-dir").arg(&cluster.dir).output().unwrap()
    };
    let outputs = [&["status"][..], &["down"], &["list"]].map(command);
    let up = command(&["up", "--detach"]);
    fs::set_permissions(&cluster.dir, fs::Permissions::from_mode(0o700)).unwrap();
    for output in outputs {
        assert_eq!(output.status.code(), Some(1));
        let sentence = "cluster.json, which another user owns, such as root after sudo kube-node up";
        assert!(text(&output.stderr).contains(sentence), "{}", text(&output.stderr));
    }
    let sentence = format!("the data folder {} is not writable", cluster.dir.display());
    assert!(text(&up.stderr).contains(&sentence), "{}", text(&up.stderr));
}

#[test]
fn an_interrupted_start_ends_its_processes_and_says_so_by_the_exit_code() {
    let cluster = TemporaryCluster::folder(test_target!(), "interrupted");
    let starts = [
        (&["up", "--without-operator"][..], Signal::SIGINT, 130),
        (&["up", "--without-operator"], Signal::SIGTERM, 143),
        (&["up", "--without-operator", "--detach"], Signal::SIGINT, 130),
    ];
    for (start, signal, code) in starts {
        let mut up = Command::new(PROGRAM)
            .args(start)
            .arg("--data-dir")
            .arg(&cluster.dir)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(up.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "Starting kube-apiserver"));
        kill(pid(u64::from(up.id())), signal).unwrap();
        let rest: Vec<String> = lines.collect();
        let status = up.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(code), None), "{start:?}: {rest:?}");
        assert_eq!(rest.last().unwrap(), "error: the cluster was not started: interrupted", "{start:?}");
        assert_eq!(processes(&cluster), [""; 0]);
    }
}

#[test]
fn an_interrupt_of_a_running_cluster_is_no_failure() {
    let cluster = TemporaryCluster::folder(test_target!(), "running");
    let mut up = Command::new(PROGRAM)
        .args(["up", "--nodes", "1", "--data-dir"])
        .arg(&cluster.dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines: Vec<String> = {
        let lines = BufReader::new(up.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        lines.take_while(|line| line != "Ctrl-C ends it.").collect()
    };
    assert_eq!(lines[0], "1 node is Ready.");
    assert!(lines.iter().any(|line| line.contains("kubectl scale nodeset hollow-nodes")), "{lines:?}");
    kill(pid(u64::from(up.id())), Signal::SIGINT).unwrap();
    assert_eq!(up.wait().unwrap().code(), Some(0));
    assert_eq!(processes(&cluster), [""; 0]);
}
