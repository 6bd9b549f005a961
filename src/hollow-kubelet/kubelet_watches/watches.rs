//! Watches of a kubelet 1.36 (`pkg/kubelet` of Kubernetes, default features): its Node, its pods, Services
//! that have an address, `RuntimeClasses`, `CSIDrivers`, and each Secret and `ConfigMap` that its pods mount.

use std::time::Duration;

use kube_ext::watch::{InitialList, WatchRequest};

/// Minimum lifetime of a watch (client-go `tools/cache`); the maximum is twice that.
const LEAST_LIFE: Duration = Duration::from_mins(5);
/// Minimum lifetime of a watch of one object (`pkg/kubelet/util/manager`).
const LEAST_LIFE_OF_OBJECT: Duration = Duration::from_mins(30);

/// A Secret or a `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    /// Plural of the kind.
    pub kind: &'static str,
    /// Namespace of the object.
    pub namespace: Box<str>,
    /// Name of the object.
    pub name: Box<str>,
}

/// Watches of a kubelet, without those of pods and of their mounts.
pub fn of_kubelet(node: &str) -> [WatchRequest; 4] {
    [
        one("/api/v1/nodes", Some(format!("metadata.name={node}"))),
        one("/api/v1/services", Some("spec.clusterIP!=None".to_owned())),
        one("/apis/node.k8s.io/v1/runtimeclasses", None),
        one("/apis/storage.k8s.io/v1/csidrivers", None),
    ]
}

/// Watch of the pods of a Node.
pub fn of_pods(node: &str) -> WatchRequest {
    one("/api/v1/pods", Some(format!("spec.nodeName={node}")))
}

/// Watch of one object.
pub fn of_object(Object { kind, namespace, name }: &Object) -> WatchRequest {
    let path = format!("/api/v1/namespaces/{namespace}/{kind}");
    WatchRequest { min_timeout: LEAST_LIFE_OF_OBJECT, ..one(&path, Some(format!("metadata.name={name}"))) }
}

fn one(path: &str, field_selector: Option<String>) -> WatchRequest {
    WatchRequest {
        path: path.to_owned(),
        field_selector,
        label_selector: None,
        initial_list: InitialList::Stream,
        min_timeout: LEAST_LIFE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_a_kubelet() {
        let life = Duration::from_secs(301);
        assert_eq!(
            of_pods("a").request(None, life),
            "/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Da&\
             resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=301&watch=true"
        );
        let object = Object { kind: "configmaps", namespace: "ns".into(), name: "kube-root-ca.crt".into() };
        assert_eq!(
            of_object(&object).request(Some("7"), life),
            "/api/v1/namespaces/ns/configmaps?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dkube-root-ca.crt&\
             resourceVersion=7&timeoutSeconds=301&watch=true"
        );
        let [_, services, ..] = of_kubelet("a");
        assert_eq!(
            services.list(None, None),
            "/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone&resourceVersion=0"
        );
    }
}
