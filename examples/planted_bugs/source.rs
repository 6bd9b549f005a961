//! The copy of the source, with the edits of all bugs, and its build.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::bugs::Bug;

/// Files that get the function `planted`: of the library that all but the planner may use, and of the planner.
const SWITCHES: [&str; 2] = ["src/kube-ext/environment.rs", "src/planner/lib.rs"];
const SWITCH: &str = r#"
/// Returns true if this bug is switched on.
pub fn planted(name: &str) -> bool {
    static PLANTED: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("KUBE_NODE_PLANTED").unwrap_or_default());
    *PLANTED == name
}
"#;

/// Copies the tracked files of a repository, with the edits of all bugs. A file that is the same stays as it is, so that it is not
/// built again.
pub fn copy(root: &Path, copy: &Path, bugs: &[Bug]) -> anyhow::Result<()> {
    let edited = edited(root, bugs)?;
    let listed = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output();
    let listed = listed.context("cannot run git")?;
    ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).context("a file has a name that is not UTF-8")?;
    let mut present = BTreeSet::new();
    // The copy is below the repository, so cargo reads the repository's settings anyway, and would add those of a copy.
    for file in listed.split('\0').filter(|file| !file.is_empty() && !file.starts_with(".cargo/")) {
        let (from, to) = (root.join(file), copy.join(file));
        let Ok(metadata) = from.symlink_metadata() else { continue };
        fs::create_dir_all(to.parent().unwrap_or(copy))?;
        present.insert(to.clone());
        if metadata.is_symlink() {
            if to.symlink_metadata().is_err() {
                symlink(fs::read_link(&from)?, &to)?;
            }
        } else if let Some(text) = edited.get(file) {
            write(&to, text.as_bytes())?;
        } else {
            write(&to, &fs::read(&from)?)?;
        }
    }
    remove_others(copy, &present)
}

/// Removes the files of a folder that are not `present`.
fn remove_others(folder: &Path, present: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (entry, path) = {
            let entry = entry?;
            (entry.file_type()?, entry.path())
        };
        if entry.is_dir() {
            remove_others(&path, present)?;
        } else if !present.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// The files that the edits of all bugs change, by their paths in `root`.
pub fn edited(root: &Path, bugs: &[Bug]) -> anyhow::Result<BTreeMap<String, String>> {
    let read = |file: &str| {
        fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}, which a bug edits"))
    };
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for bug in bugs {
        for edit in &bug.edits {
            if !files.contains_key(&edit.file) {
                files.insert(edit.file.clone(), read(&edit.file)?);
            }
            let text = files.entry(edit.file.clone()).or_default();
            let count = text.matches(&edit.find).count();
            ensure!(
                count == 1,
                "bug {}: this text occurs {count} times in {}, and has to occur once: {}",
                bug.name,
                edit.file,
                edit.find
            );
            *text = text.replacen(&edit.find, &edit.replace, 1);
        }
    }
    for file in SWITCHES {
        let text = files.remove(file).map_or_else(|| read(file), Ok)?;
        files.insert(file.to_owned(), text + SWITCH);
    }
    Ok(files)
}

/// Builds the simulation of a copy and returns the path of the program.
pub fn build(copy: &Path, target: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["test", "--locked", "--profile", "simulation", "--test", "simulation", "--no-run"];
    let mut command = Command::new(cargo);
    // A build script that reads what cargo said of this program would run again, and so would all that depend on it.
    let of_cargo = |name: &str| {
        name == "OUT_DIR" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in std::env::vars().filter(|(name, _)| of_cargo(name)) {
        command.env_remove(name);
    }
    let built = command
        .current_dir(copy)
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .env("CARGO_TARGET_DIR", target)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(built.status.success(), "the source with the planted bugs cannot be built");
    let output = String::from_utf8_lossy(&built.stdout);
    let messages = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter(|message| message["target"]["name"] == "simulation");
    let program = programs.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    program.context("cargo names no program of the simulation")
}
