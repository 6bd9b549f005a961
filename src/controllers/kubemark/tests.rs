//! Tests of the requests to hosting clusters, with a server that records them.

use std::convert::Infallible;

use http::{Method, Request, Response};
use kube::client::Body;
use kube_node_cache::intern;
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

fn machine(uid: &str, node: &str) -> MachineId {
    MachineId { uid: uid.into(), node: node.into() }
}

fn machine_pod(name: &str, uid: &str, id: &MachineId) -> MachinePod {
    MachinePod {
        name: name.to_owned(),
        uid: uid.to_owned(),
        id: id.clone(),
        leaving: false,
        health: Health::Running,
        last_end: None,
        settings: None,
    }
}

/// A class of this provider.
fn class(name: &str, spec: &Value) -> CustomObject<NodeClass> {
    let metadata = json!({"name": name});
    let class = json!({"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass", "metadata": metadata, "spec": spec});
    serde_json::from_value(class).unwrap()
}

/// The spec of a class whose pods are in the cluster of these credentials.
fn led_to(credentials: Option<&str>) -> Value {
    let reference = credentials.map(|name| json!({"name": name}));
    json!({"nodeController": NAME, "capacity": {"cpu": "1", "memory": "1Gi"}, "credentialsSecretRef": reference})
}

/// A provider with the Node `a`, whose class leads to the cluster of these credentials, and two clusters: this one and `elsewhere`.
async fn provider_of_a_node(
    client: Client,
    credentials: Option<&str>,
) -> (KubemarkProvider, [Arc<HostingCluster>; 2]) {
    let provider = provider(client, vec![class("own", &led_to(credentials))]);
    let labels = [(names::LABEL_NODECLASS, "own")].map(|(key, value)| (intern(key), intern(value)));
    let node = NodeView {
        name: "a".into(),
        uid: "a".into(),
        labels: labels.into_iter().collect(),
        ..NodeView::default()
    };
    provider.nodes.list_of([node]);
    let clusters = [None, Some("elsewhere")].map(|name| provider.clusters.of(name));
    tokio::time::sleep(SOON).await;
    (provider, clusters)
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_shows_the_machine_of_another_cluster_gets_no_token() {
    let (client, requests) = hosting_cluster();
    let (provider, [here, elsewhere]) = provider_of_a_node(client, None).await;
    requests.lock().clear();
    let id = machine("a", "a");
    elsewhere.pods.list_of([machine_pod("a", "fake", &id)]);
    assert!(matches!(provider.known(&id), Ok(Known::Absent)), "the machine that the approver looks for");
    assert!(provider.exists(&id).await.unwrap().is_none());
    // The machine starts again, and while its pod leaves the other one is there.
    here.pods.list_of([MachinePod { leaving: true, ..machine_pod("a", "own", &id) }]);
    let Ok(Known::Machine(known)) = provider.known(&id) else { panic!("it is there") };
    assert_eq!(known.stage, Stage::Leaving);
    provider.update(&id, &MachineSettings::default()).await.unwrap();
    assert_eq!(*requests.lock(), [""; 0], "no token is renewed");
}

#[tokio::test(start_paused = true)]
async fn deleting_a_pod_with_the_uid_of_another_node_keeps_the_machine_of_that_node() {
    let (client, requests) = hosting_cluster();
    let (provider, [here, elsewhere]) = provider_of_a_node(client, None).await;
    requests.lock().clear();
    let (id, ghost) = (machine("a", "a"), machine("a", "ghost"));
    here.pods.list_of([machine_pod("a", "own", &id)]);
    elsewhere.pods.list_of([machine_pod("ghost", "fake", &ghost)]);
    let Ok(Known::Machine(known)) = provider.known(&ghost) else { panic!("it is deleted where it is") };
    assert_eq!(
        known.trouble.unwrap().reason,
        "ProviderUnreachable",
        "the pod elsewhere, and not the one here"
    );
    provider.delete(&ghost).await.unwrap_err();
    assert_eq!(*requests.lock(), [""; 0], "the machine of the Node stays");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_leaves_the_caches_of_its_own_cluster_alone() {
    let (client, _) = hosting_cluster();
    let (provider, [_, elsewhere]) = provider_of_a_node(client, None).await;
    let again = provider.clusters.of(Some("again"));
    let shown = || machine_pod("a", "own", &machine("a", "a"));
    for (server, left) in [("https://other", 1), ("https://elsewhere", 0)] {
        *elsewhere.server.write() = Some("https://elsewhere".to_owned());
        *again.server.write() = Some(server.to_owned());
        elsewhere.pods.list_of([shown()]);
        again.pods.list_of([shown()]);
        elsewhere.pods.list_of([]);
        tokio::time::sleep(SOON).await;
        assert_eq!(again.pods.len(), left, "{server}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_shows_more_pods_than_there_may_be_machines_is_not_followed() {
    let nodes = Cache::full(
        (0..10).map(|number| NodeView { name: format!("n-{number}").as_str().into(), ..NodeView::default() }),
    );
    let pods = Cache::default();
    let shown = |count| (0..count).map(|number| machine_pod(&number.to_string(), "u", &machine("x", "x")));
    let exceeded = async || timeout(Duration::from_mins(1), pod_limit::exceeded(&pods, &nodes)).await;
    pods.list_of(shown(1_020));
    assert!(exceeded().await.is_err(), "two for each Node, and a thousand");
    pods.list_of(shown(1_021));
    let error = exceeded().await.unwrap().to_string();
    assert!(error.starts_with("the hosting cluster shows more than 1020 pods"), "{error}");
    // The machine of a Node does not seem to be gone.
    pods.list_of(shown(10).chain([machine_pod("own", "u", &machine("", "n-1"))]));
    pod_limit::drop_strangers(&pods, &nodes);
    assert_eq!(pods.all().iter().map(|pod| pod.name.clone()).collect::<Vec<_>>(), ["own"]);
}

#[test]
fn long_annotations_of_a_pod_are_not_kept() {
    let pod = |length: usize| {
        let text = "x".repeat(length);
        let annotations = json!({names::ANNOTATION_NODE: text, names::ANNOTATION_SETTINGS: text});
        MachinePod::from(
            serde_json::from_value::<Pod>(json!({"metadata": {"annotations": annotations}})).unwrap(),
        )
    };
    assert_eq!((pod(100).id.node.len(), pod(100).settings.map(|text| text.len())), (100, Some(100)));
    assert_eq!((pod(1 << 20).id.node.len(), pod(1 << 20).settings), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_machine_is_in_the_cluster_of_the_class_is_deleted() {
    let (client, requests) = hosting_cluster();
    let (provider, [here, elsewhere]) = provider_of_a_node(client, Some("elsewhere")).await;
    let id = machine("a", "a");
    here.pods.list_of([machine_pod("a", "before", &id)]);
    provider.list().await;
    requests.lock().clear();
    provider.list().await;
    assert_eq!(*requests.lock(), [""; 0], "the other machine is not there yet");
    elsewhere.pods.list_of([machine_pod("a", "now", &id)]);
    provider.list().await;
    let found = std::mem::take(&mut *requests.lock());
    assert!(
        found.iter().any(|request| request.starts_with("DELETE ") && request.ends_with("/pods/a?")),
        "{found:?}"
    );
    // One pod that two credentials show is no other machine.
    here.pods.list_of([machine_pod("a", "now", &id)]);
    provider.list().await;
    assert_eq!(*requests.lock(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn deleting_a_machine_asks_for_no_secret_but_its_own() {
    let (client, requests) = hosting_cluster();
    let pod = machine_pod("a", "u", &machine("a", "a"));
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
    provider.noted.note("a", &machine("a", "a"));
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
    let classes =
        vec![class("odd", &json!({"nodeController": 7})), class("good", &led_to(Some("elsewhere")))];
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
