//! Programs of others, each built once from the Go module that pins it, and kept where those of the control plane are.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use local_cluster::Binaries;
use parking_lot::Mutex;

static BUILDS: Mutex<()> = Mutex::new(());

/// A program.
pub struct GoProgram {
    /// Its name.
    pub name: &'static str,
    /// Folder of the go.mod that pins it, from the root of the repository.
    pub folder: &'static str,
    /// The module that it is of.
    pub module: &'static str,
    /// Its package.
    pub package: &'static str,
}

impl GoProgram {
    /// Where it is, built if it is not there.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        let Self { name, package, .. } = self;
        let version = self.version()?;
        let dir = Binaries::cache_root()?.join(format!("{name}-{version}{}", self.own_source()?));
        let program = dir.join(name);
        // Tests of one process are threads.
        let _one_at_a_time = BUILDS.lock();
        if !program.exists() {
            fs::create_dir_all(&dir)?;
            eprintln!("building {name} {version}, once");
            // Whole or not at all, whoever else builds it.
            let built = dir.join(format!("{name}.{}", std::process::id()));
            self.go(&["build", "-trimpath", "-ldflags", "-s -w", "-o", &built.to_string_lossy(), package])?;
            fs::rename(&built, &program)?;
        }
        Ok(program)
    }

    /// Where the module's sources are.
    pub fn sources(&self) -> anyhow::Result<PathBuf> {
        Ok(PathBuf::from(self.go(&["list", "-m", "-f", "{{.Dir}}", self.module])?.trim()))
    }

    fn version(&self) -> anyhow::Result<String> {
        let file = self.in_repository().join("go.mod");
        let pins = fs::read_to_string(&file)?;
        let pinned = pins.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word == "require");
            (words.next()? == self.module).then(|| words.next()?.strip_prefix('v'))?
        });
        Ok(pinned.with_context(|| format!("{} does not pin {}", file.display(), self.module))?.to_owned())
    }

    /// Identifies the program that the folder has besides its go.mod; empty if it has none.
    fn own_source(&self) -> anyhow::Result<String> {
        let file = self.in_repository().join("main.go");
        if !file.exists() {
            return Ok(String::new());
        }
        let mut hasher = DefaultHasher::new();
        fs::read(file)?.hash(&mut hasher);
        Ok(format!("-{:x}", hasher.finish()))
    }

    fn go(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut go = Command::new("go");
        go.current_dir(self.in_repository());
        go.env("CGO_ENABLED", "0").env("GOWORK", "off").env_remove("GOFLAGS");
        let output = go.args(arguments).output().context("Go is not installed")?;
        ensure!(output.status.success(), "go {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn in_repository(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(self.folder)
    }
}
