//! Providers create, change and delete machines. The UID of its Node identifies a machine, so a repeated
//! request makes one.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use jiff::Timestamp;
use kube_node_api::{
    machine_files::{MachineDescription, MachineSettings},
    machine_identity::Account,
};
use kube_node_cache::NodeView;
use kube_node_planner::revision;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Request for a machine.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// Identity of the machine.
    pub id: MachineId,
    /// Machine spec: the content of the revision that the Node names.
    pub machine: revision::ResolvedMachine,
    /// Settings that can change while the machine exists.
    pub settings: MachineSettings,
    /// Credentials Secret, in the operator's namespace, of the cluster that hosts the machine; None: the
    /// provider's default.
    pub credentials: Option<String>,
}

/// Default kubelet version of a hollow machine.
const KUBELET_VERSION: &str = "v1.36.3";
/// Default container runtime of a hollow machine: name and version.
const CONTAINER_RUNTIME: (&str, &str) = ("containerd", "2.1.0");

impl MachineRequest {
    /// Description of the machine for its hollow kubelet.
    pub fn shape(&self) -> Result<MachineDescription, ProviderError> {
        let amounts = self.machine.amounts();
        let (capacity, allocatable) = amounts.map_err(|error| ProviderError::Invalid(error.to_string()))?;
        let provisioning = self.machine.provisioning.clone().unwrap_or_default();
        let runtime = provisioning.container_runtime.as_ref();
        let (runtime, version) = runtime.map_or(CONTAINER_RUNTIME, |own| (&*own.name, &*own.version));
        let kubelet = provisioning.kubelet.map(|kubelet| kubelet.version);
        Ok(MachineDescription {
            node: self.id.node.to_string(),
            uid: self.id.uid.to_string(),
            capacity,
            allocatable,
            container_runtime: format!("{runtime}://{version}"),
            kubelet_version: kubelet.unwrap_or_else(|| KUBELET_VERSION.to_owned()),
            commands: provisioning.commands.unwrap_or_default(),
        })
    }
}

/// Identity of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId {
    /// UID of its Node: its identity.
    pub uid: Arc<str>,
    /// Name of its Node.
    pub node: Arc<str>,
}

impl MachineId {
    /// The identity of a Node's machine.
    pub fn of(node: &NodeView) -> Self {
        Self { uid: Arc::clone(&node.uid), node: Arc::clone(&node.name) }
    }
}

/// State of a machine, as its provider reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Stage of its life.
    pub stage: Stage,
    /// Last renewal of its Lease.
    pub lease: Renewed,
    /// Present obstacle.
    pub trouble: Option<Trouble>,
    /// Last end of a machine that was restarted.
    pub last_end: Option<Trouble>,
}

/// What a provider knows of a machine without a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// The machine exists.
    Machine(Existing),
    /// The machine does not exist.
    Absent,
    /// Only [`Provider::exists`] can tell.
    Unseen,
}

impl Known {
    /// The machine, if one is known.
    pub fn machine(self) -> Option<Existing> {
        if let Self::Machine(existing) = self { Some(existing) } else { None }
    }
}

/// Last renewal of a Lease, as far as the provider of the machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// Unknown: the Lease itself must be read.
    Unknown,
    /// Not renewed yet.
    Never,
    /// Time of the renewal.
    At(Timestamp),
}

/// Stage in the life of an existing machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Starting.
    Starting,
    /// Started: it works, or meets an obstacle.
    Up,
    /// Ended; it will not come back by itself.
    Dead,
    /// Being deleted.
    Leaving,
}

/// Obstacle of a machine. The component that runs the machine tries again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Reason, in the form of a condition's reason.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

/// Failure of a provider call, with the message for people.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Invalid until the class changes.
    #[error("{0}")]
    Invalid(String),
    /// There is no room now.
    #[error("{0}")]
    OutOfResources(String),
    /// This process has no room; [`Provider::watch`] reports when it has.
    #[error("{0}")]
    Full(String),
    /// An object that the class names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The cluster that should host the machine is unreachable or refuses.
    #[error("{0}")]
    Unreachable(String),
    /// Not possible or not known yet: the previous machine is not gone, or not all machines are listed.
    #[error("{0}")]
    Busy(String),
    /// Another failure; the next try may succeed.
    #[error("the provider failed")]
    Retryable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Reason of a machine without room.
pub const OUT_OF_RESOURCES: &str = "OutOfResources";

impl ProviderError {
    /// A failure that the next try may not meet.
    pub fn retryable(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Retryable(Box::new(error))
    }

    /// Reason for conditions, events and metric labels.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidMachine",
            Self::OutOfResources(_) | Self::Full(_) => OUT_OF_RESOURCES,
            Self::NotFound(_) => "ReferenceNotFound",
            Self::Unreachable(_) => "ProviderUnreachable",
            Self::Busy(_) => "ProviderBusy",
            Self::Retryable(_) => "ProviderFailed",
        }
    }

    /// Returns true if nothing but room is missing.
    pub const fn is_out_of_resources(&self) -> bool {
        matches!(self, Self::OutOfResources(_) | Self::Full(_))
    }

    /// Requeue delay. An invalid machine waits for a change of its class, and is retried only now and then.
    /// Room and missing objects come from others, unannounced except by a full process. `None` leaves the
    /// delay to the Node's own back-off.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Invalid(_) | Self::Full(_) => Some(Duration::from_mins(10)),
            Self::OutOfResources(_) | Self::NotFound(_) => Some(Duration::from_secs(30)),
            Self::Unreachable(_) => Some(Duration::from_secs(5)),
            Self::Busy(_) => Some(Duration::from_secs(1)),
            Self::Retryable(_) => None,
        }
    }
}

/// Creates, changes and deletes machines. Every call is idempotent, and may take long: calls have slots of their own
/// ([why](../../docs/decisions/0056-slow-calls-have-slots.md)), unless the machines live in this process.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Name in `NodeClass.spec.nodeController`, and prefix of the providerIDs.
    fn name(&self) -> &'static str;

    /// Returns true if the machines live in this process, so that a restart loses them all.
    fn is_volatile(&self) -> bool {
        false
    }

    /// The `ServiceAccount` with whose token the Node's machine requests its certificate
    /// `system:node:<name>`, which the operator approves; None if the machine has no identity of its own.
    fn account(&self, _: &NodeView) -> Option<Account> {
        None
    }

    /// Creates a machine. An existing one is left as it is.
    async fn create(&self, request: &MachineRequest) -> Result<(), ProviderError>;

    /// Updates the settings of a machine; costs nothing if they are up to date.
    async fn update(&self, id: &MachineId, settings: &MachineSettings) -> Result<(), ProviderError>;

    /// State of a machine, as far as memory tells. Reconciliations read it, so it sends nothing.
    fn known(&self, _: &MachineId) -> Result<Known, ProviderError> {
        Ok(Known::Unseen)
    }

    /// Returns true if [`Self::update`] would send nothing, as far as memory tells.
    fn is_up_to_date(&self, _: &MachineId, _: &MachineSettings) -> bool {
        false
    }

    /// State of a machine; None if it does not exist.
    async fn exists(&self, id: &MachineId) -> Result<Option<Existing>, ProviderError>;

    /// Starts the deletion of a machine. A missing one is no error.
    async fn delete(&self, id: &MachineId) -> Result<(), ProviderError>;

    /// All existing machines, as far as known.
    async fn list(&self) -> Vec<MachineId>;

    /// Number of machines, as far as known. Called at every scrape, so it must not wait.
    fn count(&self) -> usize;

    /// Machines to reconcile again: they came, went, or changed by themselves.
    fn watch(&self) -> BoxStream<'static, MachineId>;
}

/// Receivers of the machines to reconcile again.
#[derive(Default)]
pub struct Watchers(Mutex<Vec<UnboundedSender<MachineId>>>);

impl Watchers {
    /// Sends `id` to all receivers.
    pub fn notify(&self, id: &MachineId) {
        self.0.lock().retain(|watcher| watcher.send(id.clone()).is_ok());
    }

    /// A new receiver.
    pub fn watch(&self) -> BoxStream<'static, MachineId> {
        let (sender, receiver) = unbounded_channel();
        self.0.lock().push(sender);
        UnboundedReceiverStream::new(receiver).boxed()
    }
}
