//! What the image of kube-node holds for machines: the small program where it lies beside the one that packs and is of the
//! same build, and else the whole one under its name, which is said. [`push`] has the pushes to a registry.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod push;
#[path = "../registry/mod.rs"]
mod registry;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use flate2::read::GzDecoder;
use kube_node_api::names::MACHINE_PROGRAM as MACHINE;
use serde_json::Value;
use tar::Archive;

const WHOLE: &str = env!("CARGO_BIN_EXE_kube-node");
const SMALL: &str = env!("CARGO_BIN_EXE_kube-node-machine");

fn run(program: &Path, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Packs with the whole program in a folder of its own, beside `machine`. What it said, and what is in the layer: path →
/// size, or the path of which it is a second name.
fn pack(name: &str, machine: &str) -> (String, BTreeMap<String, Result<u64, String>>) {
    let dir =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("images-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let whole = dir.join("kube-node");
    fs::hard_link(WHOLE, &whole).unwrap();
    fs::hard_link(machine, dir.join(MACHINE)).unwrap();
    let output = run(&whole, &["image", "kube-node", "--output-dir", dir.to_str().unwrap()]);
    let mut archive = File::open(dir.join("kube-node.tar")).unwrap();
    let mut manifest = String::new();
    entry(&archive, "manifest.json", |of| of.read_to_string(&mut manifest).map(drop));
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    archive.seek(SeekFrom::Start(0)).unwrap();
    let mut files = BTreeMap::new();
    entry(&archive, manifest[0]["Layers"][0].as_str().unwrap(), |layer| {
        for of in Archive::new(GzDecoder::new(layer)).entries()? {
            let of = of?;
            let link = of.link_name()?.map(|of| of.display().to_string());
            files.insert(of.path()?.display().to_string(), link.map_or(Ok(of.size()), Err));
        }
        Ok(())
    });
    fs::remove_dir_all(&dir).unwrap();
    (String::from_utf8(output.stderr).unwrap(), files)
}

fn entry(archive: &File, name: &str, read: impl FnOnce(&mut dyn Read) -> std::io::Result<()>) {
    let mut archive = Archive::new(archive);
    let mut of =
        archive.entries().unwrap().map(Result::unwrap).find(|of| of.path().unwrap() == Path::new(name));
    read(of.as_mut().expect("it is in the archive")).unwrap();
}

fn size(program: &str) -> u64 {
    fs::metadata(program).unwrap().len()
}

#[test]
fn the_small_program_of_this_build_is_taken() {
    let (said, files) = pack("small", SMALL);
    assert_eq!(said, "");
    assert_eq!(files["kube-node"], Ok(size(WHOLE)));
    assert_eq!(files[MACHINE], Ok(size(SMALL)));
    assert!(size(SMALL) < size(WHOLE));
}

#[test]
fn another_one_is_not_and_that_is_said_in_one_line() {
    let (said, files) = pack("other", WHOLE);
    assert!(said.starts_with("machines will take twice the memory, since "), "{said}");
    assert!(said.ends_with("/kube-node-machine is of another build: cargo build makes it\n"), "{said}");
    assert_eq!(said.lines().count(), 1);
    assert_eq!(files["kube-node"], Ok(size(WHOLE)));
    assert_eq!(files[MACHINE], Err("kube-node".to_owned()), "it costs no room");
}

#[test]
fn programs_of_another_folder_are_packed_if_they_are_a_pair() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("images-pair-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let programs = dir.to_str().unwrap();
    let pack = |which| {
        let args = ["image", which, "--output-dir", programs, "--programs", programs];
        let output = Command::new(WHOLE).args(args).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(
        pack("all"),
        (false, "error: --programs packs kube-node or pause: name one of them\n".to_owned())
    );
    let (packed, said) = pack("kube-node");
    assert!(!packed && said.starts_with(&format!("error: cannot read {programs}/kube-node: ")), "{said}");
    fs::hard_link(WHOLE, dir.join("kube-node")).unwrap();
    // The same for another machine: `e_machine` of an ELF header.
    let mut other = fs::read(SMALL).unwrap();
    let machine = if other[18] == 62 { 183 } else { 62 };
    other[18] = machine;
    fs::write(dir.join(MACHINE), other).unwrap();
    let wanted = format!("error: {programs}: kube-node and {MACHINE} are for different machines\n");
    assert_eq!(pack("kube-node"), (false, wanted));
    fs::remove_file(dir.join(MACHINE)).unwrap();
    fs::hard_link(SMALL, dir.join(MACHINE)).unwrap();
    assert_eq!(pack("kube-node"), (true, String::new()));
    assert!(dir.join("kube-node.tar").exists());
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn either_program_serves_a_machine() {
    for program in [WHOLE, SMALL] {
        for command in ["hollow-node", "kubemark-proxy"] {
            let help = run(Path::new(program), &[command, "--help"]).stdout;
            assert!(String::from_utf8(help).unwrap().contains("--machine-dir"), "{program} {command}");
        }
    }
}
