//! What the chart looks up in the cluster, in one that has nothing but that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::Arc,
    thread,
};

use axum::{Router, extract::Request, response::IntoResponse};
use http::{Method, StatusCode, header::CONTENT_TYPE};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime};

use crate::{
    program::CHART,
    render::{one, render, template},
};

/// An API server that reads: its objects by path, its kubeconfig, and the writes that it was asked for.
pub struct Cluster {
    pub kubeconfig: PathBuf,
    writes: Writes,
}

/// Method and path of each request that is no GET.
type Writes = Arc<Mutex<Vec<String>>>;

impl Cluster {
    /// A cluster with these objects, by path, whose kinds are those of the chart and of what the chart looks up. Ends with the
    /// process.
    fn with(name: &str, objects: &[(&str, Value)]) -> Self {
        Self::of_version(name, 36, objects)
    }

    /// A cluster of this minor version.
    pub fn of_version(name: &str, minor: u32, objects: &[(&str, Value)]) -> Self {
        let mut answers: BTreeMap<String, Value> =
            objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect();
        let version =
            json!({"major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.3")});
        answers.insert("/version".to_owned(), version);
        answers.insert("/api".to_owned(), json!({"kind": "APIVersions", "versions": ["v1"]}));
        let mut kinds: BTreeSet<(String, String, bool)> = render(&[])
            .iter()
            .map(|object| {
                let text = |key: &str| object[key].as_str().unwrap().to_owned();
                (text("apiVersion"), text("kind"), object["metadata"]["namespace"].is_string())
            })
            .collect();
        kinds.insert(("discovery.k8s.io/v1".to_owned(), "EndpointSlice".to_owned(), true));
        let mut resources: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (group, kind, namespaced) in kinds {
            let plural = kube::core::GroupVersionKind::gvk("", "", &kind);
            let plural = kube::api::ApiResource::from_gvk(&plural).plural;
            let resource = json!({"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get"]});
            resources.entry(group).or_default().push(resource);
        }
        let groups = resources
            .keys()
            .filter_map(|version| version.split_once('/').map(|(group, v)| (group, v, version)));
        let groups: Vec<Value> = groups
            .map(|(group, v, version)| json!({"name": group, "versions": [{"groupVersion": version, "version": v}]}))
            .collect();
        answers.insert(
            "/apis".to_owned(),
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
        );
        for (version, resources) in resources {
            let path = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources});
            answers.insert(path, list);
        }
        let writes = Writes::default();
        let port = serve(answers, Arc::clone(&writes));
        let kubeconfig =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lookups-{name}-{}", std::process::id()));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "a", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        });
        fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { kubeconfig, writes }
    }

    /// Writes that were asked for so far, without dry runs.
    pub fn writes(&self) -> Vec<String> {
        let is_dry_run = |write: &&String| write.contains("dryRun=All");
        self.writes.lock().iter().filter(|write| !is_dry_run(write)).cloned().collect()
    }

    /// The objects that helm would send.
    fn render(&self, args: &[&str]) -> Result<Vec<Value>, String> {
        let server = ["--dry-run=server", "--disable-openapi-validation"];
        template(&self.kubeconfig, &[&[CHART], args, &server[..]].concat())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        fs::remove_file(&self.kubeconfig).unwrap();
    }
}

/// Serves these answers, and 404 for all else; records writes. Returns the port.
fn serve(answers: BTreeMap<String, Value>, writes: Writes) -> u16 {
    let answer = move |request: Request| {
        if request.method() != Method::GET {
            writes.lock().push(format!("{} {}", request.method(), request.uri()));
        }
        let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        let (code, body) = match answers.get(request.uri().path()) {
            Some(body) => (StatusCode::OK, body.to_string()),
            None => (StatusCode::NOT_FOUND, missing.to_string()),
        };
        async move { (code, [(CONTENT_TYPE, "application/json")], body).into_response() }
    };
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        runtime.block_on(axum::serve(listener, Router::new().fallback(answer)).into_future())
    });
    port
}

/// An object of a helm release.
fn of_release(api: &str, kind: &str, object: &str, release: &str, namespace: &str) -> Value {
    let annotations =
        json!({"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace});
    let labels = json!({"app.kubernetes.io/managed-by": "Helm"});
    json!({"apiVersion": api, "kind": kind, "metadata": {"name": object, "labels": labels, "annotations": annotations}})
}

#[test]
fn the_ports_of_the_api_server_are_those_of_its_endpoints() {
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "ports": [{"name": "https", "port": 7443, "protocol": "TCP"}],
    });
    let cluster = Cluster::with("ports", &[(path, slice)]);
    let ports = |args: &[&str], policy: &str| -> Vec<u64> {
        let objects = cluster.render(args).unwrap();
        let egress = one(&objects, "NetworkPolicy", policy)["spec"]["egress"][0]["ports"].clone();
        egress.as_array().unwrap()[4..].iter().map(|port| port["port"].as_u64().unwrap()).collect()
    };
    for policy in ["kube-node", "kube-node-machines"] {
        assert_eq!(ports(&[], policy), [443, 7443], "{policy}");
        assert_eq!(
            ports(&["--set=networkPolicy.apiServerPorts={9443}"], policy),
            [443, 7443, 9443],
            "{policy}"
        );
    }
}

#[test]
fn a_second_installation_is_refused() {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kube-node-operator";
    let role =
        of_release("rbac.authorization.k8s.io/v1", "ClusterRole", "kube-node-operator", "first", "here");
    let cluster = Cluster::with("second", &[(path, role)]);
    let refused = cluster.render(&["--namespace=elsewhere"]).unwrap_err();
    let sentence = "kube-node is in this cluster already, as release first in namespace here, and two would fight over its nodes: upgrade or uninstall that one";
    assert!(refused.contains(sentence), "{refused}");
}

#[test]
fn a_namespace_of_others_is_not_taken_for_machines_unless_somebody_says_so() {
    let path = "/api/v1/namespaces/kubemark";
    let theirs = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubemark"}});
    let cluster = Cluster::with("theirs", &[(path, theirs)]);
    let refused = cluster.render(&[]).unwrap_err();
    let sentence = "namespace kubemark is there already, and an uninstall would delete it: name another one in machines.namespace, or set machines.createNamespace to false to use it";
    assert!(refused.contains(sentence), "{refused}");
    let has_namespace = |objects: Vec<Value>| objects.iter().any(|object| object["kind"] == "Namespace");
    assert!(!has_namespace(cluster.render(&["--set=machines.createNamespace=false"]).unwrap()));
    assert!(has_namespace(cluster.render(&["--set=machines.namespace=own"]).unwrap()));
    let ours = of_release("v1", "Namespace", "kubemark", "kube-node", "default");
    let cluster = Cluster::with("ours", &[(path, ours.clone())]);
    assert!(has_namespace(cluster.render(&[]).unwrap()), "an upgrade keeps it");
    // helm deletes what a release has no longer, with all that is in it.
    let refused = cluster.render(&["--set=machines.createNamespace=false"]).unwrap_err();
    let sentence = "helm would delete it with all machines; first let it stay (kubectl annotate namespace kubemark helm.sh/resource-policy=keep)";
    assert!(refused.contains(sentence), "{refused}");
    let mut kept = ours;
    kept["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    let cluster = Cluster::with("kept", &[(path, kept)]);
    assert!(!has_namespace(cluster.render(&["--set=machines.createNamespace=false"]).unwrap()));
}
