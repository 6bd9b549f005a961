//! Programs in folders: which are there, and of which release.

use std::{os::unix::fs::PermissionsExt, path::Path};

/// Major and minor release as a program reports it: `Kubernetes v1.36.3`, `etcd Version: 3.6.8`, and
/// `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1`.
pub(super) fn release_in(text: &str) -> Option<(u32, u32)> {
    text.split_ascii_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
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
    }
}
