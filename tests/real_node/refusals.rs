//! What `up --real-node` and `image` say where they cannot do what they are asked for: one sentence each.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

/// A folder with a file that runs and says this.
fn program(name: &str, says: &str) -> PathBuf {
    let dir =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("refusals-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\necho {says}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn up(args: &[&str]) -> String {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("refused-{}", std::process::id()));
    let said = refusal(
        Command::new(env!("CARGO_BIN_EXE_kube-node")).arg("up").arg("--data-dir").arg(&dir).args(args),
    );
    assert!(!dir.exists(), "nothing was begun");
    said
}

pub fn what_is_missing_is_named_with_what_to_do() {
    let said = up(&["--real-node", "--runc", "/nonexistent/runc"]);
    assert!(said.contains("--runc: there is no program /nonexistent/runc"), "{said}");
    let said = up(&["--real-node", "--cni-dir", "/nonexistent"]);
    assert!(said.contains("--cni-dir: there is no program /nonexistent/bridge"), "{said}");
    let old = program("containerd", "containerd github.com/containerd/containerd 1.7.2 abc");
    let said = up(&["--real-node", "--containerd", old.to_str().unwrap()]);
    assert!(said.contains("is containerd 1.7, a real node needs 2.0 or later"), "{said}");
    fs::remove_dir_all(old.parent().unwrap()).unwrap();
    let alone = program("containerd", "containerd github.com/containerd/containerd/v2 v2.2.9");
    let said = up(&["--real-node", "--containerd", alone.to_str().unwrap()]);
    assert!(
        said.contains("--containerd: there is no program") && said.contains("/containerd-shim-runc-v2"),
        "{said}"
    );
    fs::remove_dir_all(alone.parent().unwrap()).unwrap();
    let said = up(&["--cni-dir", "/opt/cni/bin"]);
    assert!(said.contains("--real-node"), "{said}");
}

pub fn who_is_not_root_is_told_so() {
    // The program may lie where nobody else looks.
    let copy = std::env::temp_dir().join(format!("kube-node-{}", std::process::id()));
    fs::copy(env!("CARGO_BIN_EXE_kube-node"), &copy).unwrap();
    let said = refusal(
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args(["up", "--real-node"]),
    );
    fs::remove_file(copy).unwrap();
    assert!(said.contains("a real node needs root"), "{said}");
}

pub fn images_of_programs_that_would_not_run_are_refused() {
    let dir = std::env::temp_dir();
    let image = |args: &[&str]| {
        refusal(
            Command::new(env!("CARGO_BIN_EXE_kube-node"))
                .args(["image", "--output-dir"])
                .arg(&dir)
                .args(args),
        )
    };
    let said = image(&["kube-node", "--shell", "/bin/bash"]);
    assert!(said.contains("/bin/bash is linked dynamically") && said.contains("busybox-static"), "{said}");
    let script = program("kubemark", "x");
    let said = image(&["kubemark", "--binaries", script.parent().unwrap().to_str().unwrap()]);
    assert!(said.contains("is no program for Linux"), "{said}");
    fs::remove_dir_all(script.parent().unwrap()).unwrap();
}
