//! Versions of Kubernetes that kube-node runs on. docs/versions.md has the same range.

use anyhow::bail;
use k8s_openapi::apimachinery::pkg::version::Info;

/// First minor version in which docs/security.md holds: a kubelet lists the pods of its own Node alone (`AuthorizeNodeWithSelectors`),
/// and the token of a machine ends with its Node (`ServiceAccountTokenNodeBinding`).
pub const OLDEST: u32 = 32;
/// Newest minor version that is tested: that of the newest release of `kube-node up`.
pub const NEWEST: u32 = 37;

/// Kubelet version of hollow machines below an API server that does not tell its own.
const KUBELET: &str = "v1.36.3";

/// Kubelet version of hollow machines whose class names none: that of the API server, than which no kubelet may be newer.
pub fn of_kubelets(version: &Info) -> String {
    let version = &version.git_version;
    if version.starts_with('v') { version.clone() } else { KUBELET.to_owned() }
}

/// Place of an API server's version in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Older than the range: kube-node does not work.
    TooOld,
    /// In the range, or without a number.
    Supported,
    /// Newer than the range: kube-node is likely to work.
    Newer,
}

impl Support {
    /// Checks a version. Clouds add to the number of the minor version, as in `36+`.
    pub fn of(version: &Info) -> Self {
        let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
        match (version.major.as_str(), digits.parse::<u32>()) {
            ("1", Ok(minor)) if minor < OLDEST => Self::TooOld,
            ("1", Ok(minor)) if minor > NEWEST => Self::Newer,
            _ => Self::Supported,
        }
    }
}

/// Fails for a version that is too old. Returns a warning about one that is newer than any that is tested; the caller
/// prints or logs the warning.
pub fn check(version: &Info) -> anyhow::Result<Option<String>> {
    match Support::of(version) {
        Support::TooOld => bail!("the cluster is Kubernetes {}, and {}", version.git_version, needed()),
        Support::Newer => Ok(Some(newer(version))),
        Support::Supported => Ok(None),
    }
}

/// What to do about a version that is too old.
pub fn needed() -> String {
    format!("kube-node needs 1.{OLDEST} or later, to keep machines apart: upgrade the cluster")
}

/// What is said of a version beyond the range.
pub fn newer(version: &Info) -> String {
    format!(
        "{} is newer than 1.{NEWEST}, the newest Kubernetes that this kube-node is tested with",
        version.git_version
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_version_that_is_too_old_is_refused() {
        let version = |minor: &str| {
            let (major, minor) = ("1".to_owned(), minor.to_owned());
            Info { git_version: format!("v1.{minor}.4"), major, minor, ..Info::default() }
        };
        let error = check(&version("28")).unwrap_err().to_string();
        assert_eq!(
            error,
            "the cluster is Kubernetes v1.28.4, and kube-node needs 1.32 or later, to keep machines apart: upgrade the cluster"
        );
        assert_eq!(check(&version("32")).unwrap(), None);
        let warning = check(&version("99")).unwrap().unwrap();
        assert!(warning.starts_with("v1.99.4 is newer than 1."), "{warning}");
    }

    #[test]
    fn hollow_machines_report_the_version_of_their_api_server() {
        for (server, kubelet) in [("v1.34.2+k3s1", "v1.34.2+k3s1"), ("v1.37.0", "v1.37.0"), ("", "v1.36.3")] {
            let version = Info { git_version: server.to_owned(), ..Info::default() };
            assert_eq!(of_kubelets(&version), kubelet, "{server}");
        }
    }

    #[test]
    fn versions_are_checked_by_their_minor_number() {
        for (minor, support) in [
            ("31", Support::TooOld),
            ("32", Support::Supported),
            ("37+", Support::Supported),
            ("38", Support::Newer),
            ("100", Support::Newer),
            ("", Support::Supported),
        ] {
            let version = Info { major: "1".to_owned(), minor: minor.to_owned(), ..Info::default() };
            assert_eq!(Support::of(&version), support, "{minor}");
        }
    }
}
