//! Signatures, by the commands that users verify them with, and where the files come from.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::scene::{SIGNERS, Scene, VERSION, bash, error};

/// What docs/releases.md tells users to verify by: of the signature, and of the files.
fn verification() -> [String; 2] {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/releases.md")).unwrap();
    ["$ ssh-keygen -Y verify ", "$ sha256sum --check "].map(|begin| {
        let line = page.lines().find(|line| line.starts_with(begin)).expect("the command is there");
        line.trim_start_matches("$ ").to_owned()
    })
}

pub fn a_signature_is_good_by_a_key_that_users_trust_and_for_these_files() {
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

    // A commit that adds a key does not make it one that users trust: they have the signers of the release before.
    scene.replace(SIGNERS, &public, "ssh-ed25519 AAAA\n");
    scene.commit();
    scene.git(&["tag", "v0.0.1"]);
    scene.replace(SIGNERS, "ssh-ed25519 AAAA\n", &public);
    scene.commit();
    let refused = error(&scene.script("sign", &[key]));
    assert!(
        refused.contains("the key is not in .ci/release-signers of v0.0.1: sign with one that is"),
        "{refused}"
    );
    assert!(!folder.join("SHA256SUMS.sig").exists());
    scene.git(&["tag", "v0.0.2"]);
    assert!(scene.script("sign", &[key]).status.success());

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

pub fn provenance_names_each_file_the_image_and_the_commit() {
    let scene = Scene::new("provenance");
    let folder = scene.folder(&[("a.tar.gz", "a program"), ("install.yaml", "objects")]);
    let digest = "1".repeat(64);
    let image = format!("ghcr.io/me/kube-node:{VERSION}@sha256:{digest}");
    // By the script's own lines.
    let script = fs::read_to_string(scene.dir.join(".ci/release")).unwrap();
    let lines: Vec<_> = script.lines().filter(|line| line.contains("provenance.json")).collect();
    let setting = format!(
        "set -eu; out={} work=$PWD/target version={VERSION} reference={image}; targets=(amd64 arm64)",
        folder.display()
    );
    let made = bash(&scene.dir, &format!("{setting}\n{}", lines.join("\n")));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made = fs::read(folder.join(format!("kube-node-{VERSION}.provenance.json"))).unwrap();
    let statement: Value = serde_json::from_slice(&made).unwrap();
    let names: Vec<_> =
        statement["subject"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a.tar.gz", "install.yaml", &format!("ghcr.io/me/kube-node:{VERSION}")]);
    let sums = bash(&folder, "sha256sum a.tar.gz | cut -c 1-64").stdout;
    assert_eq!(statement["subject"][0]["digest"]["sha256"], String::from_utf8(sums).unwrap().trim());
    assert_eq!(statement["subject"][2]["digest"]["sha256"], digest);
    let build = &statement["predicate"]["buildDefinition"];
    assert_eq!(build["externalParameters"]["targets"], json!(["amd64", "arm64"]));
    let commit = String::from_utf8(bash(&scene.dir, "git rev-parse HEAD").stdout).unwrap();
    assert_eq!(build["resolvedDependencies"][0]["digest"]["gitCommit"], commit.trim());
}
