//! `kube-node top`, into a file and at a terminal.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
};

use super::CLUSTER;
use kube_node_testing::{Fixture, class_spec};

#[tokio::test]
async fn into_a_file_it_is_printed_once() {
    let own = Fixture::new(&CLUSTER, "observability-once", 2, class_spec()).await;
    own.settled(2).await;
    let output = CLUSTER.kube_node(&["top"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("NodeSets ") && text.contains(" ready, "), "{text}");
    let row = text.lines().find(|line| line.starts_with("observability-once ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..6], ["observability-once", "observability-once", "2", "2", "2", "2"], "{row}");
    assert!(!text.contains('\x1b'), "{text}");
    let said = CLUSTER.kube_node(&["top", "--interval", "1ms"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("--interval is too short: give 100ms or more"));
    own.clean_up().await;
}

#[tokio::test]
async fn at_a_terminal_it_is_drawn_until_ctrl_c() {
    let own = Fixture::new(&CLUSTER, "observability-drawn", 1, class_spec()).await;
    own.settled(1).await;
    let command = format!(
        "stty cols 150 rows 30 && exec {} top --data-dir {} --interval 100ms",
        env!("CARGO_BIN_EXE_kube-node"),
        CLUSTER.dir.display()
    );
    // A terminal of its own; what is written to its standard input is typed.
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = script.stdin.take().unwrap();
    let mut screen = script.stdout.take().unwrap();
    let mut shown = Vec::new();
    let (drawn, home) = ("observability-drawn", "\x1b[H");
    // Drawn, and drawn again.
    while !{
        let text = String::from_utf8_lossy(&shown);
        text.contains(drawn) && text.matches(home).count() >= 3
    } {
        let mut some = [0; 4096];
        let count = screen.read(&mut some).unwrap();
        assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&some[..count]);
    }
    keys.write_all(b"\x03").unwrap();
    screen.read_to_end(&mut shown).unwrap();
    assert!(script.wait().unwrap().success());
    let text = String::from_utf8_lossy(&shown);
    let (during, after) = text.split_once("\x1b[?25h\x1b[?1049l").expect("the screen is left");
    assert!(during.starts_with("\x1b[?1049h\x1b[?25l"), "{during}");
    assert!(after.contains(drawn), "the last table stays: {after}");
    own.clean_up().await;
}
