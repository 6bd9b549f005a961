//! The shell that documents are read in.

use crate::CLUSTER;
use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{LazyLock, OnceLock},
};

use local_cluster::Binaries;

use super::{
    document::{Block, Document},
    root,
};

/// A folder with `kube-node` and the cluster's kubectl.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        // Its start has built what is not there yet.
        LazyLock::force(&CLUSTER);
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let kubectl = PathBuf::from(CLUSTER.state()["binaries"].as_str().unwrap()).join("kubectl");
        for (name, program) in
            [("kube-node", Path::new(env!("CARGO_BIN_EXE_kube-node"))), ("kubectl", &kubectl)]
        {
            let link = dir.join(name);
            let _ = fs::remove_file(&link);
            symlink(program, link).unwrap();
        }
        dir
    })
}

/// Makes a folder to work in, from which the paths of the repository lead to its files.
pub fn make_folder(dir: &Path) {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).unwrap();
    for folder in ["docs", "examples", "charts", "tests"] {
        symlink(root().join(folder), dir.join(folder)).unwrap();
    }
}

/// Runs the commands of a document that have this reason not to be run with the others, or none; nothing where it has none of
/// them. The error says which one failed, and what was printed.
pub fn run(document: &Document, why: Option<&str>) -> Result<(), String> {
    let is_wanted = |block: &&Block| block.language == "console" && block.ignore.as_deref() == why;
    let blocks = document.blocks.iter().filter(is_wanted);
    let commands: Vec<_> = blocks.flat_map(Block::commands).collect();
    if commands.is_empty() {
        return Ok(());
    }
    let dir = programs().join(document.path.replace(['/', '.'], "-"));
    make_folder(&dir);
    let mut script = "set -euo pipefail\ntrap 'echo \"$here: this failed\"' ERR\n".to_owned();
    for command in &commands {
        let here = format!("{}:{}", document.path, command.line);
        writeln!(script, "here='{here}'; echo '+ {here}'\n{}", patient(&command.text)).unwrap();
    }
    let shell = |script: &str| {
        let path = format!("{}:{}", programs().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.arg("-c").arg(script).current_dir(&dir).stdin(Stdio::null());
        // A home of its own, but for the binaries of the control plane.
        let cache = Binaries::cache_root().unwrap();
        command.env("PATH", path).env("HOME", &dir).env_remove("XDG_DATA_HOME");
        command.env("XDG_CACHE_HOME", cache.parent().unwrap());
        command.env("KUBECONFIG", dir.join(".local/share/kube-node/default/kubeconfig"));
        command.output().expect("bash")
    };
    // Both streams in one, as a terminal shows them.
    let ran = shell(&format!("exec 2>&1\n{script}"));
    shell("kube-node down --delete");
    if ran.status.success() {
        let _ = fs::remove_dir_all(&dir);
        return Ok(());
    }
    Err(format!("{}: {}\n{}", document.path, ran.status, tail(&ran)))
}

/// The command with limits for a machine that runs many clusters at once: those of the documents are for a reader's, which
/// runs one.
fn patient(command: &str) -> String {
    let mut parts = command.split("--timeout");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, limit| {
        let rest = limit.trim_start_matches(['=', ' ']).trim_start_matches(char::is_alphanumeric);
        format!("{text}--timeout=10m{rest}")
    })
}

#[test]
fn limits_of_commands_are_longer_here() {
    let command =
        "kubectl wait node a --for=delete --timeout=2m &&\n  kube-node verify a --timeout 90s --wait";
    let patient = patient(command);
    assert_eq!(
        patient,
        "kubectl wait node a --for=delete --timeout=10m &&\n  kube-node verify a --timeout=10m --wait"
    );
}

/// The end of what was printed.
fn tail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Whether the API server would take the objects, each in a file of this name. An object of a kind that this cluster does not
/// have is somebody else's. One kubectl asks for all of them: a process for each is a hundred times its discovery.
pub fn dry_run<'a>(objects: impl Iterator<Item = (String, &'a str)>) -> Result<(), String> {
    let dir = programs().join("objects");
    fs::create_dir_all(&dir).unwrap();
    for (file, object) in objects {
        fs::write(dir.join(file), object).unwrap();
    }
    let output = Command::new(programs().join("kubectl"))
        // The API server makes its schema anew after each change of a CustomResourceDefinition. On a busy machine that takes
        // longer than the 32 s that kubectl waits.
        .args(["apply", "--dry-run=server", "--validate=strict", "--request-timeout=10m", "-f"])
        .arg(&dir)
        .env("KUBECONFIG", CLUSTER.dir.join("kubeconfig"))
        .output()
        .expect("kubectl");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_foreign = |line: &&str| {
        let is_unknown = line.contains("no matches for kind") && !line.contains("in version \"kube-node.io/");
        is_unknown || line.starts_with("ensure CRDs are")
    };
    let is_remark = |line: &&str| line.starts_with("Warning: ") || is_log(line);
    let refused: Vec<&str> = said.lines().filter(|line| !is_foreign(line) && !is_remark(line)).collect();
    if refused.is_empty() && !output.stdout.is_empty() { Ok(()) } else { Err(said.into_owned()) }
}

/// Returns true if the line is one of the client library's log, such as `I1128 22:58:00.000000 …`: it logs that it waits for a
/// busy API server.
fn is_log(line: &str) -> bool {
    let mut header = line.chars();
    header.next().is_some_and(|level| "IW".contains(level))
        && header.take(4).all(|digit| digit.is_ascii_digit())
}
