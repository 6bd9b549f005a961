//! Kubernetes releases that `up` runs, each with the etcd that goes with it.
//!
//! Another one is pinned by `modules/update.sh` and a line here; docs/releases.md has the steps.

use std::fmt;

use super::{
    executable::release_in,
    modules::{
        ETCD_3_6, ETCD_3_7, KUBERNETES_1_35, KUBERNETES_1_36, KUBERNETES_1_37, KUBERNETES_VERSION, Module,
    },
};

/// A release of Kubernetes.
#[derive(Debug)]
pub struct Release {
    pub(super) kubernetes: &'static Module,
    /// etcd of the minor release that this Kubernetes names in its build/dependencies.yaml.
    pub(super) etcd: &'static Module,
}

/// All releases, oldest first.
pub static RELEASES: [Release; 3] = [
    Release { kubernetes: &KUBERNETES_1_35, etcd: &ETCD_3_6 },
    Release { kubernetes: &KUBERNETES_1_36, etcd: &ETCD_3_6 },
    Release { kubernetes: &KUBERNETES_1_37, etcd: &ETCD_3_7 },
];

impl Default for &'static Release {
    /// The release of [`KUBERNETES_VERSION`].
    fn default() -> Self {
        RELEASES.iter().find(|release| release.version() == KUBERNETES_VERSION).unwrap_or(&RELEASES[0])
    }
}

impl Release {
    /// The release that a user names: `1.37`, `v1.37` or `1.37.2`.
    pub fn parse(text: &str) -> Result<&'static Self, String> {
        let named = text.strip_prefix('v').unwrap_or(text);
        let found = RELEASES.iter().find(|release| [release.minor(), release.version()].contains(&named));
        found
            .ok_or_else(|| format!("there are {}; --binaries takes programs of other releases", Self::list()))
    }

    /// The release of the same minor version.
    pub(super) fn like(version: &str) -> Option<&'static Self> {
        RELEASES.iter().find(|release| release_in(release.version()) == release_in(version))
    }

    /// All versions, as text.
    pub(super) fn list() -> String {
        RELEASES.each_ref().map(Self::version).join(", ")
    }

    /// Kubernetes version, such as `1.36.3`.
    pub fn version(&self) -> &'static str {
        self.kubernetes.version
    }

    /// Minor version, such as `1.36`.
    pub fn minor(&self) -> &'static str {
        self.version().rsplit_once('.').map_or(self.version(), |(minor, _)| minor)
    }

    /// etcd version, such as `3.6.8`.
    pub fn etcd(&self) -> &'static str {
        self.etcd.version
    }

    /// Modules of all programs of the control plane and of the kubelet.
    pub(super) fn modules(&self) -> [&'static Module; 2] {
        [self.etcd, self.kubernetes]
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_three_names() {
        for name in ["1.37", "v1.37", "1.37.2", "v1.37.2"] {
            assert_eq!(Release::parse(name).unwrap().version(), "1.37.2", "{name}");
        }
        for other in ["1.34", "1.37.1", "1", "", "latest", "vv1.37"] {
            let error = Release::parse(other).unwrap_err();
            assert!(error.starts_with("there are 1.35.4, 1.36.3, 1.37.2;"), "{other}: {error}");
        }
    }

    #[test]
    fn the_default_is_one_of_them() {
        assert_eq!(<&Release>::default().version(), KUBERNETES_VERSION);
        assert_eq!(Release::like("1.35.0").unwrap().version(), "1.35.4");
        assert!(Release::like("1.34.9").is_none());
    }
}
