//! Orders that change a set: one after another for each set, each one write under the version it was decided on.
//!
//! An order is a task of its own: whoever gave it may hang up, and what was sent has to be followed to its end. What to ask
//! and what to make of the answers is [`ScaleRequest`]'s and [`WriteCache`]'s.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kube_ext::error::chain;
use kube_node_api::{NodeSet, names};
use kube_node_planner::autoscaling::{
    ApiCall, ApiResponse, Change, Code, Failure, Refusal, ScaleRequest, SetSnapshot, Step, WriteCache, record,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

/// How long an order may take: less than the 5 s that cluster-autoscaler waits.
pub(super) const ORDER_LIMIT: Duration = Duration::from_millis(4_500);
/// How long one call to the API server may take: an answer that comes later is of no use to the order.
const CALL_LIMIT: Duration = Duration::from_millis(1_500);

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScaleError {
    /// It is not to be.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It failed on its way.
    #[error("NodeSet {set} could not be changed: {failure}")]
    Failed {
        set: String,
        failure: Failure,
        /// What the API server said last.
        #[source]
        source: Option<Box<kube::Error>>,
    },
    /// Not in time, and without effect.
    #[error("NodeSet {set} could not be changed within {} ms", ORDER_LIMIT.as_millis())]
    Late { set: String },
}

impl ScaleError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Late { .. } => Code::DeadlineExceeded,
            Self::Failed { failure: Failure::Refused, source, .. } => match source.as_deref() {
                Some(kube::Error::Api(status)) if status.code == 403 => Code::PermissionDenied,
                Some(kube::Error::Api(status)) if status.code == 422 => Code::FailedPrecondition,
                _ => Code::Unavailable,
            },
            Self::Failed { .. } => Code::Unavailable,
        }
    }
}

/// What is written to sets.
pub(super) struct Writer {
    api: Api<NodeSet>,
    sets: Mutex<HashMap<String, Arc<Entry>>>,
}

#[derive(Default)]
struct Entry {
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    memory: WriteCache,
    /// Numbers the orders.
    orders: u64,
    /// Orders under way.
    under_way: BTreeSet<u64>,
    /// Those of them whose sender is not there any more: what they come to is open.
    abandoned: BTreeSet<u64>,
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    pub(super) fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { api: Api::all(client), sets: Mutex::default() })
    }

    /// How a set stands that the watch shows so; None while that is open.
    pub(super) fn standing(&self, set: &str, shown: &SetSnapshot) -> Option<SetSnapshot> {
        let sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = sets.get(set).cloned() else { return Some(shown.clone()) };
        drop(sets);
        let state = entry.state();
        if !state.abandoned.is_empty() {
            return None;
        }
        state.memory.current(shown).cloned()
    }

    /// Carries an order out. `decide` may be asked again, each time with how the set stands then; `shown` says how the
    /// watch has it.
    pub(super) async fn order(
        self: &Arc<Self>,
        order: ScaleRequest,
        set: &str,
        shown: impl Fn() -> Result<SetSnapshot, Refusal> + Send + Sync + 'static,
        decide: impl Fn(&SetSnapshot) -> Result<Option<Change>, Refusal> + Send + Sync + 'static,
    ) -> Result<(), ScaleError> {
        // Whoever asks for what there is not leaves nothing behind.
        shown()?;
        let (writer, name, entry) = (Arc::clone(self), set.to_owned(), self.entry(set));
        let deadline = Instant::now() + ORDER_LIMIT;
        let under_way = UnderWay::begin(&entry);
        let _sender = Sender { entry: Arc::clone(&entry), order: under_way.number };
        let task = tokio::spawn(async move {
            // Dropped with the task, however that ends.
            let _under_way = under_way;
            writer.carry_out(order, &name, &entry, (shown, decide), deadline).await
        });
        let open = |_| ScaleError::Failed { set: set.to_owned(), failure: Failure::Open, source: None };
        task.await.unwrap_or_else(|error| Err(open(error)))
    }

    /// Settles every set whose last write has no answer.
    pub(super) async fn settle_all(&self) -> Result<(), ScaleError> {
        for (set, entry) in self.unsettled() {
            let nothing = |_: &SetSnapshot| Ok(None);
            let unknown = || Err(Refusal::NoGroup(String::new()));
            let deadline = Instant::now() + ORDER_LIMIT;
            match self.carry_out(ScaleRequest::of_number(), &set, &entry, (unknown, nothing), deadline).await
            {
                // It is no group any more: there is nothing left to know.
                Ok(()) | Err(ScaleError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn unsettled(&self) -> Vec<(String, Arc<Entry>)> {
        let sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let open = sets.iter().filter(|(_, entry)| entry.state().memory.unsettled().is_some());
        open.map(|(set, entry)| (set.clone(), Arc::clone(entry))).collect()
    }

    fn entry(&self, set: &str) -> Arc<Entry> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sets.entry(set.to_owned()).or_default())
    }

    async fn carry_out(
        &self,
        mut order: ScaleRequest,
        set: &str,
        entry: &Entry,
        (shown, decide): (
            impl Fn() -> Result<SetSnapshot, Refusal>,
            impl Fn(&SetSnapshot) -> Result<Option<Change>, Refusal>,
        ),
        deadline: Instant,
    ) -> Result<(), ScaleError> {
        let late = || ScaleError::Late { set: set.to_owned() };
        let _turn = timeout_at(deadline, entry.turn.lock()).await.map_err(|_| late())?;
        let (mut heard, mut source) = (ApiResponse::Begun, None);
        loop {
            let step = order.next(heard, &mut entry.state().memory, &shown, &decide, set);
            let answer = match step {
                Step::Done => return Ok(()),
                Step::Refused(refusal) => return Err(refusal.into()),
                Step::Failed(failure) => {
                    return Err(ScaleError::Failed { set: set.to_owned(), failure, source });
                }
                Step::ApiCall(ApiCall::Read) => self.get(set).await,
                Step::ApiCall(ApiCall::Write { on, change }) => {
                    // Whoever asked takes no answer for a failure: what has not been sent by then must not be.
                    if Instant::now() + CALL_LIMIT > deadline {
                        return Err(late());
                    }
                    info!(set, before = on.replicas, now = change.replicas, "ordered by cluster-autoscaler");
                    self.write(set, &on, wanted(&on, &change)).await
                }
                Step::ApiCall(ApiCall::Fence { on }) => {
                    let now = json!({ names::ANNOTATION_FENCE: Timestamp::now() });
                    self.write(set, &on, json!({ "metadata": { "annotations": now } })).await
                }
            };
            (heard, source) = match answer {
                Ok(Some(live)) => (ApiResponse::Stands(live), None),
                Ok(None) => (ApiResponse::NoGroup, None),
                Err(error) => (error.heard(), error.source()),
            };
            if heard == ApiResponse::Nothing {
                warn!(
                    set,
                    error = source.as_deref().map(|error| chain(error)),
                    "the API server does not answer"
                );
            }
        }
    }

    /// How the set stands on the server; None where it is no group any more.
    async fn get(&self, set: &str) -> Result<Option<SetSnapshot>, CallError> {
        Ok(SetSnapshot::of(&limited(self.api.get(set)).await?))
    }

    /// Writes a change of a set in exactly this state; None where it is no group afterwards.
    async fn write(
        &self,
        set: &str,
        on: &SetSnapshot,
        mut change: Value,
    ) -> Result<Option<SetSnapshot>, CallError> {
        change["metadata"]["uid"] = json!(on.uid);
        change["metadata"]["resourceVersion"] = json!(on.version);
        let params =
            PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let object = limited(self.api.patch(set, &params, &Patch::Merge(change))).await?;
        Ok(SetSnapshot::of(&object))
    }
}

/// An order as a merge patch.
fn wanted(standing: &SetSnapshot, change: &Change) -> Value {
    let mut patch = json!({ "metadata": {}, "spec": { "replicas": change.replicas } });
    if change.victims != standing.victims {
        patch["metadata"]["annotations"] = json!({ names::ANNOTATION_VICTIMS: record(&change.victims) });
    }
    patch
}

/// A call to the API server that did not succeed; without an error it had no answer in time.
struct CallError(Option<Box<kube::Error>>);

impl CallError {
    fn heard(&self) -> ApiResponse {
        match self.0.as_deref() {
            Some(kube::Error::Api(status)) => match status.code {
                404 => ApiResponse::NoGroup,
                409 => ApiResponse::Conflict,
                400..500 => ApiResponse::Refused,
                _ => ApiResponse::Nothing,
            },
            _ => ApiResponse::Nothing,
        }
    }

    fn source(self) -> Option<Box<kube::Error>> {
        self.0
    }
}

async fn limited<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    let answer = timeout(CALL_LIMIT, call).await.map_err(|_| CallError(None))?;
    answer.map_err(|error| CallError(Some(Box::new(error))))
}

/// An order under way.
struct UnderWay {
    entry: Arc<Entry>,
    number: u64,
}

impl UnderWay {
    fn begin(entry: &Arc<Entry>) -> Self {
        let mut state = entry.state();
        state.orders += 1;
        let number = state.orders;
        state.under_way.insert(number);
        drop(state);
        Self { entry: Arc::clone(entry), number }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.entry.state();
        state.under_way.remove(&self.number);
        state.abandoned.remove(&self.number);
    }
}

/// Whoever waits for an order; one that hangs up before its end takes the silence for a failure.
struct Sender {
    entry: Arc<Entry>,
    order: u64,
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.entry.state();
        if state.under_way.contains(&self.order) {
            state.abandoned.insert(self.order);
        }
    }
}
