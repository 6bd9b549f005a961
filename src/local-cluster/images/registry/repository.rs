//! Name of a repository in a registry: `REGISTRY/NAME`, without a tag.

use std::fmt;

use http::uri::Authority;
use kube_ext::proxy::is_loopback;
use oci_client::Reference;

/// A repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    registry: String,
    name: String,
}

const FORM: &str = "write REGISTRY/NAME, such as ghcr.io/me/kube-node or 127.0.0.1:5000/kube-node: \
     REGISTRY is a host, NAME has lower-case letters, digits and single '.', '_', '-' and '/' between them";

impl Repository {
    /// Parses `REGISTRY/NAME`; the error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains("://") {
            return Err("leave http:// and https:// away: --plain-http says that a registry speaks http");
        }
        let (registry, name) = text.split_once('/').ok_or(FORM)?;
        if name.contains([':', '@']) {
            return Err("the name has no tag and no digest here: --tag gives the tag");
        }
        let parsed = Reference::try_from(text).map_err(|_| FORM)?;
        // A first part that is no host is a name on Docker Hub for docker, and more often a mistake.
        if parsed.registry() != registry {
            return Err(FORM);
        }
        Ok(Self { registry: registry.to_owned(), name: parsed.repository().to_owned() })
    }

    /// Host and port of the registry.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Name inside the registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True for `localhost` and loopback addresses, where docker and containerd speak http as well.
    pub(super) fn is_loopback(&self) -> bool {
        self.registry.parse().is_ok_and(|authority: Authority| is_loopback(authority.host()))
    }

    /// The client's name for what a tag or a digest names here. A digest stands where a tag does: for a reference with a
    /// digest the client panics if the answer has no `Location`, as that of ECR.
    pub(super) fn reference(&self, tag: &str) -> Reference {
        Reference::with_tag(self.registry.clone(), self.name.clone(), tag.to_owned())
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_host_and_no_tag() {
        for text in ["ghcr.io/me/kube-node", "127.0.0.1:5000/a", "localhost/x/y", "docker.io/me/kube-node"] {
            assert_eq!(Repository::parse(text).unwrap().to_string(), text);
        }
        for text in ["kube-node", "me/kube-node", "ghcr.io/", "ghcr.io/Me/x", "ghcr.io/a b", "/a", ""] {
            assert_eq!(Repository::parse(text), Err(FORM), "{text}");
        }
        assert!(Repository::parse("https://ghcr.io/me/x").unwrap_err().contains("--plain-http"));
        for text in ["ghcr.io/me/x:1", "ghcr.io/me/x@sha256:00"] {
            assert!(Repository::parse(text).unwrap_err().contains("--tag"), "{text}");
        }
    }

    #[test]
    fn loopback_is_told_from_other_hosts() {
        let is_loopback = |text| Repository::parse(text).unwrap().is_loopback();
        assert!(
            ["localhost/a", "localhost:5000/a", "127.0.0.1:5000/a", "127.9.9.9/a"]
                .into_iter()
                .all(is_loopback)
        );
        assert!(!["ghcr.io/a", "10.127.7.1:5000/a", "localhost.example.com/a"].into_iter().any(is_loopback));
    }
}
