//! What is no release is refused, with what to do.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use crate::scene::{
    CHART, CONTACT, HOST, LOCK, OTHER, PLACEHOLDER, SECURITY, SIGNER, SIGNERS, Scene, TOOLS, VERSION, error,
};

pub fn the_versions_of_this_repository_agree() {
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

pub fn versions_and_files_that_disagree_are_refused() {
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

pub fn advisories_are_checked_for_these_crates_and_within_a_week() {
    let scene = Scene::new("advisories");
    let refused = |wanted: &str| {
        let said = scene.refused();
        assert!(
            said.starts_with("no release: the advisories were ") && said.ends_with(": run .ci/advisories\n"),
            "{said}"
        );
        assert!(said.contains(wanted), "{said}");
    };
    scene.check_advisories("now", "Cargo.toml");
    refused("checked for another Cargo.lock");
    scene.check_advisories("8 days ago", LOCK);
    refused("more than 7 days ago");
    fs::remove_file(scene.dir.join("target/advisories")).unwrap();
    refused("not checked");
    scene.check_advisories("6 days ago", LOCK);
    scene.check(HOST, &env::var("PATH").unwrap()).unwrap();
}

pub fn a_file_that_is_not_committed_is_refused() {
    let scene = Scene::new("file");
    fs::write(scene.dir.join("new.rs"), "").unwrap();
    assert_eq!(scene.refused(), "no release: there are changes that are not committed: git status\n");
}

pub fn what_a_build_lacks_is_named() {
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

pub fn a_wrong_argument_is_refused() {
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
