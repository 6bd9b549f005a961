//! Programs of others, each built once from the Go module pinned beside its test, and kept where those of the control plane are.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kube_node::cluster::Binaries;

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
    pub fn path(&self) -> PathBuf {
        let Self { name, package, .. } = self;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(self.folder);
        let version = self.version(&folder);
        let cache = Binaries::cache_dir().unwrap();
        let dir = cache.parent().unwrap().join(format!("{name}-{version}"));
        let program = dir.join(name);
        if !program.exists() {
            fs::create_dir_all(&dir).unwrap();
            // Whole or not at all, whoever else builds it.
            let built = dir.join(format!("{name}.{}", std::process::id()));
            eprintln!("Building {name} {version}, once");
            let mut go = Command::new("go");
            go.current_dir(folder).env("CGO_ENABLED", "0").env("GOWORK", "off").env_remove("GOFLAGS");
            go.args(["build", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(&built).arg(package);
            assert!(go.status().expect("go runs").success(), "{name} does not build");
            fs::rename(&built, &program).unwrap();
        }
        program
    }

    /// The version that is pinned.
    fn version(&self, folder: &Path) -> String {
        let go_mod = fs::read_to_string(folder.join("go.mod")).unwrap();
        let pinned =
            go_mod.lines().find_map(|line| line.trim().strip_prefix(self.module)?.strip_prefix(" v"));
        let version = pinned.and_then(|rest| rest.split(' ').next());
        version.unwrap_or_else(|| panic!("no version of {}", self.module)).to_owned()
    }
}
