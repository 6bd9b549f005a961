//! The machine program: the part of kube-node that runs in the pods of machines. It is a separate, smaller
//! program, since each machine's memory holds the whole program, called or not. It lies beside the whole
//! program. `cargo run` builds only the whole one, so the machine program may be missing or outdated; then
//! machines run the whole program, which has the same commands.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use kube_node_api::names::MACHINE_PROGRAM as MACHINE;

use super::{ImageError, Program};

/// Version and build stamp of this program, as both programs print them; set by `main`.
static BUILD: OnceLock<&str> = OnceLock::new();

/// Sets the build of this program, for example `0.1.0 (release-0123456789ab)`. Only the first call counts.
pub fn set_build(build: &'static str) {
    let _ = BUILD.set(build);
}

/// Reason why machines get the whole program, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("machines will take twice the memory, since {} {why}: {REMEDY} makes it", path.display())]
pub struct NoMachineProgram {
    /// Expected path of the machine program.
    pub path: PathBuf,
    /// The problem with that file.
    pub why: Why,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The problem with the machine program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The file is missing.
    Missing,
    /// The file reports another build.
    OtherBuild,
    /// The file cannot be run, or needs shared libraries.
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

/// Machine program beside the program `whole`, if it is of the same build as this library.
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
        // The whole program under the name of the machine program.
        says(concat!("kube-node ", env!("CARGO_PKG_VERSION")));
        assert_eq!(why().why, Why::OtherBuild);
        assert_eq!(
            why().to_string(),
            format!(
                "machines will take twice the memory, since {} is of another build: cargo build makes it",
                machine.display()
            )
        );
        // Reports this build, but is no program for an image.
        set_build("0.1.0 (test-0)");
        says(&format!("{MACHINE} 0.1.0 (test-0)"));
        assert_eq!(why().why, Why::Unfit);
        fs::set_permissions(&machine, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(why().why, Why::Unfit);
        fs::remove_dir_all(&dir).unwrap();
    }
}
