//! `CSINode` of a machine: created once, as a kubelet creates the object when it starts.
//!
//! Inputs: the class, and whether the cluster has a `CSIDriver`. Output: the request. No driver registers with a hollow kubelet, so
//! the list of drivers is empty; what others write into it is theirs.

use std::{collections::HashSet, sync::Arc, time::Duration};

use http::Method;
use k8s_openapi::api::storage::v1::CSINode as ApiCsiNode;
use k8s_pb::{
    api::storage::v1::{CSINode, CSINodeSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use kube_ext::{
    call::ApiError,
    objects::list_pages,
    transport::{Body, TransportError, envelope},
    watch::{self, InitialList, Newest, WatchError, WatchEvent, WatchRequest},
};
use tokio::sync::Notify;

use super::{
    clock::Clock,
    machine::Machine,
    request::{FailureCount, Request, owned_by},
    schedule::{Priority, Schedule},
};

/// Annotation of volume plugins whose volumes a kubelet leaves to CSI drivers.
const MIGRATED: (&str, &str) = (
    "storage.alpha.kubernetes.io/migrated-plugins",
    "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume",
);
/// Minimum lifetime of one watch of the `CSIDrivers`.
const LEAST_LIFE: Duration = Duration::from_mins(5);

/// `CSINode` of a machine.
#[derive(Debug, Default)]
pub struct CsiNode {
    /// True once the object exists or cannot be created.
    is_done: bool,
    failures: FailureCount,
}

impl CsiNode {
    /// Notes that the object exists.
    pub fn found(&mut self) {
        self.is_done = true;
    }

    /// The request that creates the object; None if it exists, without a Node, and for a silent machine.
    pub fn prepare(
        &self,
        uid: &Arc<str>,
        machine: &Machine,
        schedule: &mut Schedule,
        now: Clock,
    ) -> Option<Request> {
        let phase = machine.phase(now);
        if self.is_done || machine.view.is_none() {
            return None;
        }
        if machine.is_silent_in(phase) {
            if let Some(left) = phase.changes_in {
                schedule.enqueue(Priority::CsiNode, uid, now.at + left);
            }
            return None;
        }
        let object = CSINode {
            metadata: Some(ObjectMeta {
                name: Some(machine.node.to_string()),
                annotations: [(MIGRATED.0.to_owned(), MIGRATED.1.to_owned())].into(),
                owner_references: vec![owned_by(&machine.node, uid)],
                ..ObjectMeta::default()
            }),
            spec: Some(CSINodeSpec::default()),
        };
        Some(Request {
            method: Method::POST,
            path: "/apis/storage.k8s.io/v1/csinodes".to_owned(),
            body: Body::Object(envelope("storage.k8s.io/v1", "CSINode", &object)),
        })
    }

    /// Applies the answer to a request. A refusal (403) is logged and final: every machine would meet it again and again.
    pub fn conclude(
        &mut self,
        uid: &Arc<str>,
        machine: &Machine,
        schedule: &mut Schedule,
        answer: Result<&str, &TransportError>,
        now: Clock,
    ) {
        let Err(error) = answer else { return self.found() };
        // An earlier process has created the object.
        if error.code() == Some(409) {
            return self.found();
        }
        let wait = self.failures.add_logged(&machine.node, "CSINode", error);
        self.is_done = error.code() == Some(403);
        schedule.enqueue(Priority::CsiNode, uid, now.at + wait);
    }
}

/// Waits until the cluster has a `CSIDriver`, by a watch that ends then; returns the names of the `CSINodes`. An error is final: the
/// identity may not watch `CSIDrivers`.
pub async fn once_wanted(client: &Client) -> Result<HashSet<String>, WatchError> {
    let watch = WatchRequest {
        path: "/apis/storage.k8s.io/v1/csidrivers".to_owned(),
        field_selector: None,
        label_selector: None,
        initial_list: InitialList::List,
        min_timeout: LEAST_LIFE,
    };
    let (found, newest) = (Notify::new(), Newest::default());
    let on_event = |event: WatchEvent<'_>| {
        if matches!(event, WatchEvent::Object { deleted: false, .. }) {
            found.notify_one();
        }
    };
    let failed =
        |error: WatchError| if matches!(error.code(), Some(403 | 404)) { Err(error) } else { Ok(()) };
    tokio::select! {
        biased;
        () = found.notified() => {}
        error = watch::follow(client, &watch, watch::vital_backoff(), &(), &newest, on_event, failed) => return Err(error),
    }
    // Names that are not known cost a refused creation each.
    Ok(existing(client).await.unwrap_or_default())
}

async fn existing(client: &Client) -> Result<HashSet<String>, ApiError> {
    let mut names = HashSet::new();
    let csi_nodes: Api<ApiCsiNode> = Api::all(client.clone());
    list_pages(&csi_nodes, "CSINodes", ListParams::default(), |object| {
        names.insert(object.name_any());
    })
    .await?;
    Ok(names)
}
