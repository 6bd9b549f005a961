//! Which watches a kubelet 1.36 holds (`pkg/kubelet` of Kubernetes, its features as they are by default): its Node, its pods,
//! Services that have an address, `RuntimeClasses`, `CSIDrivers`, and each Secret and `ConfigMap` that its pods mount.

use std::time::Duration;

/// The shortest life of a watch (client-go `tools/cache`); the longest is twice that.
const LEAST_LIFE: Duration = Duration::from_mins(5);
/// That of a watch of one object (`pkg/kubelet/util/manager`).
const LEAST_LIFE_OF_OBJECT: Duration = Duration::from_mins(30);

/// A watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Path of the list.
    pub path: String,
    /// What of it is meant, as a field selector in a query.
    pub selector: Option<String>,
    /// How long it is held at least before it is made anew; twice that at most.
    pub least_life: Duration,
}

/// A Secret or a `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    /// Plural of its kind.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl Watch {
    /// Those of a kubelet without its pods.
    #[must_use]
    pub fn of_kubelet(node: &str) -> [Self; 4] {
        let all = |path: &str| Self { path: path.to_owned(), selector: None, least_life: LEAST_LIFE };
        [
            Self { selector: Some(format!("metadata.name%3D{node}")), ..all("/api/v1/nodes") },
            Self { selector: Some("spec.clusterIP%21%3DNone".to_owned()), ..all("/api/v1/services") },
            all("/apis/node.k8s.io/v1/runtimeclasses"),
            all("/apis/storage.k8s.io/v1/csidrivers"),
        ]
    }

    /// That of the pods of a Node.
    #[must_use]
    pub fn pods(node: &str) -> Self {
        Self {
            path: "/api/v1/pods".to_owned(),
            selector: Some(format!("spec.nodeName%3D{node}")),
            least_life: LEAST_LIFE,
        }
    }

    /// That of one object.
    #[must_use]
    pub fn object(Object { kind, namespace, name }: &Object) -> Self {
        Self {
            path: format!("/api/v1/namespaces/{namespace}/{kind}"),
            selector: Some(format!("metadata.name%3D{name}")),
            least_life: LEAST_LIFE_OF_OBJECT,
        }
    }

    /// A watch that begins with all that there is (client-go's `WatchListClient`), or goes on after a version.
    #[must_use]
    pub fn request(&self, since: Option<&str>, life: Duration) -> String {
        let seconds = life.as_secs();
        let selector = self.selected();
        let from = match since {
            Some(version) => format!("resourceVersion={version}"),
            None => "resourceVersionMatch=NotOlderThan&sendInitialEvents=true".to_owned(),
        };
        format!("{}?allowWatchBookmarks=true&{selector}{from}&timeoutSeconds={seconds}&watch=true", self.path)
    }

    /// A list, for a server that has no watches which begin with one.
    #[must_use]
    pub fn list(&self) -> String {
        format!("{}?{}resourceVersion=0", self.path, self.selected())
    }

    fn selected(&self) -> String {
        self.selector.as_ref().map(|selector| format!("fieldSelector={selector}&")).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_a_kubelet() {
        let life = Duration::from_secs(301);
        assert_eq!(
            Watch::pods("a").request(None, life),
            "/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Da&\
             resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=301&watch=true"
        );
        let object = Object { kind: "configmaps", namespace: "ns".into(), name: "kube-root-ca.crt".into() };
        assert_eq!(
            Watch::object(&object).request(Some("7"), life),
            "/api/v1/namespaces/ns/configmaps?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dkube-root-ca.crt&\
             resourceVersion=7&timeoutSeconds=301&watch=true"
        );
        let [_, services, ..] = Watch::of_kubelet("a");
        assert_eq!(
            services.list(),
            "/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone&resourceVersion=0"
        );
    }
}
