//! The program of machines: what of kube-node runs in their pods, and nothing else, since the memory of each holds what its
//! program has, called or not. It is a file beside the whole program. `cargo run` builds the whole one only, so that file may
//! be missing, or be an old one; then the whole program, which knows the same commands, serves machines too.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use kube_node_api::names::MACHINE_PROGRAM as MACHINE;

use super::{ImageError, Program};

/// Version and build stamp of this program, as both programs print them; set by its `main`.
static BUILD: OnceLock<&str> = OnceLock::new();

/// Says of which build this program is, for example `0.1.0 (release-0123456789ab)`. Only the first call counts.
pub fn set_build(build: &'static str) {
    let _ = BUILD.set(build);
}

/// Why machines get the whole program, and how to change that.
#[derive(Debug, thiserror::Error)]
#[error("machines will take twice the memory, since {} {why}: {REMEDY} makes it", path.display())]
pub struct NoMachineProgram {
    /// Where it was looked for.
    pub path: PathBuf,
    /// What is wrong there.
    pub why: Why,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What is wrong with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is missing.
    Missing,
    /// It says that it is something else.
    OtherBuild,
    /// It cannot be run, or not from scratch.
    Unfit,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Missing => "is not there",
            Self::OtherBuild => "is of another build",
            Self::Unfit => "cannot be used",
        })
    }
}

const REMEDY: &str = if cfg!(debug_assertions) { "cargo build" } else { "cargo build --release" };

/// The program of machines beside the whole program `whole`, where it is of the build that this library is of.
pub fn machine_beside(whole: &Path) -> Result<Program, NoMachineProgram> {
    let path = whole.with_file_name(MACHINE);
    let failed = |why, source| NoMachineProgram { path: path.clone(), why, source };
    let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    let said = match output {
        Ok(output) => output.stdout,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(failed(Why::Missing, None)),
        Err(error) => return Err(failed(Why::Unfit, Some(error.into()))),
    };
    if said.trim_ascii_end() != format!("{MACHINE} {}", BUILD.get().copied().unwrap_or_default()).as_bytes() {
        return Err(failed(Why::OtherBuild, None));
    }
    Program::check(&path, "link it as the whole program is")
        .map_err(|error: ImageError| failed(Why::Unfit, Some(error.into())))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn only_one_of_this_very_build_is_taken() {
        let dir = std::env::temp_dir().join(format!("kube-node-images-machine-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let whole = dir.join("kube-node");
        let why = || machine_beside(&whole).unwrap_err();
        assert_eq!(why().why, Why::Missing);
        let machine = dir.join(MACHINE);
        let says = |text: &str| {
            fs::write(&machine, format!("#!/bin/sh\necho '{text}'\n")).unwrap();
            fs::set_permissions(&machine, fs::Permissions::from_mode(0o755)).unwrap();
        };
        says(concat!("kube-node-machine ", env!("CARGO_PKG_VERSION"), " (release-0123456789ab)"));
        assert_eq!(why().why, Why::OtherBuild);
        // The whole program under this name.
        says(concat!("kube-node ", env!("CARGO_PKG_VERSION")));
        assert_eq!(why().why, Why::OtherBuild);
        assert_eq!(
            why().to_string(),
            format!(
                "machines will take twice the memory, since {} is of another build: cargo build makes it",
                machine.display()
            )
        );
        // Of this build by its own words, and no program for an image.
        set_build("0.1.0 (test-0)");
        says(&format!("{MACHINE} 0.1.0 (test-0)"));
        assert_eq!(why().why, Why::Unfit);
        fs::set_permissions(&machine, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(why().why, Why::Unfit);
        fs::remove_dir_all(&dir).unwrap();
    }
}
