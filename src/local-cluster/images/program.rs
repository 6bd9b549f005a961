//! A program for an image from scratch: a statically linked ELF file of a supported architecture.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail, ensure};
use data_encoding::HEXLOWER;
use elf::{
    ElfStream, ParseError,
    abi::{EM_AARCH64, EM_X86_64, PT_INTERP},
    endian::AnyEndian,
};
use sha2::Digest;

use super::hash::Hashed;

/// A program that was checked to be static.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: PathBuf,
    architecture: &'static str,
}

impl Program {
    /// The running program.
    pub fn itself() -> anyhow::Result<Self> {
        Self::check(
            Path::new("/proc/self/exe"),
            "build kube-node in its own folder, whose .cargo/config.toml links statically, and without RUSTFLAGS of yours",
        )
    }

    /// Checks the program of a file. `remedy` tells how to get a static one; the error for a dynamic program
    /// contains it.
    pub fn check(path: &Path, remedy: &'static str) -> anyhow::Result<Self> {
        let at = path.display();
        let file = File::open(path).with_context(|| format!("cannot read {at}"))?;
        let elf = ElfStream::<AnyEndian, _>::open_stream(file).map_err(|error| match error {
            ParseError::IOError(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                anyhow!(error).context(format!("cannot read {at}"))
            }
            error => anyhow!(error).context(format!("{at} is no program for Linux")),
        })?;
        // A dynamically linked program names its loader in PT_INTERP.
        ensure!(
            elf.segments().iter().all(|segment| segment.p_type != PT_INTERP),
            "{at} is linked dynamically and would not run from scratch: {remedy}"
        );
        let architecture = match elf.ehdr.e_machine {
            EM_X86_64 => "amd64",
            EM_AARCH64 => "arm64",
            machine => {
                bail!("{at} is for a machine of ELF number {machine}: images are made for amd64 and arm64")
            }
        };
        Ok(Self { path: path.to_owned(), architecture })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// 12 hex digits of the SHA-256 of the file, to identify a build.
    pub fn fingerprint(&self) -> anyhow::Result<String> {
        let mut hashed = Hashed::new(io::sink());
        File::open(&self.path)
            .and_then(|mut file| io::copy(&mut file, &mut hashed))
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(HEXLOWER.encode(&hashed.hash.finalize()[..6]))
    }

    /// Architecture in OCI's naming.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_is_static() {
        let program = Program::itself().unwrap();
        assert!(["amd64", "arm64"].contains(&program.architecture()));
    }

    #[test]
    fn names_are_found_without_shared_libraries() {
        use std::net::ToSocketAddrs;
        let found: Vec<_> = ("localhost", 80).to_socket_addrs().unwrap().collect();
        assert!(found.iter().any(|address| address.ip().is_loopback()), "{found:?}");
    }

    #[test]
    fn what_would_not_run_is_refused() {
        let error = Program::check(Path::new("/bin/sh"), "use another").unwrap_err().to_string();
        assert_eq!(error, "/bin/sh is linked dynamically and would not run from scratch: use another");
        let script = std::env::temp_dir().join(format!("kube-node-script-{}", std::process::id()));
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        let error = Program::check(&script, "").unwrap_err().to_string();
        assert!(error.ends_with(" is no program for Linux"), "{error}");
        std::fs::remove_file(&script).unwrap();
        let error = Program::check(&script, "").unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }
}
