//! Where the control plane's programs come from, with a Go that is not one: what is built once, what is said when it
//! cannot be. The real build is what every other test on the control plane stands on.

// No runtime runs here, and a test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

/// Builds are recorded, take a moment, and make programs that end at once.
const FAKE_GO: &str = r#"#!/bin/sh
case "$1" in
  version) echo "go version ${FAKE_GO_VERSION:-go1.26.8} linux/amd64" ;;
  env) pwd; pwd ;;
  build)
    if [ -n "$FAKE_GO_SAYS" ]; then echo "$FAKE_GO_SAYS" >&2; exit 1; fi
    while [ "$1" != -o ]; do shift; done
    out=$2
    shift 2
    for package in "$@"; do
      program=${package##*/}
      [ "$program" != v3 ] || program=server
      echo "$package" >> "$FAKE_GO_LOG"
      echo half > "$out/$program"
    done
    sleep "${FAKE_GO_SECONDS:-0.2}"
    for package in "$@"; do
      program=${package##*/}
      [ "$program" != v3 ] || program=server
      printf '#!/bin/sh\nexit 7\n' > "$out/$program"
      chmod +x "$out/$program"
    done
    ;;
esac
"#;

/// Programs as envtest's folder has them, each with the release that it reports.
fn assets(dir: &Path, programs: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, says) in programs {
        let script = format!("#!/bin/sh\ncase \"$*\" in *version*) echo '{says}' ;; *) exit 8 ;; esac\n");
        fs::write(dir.join(name), script).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

struct Scene {
    dir: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("build-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::write(dir.join("bin/go"), FAKE_GO).unwrap();
        fs::set_permissions(dir.join("bin/go"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn up(&self, data: &str, env: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        command
            .args(["up", "--without-operator", "--data-dir"])
            .arg(self.dir.join(data))
            .env("XDG_CACHE_HOME", self.dir.join("cache"))
            .env("PATH", format!("{}:/usr/bin:/bin", self.dir.join("bin").display()))
            .env("FAKE_GO_LOG", self.dir.join("builds"))
            .env_remove("KUBEBUILDER_ASSETS")
            .envs(env.iter().copied())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn start(&self, data: &str, env: &[(&str, &str)]) -> Child {
        self.up(data, env).spawn().unwrap()
    }

    fn builds(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.join("builds")).unwrap_or_default();
        log.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn two_at_once_build_everything_once() {
    let scene = Scene::new("twice");
    let (first, second) = (scene.start("a", &[]), scene.start("b", &[]));
    for child in [first, second] {
        let output = child.wait_with_output().unwrap();
        // What was built is found and run; it is no etcd.
        assert!(said(&output).contains("etcd ended while it was starting"), "{}", said(&output));
    }
    let mut builds = scene.builds();
    builds.sort();
    assert_eq!(builds, ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "v3"]);
}

#[test]
fn a_build_that_was_cut_off_leaves_nothing_broken() {
    let scene = Scene::new("cut");
    let mut child = scene.start("a", &[("FAKE_GO_SECONDS", "0.5")]);
    while scene.builds().len() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let cut_off = scene.builds().len();
    let output = scene.start("a", &[]).wait_with_output().unwrap();
    assert!(said(&output).contains("etcd ended while it was starting"), "{}", said(&output));
    // Half files are no programs: all are built again.
    assert_eq!(scene.builds().len() - cut_off, 5, "{:?}", scene.builds());
    assert!(
        said(&output).contains("signal") || said(&output).contains("exit status: 7"),
        "{}",
        said(&output)
    );
}

#[test]
fn assets_that_fit_are_used_and_the_rest_is_built() {
    let scene = Scene::new("envtest");
    let dir = scene.dir.join("envtest");
    let fit =
        [("etcd", "etcd Version: 3.6.4"), ("kube-apiserver", "Kubernetes v1.36.0"), ("kubectl", "v1.36.0")];
    assets(&dir, &fit);
    let output = scene.up("a", &[("KUBEBUILDER_ASSETS", &dir.display().to_string())]).output().unwrap();
    // It is envtest's etcd that is run.
    assert!(said(&output).contains("exit status: 8"), "{}", said(&output));
    let mut builds = scene.builds();
    builds.sort();
    assert_eq!(builds, ["kube-controller-manager", "kube-scheduler"]);
}

#[test]
fn no_controller_manager_is_newer_than_its_api_server() {
    let scene = Scene::new("older");
    let dir = scene.dir.join("envtest");
    let older =
        [("etcd", "etcd Version: 3.6.4"), ("kube-apiserver", "Kubernetes v1.34.1"), ("kubectl", "v1.34.1")];
    assets(&dir, &older);
    let output = scene.up("a", &[("KUBEBUILDER_ASSETS", &dir.display().to_string())]).output().unwrap();
    let notice = "KUBEBUILDER_ASSETS: kube-apiserver 1.34, kubectl 1.34 not used";
    assert!(said(&output).contains(notice), "{}", said(&output));
    let mut builds = scene.builds();
    builds.sort();
    assert_eq!(builds, ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"]);
}

#[test]
fn another_release_is_built_beside_the_default_one_and_stays_that_of_its_folder() {
    let scene = Scene::new("release");
    let started = "etcd ended while it was starting";
    let up = |data: &str, args: &[&str]| said(&scene.up(data, &[]).args(args).output().unwrap());
    assert!(up("a", &["--kubernetes-version", "v1.37"]).contains(started));
    assert!(scene.dir.join("cache/kube-node/kubernetes-1.37.2-etcd-3.7.0/etcd").exists());
    assert_eq!(scene.builds().len(), 5);
    assert!(up("a", &[]).contains(started));
    assert_eq!(scene.builds().len(), 5, "the folder's own release is run again");
    let refused = up("a", &["--kubernetes-version", "1.36"]);
    let sentence = "error: the data folder holds a cluster of Kubernetes 1.37.2, which 1.36.3 does not run: use another --data-dir, or remove it with `kube-node down --delete`\n";
    assert_eq!(refused, sentence);
    assert!(up("b", &[]).contains(started));
    assert_eq!(scene.builds().len(), 10, "each release has programs of its own");
    let unknown = up("c", &["--kubernetes-version", "1.21"]);
    assert!(unknown.contains("there are 1.35.4, 1.36.3, 1.37.2; --binaries takes programs of"), "{unknown}");
}

#[test]
fn complete_assets_of_another_release_are_not_those_that_were_asked_for() {
    let scene = Scene::new("asked");
    let dir = scene.dir.join("complete");
    let programs = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
    let mut complete = programs.map(|name| (name, "Kubernetes v1.36.1")).to_vec();
    complete.push(("etcd", "etcd Version: 3.7.1"));
    assets(&dir, &complete);
    let dir = dir.display().to_string();
    let up =
        |args: &[&str]| said(&scene.up("a", &[("KUBEBUILDER_ASSETS", &dir)]).args(args).output().unwrap());
    up(&["--kubernetes-version", "1.37"]);
    let mut builds = scene.builds();
    builds.sort();
    assert_eq!(builds, programs);
    // As they are, they do not run what is in the folder by now.
    let refused = up(&[]);
    assert!(refused.contains("holds a cluster of Kubernetes 1.37.2, which 1.36.1 does not run"), "{refused}");
}

#[test]
fn nothing_is_built_where_a_download_was_asked_for() {
    let scene = Scene::new("download");
    for (release, refusal) in [
        ("1.36", "cannot reach http://127.0.0.1:1/v3.6.8/etcd-v3.6.8-linux-"),
        ("1.37", "error: no checksum is pinned for v3.7.0/etcd-v3.7.0-linux-"),
    ] {
        let mut up = scene.up("a", &[]);
        up.args(["--kubernetes-version", release, "--download", "--download-from", "http://127.0.0.1:1"]);
        let said = said(&up.output().unwrap());
        assert!(said.contains(refusal), "{release}: {said}");
        assert!(scene.builds().is_empty(), "{release}: {:?}", scene.builds());
    }
}

#[test]
fn what_is_missing_is_said_with_what_to_do() {
    for (name, env, wanted) in [
        ("old", ("FAKE_GO_VERSION", "go1.20.1"), "Go is too old: go version go1.20.1"),
        (
            "network",
            ("FAKE_GO_SAYS", "go: k8s.io/api@v0: Get \"https://x\": dial tcp: lookup x: no such host"),
            ": check the network and the variables GOPROXY",
        ),
        ("full", ("FAKE_GO_SAYS", "write /x: no space left on device"), "not enough room on the disk"),
        ("broken", ("FAKE_GO_SAYS", "main.go:1:1: syntax error"), "failed: main.go:1:1: syntax error"),
    ] {
        let scene = Scene::new(name);
        let output = scene.up("a", &[env]).output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains(wanted), "{name}: {}", said(&output));
    }
    let scene = Scene::new("none");
    fs::remove_file(scene.dir.join("bin/go")).unwrap();
    let output = scene.up("a", &[("PATH", "/nonexistent")]).output().unwrap();
    assert!(said(&output).contains("Go is not installed"), "{}", said(&output));
}

#[test]
fn a_folder_that_lacks_programs_is_named() {
    let scene = Scene::new("folder");
    let empty = scene.dir.join("empty");
    fs::create_dir_all(&empty).unwrap();
    let output = scene.up("a", &[]).arg("--binaries").arg(&empty).output().unwrap();
    assert!(said(&output).contains("has no etcd, kube-apiserver"), "{}", said(&output));
    let output = scene.up("a", &[("KUBEBUILDER_ASSETS", &empty.display().to_string())]).output().unwrap();
    assert!(said(&output).contains("KUBEBUILDER_ASSETS"), "{}", said(&output));
}
