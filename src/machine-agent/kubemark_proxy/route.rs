//! Classification of kubemark's requests by method and path.

use http::{HeaderMap, Method, header::UPGRADE};

/// Path of the Leases of all nodes.
const LEASES: [&str; 6] = ["apis", "coordination.k8s.io", "v1", "namespaces", "kube-node-lease", "leases"];

/// Class of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Upgrade of the connection.
    Upgrade,
    /// Creation of a Node.
    Register,
    /// Write of the own Node's status.
    Status,
    /// Write of the own Lease.
    Lease,
    /// Read or watch of Nodes.
    Nodes {
        /// True for a watch, whose response does not end.
        watch: bool,
    },
    /// Any other read.
    Read,
    /// Any other write.
    Write,
}

/// Classifies a request. `node` is the machine's own.
pub fn route(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap, node: &str) -> Route {
    if headers.contains_key(UPGRADE) || method == Method::CONNECT {
        return Route::Upgrade;
    }
    let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (method.as_str(), path.as_slice()) {
        ("POST", ["api", "v1", "nodes"]) => Route::Register,
        (_, ["api", "v1", "nodes"]) if is_read => Route::Nodes { watch: is_watch(query) },
        (_, ["api", "v1", "nodes", name]) if is_read && *name == node => Route::Nodes { watch: false },
        ("PATCH" | "PUT", ["api", "v1", "nodes", name, "status"]) if *name == node => Route::Status,
        ("POST", path) if path == LEASES => Route::Lease,
        ("PUT" | "DELETE", [leases @ .., name]) if leases == LEASES && *name == node => Route::Lease,
        _ if is_read => Route::Read,
        _ => Route::Write,
    }
}

fn is_watch(query: Option<&str>) -> bool {
    let mut parts = query.unwrap_or_default().split('&');
    parts.any(|part| matches!(part, "watch" | "watch=true" | "watch=1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelets_requests_are_told_apart() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let own_lease = &format!("{lease}/a");
        for (method, path, query, expected) in [
            (Method::POST, "/api/v1/nodes", None, Route::Register),
            (Method::GET, "/api/v1/nodes/a", Some("resourceVersion=0"), Route::Nodes { watch: false }),
            (Method::GET, "/api/v1/nodes/b", None, Route::Read),
            (
                Method::GET,
                "/api/v1/nodes",
                Some("fieldSelector=metadata.name%3Da&watch=true"),
                Route::Nodes { watch: true },
            ),
            (Method::GET, "/api/v1/nodes", Some("fieldSelector=x"), Route::Nodes { watch: false }),
            (Method::PATCH, "/api/v1/nodes/a/status", Some("timeout=10s"), Route::Status),
            (Method::PUT, "/api/v1/nodes/a/status", None, Route::Status),
            (Method::PATCH, "/api/v1/nodes/b/status", None, Route::Write),
            (Method::PATCH, "/api/v1/nodes/a", None, Route::Write),
            (Method::DELETE, "/api/v1/nodes/a", None, Route::Write),
            (Method::POST, lease, None, Route::Lease),
            (Method::PUT, own_lease, None, Route::Lease),
            (Method::DELETE, own_lease, None, Route::Lease),
            (Method::GET, own_lease, None, Route::Read),
            (Method::GET, "/api/v1/nodesets", None, Route::Read),
            (Method::PATCH, "/api/v1/namespaces/default/pods/p/status", None, Route::Write),
        ] {
            assert_eq!(route(&method, path, query, &HeaderMap::new(), "a"), expected, "{method} {path}");
        }
    }

    #[test]
    fn nothing_is_upgraded() {
        let headers = HeaderMap::from_iter([(UPGRADE, "SPDY/3.1".parse().unwrap())]);
        assert_eq!(route(&Method::GET, "/api/v1/pods", None, &headers, "a"), Route::Upgrade);
    }
}
