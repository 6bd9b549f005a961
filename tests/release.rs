//! The release script refuses what is no release, and says what to do. Making one takes minutes and is left to whoever
//! releases; what it would make it from is looked at here: the versions that the repository really has.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CHART: &str = "charts/kube-node/Chart.yaml";
const SECURITY: &str = "SECURITY.md";
/// Stands in SECURITY.md until a maintainer has written an address there.
const PLACEHOLDER: &str = "SECURITY-CONTACT";
const CONTACT: &str = "security@example.com";
/// This machine, and the one that is cross-compiled for.
const HOST: &str = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
const OTHER: (&str, &str) =
    if cfg!(target_arch = "x86_64") { ("arm64", "aarch64") } else { ("amd64", "x86_64") };
/// What the script calls until it has decided.
const TOOLS: [&str; 8] = ["bash", "dirname", "git", "grep", "head", "sed", "tr", "uname"];

/// A repository with the files that a version is in, all committed: the changelog's entries are those of that version, and
/// SECURITY.md has a contact.
struct Scene {
    dir: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("release-{name}-{}", std::process::id()));
        let scene = Self { dir };
        for file in [".ci/release", "Cargo.toml", CHART, "CHANGELOG.md", SECURITY] {
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
        scene.git(&["init", "--quiet"]);
        scene.commit();
        scene
    }

    fn replace(&self, file: &str, from: &str, to: &str) {
        let path = self.dir.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from:?}");
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    }

    fn git(&self, args: &[&str]) {
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

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "x"]);
    }

    /// Looks whether there may be a release: what was said, as an error where there may not.
    fn check(&self, target: &str, path: &str) -> Result<String, String> {
        let mut script = Command::new(self.dir.join(".ci/release"));
        let output = script.args(["--check", "--target", target]).env("PATH", path).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn refused(&self) -> String {
        self.check(HOST, &env::var("PATH").unwrap()).expect_err("it should be refused")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn the_versions_of_this_repository_agree() {
    let scene = Scene::new("agrees");
    let said = scene.check(HOST, &env::var("PATH").unwrap()).unwrap();
    assert!(said.starts_with(&format!("== {VERSION} can be released for {HOST}, as of ")), "{said}");
    // Its own tag does no harm.
    scene.git(&["tag", &format!("v{VERSION}")]);
    scene.check(HOST, &env::var("PATH").unwrap()).unwrap();
    scene.commit();
    let wanted = format!("no release: v{VERSION} is another commit already: raise the version\n");
    assert_eq!(scene.refused(), wanted);
}

#[test]
fn what_does_not_agree_is_refused() {
    for (name, file, from, to, wanted) in [
        (
            "program",
            "Cargo.toml",
            format!("version = \"{VERSION}\""),
            "version = \"9.8.7\"".to_owned(),
            format!("Cargo.toml has version 9.8.7, Chart.yaml has version {VERSION}"),
        ),
        (
            "chart",
            CHART,
            format!("\nversion: {VERSION}\n"),
            "\nversion: 9.8.7\n".to_owned(),
            format!("Cargo.toml has version {VERSION}, Chart.yaml has version 9.8.7"),
        ),
        (
            "app",
            CHART,
            format!("\nappVersion: {VERSION}\n"),
            "\nappVersion: \"9.8.7\"\n".to_owned(),
            format!("Cargo.toml has version {VERSION}, Chart.yaml has appVersion 9.8.7"),
        ),
        (
            "heading",
            "CHANGELOG.md",
            format!("\n## [{VERSION}] - "),
            format!("\n## [{VERSION}] some day, "),
            format!("CHANGELOG.md has no heading «## [{VERSION}] - YYYY-MM-DD»"),
        ),
        (
            "entries",
            "CHANGELOG.md",
            "## [Unreleased]\n".to_owned(),
            "## [Unreleased]\n\n### Added\n\n- A thing.\n".to_owned(),
            format!("CHANGELOG.md has entries below Unreleased: move them to {VERSION}"),
        ),
        (
            "contact",
            SECURITY,
            CONTACT.to_owned(),
            PLACEHOLDER.to_owned(),
            format!(
                "SECURITY.md has the placeholder {PLACEHOLDER}: write the address for private reports there"
            ),
        ),
    ] {
        let scene = Scene::new(name);
        scene.replace(file, &from, &to);
        assert_eq!(scene.refused(), "no release: there are changes that are not committed: git status\n");
        scene.commit();
        assert_eq!(scene.refused(), format!("no release: {wanted}\n"), "{name}");
    }
}

#[test]
fn a_file_that_is_not_committed_is_refused() {
    let scene = Scene::new("file");
    fs::write(scene.dir.join("new.rs"), "").unwrap();
    assert_eq!(scene.refused(), "no release: there are changes that are not committed: git status\n");
}

#[test]
fn what_a_build_lacks_is_named() {
    let scene = Scene::new("lacks");
    let bin = scene.dir.join(".git/bin");
    fs::create_dir_all(&bin).unwrap();
    for tool in TOOLS {
        let paths = env::split_paths(&env::var_os("PATH").unwrap()).collect::<Vec<_>>();
        let found = paths.iter().map(|dir| dir.join(tool)).find(|path| path.exists());
        symlink(found.unwrap_or_else(|| panic!("no {tool}")), bin.join(tool)).unwrap();
    }
    let rustc = |prints: &Path| {
        fs::write(bin.join("rustc"), format!("#!/bin/sh\necho {}\n", prints.display())).unwrap();
        fs::set_permissions(bin.join("rustc"), fs::Permissions::from_mode(0o755)).unwrap();
    };
    let (path, (other, cpu)) = (bin.to_str().unwrap(), OTHER);
    rustc(Path::new("/nonexistent"));
    let wanted = format!(
        "no release: Rust's library for {other} is missing: rustup target add {cpu}-unknown-linux-gnu, or leave --target \
         {other} away\n"
    );
    assert_eq!(scene.check(other, path).unwrap_err(), wanted);
    rustc(&bin);
    let package = cpu.replace('_', "-");
    let wanted =
        format!("no release: a C compiler for {other} is missing: apt-get install gcc-{package}-linux-gnu\n");
    assert_eq!(scene.check(other, path).unwrap_err(), wanted);
    scene.check(HOST, path).unwrap();
    symlink("/bin/true", bin.join(format!("{cpu}-linux-gnu-gcc"))).unwrap();
    let wanted = format!("no release: name --target {HOST} too: its program packs the images\n");
    assert_eq!(scene.check(other, path).unwrap_err(), wanted);
}

#[test]
fn a_wrong_argument_is_refused() {
    let scene = Scene::new("argument");
    let path = env::var("PATH").unwrap();
    assert_eq!(scene.check("riscv64", &path).unwrap_err(), "no release: --target is amd64 or arm64\n");
}
