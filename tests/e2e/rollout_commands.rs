//! `kube-node rollout` and `kube-node explain`: what they say, what they write, and what they refuse. Sets of no
//! replicas have revisions too: nothing here waits for Nodes to be replaced.

use std::process::{Command, Output, Stdio};

use kube_node_api::NodeSet;
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, eventually};

fn rollout(args: &[&str]) -> Output {
    CLUSTER.kube_node(&[&["rollout"], args].concat())
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// What it prints; it must succeed.
fn said(output: Output) -> String {
    assert!(output.status.success(), "{}", text(output.stderr));
    text(output.stdout)
}

/// The one line that it fails with.
fn refusal(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", text(output.stdout));
    let line = text(output.stderr);
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

async fn set(own: &Fixture) -> NodeSet {
    own.sets.get(&own.name).await.unwrap()
}

fn annotation(set: &NodeSet, key: &str) -> Option<String> {
    set.metadata.annotations.as_ref()?.get(key).cloned()
}

/// Waits until the set has another update revision than this one.
async fn next_revision(own: &Fixture, before: Option<&String>) -> String {
    eventually("a revision", LONG, async || {
        let update = set(own).await.status?.update_revision;
        update.filter(|update| Some(update) != before)
    })
    .await
}

/// A class of two revisions and a set of it without Nodes; the revisions' names.
async fn two_revisions(name: &str) -> (Fixture, String, String) {
    let own = Fixture::new(&CLUSTER, name, 0, class_spec()).await;
    let first = next_revision(&own, None).await;
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
    let second = next_revision(&own, Some(&first)).await;
    (own, first, second)
}

#[tokio::test]
async fn a_set_that_is_not_there_is_said_by_all() {
    let own = Fixture::new(&CLUSTER, "rollout-there", 0, class_spec()).await;
    for action in ["status", "history", "undo", "restart", "pause", "resume"] {
        let line = refusal(rollout(&[action, "rollout-nobody"]));
        assert!(
            line.starts_with("error: there is no NodeSet rollout-nobody; there are: "),
            "{action}: {line}"
        );
    }
    let line = refusal(CLUSTER.kube_node(&["explain", "rollout-nobody"]));
    assert!(line.contains("there is no NodeSet rollout-nobody"), "{line}");
    let output = rollout(&["status", "deployment/web"]);
    assert!(text(output.stderr).contains("deployment is no NodeSet: write nodeset/web"));
    own.clean_up().await;
}

#[tokio::test]
async fn the_cluster_is_found_by_one_rule() {
    let own = Fixture::new(&CLUSTER, "rollout-where", 0, class_spec()).await;
    own.set_says("Progressing", "False", "Complete").await;
    let kubeconfig = CLUSTER.dir.join("kubeconfig");
    let run = |args: &[&str], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        command.args(args).env("KUBECONFIG", variable).output().unwrap()
    };
    let there = kubeconfig.to_str().unwrap();
    for (args, variable) in [
        (vec!["rollout", "status", "rollout-where", "--kubeconfig", there], "/nonexistent"),
        (vec!["rollout", "--kubeconfig", there, "status", "nodeset/rollout-where"], "/nonexistent"),
        (vec!["rollout", "status", "rollout-where"], there),
        (vec!["explain", "rollout-where"], there),
        (vec!["explain", "rollout-where", "--data-dir", CLUSTER.dir.to_str().unwrap()], "/nonexistent"),
    ] {
        let said = said(run(&args, variable));
        assert!(said.contains("successfully rolled out") || said.contains(": complete for"), "{said}");
    }
    for (args, wanted) in [
        (vec!["explain", "a", "--data-dir", "/nonexistent"], "there is no cluster in /nonexistent"),
        (vec!["explain", "a", "--kubeconfig", "/nonexistent"], "the kubeconfig /nonexistent cannot be used"),
        (vec!["explain", "a"], "no way to an API server"),
    ] {
        let line = refusal(run(&args, "/nonexistent"));
        assert!(line.contains(wanted), "{line}");
    }
    // Nothing said at all: the cluster of this machine, as the user's folder has it.
    let home = CLUSTER.dir.with_extension("home");
    std::fs::create_dir_all(home.join("kube-node")).unwrap();
    std::os::unix::fs::symlink(&CLUSTER.dir, home.join("kube-node/default")).unwrap();
    let mut local = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    local.args(["explain", "rollout-where"]).env_remove("KUBECONFIG").env("XDG_DATA_HOME", &home);
    assert!(said(local.output().unwrap()).contains(": complete for"));
    std::fs::remove_dir_all(&home).unwrap();
    let both = run(&["explain", "a", "--data-dir", "/a", "--kubeconfig", "/b"], "");
    assert_eq!(both.status.code(), Some(2));
    own.clean_up().await;
}

#[tokio::test]
async fn a_pause_and_a_resume_with_nothing_to_do_succeed_and_change_nothing() {
    let own = Fixture::new(&CLUSTER, "rollout-pause", 0, class_spec()).await;
    let line = said(rollout(&["resume", "rollout-pause"]));
    assert_eq!(line, "nodeset.kube-node.io/rollout-pause is neither paused nor halted\n");
    assert_eq!(said(rollout(&["pause", "rollout-pause"])), "nodeset.kube-node.io/rollout-pause paused\n");
    let paused = set(&own).await;
    assert_eq!(paused.spec.paused, Some(true));
    let mut managers = paused.metadata.managed_fields.iter().flatten();
    assert!(managers.any(|manager| manager.manager.as_deref() == Some("kube-node-cli")));
    let line = said(rollout(&["pause", "rollout-pause"]));
    assert_eq!(line, "nodeset.kube-node.io/rollout-pause is paused already\n");
    let line = refusal(rollout(&["restart", "rollout-pause"]));
    assert!(line.contains("can't restart a paused nodeset"), "{line}");
    assert_eq!(annotation(&set(&own).await, "kube-node.io/restarted-at"), None);
    assert_eq!(said(rollout(&["resume", "rollout-pause"])), "nodeset.kube-node.io/rollout-pause resumed\n");
    let resumed = set(&own).await;
    assert_eq!(resumed.spec.paused, None);
    assert_eq!(annotation(&resumed, "kube-node.io/resumed-at"), None, "nothing had halted");
    own.clean_up().await;
}

#[tokio::test]
async fn status_right_after_a_change_of_the_class_waits_until_the_set_has_observed_it() {
    let own = Fixture::new(&CLUSTER, "rollout-class", 0, class_spec()).await;
    own.set_says("Progressing", "False", "Complete").await;
    let first = next_revision(&own, None).await;
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
    assert!(
        said(rollout(&["status", "rollout-class", "--timeout=1m"])).ends_with("successfully rolled out\n")
    );
    let status = set(&own).await.status.unwrap();
    assert_ne!(status.update_revision, Some(first));
    let class = own.classes.get("rollout-class").await.unwrap();
    assert_eq!(status.observed_class_generation, class.metadata.generation);
    own.clean_up().await;
}

#[tokio::test]
async fn a_restart_writes_the_time() {
    let own = Fixture::new(&CLUSTER, "rollout-restart", 0, class_spec()).await;
    assert_eq!(
        said(rollout(&["restart", "rollout-restart"])),
        "nodeset.kube-node.io/rollout-restart restarted\n"
    );
    let time = annotation(&set(&own).await, "kube-node.io/restarted-at").unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    let time: jiff::Timestamp = time.parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(time).as_secs() < 60, "{time}");
    own.clean_up().await;
}

#[tokio::test]
async fn without_a_history_there_is_no_way_back() {
    let own = Fixture::new(&CLUSTER, "rollout-first", 0, class_spec()).await;
    let first = next_revision(&own, None).await;
    let line = refusal(rollout(&["undo", "rollout-first"]));
    assert_eq!(
        line.trim_end(),
        format!("error: there is no revision to go back to: NodeClass rollout-first has 1 ({first})")
    );
    for gone in ["v1-0000000000", "7", "latest"] {
        let line = refusal(rollout(&["undo", "rollout-first", "--to-revision", gone]));
        let wanted = format!("there is no revision {gone}: NodeClass rollout-first has 1 ({first})");
        assert!(line.contains(&wanted), "{line}");
    }
    let line = refusal(rollout(&["undo", "rollout-first", "--to-revision", "1", "--namespace", "default"]));
    assert!(line.contains("namespace default has none of NodeClass rollout-first"), "{line}");
    assert_eq!(set(&own).await.spec.revision, None);
    let said = said(rollout(&["undo", "rollout-first", "--to-latest"]));
    assert!(said.contains("skipped (no revision is pinned)"), "{said}");
    own.clean_up().await;
}

#[tokio::test]
async fn an_undo_pins_and_leaves_the_class_alone() {
    let (own, first, second) = two_revisions("rollout-undo").await;
    let class = own.classes.get("rollout-undo").await.unwrap();
    let output = said(rollout(&["undo", "rollout-undo"]));
    assert_eq!(
        output.trim_end(),
        format!("nodeset.kube-node.io/rollout-undo rolled back to revision 1 ({first})")
    );
    assert_eq!(set(&own).await.spec.revision.as_ref(), Some(&first));
    // As the youngest of its class again, the third in its history.
    eventually("its number", LONG, async || {
        let output = said(rollout(&["undo", "rollout-undo", "--to-revision", &first]));
        output.contains("skipped rollback (already pinned to revision 3").then_some(())
    })
    .await;
    for same in ["3", &format!("rollout-undo-{first}")] {
        let output = said(rollout(&["undo", "rollout-undo", "--to-revision", same]));
        assert!(output.contains("skipped rollback (already pinned to revision 3"), "{output}");
    }
    said(rollout(&["undo", "rollout-undo", "--to-revision", "2"]));
    assert_eq!(set(&own).await.spec.revision.as_ref(), Some(&second));
    let output = said(rollout(&["undo", "rollout-undo", "--to-latest"]));
    assert!(output.contains("follows NodeClass rollout-undo again"), "{output}");
    assert_eq!(set(&own).await.spec.revision, None);
    assert_eq!(own.classes.get("rollout-undo").await.unwrap().spec, class.spec);
    own.clean_up().await;
}

#[tokio::test]
async fn the_history_counts_nodes() {
    let own = Fixture::new(&CLUSTER, "rollout-history", 2, class_spec()).await;
    own.settled(2).await;
    let revision = next_revision(&own, None).await;
    let table = said(rollout(&["history", "rollout-history"]));
    let mut lines = table.lines();
    assert_eq!(
        lines.next(),
        Some("nodeset.kube-node.io/rollout-history, revisions of NodeClass rollout-history")
    );
    let columns =
        |line: Option<&str>| -> Vec<String> { line.unwrap().split_whitespace().map(str::to_owned).collect() };
    assert_eq!(columns(lines.next()), ["REVISION", "NAME", "AGE", "NODES", "NOTE"]);
    let row = columns(lines.next());
    assert_eq!((&*row[0], &*row[1], &*row[3]), ("1", &*revision, "2"), "{table}");
    assert_eq!(row[4..], ["current,", "update"], "{table}");
    let machine = said(rollout(&["history", "rollout-history", "--revision", "1"]));
    assert!(
        machine.starts_with(&format!("# NodeClass rollout-history, revision 1 ({revision})\n")),
        "{machine}"
    );
    assert!(machine.contains("nodeController: hollow") && machine.contains("memory: 16Gi"), "{machine}");
    let line = refusal(rollout(&["history", "rollout-history", "--revision", "9"]));
    assert!(line.contains("there is no revision 9: NodeClass rollout-history has 1"), "{line}");
    own.clean_up().await;
}

#[tokio::test]
async fn status_waits_by_a_watch() {
    let own = Fixture::nothing(&CLUSTER, "rollout-watch").await;
    own.create_set(2, json!({})).await;
    own.set_says("Degraded", "True", "ClassNotFound").await;
    let once = said(rollout(&["status", "rollout-watch", "--watch=false"]));
    assert!(
        once.starts_with("Waiting for nodeset \"rollout-watch\" rollout to finish: 0 out of 2 new"),
        "{once}"
    );
    assert!(once.contains("ClassNotFound: there is no NodeClass rollout-watch"), "{once}");
    let line = refusal(rollout(&["status", "rollout-watch", "--timeout", "1s"]));
    assert!(line.contains("timed out after 1s: Waiting for nodeset"), "{line}");
    let mut status = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    status.args(["rollout", "status", "rollout-watch", "--timeout=90s", "--data-dir"]).arg(&CLUSTER.dir);
    let status = status.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let class = json!({"metadata": {"name": "rollout-watch"}, "spec": class_spec()});
    kube_node_testing::create(&own.classes, class).await.unwrap();
    let output = said(status.wait_with_output().unwrap());
    assert_eq!(output.lines().last(), Some("nodeset \"rollout-watch\" successfully rolled out"), "{output}");
    own.settled(2).await;
    own.clean_up().await;
}

#[tokio::test]
async fn status_ends_with_its_set() {
    let own = Fixture::nothing(&CLUSTER, "rollout-deleted").await;
    own.create_set(1, json!({})).await;
    let mut status = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    status.args(["rollout", "status", "rollout-deleted", "--timeout=90s", "--data-dir"]).arg(&CLUSTER.dir);
    let status = status.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    own.set_says("Degraded", "True", "ClassNotFound").await;
    CLUSTER.kubectl(&["delete", "nodeset", "rollout-deleted"]);
    let line = refusal(status.wait_with_output().unwrap());
    let wanted = ["has been deleted", "is being deleted", "there is no NodeSet"];
    assert!(wanted.iter().any(|wanted| line.contains(wanted)), "{line}");
}

#[tokio::test]
async fn explain_reads_the_status_alone() {
    let own = Fixture::new(&CLUSTER, "rollout-explain", 1, class_spec()).await;
    own.settled(1).await;
    own.set_says("Progressing", "False", "Complete").await;
    let explain = || said(CLUSTER.kube_node(&["explain", "nset/rollout-explain"]));
    let text = explain();
    assert!(
        text.starts_with("NodeSet rollout-explain of NodeClass rollout-explain: complete for "),
        "{text}"
    );
    assert!(text.contains("1 wanted, 1 there, 1 Ready, 1 available, 1 updated, 0 unavailable"), "{text}");
    own.patch_set(json!({"spec": {"paused": true}})).await;
    assert!(explain().contains("-> To go on: `kube-node rollout resume rollout-explain`."));
    own.patch_set(json!({"spec": {"paused": Value::Null, "nodeClassName": "rollout-explain-gone"}})).await;
    own.set_says("Degraded", "True", "ClassNotFound").await;
    let text = explain();
    assert!(text.contains(": degraded for ") && text.contains("-> Create the class"), "{text}");
    own.patch_set(json!({"spec": {"nodeClassName": "rollout-explain"}})).await;
    own.clean_up().await;
}
