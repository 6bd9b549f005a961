//! The example of examples/node-controller, built from a copy, as a process with the rights that it asks for and no others.

use crate::CLUSTER;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, Once, PoisonError},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use serde_json::{Value, json};

/// Longest time that one thing may take, on a slow machine with all of these tests at once. A broken example may take all
/// of it, more than once.
const TIMEOUT: &str = "100s";

/// One that runs.
pub struct Example {
    dir: PathBuf,
}

/// A change of the sources: the file, what stands there once, and what is to stand there.
pub type Edit = (&'static str, &'static str, &'static str);

impl Example {
    /// Builds and starts it, for classes of a name of its own.
    pub fn start(name: &str, edits: &[Edit]) -> Self {
        let dir = CLUSTER.dir.join(name);
        fs::create_dir_all(dir.join("machines")).unwrap();
        build(&dir, edits);
        let class = fs::read_to_string(sources().join("class.yaml")).unwrap();
        let class = class.replace("processes.example.com", &format!("{name}.example.com"));
        fs::write(dir.join("class.yaml"), class).unwrap();
        rights();
        // Acts as the user of its roles.
        let kubeconfig = fs::read_to_string(CLUSTER.dir.join("kubeconfig")).unwrap();
        let mut kubeconfig: Value = serde_norway::from_str(&kubeconfig).unwrap();
        kubeconfig["users"][0]["user"]["as"] = json!("example-node-controller");
        fs::write(dir.join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let script = format!(
            "cd {}\n[ ! -f pid ] || kill -9 $(cat pid)\n\
             KUBECONFIG=kubeconfig ./node-controller --name {name}.example.com --machines machines \
             >>log 2>&1 </dev/null &\necho $! >pid\n",
            dir.display()
        );
        fs::write(dir.join("restart.sh"), script).unwrap();
        let example = Self { dir };
        let started = Command::new("sh").arg(example.dir.join("restart.sh")).status().unwrap();
        assert!(started.success());
        example
    }

    /// What `kube-node conformance` says of it.
    pub fn conformance(&self) -> String {
        // Of all processes of this machine, those that this example has started.
        let machines = format!(
            "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep '^{}/node-controller machine' || true",
            self.dir.display()
        );
        let class = self.dir.join("class.yaml");
        let restart = format!("sh {}/restart.sh", self.dir.display());
        let said = conformance(&[
            "--class",
            class.to_str().unwrap(),
            "--machines",
            &machines,
            "--restart",
            &restart,
        ]);
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let log: Vec<&str> = log.lines().collect();
        format!("{said}\n{}", log[log.len().saturating_sub(10)..].join("\n"))
    }

    /// Whether no machine is left.
    pub fn left_nothing(&self) {
        let left: Vec<_> =
            fs::read_dir(self.dir.join("machines")).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // First the controller, which would make its machines again.
        let pid = fs::read_to_string(self.dir.join("pid")).unwrap_or_default();
        kill(&pid);
        let program = self.dir.join("node-controller");
        for process in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
            if fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program) {
                kill(&process.file_name().unwrap().to_string_lossy());
            }
        }
        // There are a dozen, of 44 MB each.
        let _ = fs::remove_file(program);
    }
}

fn kill(pid: &str) {
    if let Ok(pid) = pid.trim().parse() {
        let _ = signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// What `kube-node conformance` says: both streams, the exit code in the last line.
pub fn conformance(args: &[&str]) -> String {
    let timeout: &[&str] = if args.contains(&"--timeout") { &[] } else { &["--timeout", TIMEOUT] };
    let image = ["conformance", "--image", "example.com/pause"];
    let output = CLUSTER.kube_node(&[&image, timeout, args].concat());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.success(), out.contains(" 0 broken,") && err.is_empty(), "{out}{err}");
    format!("{out}{err}")
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/node-controller")
}

/// Builds it in a folder of its own, with changes.
fn build(dir: &Path, edits: &[Edit]) {
    // One after the other: each takes both cores for some seconds.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for entry in fs::read_dir(sources()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut text = fs::read_to_string(&path).unwrap();
        for (_, from, to) in edits.iter().filter(|(file, ..)| *file == name) {
            assert_eq!(text.matches(from).count(), 1, "{name} is to have once: {from}");
            text = text.replace(from, to);
        }
        fs::write(dir.join(name), text).unwrap();
    }
    let built = Command::new("go")
        // Without tables for debuggers, which take a quarter of the time.
        .args(["build", "-ldflags=-s -w", "-o", "node-controller", "."])
        .env("CGO_ENABLED", "0")
        .current_dir(dir)
        .output();
    let built = built.expect("go");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// The roles of the example, once.
fn rights() {
    static APPLIED: Once = Once::new();
    APPLIED.call_once(|| {
        CLUSTER.kubectl(&["apply", "-f", sources().join("rbac.yaml").to_str().unwrap()]);
    });
}
