//! The commands themselves: what they say, and how they fail.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::CLUSTER;
use kube_node_testing::{git_version, http, release};

fn kube_node(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kube-node")).args(args).output().unwrap()
}

/// One clear line on standard error, and a code that is not zero.
fn refusal(args: &[&str]) -> String {
    let output = kube_node(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    let dir =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("commands-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Kubeconfigs of the cluster: of a user without any right, and with a port on which no server answers.
fn unusable_kubeconfigs(dir: &Path) -> [String; 2] {
    let kubeconfig = fs::read_to_string(CLUSTER.dir.join("kubeconfig")).unwrap();
    let port = CLUSTER.state()["ports"]["apiserver"].to_string();
    let stranger = kubeconfig.replace("client-key-data:", "as: stranger\n      client-key-data:");
    let stale = kubeconfig.replace(&port, "1");
    [("stranger", stranger), ("stale", stale)].map(|(name, text)| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn status_says_how_the_cluster_stands() {
    let output = CLUSTER.kube_node(&["status", "-o", "json"]);
    assert!(output.status.success());
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["running"], true);
    let components = status["components"].as_array().unwrap();
    assert_eq!(components.len(), 5);
    for component in components {
        assert_eq!(component["health"], "ok", "{component}");
        assert!(component["residentBytes"].as_u64().unwrap() > 1 << 20, "{component}");
    }
    let text = String::from_utf8(CLUSTER.kube_node(&["status"]).stdout).unwrap();
    assert!(
        text.contains("kube-scheduler") && text.contains(&format!("running, Kubernetes {}", release())),
        "{text}"
    );
    let nowhere = scratch("nowhere");
    let output = kube_node(&["status", "--data-dir", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn up_refuses_what_it_cannot_do() {
    let foreign = scratch("foreign");
    fs::write(foreign.join("thesis.txt"), "x").unwrap();
    let foreign = foreign.to_str().unwrap();
    let other_version = scratch("version");
    fs::write(other_version.join("cluster.json"), r#"{"formatVersion": 99}"#).unwrap();
    let port = CLUSTER.state()["ports"]["apiserver"].to_string();
    let fresh = scratch("fresh");
    for (args, wanted) in [
        (vec!["up", "--nodes=-1"], "-1 is not in 0..=100000"),
        (vec!["up", "--port", "0"], "0 is not in 1..=65535"),
        (vec!["up", "--component-arg", "kubelet=--v=4"], "unknown component kubelet"),
        (vec!["up", "--data-dir", foreign], "is not empty and holds no kube-node cluster"),
        (vec!["up", "--data-dir", "/proc/kube-node"], "/proc/kube-node is not writable"),
        (vec!["up", "--data-dir", other_version.to_str().unwrap()], "has format 99"),
        (vec!["up", "--data-dir", CLUSTER.dir.to_str().unwrap()], "is already running, pid"),
        (
            vec!["up", "--data-dir", fresh.to_str().unwrap(), "--port", &port],
            "is taken at 127.0.0.1: choose another --port",
        ),
        (vec!["kubectl", "--data-dir", foreign, "--", "get", "nodes"], "start one with kube-node up"),
    ] {
        let said = refusal(&args);
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
    assert!(fs::exists(PathBuf::from(foreign).join("thesis.txt")).unwrap(), "what is not ours stays");
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure_and_a_reader_that_has_enough_is_none() {
    let on_a_full_disk = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    let output = command.arg("crds").stdout(on_a_full_disk()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: cannot write the output: No space left on device"), "{said}");
    let output = command.stdout(on_a_full_disk()).stderr(on_a_full_disk()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "nobody can read why");
    let mut closed = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(closed.stdout.take());
    assert!(closed.wait().unwrap().success());
}

#[test]
fn down_without_a_cluster_is_no_error() {
    let empty = scratch("empty");
    let output = kube_node(&["down", "--data-dir", empty.to_str().unwrap(), "--delete"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("There is no cluster in"));
    assert!(empty.exists(), "what is no cluster is not deleted");
}

#[test]
fn kubectl_passes_its_exit_code_on() {
    assert_eq!(CLUSTER.try_kubectl(&["get", "nonsense"]).status.code(), Some(1));
    assert!(CLUSTER.kubectl(&["version"]).contains(&format!("Server Version: {}", git_version())));
}

#[test]
fn the_operator_says_why_it_cannot_work() {
    let dir = scratch("operator");
    let [stranger, nobody_there] = unusable_kubeconfigs(&dir);
    let broken = dir.join("broken");
    fs::write(&broken, "{").unwrap();
    let broken = broken.to_str().unwrap();
    let operator = |kubeconfig: &str| {
        refusal(&["operator", "--admin-address", "127.0.0.1:0", "--kubeconfig", kubeconfig])
    };
    let said = operator(&stranger);
    assert!(
        said.contains("may not: watch nodes, create nodes") && said.contains("create pods/eviction"),
        "{said}"
    );
    let said = operator(&nobody_there);
    assert!(said.contains("cannot reach the API server at https://127.0.0.1:1"), "{said}");
    let said = operator(broken);
    assert!(said.contains("cannot be used"), "{said}");
    let said = operator("/nonexistent");
    assert!(said.contains("/nonexistent cannot be used"), "{said}");
    let taken = format!("127.0.0.1:{}", CLUSTER.state()["ports"]["operator"]);
    let good = CLUSTER.dir.join("kubeconfig");
    let said = refusal(&["operator", "--admin-address", &taken, "--kubeconfig", good.to_str().unwrap()]);
    assert!(said.contains("choose another --admin-address"), "{said}");
    for (kubeconfig, account, sentence) in [
        ("kubeconfig", "default", "kube-node-system:default may not: patch nodes/status"),
        ("operator.kubeconfig", "kube-node-hollow", "grant the right to impersonate that ServiceAccount"),
    ] {
        let kubeconfig = CLUSTER.dir.join(kubeconfig);
        let args = [
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--hollow-service-account",
            account,
            "--admin-address",
        ];
        let said = refusal(&[&["operator"], &args[..], &["127.0.0.1:0"]].concat());
        assert!(said.contains(sentence), "{said}");
    }
}

#[test]
fn a_command_names_the_server_that_does_not_answer_and_the_rights_that_are_missing() {
    let [stranger, stale] = unusable_kubeconfigs(&scratch("stale"));
    let commands = [
        &["list"][..],
        &["verify"],
        &["create"],
        &["scale", "3"],
        &["cleanup", "--yes"],
        &["doctor"],
        &["top", "--once"],
        &["explain", "a"],
        &["rollout", "status", "a"],
    ];
    let sentence =
        "cannot reach the API server at https://127.0.0.1:1/: check the kubeconfig and that the server runs";
    for command in commands {
        let said = refusal(&[command, &["--kubeconfig", &stale]].concat());
        assert!(said.contains(sentence), "{command:?}: {said}");
    }
    let doctor = kube_node(&["doctor", "--kubeconfig", &stranger]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
}

#[test]
fn the_operator_can_be_looked_at() {
    let port = CLUSTER.state()["ports"]["operator"].as_u64().unwrap();
    for path in ["healthz", "readyz"] {
        let answer = http::get(format!("http://127.0.0.1:{port}/{path}"));
        assert_eq!(answer.as_deref(), Some("ok"), "{path}");
    }
    let metrics = CLUSTER.metrics();
    for name in ["kube_node_reconciles_total", "kube_node_machines", "kube_node_hollow_machines"] {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name}: {metrics}");
    }
}

#[test]
fn logs_are_json_where_that_is_asked_for() {
    let text = fs::read_to_string(CLUSTER.dir.join("logs/operator.log")).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
    assert!(text.contains("watches are in sync"), "{text}");
}

#[test]
fn bash_completes_commands_and_arguments() {
    let dir = scratch("completion");
    let script = dir.join("completion.bash");
    fs::write(&script, kube_node(&["completion", "bash"]).stdout).unwrap();
    let completed = |command_line: &[&str]| -> Vec<String> {
        let (command_line, last) = (command_line.join(" "), command_line.len() - 1);
        // As bash does it, with the function that is registered for the program.
        let ask = format!(
            "source {}; COMP_WORDS=({command_line}); COMP_CWORD={last}; completer=$(complete -p kube-node | grep -o '_kube[^ ]*'); \
             $completer kube-node \"${{COMP_WORDS[{last}]}}\" \"\"; echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(completed(&["kube-node", "ro"]), ["rollout"]);
    assert_eq!(completed(&["kube-node", "rollout", "und"]), ["undo"]);
    assert_eq!(completed(&["kube-node", "up", "--real-n"]), ["--real-node"]);
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let said = kube_node(&["completion", shell]);
        assert!(
            said.status.success() && String::from_utf8_lossy(&said.stdout).contains("rollout"),
            "{shell}"
        );
    }
}

#[test]
fn a_context_is_one_of_the_kubeconfig() {
    let kubeconfig = CLUSTER.dir.join("kubeconfig");
    let kubeconfig = kubeconfig.to_str().unwrap();
    for command in
        [&["top", "--once"][..], &["list"], &["rollout", "history", "a"], &["import", "--from-cluster"]]
    {
        let said = refusal(&[command, &["--kubeconfig", kubeconfig, "--context", "elsewhere"]].concat());
        let wanted =
            format!("error: the kubeconfig {kubeconfig} has no context elsewhere; it has: kube-node\n");
        assert_eq!(said, wanted, "{command:?}");
    }
    let own = kube_node(&["top", "--once", "--kubeconfig", kubeconfig, "--context", "kube-node"]);
    assert!(own.status.success(), "{}", String::from_utf8_lossy(&own.stderr));
    assert_eq!(kube_node(&["list", "--data-dir", "/a", "--context", "b"]).status.code(), Some(2));
}

#[test]
fn every_command_that_help_names_has_a_page_of_man() {
    let dir = scratch("man");
    let said = kube_node(&["man", "--output-dir", dir.to_str().unwrap()]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let help = String::from_utf8(kube_node(&["help"]).stdout).unwrap();
    let commands: Vec<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with([' ', '-'])))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        let page = fs::read_to_string(dir.join(format!("kube-node-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}: {page}");
    }
    let page = fs::read_to_string(dir.join("kube-node-rollout-undo.1")).unwrap();
    assert!(page.contains("revision"), "{page}");
    let error = refusal(&["man", "--output-dir", "/proc/kube-node"]);
    assert!(error.contains("cannot write the pages to /proc/kube-node"), "{error}");
}
