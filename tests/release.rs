//! The release script refuses what is no release, and says what to do. Making one takes minutes and is left to whoever
//! releases; what it would make it from is looked at here: the versions that the repository really has. Signatures, the manifest
//! for krew and the workflows are made and read here by the programs that read them elsewhere.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
};

use kube_node_testing::{go_program::GoProgram, harness, trials};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CHART: &str = "charts/kube-node/Chart.yaml";
const SECURITY: &str = "SECURITY.md";
/// Stands in SECURITY.md until a maintainer has written an address there.
const PLACEHOLDER: &str = "SECURITY-CONTACT";
const CONTACT: &str = "security@example.com";
const SIGNERS: &str = ".ci/release-signers";
const SIGNER: &str = "release namespaces=\"kube-node-release\" ssh-ed25519 AAAA\n";
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
        for file in [".ci/release", ".ci/krew", ".ci/sign", "Cargo.toml", CHART, "CHANGELOG.md", SECURITY] {
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

    /// Runs another of its scripts.
    fn script(&self, name: &str, args: &[&str]) -> Output {
        Command::new(self.dir.join(".ci").join(name)).args(args).output().unwrap()
    }

    /// A folder below `target` with such files, as a release has them.
    fn folder(&self, files: &[(&str, &str)]) -> PathBuf {
        let folder = self.dir.join(format!("target/release-{VERSION}"));
        fs::create_dir_all(&folder).unwrap();
        for (name, content) in files {
            fs::write(folder.join(name), content).unwrap();
        }
        folder
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
        (
            "signers",
            SIGNERS,
            SIGNER.to_owned(),
            String::new(),
            format!("{SIGNERS} names no key: write the line for that of whoever signs the release there"),
        ),
    ] {
        let scene = Scene::new(name);
        scene.replace(file, &from, &to);
        assert_eq!(scene.refused(), "no release: there are changes that are not committed: git status\n");
        scene.commit();
        assert_eq!(scene.refused(), format!("no release: {wanted}\n"), "{name}");
    }
}

fn a_file_that_is_not_committed_is_refused() {
    let scene = Scene::new("file");
    fs::write(scene.dir.join("new.rs"), "").unwrap();
    assert_eq!(scene.refused(), "no release: there are changes that are not committed: git status\n");
}

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

fn a_wrong_argument_is_refused() {
    let scene = Scene::new("argument");
    let path = env::var("PATH").unwrap();
    assert_eq!(scene.check("riscv64", &path).unwrap_err(), "no release: --target is amd64 or arm64\n");
    let output = scene.script("release", &["--download-url", "example.com"]);
    assert_eq!(error(&output), "no release: --download-url begins with https://\n");
    for (image, wanted) in [
        ("ghcr.io/me/kube-node:1", "--image has no tag and no digest: REGISTRY/NAME"),
        ("kube-node", "--image is REGISTRY/NAME"),
    ] {
        let output = scene.script("release", &["--image", image]);
        assert_eq!(error(&output), format!("no release: {wanted}\n"), "{image}");
    }
}

fn error(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command of a shell in a folder.
fn bash(folder: &Path, command: &str) -> Output {
    Command::new("bash").args(["-c", command]).current_dir(folder).output().unwrap()
}

/// What docs/releases.md tells users to verify by: of the signature, and of the files.
fn verification() -> [String; 2] {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/releases.md")).unwrap();
    ["$ ssh-keygen -Y verify ", "$ sha256sum --check "].map(|begin| {
        let line = page.lines().find(|line| line.starts_with(begin)).expect("the command is there");
        line.trim_start_matches("$ ").to_owned()
    })
}

fn a_signature_is_good_by_a_key_that_users_trust_and_for_these_files() {
    let scene = Scene::new("sign");
    let folder = scene.folder(&[("kube-node.tar", "a program")]);
    assert!(bash(&folder, "sha256sum -- * >SHA256SUMS").status.success());
    let key = scene.dir.join(".git/key");
    let key = key.to_str().unwrap();
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", key]).status();
    assert!(made.expect("ssh-keygen, of the package openssh-client").success());

    let refused = error(&scene.script("sign", &[key]));
    let wanted =
        format!("not signed: the key is not in {SIGNERS}: commit a line for it, with what {key}.pub has\n");
    assert!(refused.contains(&wanted), "{refused}");
    assert!(!folder.join("SHA256SUMS.sig").exists());

    let public = fs::read_to_string(format!("{key}.pub")).unwrap();
    scene.replace(SIGNERS, "ssh-ed25519 AAAA\n", &public);
    let signed = scene.script("sign", &[key]);
    assert!(signed.status.success(), "{}", String::from_utf8_lossy(&signed.stderr));
    // As users do, with a copy of the file of signers.
    fs::copy(scene.dir.join(SIGNERS), folder.join("release-signers")).unwrap();
    let [signature, files] = verification();
    let good = bash(&folder, &signature);
    let said = String::from_utf8(good.stdout).unwrap();
    assert!(said.starts_with("Good \"kube-node-release\" signature for release with ED25519 key "), "{said}");
    assert!(bash(&folder, &files).status.success());

    fs::write(folder.join("kube-node.tar"), "another program").unwrap();
    assert!(!bash(&folder, &files).status.success());
    assert!(
        error(&scene.script("sign", &[key]))
            .contains("are not those of SHA256SUMS: make the release again\n")
    );
    assert!(bash(&folder, "sha256sum kube-node.tar >SHA256SUMS").status.success());
    assert!(!bash(&folder, &signature).status.success(), "other sums have no signature");
    assert_eq!(
        error(&scene.script("sign", &["/nonexistent"])),
        "not signed: name the file of an SSH key: .ci/sign KEY [FOLDER]\n"
    );
}

fn krew_installs_the_plugin_by_its_manifest() {
    const KREW: GoProgram = GoProgram {
        name: "krew",
        folder: "tests/krew",
        module: "sigs.k8s.io/krew",
        package: "sigs.k8s.io/krew/cmd/krew",
    };
    let scene = Scene::new("krew");
    let script = "#!/bin/sh\necho \"${0##*/}\"\n";
    let folder = scene.folder(&[("kube-node", script), ("kube-node-machine", script), ("LICENSE", "")]);
    let archive = |target: &str| format!("kube-node-{VERSION}-linux-{target}.tar.gz");
    for target in ["amd64", "arm64"] {
        // Each has another sum.
        let pack = format!("chmod +x kube-node* && echo {target} >LICENSE && tar -czf {} *", archive(target));
        assert!(bash(&folder, &pack).status.success());
    }
    let url = "https://example.com/download";
    let manifest = scene.script("krew", &[VERSION, folder.to_str().unwrap(), url]).stdout;
    fs::write(folder.join("kube-node.yaml"), &manifest).unwrap();
    let manifest = String::from_utf8(manifest).unwrap();
    let krew = KREW.path().expect("krew is built");
    let install = |target: &str, from: &str| {
        let root = scene.dir.join(format!("target/krew-{target}-{from}"));
        let output = Command::new(&krew)
            .args(["install", "--manifest", "kube-node.yaml", "--archive", &archive(from)])
            .current_dir(&folder)
            .env("KREW_ROOT", &root)
            .env("KREW_OS", "linux")
            .env("KREW_ARCH", target)
            .env("KREW_NO_UPGRADE_CHECK", "1")
            .output()
            .unwrap();
        (output, root)
    };
    for target in ["amd64", "arm64"] {
        assert!(manifest.contains(&format!("\n      uri: {url}/{}\n", archive(target))), "{manifest}");
        let (output, root) = install(target, target);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plugin = Command::new(root.join("bin/kubectl-kube_node")).output().unwrap();
        assert_eq!(String::from_utf8(plugin.stdout).unwrap(), "kubectl-kube_node\n");
        let beside = root.join(format!("store/kube-node/v{VERSION}/kube-node-machine"));
        assert!(beside.exists(), "machines have their own program");
    }
    let said = error(&install("amd64", "arm64").0);
    assert!(said.contains("checksum does not match"), "{said}");
}

/// The script's own line that makes `install.yaml`, and the file that it makes.
fn install_yaml_has_the_image_of_the_release() {
    let scene = Scene::new("install");
    let script = fs::read_to_string(scene.dir.join(".ci/release")).unwrap();
    let line = script.lines().find(|line| line.ends_with(">\"$out/install.yaml\"")).expect("it is made");
    let place = |text: &str| script.find(text).unwrap();
    assert!(place(line) < place("sha256sum -- * >SHA256SUMS"), "it is among the sums");

    let folder = scene.folder(&[]);
    fs::create_dir_all(folder.join("here/dist")).unwrap();
    symlink(env!("CARGO_BIN_EXE_kube-node"), folder.join("here/dist/kube-node")).unwrap();
    let image = "ghcr.io/me/kube-node";
    let setting =
        format!("set -eu; tuple() {{ echo here; }}; host= work=. out=. image={image} version={VERSION}");
    let made = bash(&folder, &format!("{setting}\n{line}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let yaml = fs::read_to_string(folder.join("install.yaml")).unwrap();
    assert_eq!(yaml.matches(&format!("{image}:{VERSION}")).count(), 2, "of the operator and of machines");
    for part in ["kind: CustomResourceDefinition\n", "kind: Deployment\n"] {
        assert!(yaml.contains(part), "{part}");
    }
}

/// docs/releases.md lists each file that the script makes.
fn the_page_of_releases_has_every_file() {
    let read = |path| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (script, page) = (read(".ci/release"), read("docs/releases.md"));
    let rows: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut files = 0;
    for rest in script.split("\"$out/").skip(1) {
        let name = rest.split('"').next().unwrap();
        // A name with a variable, such as `$name.tar.gz`, is known by what follows the variable.
        let is_listed = match name.rsplit_once('$') {
            None => rows.contains(&name),
            Some((_, variable)) => {
                let ending = variable.trim_start_matches(char::is_alphanumeric);
                rows.iter().any(|row| row.ends_with(ending))
            }
        };
        assert!(is_listed, "docs/releases.md has no row for {name}");
        files += 1;
    }
    assert!(files > 5, "{files}");
}

fn workflows_are_valid_and_name_actions_by_commit() {
    const ACTIONLINT: GoProgram = GoProgram {
        name: "actionlint",
        folder: "tests/actionlint",
        module: "github.com/rhysd/actionlint",
        package: "github.com/rhysd/actionlint/cmd/actionlint",
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    // Programs that it calls if they are there would make another test of it.
    let output = Command::new(ACTIONLINT.path().expect("actionlint is built"))
        .args(["-no-color", "-shellcheck=", "-pyflakes="])
        .args(&files)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let mut actions = 0;
    for file in files {
        for line in fs::read_to_string(&file).unwrap().lines() {
            let Some((_, action)) = line.split_once("uses: ") else { continue };
            let (_, commit) = action.split_once('@').unwrap();
            let (commit, version) = commit.split_once(" # v").expect("a version, for people");
            let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(is_commit && !version.is_empty(), "{}: {line}", file.display());
            actions += 1;
        }
    }
    assert!(actions > 0);
}

fn main() -> ExitCode {
    let signing = trials! { blocking a_signature_is_good_by_a_key_that_users_trust_and_for_these_files };
    let others = trials! {
        blocking the_versions_of_this_repository_agree,
        blocking what_does_not_agree_is_refused,
        blocking a_file_that_is_not_committed_is_refused,
        blocking what_a_build_lacks_is_named,
        blocking a_wrong_argument_is_refused,
        blocking krew_installs_the_plugin_by_its_manifest,
        blocking install_yaml_has_the_image_of_the_release,
        blocking the_page_of_releases_has_every_file,
        blocking workflows_are_valid_and_name_actions_by_commit,
    };
    harness::run_with_program("release", ("ssh-keygen", "openssh-client"), signing, others)
}
