//! Executes scale requests: one at a time for each set, each as one write under the version it was decided on.
//!
//! A scale request runs in a task of its own: its client may hang up, and a write that was sent has to be
//! followed to its end. [`ScaleRequest`] and [`WriteCache`] decide on API calls and interpret the responses.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::join_all;
use kube::{Api, api::Patch};
use kube_ext::{environment, error::chain};
use kube_node_api::{NodeSet, names};
use kube_node_planner::autoscaling::{
    ApiCall, ApiResponse, ReplicaChange, ScaleFailure, ScaleRefusal, ScaleRequest, ScaleStep, SetSnapshot,
    WriteCache, record,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    task::AbortHandle,
    time::{Instant, timeout, timeout_at},
};
use tonic::{Code, Status};
use tracing::{info, warn};

use crate::api::patch_params;

/// Time limit of a scale request: less than the 5 s that cluster-autoscaler waits.
pub(super) const SCALE_LIMIT: Duration = Duration::from_millis(4_500);
/// Time limit of one API call: a later response is of no use to the scale request.
const CALL_LIMIT: Duration = Duration::from_millis(1_500);

/// gRPC status of a refused scale request.
pub(super) fn refused(refusal: &ScaleRefusal) -> Status {
    Status::new(Code::from_i32(refusal.code as i32), refusal.to_string())
}

/// gRPC status of a scale request that failed during the API calls; `error` is the last one of the API server.
fn failed(set: &str, failure: ScaleFailure, error: Option<&kube::Error>) -> Status {
    let is_refusal = matches!(failure, ScaleFailure::Refused | ScaleFailure::NotFenced);
    let code = match error.filter(|_| is_refusal) {
        Some(kube::Error::Api(status)) if status.code == 403 => Code::PermissionDenied,
        Some(kube::Error::Api(status)) if status.code == 422 => Code::FailedPrecondition,
        _ => Code::Unavailable,
    };
    let cause = error.map(|error| format!(": {}", chain(error))).unwrap_or_default();
    Status::new(code, format!("NodeSet {set} could not be changed: {failure}{cause}"))
}

/// Writer of sets.
pub(super) struct Writer {
    api: Api<NodeSet>,
    sets: Mutex<HashMap<String, Arc<Entry>>>,
}

#[derive(Default)]
struct Entry {
    /// Held by the scale request that is executed.
    serial: tokio::sync::Mutex<()>,
    cache: Mutex<WriteCache>,
    /// Tasks of scale requests whose client has hung up: their result is unknown until they end.
    abandoned: Mutex<Vec<AbortHandle>>,
}

impl Writer {
    pub(super) fn new(client: kube::Client) -> Arc<Self> {
        Arc::new(Self { api: Api::all(client), sets: Mutex::default() })
    }

    /// Snapshot of a set that the watch shows as `shown`; None while the result of a write is unknown.
    pub(super) fn snapshot(&self, set: &str, shown: &SetSnapshot) -> Option<SetSnapshot> {
        let Some(entry) = self.sets.lock().get(set).cloned() else { return Some(shown.clone()) };
        let mut abandoned = entry.abandoned.lock();
        abandoned.retain(|task| !task.is_finished());
        if !abandoned.is_empty() {
            return None;
        }
        entry.cache.lock().current(shown).cloned()
    }

    /// [`Writer::snapshot`] for an answer that says how many replicas the set has.
    pub(super) fn tell(&self, set: &str, shown: &SetSnapshot) -> Option<SetSnapshot> {
        let snapshot = self.snapshot(set, shown)?;
        let entry = Arc::clone(self.sets.lock().entry(set.to_owned()).or_default());
        entry.cache.lock().tell(&snapshot);
        Some(snapshot)
    }

    /// Executes a scale request before `deadline`. `decide` may be called several times, each time with the present snapshot of
    /// the set; `shown` returns the snapshot that the watch shows.
    pub(super) async fn execute(
        self: &Arc<Self>,
        deadline: Instant,
        request: ScaleRequest,
        set: &str,
        shown: impl Fn() -> Result<SetSnapshot, ScaleRefusal> + Send + Sync + 'static,
        decide: impl Fn(&SetSnapshot) -> Result<Option<ReplicaChange>, ScaleRefusal> + Send + Sync + 'static,
    ) -> Result<(), Status> {
        // A request for an unknown group leaves no entry behind.
        shown().map_err(|refusal| refused(&refusal))?;
        let (writer, name) = (Arc::clone(self), set.to_owned());
        let entry = Arc::clone(self.sets.lock().entry(set.to_owned()).or_default());
        let work = Arc::clone(&entry);
        let task =
            environment::spawn(
                async move { writer.run(deadline, request, &name, &work, shown, decide).await },
            );
        // A client that hangs up early drops this future, and takes the missing response for a failure.
        let _client = scopeguard::guard((entry, task.abort_handle()), |(entry, task)| {
            if !task.is_finished() {
                entry.abandoned.lock().push(task);
            }
        });
        task.await.unwrap_or_else(|_| Err(failed(set, ScaleFailure::Open, None)))
    }

    /// Settles every set whose last write has no response. Fails with the first of them of which the API server says nothing;
    /// one that it refuses to settle has a size, and holds up no other group.
    pub(super) async fn settle_all(&self) -> Result<(), Status> {
        let unsettled: Vec<(String, Arc<Entry>)> = {
            let sets = self.sets.lock();
            let unsettled = sets.iter().filter(|(_, entry)| entry.cache.lock().unsettled().is_some());
            unsettled.map(|(set, entry)| (set.clone(), Arc::clone(entry))).collect()
        };
        let settle = async |(set, entry): (String, Arc<Entry>)| {
            let nothing = |_: &SetSnapshot| Ok(None);
            let unknown = || Err(ScaleRefusal::no_group(""));
            let deadline = Instant::now() + SCALE_LIMIT;
            match self.run(deadline, ScaleRequest::of_names(), &set, &entry, unknown, nothing).await {
                // The set is no group any more: nothing is left to settle.
                Err(status) if status.code() == Code::NotFound => Ok(()),
                Err(status) if entry.cache.lock().is_not_fenced() => {
                    warn!(set, "{}", status.message());
                    Ok(())
                }
                settled => settled,
            }
        };
        let settled = join_all(unsettled.into_iter().map(settle)).await;
        settled.into_iter().collect()
    }

    async fn run(
        &self,
        deadline: Instant,
        mut request: ScaleRequest,
        set: &str,
        entry: &Entry,
        shown: impl Fn() -> Result<SetSnapshot, ScaleRefusal>,
        decide: impl Fn(&SetSnapshot) -> Result<Option<ReplicaChange>, ScaleRefusal>,
    ) -> Result<(), Status> {
        let late = || {
            let limit = SCALE_LIMIT.as_millis();
            Status::deadline_exceeded(format!("NodeSet {set} could not be changed within {limit} ms"))
        };
        let _serial = timeout_at(deadline, entry.serial.lock()).await.map_err(|_| late())?;
        let (mut response, mut error): (_, CallError) = (ApiResponse::Begun, None);
        loop {
            let step = request.next(response, &mut entry.cache.lock(), &shown, &decide, set);
            let answer = match step {
                ScaleStep::Done => return Ok(()),
                ScaleStep::Refused(refusal) => return Err(refused(&refusal)),
                ScaleStep::Failed(failure) => return Err(failed(set, failure, error.as_deref())),
                ScaleStep::ApiCall(ApiCall::Read) => self.get(set).await,
                ScaleStep::ApiCall(ApiCall::Write { on, change }) => {
                    // The client takes a missing response for a failure: a write that could be answered too
                    // late must not be sent.
                    if Instant::now() + CALL_LIMIT > deadline {
                        return Err(late());
                    }
                    info!(set, before = on.replicas, now = change.replicas, "ordered by cluster-autoscaler");
                    self.write(set, &on, patch(&on, &change)).await
                }
                ScaleStep::ApiCall(ApiCall::Fence { on }) => {
                    let now = json!({ names::ANNOTATION_FENCE: environment::now() });
                    self.write(set, &on, json!({ "metadata": { "annotations": now } })).await
                }
            };
            (response, error) = match answer {
                Ok(Some(live)) => (ApiResponse::Stands(live), None),
                Ok(None) => (ApiResponse::NoGroup, None),
                Err(error) => (response_of(&error), error),
            };
            if response == ApiResponse::Nothing {
                let error = error.as_deref().map(|error| chain(error));
                warn!(set, error, "the API server does not answer");
            }
        }
    }

    /// Reads the set from the API server; None if it is no group any more.
    async fn get(&self, set: &str) -> Result<Option<SetSnapshot>, CallError> {
        Ok(SetSnapshot::of(&limited(self.api.get(set)).await?))
    }

    /// Writes a change of a set, only in exactly this state; None if it is no group afterwards.
    async fn write(
        &self,
        set: &str,
        on: &SetSnapshot,
        mut change: Value,
    ) -> Result<Option<SetSnapshot>, CallError> {
        change["metadata"]["uid"] = json!(on.uid);
        change["metadata"]["resourceVersion"] = json!(on.version);
        let object = limited(self.api.patch(set, &patch_params(), &Patch::Merge(change))).await?;
        Ok(SetSnapshot::of(&object))
    }
}

/// Merge patch for a change.
fn patch(on: &SetSnapshot, change: &ReplicaChange) -> Value {
    let mut patch = json!({ "metadata": {}, "spec": { "replicas": change.replicas } });
    if change.victims != on.victims {
        patch["metadata"]["annotations"] = json!({ names::ANNOTATION_VICTIMS: record(&change.victims) });
    }
    patch
}

/// A failed API call; without an error there was no response in time.
pub(super) type CallError = Option<Box<kube::Error>>;

fn response_of(error: &CallError) -> ApiResponse {
    let Some(kube::Error::Api(status)) = error.as_deref() else { return ApiResponse::Nothing };
    match status.code {
        404 => ApiResponse::NoGroup,
        409 => ApiResponse::Conflict,
        400..500 => ApiResponse::Refused,
        _ => ApiResponse::Nothing,
    }
}

/// Makes an API call within its time limit.
pub(super) async fn limited<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    timeout(CALL_LIMIT, call).await.map_err(|_| None)?.map_err(|error| Some(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    fn set(name: &str, version: &str) -> Value {
        json!({
            "apiVersion": "kube-node.io/v1alpha1", "kind": "NodeSet",
            "metadata": { "name": name, "uid": name, "generation": 1, "resourceVersion": version },
            "spec": { "replicas": 3, "nodeClassName": "c", "autoscaling": { "maxReplicas": 9 } },
        })
    }

    fn snapshot_of(name: &str) -> SetSnapshot {
        SetSnapshot::of(&serde_json::from_value(set(name, "1")).unwrap()).unwrap()
    }

    /// A writer whose last write of each of these sets has no response; the API server refuses each write of set `a`, and
    /// does not answer about set `mute`.
    fn writer(sets: &[&str]) -> Arc<Writer> {
        let service = service_fn(|request: Request<Body>| async move {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let is_read = *request.method() == Method::GET;
            let (status, body) = match &*name {
                "mute" => (StatusCode::INTERNAL_SERVER_ERROR, json!({ "kind": "Status", "code": 500 })),
                "a" if !is_read => (StatusCode::FORBIDDEN, json!({ "kind": "Status", "code": 403 })),
                _ => (StatusCode::OK, set(&name, if is_read { "1" } else { "2" })),
            };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?)
        });
        let writer = Writer::new(kube::Client::new(service, "default"));
        for name in sets {
            let entry = Arc::<Entry>::default();
            entry.cache.lock().lost(snapshot_of(name));
            writer.sets.lock().insert((*name).to_owned(), entry);
        }
        writer
    }

    #[tokio::test]
    async fn a_set_that_cannot_be_settled_holds_up_no_other_group() {
        let names = ["a", "b", "c", "d"];
        let writer = writer(&names);
        writer.settle_all().await.unwrap();
        let known = names.iter().filter(|name| writer.snapshot(name, &snapshot_of(name)).is_some());
        assert_eq!(known.collect::<HashSet<_>>().len(), 4, "each has a size");
        let shown = || Ok(snapshot_of("a"));
        let grow = |_: &SetSnapshot| Ok(Some(ReplicaChange { replicas: 4, victims: [].into() }));
        let deadline = Instant::now() + SCALE_LIMIT;
        let refused =
            writer.execute(deadline, ScaleRequest::of_number(), "a", shown, grow).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }

    #[tokio::test]
    async fn a_set_without_an_answer_fails_the_refresh_after_the_others_were_settled() {
        let names = ["b", "mute", "c"];
        let writer = writer(&names);
        assert_eq!(writer.settle_all().await.unwrap_err().code(), Code::Unavailable);
        let known: Vec<_> =
            names.iter().filter(|name| writer.snapshot(name, &snapshot_of(name)).is_some()).collect();
        assert_eq!(known, [&"b", &"c"]);
    }
}
