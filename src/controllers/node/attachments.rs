//! Volumes attached to a machine that is about to be deleted.
//!
//! The API server cannot select `VolumeAttachment`s by Node, so all are listed, page by page; one list serves
//! every Node that asked before the list began. Lists are spaced: however many Nodes leave, they take at most
//! a tenth of the time. No reconciliation waits for a list: without a result it is requeued.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use kube_ext::{
    call::{ApiError, call},
    objects::{list, list_pages},
};
use kube_node_cache::{NodeView, PodView, ProtobufPod};
use kube_node_planner::node::Attached;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum time between the starts of two lists.
const LEAST_DISTANCE: Duration = Duration::from_secs(1);
/// The same, as a multiple of the duration of the last list.
const DISTANCE: u32 = 10;
/// Maximum of that time: a list during which the process was paused says nothing about the API server's work.
const MOST_DISTANCE: Duration = Duration::from_secs(30);
/// Requeue delay while a list is in flight.
const UNDER_WAY: Duration = Duration::from_millis(250);

/// Names of volumes by name of the Node.
type ByNode = HashMap<String, Vec<String>>;

/// Lookup of attached volumes.
pub(super) struct Attachments {
    client: Client,
    /// Time of the first request of each Node without a result, or without attached volumes, by Node UID.
    requested: Mutex<HashMap<Arc<str>, Instant>>,
    lists: tokio::sync::Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// The last list and its start.
    last: Option<(Instant, Arc<ByNode>)>,
    /// Earliest start of the next list.
    next: Option<Instant>,
}

impl Attachments {
    pub(super) fn new(client: Client) -> Self {
        Self { client, requested: Mutex::default(), lists: tokio::sync::Mutex::default() }
    }

    /// The volumes attached to a Node at some time after its first request, without those of pods that stay
    /// on the Node.
    pub(super) async fn of(&self, node: &NodeView) -> Result<Attached, ApiError> {
        let requested = *self.requested.lock().entry(Arc::clone(&node.uid)).or_insert_with(Instant::now);
        let Ok(mut lists) = self.lists.try_lock() else { return Ok(Attached::AskAgain(UNDER_WAY)) };
        let began = Instant::now();
        let list = if let Some((_, list)) = lists.last.as_ref().filter(|(began, _)| *began >= requested) {
            Arc::clone(list)
        } else if let Some(next) = lists.next.filter(|next| *next > began) {
            return Ok(Attached::AskAgain(next - began));
        } else {
            let listed = self.list().await;
            let distance = began.elapsed().saturating_mul(DISTANCE);
            lists.next = Some(began + distance.clamp(LEAST_DISTANCE, MOST_DISTANCE));
            Arc::clone(&lists.last.insert((began, Arc::new(listed?))).1)
        };
        drop(lists);
        let mut attached = list.get(&*node.name).cloned().unwrap_or_default();
        if !attached.is_empty() {
            let staying = self.of_pods_that_stay(node).await?;
            attached.retain(|volume| !staying.contains(volume));
            attached.sort();
        }
        // That none is left stays so, for the reconciliation that deletes the machine too. Others may be detached by the next
        // list.
        if !attached.is_empty() {
            self.forget(&node.uid);
        }
        Ok(Attached::Volumes(attached))
    }

    /// Drops the request of a Node that has pods again or is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.requested.lock().remove(uid);
    }

    /// Lists all attachments.
    async fn list(&self) -> Result<ByNode, ApiError> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let mut by_node = ByNode::new();
        let add = |attachment: VolumeAttachment| {
            let name = attachment.name_any();
            let volume = attachment.spec.source.persistent_volume_name.unwrap_or(name);
            by_node.entry(attachment.spec.node_name).or_default().push(volume);
        };
        list_pages(&api, "VolumeAttachments", ListParams::default(), add).await?;
        Ok(by_node)
    }

    /// Names of the volumes claimed by pods that stay to the end. Such pods are rare.
    async fn of_pods_that_stay(&self, node: &NodeView) -> Result<HashSet<String>, ApiError> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let selector = ListParams::default().fields(&format!("spec.nodeName={}", node.name));
        let mut volumes = HashSet::new();
        for pod in list(&pods, &format!("the pods of {}", node.name), &selector).await? {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let claims = claims(&pod);
            if claims.is_empty() || !stays(pod) {
                continue;
            }
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
            for name in claims {
                let claim = api.get_opt(&name);
                let claim = call(format!("read PersistentVolumeClaim {namespace}/{name}"), claim).await?;
                volumes.extend(claim.and_then(|claim| claim.spec).and_then(|spec| spec.volume_name));
            }
        }
        Ok(volumes)
    }
}

/// Returns true if the pod stays on its Node, by the rule of the cache.
fn stays(pod: Pod) -> bool {
    let decoded = serde_json::to_value(pod).and_then(serde_json::from_value::<ProtobufPod>);
    decoded.is_ok_and(|pod| PodView::from(pod).stays())
}

/// Names of a pod's claims of both kinds, persistent and ephemeral.
fn claims(pod: &Pod) -> Vec<String> {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod_name}-{}", volume.name)),
            (None, None) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::sleep;
    use tower::service_fn;

    use super::*;

    /// URL path of the collection.
    const PATH: &str = "/apis/storage.k8s.io/v1/volumeattachments";

    fn node(name: &str) -> NodeView {
        NodeView { name: name.into(), uid: format!("uid-{name}").into(), ..NodeView::default() }
    }

    /// An API server with two pages of attachments and no pods, each response delayed; and the requested URLs.
    fn server(delay: Duration) -> (Attachments, Arc<Mutex<Vec<String>>>) {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let service = service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            log.lock().push(uri.clone());
            async move {
                sleep(delay).await;
                let (volume, node, more) =
                    if uri.contains("continue=") { ("two", "b", "") } else { ("one", "a", "next/page") };
                let attachment = json!({
                    "metadata": {"name": format!("csi-{volume}")},
                    "spec": {"attacher": "csi", "nodeName": node, "source": {"persistentVolumeName": volume}},
                });
                let list = if uri.contains("volumeattachments") {
                    json!({"metadata": {"continue": more}, "items": [attachment]})
                } else {
                    json!({"metadata": {}, "items": []})
                };
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        (Attachments::new(Client::new(service, "default")), requests)
    }

    async fn answered(attachments: &Attachments, name: &str) -> Vec<String> {
        loop {
            match attachments.of(&node(name)).await.unwrap() {
                Attached::Volumes(volumes) => return volumes,
                Attached::AskAgain(later) => sleep(later).await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_pages_are_read_and_lists_keep_their_distance() {
        let (attachments, requests) = server(Duration::from_millis(10));
        assert_eq!(answered(&attachments, "b").await, ["two"]);
        let lists = || requests.lock().iter().filter(|uri| uri.contains("volumeattachments")).count();
        let pages = [format!("{PATH}?&limit=500"), format!("{PATH}?&limit=500&continue=next%2Fpage")];
        assert_eq!(requests.lock()[..2], pages);
        let began = Instant::now();
        // Nodes leave all the time.
        let nodes = (0..1_000).map(|number| {
            let attachments = &attachments;
            async move {
                sleep(Duration::from_millis(10 * number)).await;
                let (start, name) = (Instant::now(), format!("node-{number}"));
                assert!(answered(attachments, &name).await.is_empty());
                let again = attachments.of(&node(&name)).await.unwrap();
                assert_eq!(again, Attached::default(), "none is left, by the same list");
                attachments.forget(&node(&name).uid);
                start.elapsed()
            }
        });
        let waits = futures::future::join_all(nodes).await;
        let pages = began.elapsed().as_secs() * 2;
        assert!(u64::try_from(lists()).unwrap() <= pages + 4, "{} pages in {:?}", lists(), began.elapsed());
        let longest = waits.iter().max().unwrap();
        assert!(*longest < LEAST_DISTANCE * 2 + UNDER_WAY * 2, "{longest:?}");
        assert!(attachments.requested.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_from_before_the_question_is_no_answer() {
        let (attachments, _) = server(Duration::from_millis(10));
        assert_eq!(answered(&attachments, "a").await, ["one"]);
        let later = attachments.of(&node("a")).await.unwrap();
        assert!(matches!(later, Attached::AskAgain(left) if left > Duration::ZERO), "{later:?}");
        attachments.forget("uid-a");
        assert!(attachments.requested.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_took_long_holds_up_the_next_one_for_half_a_minute_at_most() {
        let page = Duration::from_secs(8);
        let (attachments, _) = server(page);
        answered(&attachments, "a").await;
        let began = Instant::now();
        answered(&attachments, "b").await;
        assert!(began.elapsed() <= page * 2 + MOST_DISTANCE, "{:?}", began.elapsed());
    }

    #[test]
    fn claims_of_both_kinds_are_known_by_name() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "agent-x", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": true}]},
            "spec": {"containers": [], "volumes": [
                {"name": "shared", "persistentVolumeClaim": {"claimName": "shared-data"}},
                {"name": "own", "ephemeral": {}},
                {"name": "tmp", "emptyDir": {}}]}
        }))
        .unwrap();
        assert_eq!(claims(&pod), ["shared-data", "agent-x-own"]);
        assert!(stays(pod));
    }
}
