//! Files of a release, read by the programs that read them elsewhere.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use kube_node_testing::go_program::GoProgram;

use crate::scene::{Scene, VERSION, bash, error};

pub fn krew_installs_the_plugin_by_its_manifest() {
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
pub fn install_yaml_has_the_image_of_the_release() {
    let scene = Scene::new("install");
    let script = fs::read_to_string(scene.dir.join(".ci/release")).unwrap();
    let line = script.lines().find(|line| line.ends_with(">\"$out/install.yaml\"")).expect("it is made");
    let place = |text: &str| script.find(text).unwrap();
    assert!(place(line) < place("sha256sum -- * >SHA256SUMS"), "it is among the sums");

    let folder = scene.folder(&[]);
    fs::create_dir_all(folder.join("here/dist")).unwrap();
    symlink(env!("CARGO_BIN_EXE_kube-node"), folder.join("here/dist/kube-node")).unwrap();
    let reference = format!("ghcr.io/me/kube-node:{VERSION}@sha256:{}", "0".repeat(64));
    let setting = format!("set -eu; tuple() {{ echo here; }}; host= work=. out=. reference={reference}");
    let made = bash(&folder, &format!("{setting}\n{line}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let yaml = fs::read_to_string(folder.join("install.yaml")).unwrap();
    assert_eq!(yaml.matches(&reference).count(), 2, "of the operator and of machines");
    for part in ["kind: CustomResourceDefinition\n", "kind: Deployment\n"] {
        assert!(yaml.contains(part), "{part}");
    }
}

/// docs/releases.md lists each file that the script makes.
pub fn the_page_of_releases_has_every_file() {
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

pub fn workflows_are_valid_and_name_actions_by_commit() {
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
