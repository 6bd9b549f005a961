//! Programs in folders: which are there, and of which release.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

/// Major and minor release as a program reports it: `Kubernetes v1.36.3`, `etcd Version: 3.6.8`,
/// `go version go1.27rc1 linux/amd64`, and
/// `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1`.
pub(super) fn release_in(text: &str) -> Option<(u32, u32)> {
    release_of(version_in(text)?)
}

/// The first version in such a text, without its prefix.
fn version_in(text: &str) -> Option<&str> {
    let mut words =
        text.split_ascii_whitespace().map(|word| word.trim_start_matches("go").trim_start_matches('v'));
    words.find(|word| release_of(word).is_some())
}

fn release_of(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.split_once('.')?;
    let minor = rest.split(|char: char| !char.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The version that a program of a control plane reports.
pub(super) fn reported_version(program: &Path) -> Option<String> {
    let arguments: &[&str] =
        if program.ends_with("kubectl") { &["version", "--client"] } else { &["--version"] };
    let output = Command::new(program).args(arguments).output().ok()?;
    version_in(&String::from_utf8_lossy(&output.stdout)).map(str::to_owned)
}

/// Path of the program of kube-node itself.
pub(super) fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the program of kube-node itself")
}

/// Programs that a folder lacks.
pub(super) fn missing(dir: &Path, names: &[&'static str]) -> Vec<&'static str> {
    names.iter().copied().filter(|name| !is_executable(&dir.join(name))).collect()
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        let debian = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1";
        assert_eq!(release_in(debian), Some((1, 6)));
        let upstream =
            "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376";
        assert_eq!(release_in(upstream), Some((2, 1)));
        assert_eq!(release_in("containerd devel"), None);
        assert_eq!(release_in("Client Version: v1.36.3\nKustomize Version: v5.7.1"), Some((1, 36)));
        assert_eq!(release_in("etcd Version: 3.6.8\nGit SHA: abc\nGo Version: go1.26"), Some((3, 6)));
        assert_eq!(release_in("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(release_in("go version go1.27rc1 linux/arm64"), Some((1, 27)));
        assert_eq!(release_in("go version go1.9 linux/amd64"), Some((1, 9)));
        assert_eq!(release_in("go version devel +abc"), None);
    }
}
