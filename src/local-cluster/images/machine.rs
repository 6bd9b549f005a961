//! The machine program: the part of kube-node that runs in the pods of machines. It is a separate, smaller
//! program, since each machine's memory holds the whole program, called or not. It lies beside the whole
//! program. `cargo run` builds only the whole one, so the machine program may be missing or outdated; then
//! machines run the whole program, which has the same commands.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, bail, ensure};
use kube_node_api::names::MACHINE_PROGRAM as MACHINE;

use super::Program;

/// Version and build stamp of this program, as both programs print them; set by `main`.
static BUILD: OnceLock<&str> = OnceLock::new();

/// Sets the build of this program, for example `0.1.0 (release-0123456789ab)`. Only the first call counts.
pub fn set_build(build: &'static str) {
    let _ = BUILD.set(build);
}

const REMEDY: &str = if cfg!(debug_assertions) { "cargo build" } else { "cargo build --release" };

/// Machine program beside the program `whole`, if it is of the same build as this library; otherwise the error names the
/// reason and the remedy.
pub fn machine_beside(whole: &Path) -> anyhow::Result<Program> {
    let path = whole.with_file_name(MACHINE);
    let without = |why| {
        format!("machines will take twice the memory, since {} {why}: {REMEDY} makes it", path.display())
    };
    let output = match Command::new(&path).arg("--version").stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(without("is not there")),
        other => other.with_context(|| without("cannot be used"))?,
    };
    let own = format!("{MACHINE} {}", BUILD.get().copied().unwrap_or_default());
    ensure!(output.stdout.trim_ascii_end() == own.as_bytes(), without("is of another build"));
    Program::check(&path, "link it as the whole program is").with_context(|| without("cannot be used"))
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
        let why = || machine_beside(&whole).unwrap_err().to_string();
        assert!(why().contains(" is not there: "), "{}", why());
        let machine = dir.join(MACHINE);
        let print = |text: &str| {
            fs::write(&machine, format!("#!/bin/sh\necho '{text}'\n")).unwrap();
            fs::set_permissions(&machine, fs::Permissions::from_mode(0o755)).unwrap();
        };
        print(concat!("kube-node-machine ", env!("CARGO_PKG_VERSION"), " (release-0123456789ab)"));
        assert!(why().contains(" is of another build: "), "{}", why());
        // The whole program under the name of the machine program.
        print(concat!("kube-node ", env!("CARGO_PKG_VERSION")));
        assert!(why().contains(" is of another build: "), "{}", why());
        assert_eq!(
            why(),
            format!(
                "machines will take twice the memory, since {} is of another build: cargo build makes it",
                machine.display()
            )
        );
        // Reports this build, but is no program for an image.
        set_build("0.1.0 (test-0)");
        print(&format!("{MACHINE} 0.1.0 (test-0)"));
        assert!(why().contains(" cannot be used: "), "{}", why());
        fs::set_permissions(&machine, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(why().contains(" cannot be used: "), "{}", why());
        fs::remove_dir_all(&dir).unwrap();
    }
}
