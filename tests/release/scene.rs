//! A repository that a release is made of, and its scripts.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
pub const LOCK: &str = "Cargo.lock";
pub const CHART: &str = "charts/kube-node/Chart.yaml";
pub const SECURITY: &str = "SECURITY.md";
/// Stands in SECURITY.md until a maintainer has written an address there.
pub const PLACEHOLDER: &str = "SECURITY-CONTACT";
pub const CONTACT: &str = "security@example.com";
pub const SIGNERS: &str = ".ci/release-signers";
pub const SIGNER: &str = "release namespaces=\"kube-node-release\" ssh-ed25519 AAAA\n";
/// This machine, and the one that is cross-compiled for.
pub const HOST: &str = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
pub const OTHER: (&str, &str) =
    if cfg!(target_arch = "x86_64") { ("arm64", "aarch64") } else { ("amd64", "x86_64") };
/// What the script calls until it has decided.
pub const TOOLS: [&str; 11] =
    ["bash", "cut", "date", "dirname", "git", "grep", "head", "sed", "sha256sum", "tr", "uname"];

/// A repository with the files that a version is in, all committed: the changelog's entries are those of that version, and
/// SECURITY.md has a contact.
pub struct Scene {
    /// Its folder.
    pub dir: PathBuf,
}

impl Scene {
    pub fn new(name: &str) -> Self {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("release-{name}-{}", std::process::id()));
        let scene = Self { dir };
        let scripts = [".ci/release", ".ci/krew", ".ci/sign", ".ci/provenance"];
        for file in
            scripts.into_iter().chain([".gitignore", "Cargo.toml", LOCK, CHART, "CHANGELOG.md", SECURITY])
        {
            let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(file), scene.dir.join(file));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
        let heading = format!("\n## [{VERSION}] - ");
        if !fs::read_to_string(scene.dir.join("CHANGELOG.md")).unwrap().contains(&heading) {
            scene.replace(
                "CHANGELOG.md",
                "## [Unreleased]\n",
                &format!("## [Unreleased]\n{heading}2026-12-01\n"),
            );
        }
        let security = fs::read_to_string(scene.dir.join(SECURITY)).unwrap();
        let filled_in = security.replace(PLACEHOLDER, CONTACT) + "\n" + CONTACT;
        fs::write(scene.dir.join(SECURITY), filled_in).unwrap();
        fs::write(scene.dir.join(SIGNERS), SIGNER).unwrap();
        scene.git(&["init", "--quiet"]);
        scene.commit();
        scene.check_advisories("now", LOCK);
        scene
    }

    /// What `.ci/advisories` notes when it finds nothing about the crates of this file, on a day that `date` understands.
    pub fn check_advisories(&self, day: &str, lock: &str) {
        let note = "mkdir -p target; echo \"$(date -u -d \"$0\" +%F) $(sha256sum <$1 | cut -d ' ' -f 1)\" >target/advisories";
        let mut bash = Command::new("bash");
        assert!(bash.args(["-c", note, day, lock]).current_dir(&self.dir).status().unwrap().success());
    }

    pub fn replace(&self, file: &str, from: &str, to: &str) {
        let path = self.dir.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from:?}");
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    }

    pub fn git(&self, args: &[&str]) {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=nobody",
            "-c",
            "user.email=nobody@example.com",
            "-c",
            "commit.gpgsign=false",
        ])
        .args(args);
        assert!(git.current_dir(&self.dir).status().unwrap().success(), "git {args:?}");
    }

    pub fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "x"]);
    }

    /// Looks whether there may be a release: what was said, as an error where there may not.
    pub fn check(&self, target: &str, path: &str) -> Result<String, String> {
        let mut script = Command::new(self.dir.join(".ci/release"));
        let output = script.args(["--check", "--target", target]).env("PATH", path).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Runs another of its scripts.
    pub fn script(&self, name: &str, args: &[&str]) -> Output {
        Command::new(self.dir.join(".ci").join(name)).args(args).output().unwrap()
    }

    /// A folder below `target` with such files, as a release has them.
    pub fn folder(&self, files: &[(&str, &str)]) -> PathBuf {
        let folder = self.dir.join(format!("target/release-{VERSION}"));
        fs::create_dir_all(&folder).unwrap();
        for (name, content) in files {
            fs::write(folder.join(name), content).unwrap();
        }
        folder
    }

    pub fn refused(&self) -> String {
        self.check(HOST, &env::var("PATH").unwrap()).expect_err("it should be refused")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub fn error(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command of a shell in a folder.
pub fn bash(folder: &Path, command: &str) -> Output {
    Command::new("bash").args(["-c", command]).current_dir(folder).output().unwrap()
}
