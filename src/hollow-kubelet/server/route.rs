//! Routes of a kubelet's HTTP server.

use std::borrow::Cow;

use http::Uri;

/// A container of a pod, as a path names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// `namespace/name` of the pod.
    pub pod: String,
    /// UID of the pod, if the path has it.
    pub uid: Option<&'a str>,
    /// Name of the container; empty if the path names only a pod.
    pub container: &'a str,
}

/// Route of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// Health of the kubelet.
    Healthz,
    /// Pods of the machine.
    Pods,
    /// Log of a container.
    Logs(Target<'a>),
    /// Command in a container, with streams.
    Exec(Target<'a>),
    /// Streams of a container.
    Attach(Target<'a>),
    /// Command in a container, without streams.
    Run(Target<'a>),
    /// Connections to a pod.
    PortForward(Target<'a>),
    /// Metrics of the kubelet.
    Metrics,
    /// Resource usage of machine and pods, for Prometheus.
    ResourceMetrics,
    /// Resource usage of machine and pods.
    Summary,
    /// Path below this root that kubelets serve and hollow kubelets do not.
    Unserved(&'a str),
    /// Unknown path below this root.
    Unknown(&'a str),
}

impl<'a> Route<'a> {
    /// Route of a path. Object names need no percent signs: a path with one names nothing.
    #[must_use]
    pub fn of(path: &'a str) -> Self {
        let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
        // A slash at the end has no meaning; an extra one elsewhere makes another path.
        let parts = parts.strip_suffix(&[""]).unwrap_or(&parts);
        let container = |rest: &[&'a str]| match *rest {
            [namespace, pod, container] => Some(target(namespace, pod, None, container)),
            [namespace, pod, uid, container] => Some(target(namespace, pod, Some(uid), container)),
            _ => None,
        };
        let pod = |rest: &[&'a str]| match *rest {
            [namespace, pod] => Some(target(namespace, pod, None, "")),
            [namespace, pod, uid] => Some(target(namespace, pod, Some(uid), "")),
            _ => None,
        };
        let root = parts.first().copied().unwrap_or_default();
        let route = match parts {
            ["healthz"] | ["healthz", "ping" | "log" | "syncloop"] => Some(Self::Healthz),
            ["pods"] => Some(Self::Pods),
            ["containerLogs", namespace, pod, container] => {
                Some(Self::Logs(target(namespace, pod, None, container)))
            }
            ["exec", rest @ ..] => container(rest).map(Self::Exec),
            ["attach", rest @ ..] => container(rest).map(Self::Attach),
            ["run", rest @ ..] => container(rest).map(Self::Run),
            ["portForward", rest @ ..] => pod(rest).map(Self::PortForward),
            ["metrics"] => Some(Self::Metrics),
            ["metrics", "resource"] => Some(Self::ResourceMetrics),
            ["stats", "summary"] => Some(Self::Summary),
            ["metrics", "cadvisor" | "probes" | "slis"]
            | ["configz" | "flagz" | "statusz" | "runningpods" | "spec" | "stats"]
            | ["checkpoint" | "logs" | "debug", ..] => Some(Self::Unserved(root)),
            _ => None,
        };
        route.unwrap_or(Self::Unknown(root))
    }

    /// Subresources of the Node, one of which must be granted, as in kubelet 1.36
    /// (pkg/kubelet/server/auth.go).
    #[must_use]
    pub fn subresources(&self) -> &'static [&'static str] {
        let root = match self {
            Self::Healthz => "healthz",
            Self::Pods => "pods",
            Self::Metrics | Self::ResourceMetrics => "metrics",
            Self::Summary => "stats",
            Self::Unserved(root) | Self::Unknown(root) => root,
            Self::Logs(_) | Self::Exec(_) | Self::Attach(_) | Self::Run(_) | Self::PortForward(_) => "",
        };
        match root {
            "pods" | "runningpods" => &["pods", "proxy"],
            "healthz" => &["healthz", "proxy"],
            "configz" => &["configz", "proxy"],
            "flagz" => &["configz"],
            "stats" => &["stats"],
            "metrics" => &["metrics"],
            "logs" => &["log"],
            "checkpoint" => &["checkpoint"],
            "statusz" => &["statusz"],
            _ => &["proxy"],
        }
    }

    /// Name of the route in metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Pods => "pods",
            Self::Logs(_) => "containerLogs",
            Self::Exec(_) => "exec",
            Self::Attach(_) => "attach",
            Self::Run(_) => "run",
            Self::PortForward(_) => "portForward",
            Self::Metrics => "metrics",
            Self::ResourceMetrics => "metrics-resource",
            Self::Summary => "stats-summary",
            Self::Unserved(_) | Self::Unknown(_) => "other",
        }
    }
}

fn target<'a>(namespace: &str, pod: &str, uid: Option<&'a str>, container: &'a str) -> Target<'a> {
    Target { pod: format!("{namespace}/{pod}"), uid, container }
}

/// The query of a request.
#[derive(Debug, Default)]
pub struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Query of a URI.
    #[must_use]
    pub fn of(uri: &'a Uri) -> Self {
        Self(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect())
    }

    /// All keys with their values.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// All values of a key.
    pub fn all(&self, key: &str) -> Vec<String> {
        self.pairs().filter(|(own, _)| *own == key).map(|(_, value)| value.to_owned()).collect()
    }

    /// Returns true if a key is set to true, as the API server writes it.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.pairs().any(|(own, value)| own == key && ["1", "true"].contains(&value))
    }

    /// First value of a key.
    #[must_use]
    pub fn first(&self, key: &str) -> Option<&str> {
        self.pairs().find(|(own, _)| *own == key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_a_kubelets() {
        let main = target("default", "web", None, "main");
        for (path, route) in [
            ("/healthz", Route::Healthz),
            ("/pods", Route::Pods),
            ("/pods/", Route::Pods),
            ("/containerLogs/default/web/main", Route::Logs(main.clone())),
            ("/exec/default/web/main", Route::Exec(main.clone())),
            ("/exec/default/web/u-1/main", Route::Exec(Target { uid: Some("u-1"), ..main.clone() })),
            ("/attach/default/web/main", Route::Attach(main.clone())),
            ("/run/default/web/main", Route::Run(main)),
            ("/portForward/default/web", Route::PortForward(target("default", "web", None, ""))),
            ("/metrics", Route::Metrics),
            ("/metrics/resource", Route::ResourceMetrics),
            ("/stats/summary", Route::Summary),
            ("/logs/", Route::Unserved("logs")),
            ("/configz", Route::Unserved("configz")),
            ("/metrics/../exec/default/web/main", Route::Unknown("metrics")),
            ("/exec/default/web", Route::Unknown("exec")),
            ("//metrics", Route::Unknown("")),
            ("//exec/default/web/main", Route::Unknown("")),
            ("/metrics//", Route::Unknown("metrics")),
            ("//", Route::Unknown("")),
            ("/", Route::Unknown("")),
            ("", Route::Unknown("")),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    #[test]
    fn what_must_be_granted_is_what_a_kubelet_asks() {
        for (path, asked) in [
            ("/pods", &["pods", "proxy"][..]),
            ("/pods/", &["pods", "proxy"]),
            ("/podsandmore", &["proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/syncloop", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/flagz", &["configz"]),
            ("/metrics", &["metrics"]),
            ("/metrics/resource", &["metrics"]),
            ("/metrics/none", &["metrics"]),
            ("//metrics", &["proxy"]),
            ("/stats/summary", &["stats"]),
            ("/logs/", &["log"]),
            ("/containerLogs/default/a/b", &["proxy"]),
            ("/exec/default/a/b", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
        ] {
            assert_eq!(Route::of(path).subresources(), asked, "{path}");
        }
    }

    #[test]
    fn a_query_is_decoded() {
        let uri: Uri = "/exec/a/b/c?command=sh&command=-c&command=echo+a%26b&input=1&tty=0".parse().unwrap();
        let query = Query::of(&uri);
        assert_eq!(query.all("command"), ["sh", "-c", "echo a&b"]);
        assert!(query.has("input") && !query.has("tty") && !query.has("output"));
        assert_eq!(query.first("command"), Some("sh"));
    }
}
