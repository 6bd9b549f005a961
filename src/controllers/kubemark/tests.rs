//! Tests of the requests to hosting clusters, with a server that records them.

use std::convert::Infallible;

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

const NAMESPACE: &str = "kubemark";
/// Time in which a cluster is listed, or a request has come.
const SOON: Duration = Duration::from_secs(1);

type Requests = Arc<Mutex<Vec<String>>>;

/// A list of one page; `continues`: token of the next one.
fn page(kind: &str, items: &[Value], continues: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind, "items": items,
        "metadata": {"resourceVersion": "5", "continue": continues},
    })
}

fn secret(name: &str) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "resourceVersion": "4",
            "labels": {names::LABEL_NODE_UID: name}, "annotations": {names::ANNOTATION_NODE: name},
        },
    })
}

/// A cluster without pods, with the Secrets `a` and `b` on a page each, and all requests for Secrets and deletions.
fn hosting_cluster() -> (Client, Requests) {
    let requests = Requests::default();
    let into = Arc::clone(&requests);
    let server = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let is_of_secrets = uri.contains("/secrets");
        if is_of_secrets || request.method() == Method::DELETE {
            into.lock().push(format!("{} {uri}", request.method()));
        }
        let answer = match (request.method(), is_of_secrets) {
            (&Method::DELETE, _) => json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
            (_, false) => page("PodList", &[], ""),
            (_, true) if uri.contains("continue=2") => page("PartialObjectMetadataList", &[secret("b")], ""),
            (_, true) if uri.contains("fieldSelector") => {
                page("PartialObjectMetadataList", &[secret("a")], "")
            }
            (_, true) => page("PartialObjectMetadataList", &[secret("a")], "2"),
        };
        async move {
            // A watch of the pods has nothing to say.
            if uri.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
        }
    });
    (Client::new(server, NAMESPACE), requests)
}

fn provider(client: Client, classes: Vec<CustomObject<NodeClass>>) -> KubemarkProvider {
    let options = Options {
        namespace: "kube-node-system".to_owned(),
        machine_namespace: NAMESPACE.to_owned(),
        cluster: "c".to_owned(),
        image: "image".to_owned(),
        server: "https://server".to_owned(),
        ca: String::new(),
        fence: Fence::open(),
        kubelet_version: "v1.36.3".to_owned(),
        insecure_credentials: false,
    };
    KubemarkProvider::new(client, Cache::full([]), Cache::full(classes), options)
}

#[tokio::test(start_paused = true)]
async fn deleting_a_machine_asks_for_no_secret_but_its_own() {
    let (client, requests) = hosting_cluster();
    let id = MachineId { uid: "a".into(), node: "a".into() };
    let pod = MachinePod {
        name: "a".to_owned(),
        uid: "u".to_owned(),
        id,
        leaving: false,
        health: Health::Running,
        last_end: None,
        settings: None,
    };
    delete_pod(&provider(client, vec![]).clusters.of(None), &pod).await.unwrap();
    let requests = requests.lock();
    let [pod, list, secret] = &requests[..] else { panic!("{requests:?}") };
    assert!(pod.starts_with("DELETE ") && pod.ends_with("/pods/a?"), "{pod}");
    assert!(list.contains("fieldSelector=metadata.name%3Da&"), "{list}");
    assert!(secret.starts_with("DELETE ") && secret.ends_with("/secrets/a?"), "{secret}");
}

#[tokio::test(start_paused = true)]
async fn secrets_that_no_machine_needs_are_searched_for_by_pages_and_rarely() {
    let (client, requests) = hosting_cluster();
    let provider = provider(client, vec![]);
    tokio::time::sleep(SOON).await;
    provider.list().await;
    let found = std::mem::take(&mut *requests.lock());
    let [first, a, second, b] = &found[..] else { panic!("{found:?}") };
    assert!(first.contains("limit=500") && second.contains("limit=500&continue=2"), "{first} {second}");
    assert!(a.starts_with("DELETE ") && a.contains("/secrets/a"), "{a}");
    assert!(b.starts_with("DELETE ") && b.contains("/secrets/b"), "{b}");
    provider.list().await;
    assert_eq!(*requests.lock(), [""; 0]);
    tokio::time::sleep(SEARCH_INTERVAL).await;
    provider.list().await;
    assert_eq!(requests.lock().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_secret_of_a_machine_that_others_removed_goes_once_its_node_is_gone() {
    let (client, requests) = hosting_cluster();
    let provider = provider(client, vec![]);
    tokio::time::sleep(SOON).await;
    provider.list().await;
    requests.lock().clear();
    let node = NodeView { name: "a".into(), uid: "a".into(), ..NodeView::default() };
    provider.nodes.list_of([node]);
    provider.noted.note("a", &MachineId { uid: "a".into(), node: "a".into() });
    provider.list().await;
    assert_eq!(*requests.lock(), [""; 0], "the Node's next machine needs it");
    provider.nodes.list_of([]);
    provider.list().await;
    let found = std::mem::take(&mut *requests.lock());
    let [lookup, deletion] = &found[..] else { panic!("{found:?}") };
    assert!(lookup.contains("fieldSelector=metadata.name%3Da&"), "{lookup}");
    assert!(deletion.starts_with("DELETE "), "{deletion}");
    provider.list().await;
    assert_eq!(*requests.lock(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_cannot_be_read_hides_no_hosting_cluster_of_another_class() {
    let class = |name: &str, spec: Value| {
        serde_json::from_value::<CustomObject<NodeClass>>(json!({
            "apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass",
            "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap()
    };
    let readable = json!({
        "nodeController": NAME, "credentialsSecretRef": {"name": "elsewhere"},
        "capacity": {"cpu": "1", "memory": "1Gi"},
    });
    let classes = vec![class("odd", json!({"nodeController": 7})), class("good", readable)];
    let is_readable: Vec<bool> = classes.iter().map(|class| class.object.is_ok()).collect();
    assert_eq!(is_readable, [false, true], "{:?}", classes[1].object.as_ref().err());
    let (client, _) = hosting_cluster();
    let provider = provider(client, classes);
    provider.clusters.of(Some("unnamed"));
    provider.follow_classes();
    assert_eq!(provider.clusters.all().len(), 3, "this cluster, and both others");
    provider.clusters.follow(&BTreeSet::new(), true);
    assert_eq!(provider.clusters.all().len(), 1);
}
