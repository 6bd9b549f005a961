//! Providers make machines. A machine is known by the UID of its Node, so that asking twice makes one.

mod hollow;
pub mod kubemark;

use std::{sync::Arc, time::Duration};

use futures::{future::BoxFuture, stream::BoxStream};
use jiff::Timestamp;
use kube_node_api::{ContainerDefaults, Failures};
use kube_node_cache::NodeView;
use kube_node_planner::{approval::Account, quantity, revision};
use machine_agent::machine_dir;

pub use hollow::{Dependencies, HollowProvider, InProcess, Room};
pub use kubemark::KubemarkProvider;

/// A machine to be made.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// Who it is.
    pub id: MachineId,
    /// What it is made from: the content of the revision that the Node names.
    pub machine: revision::Machine,
    /// What can change while it lives.
    pub settings: Settings,
    /// The Secret in the operator's namespace that leads to where the machine is to be; None: the provider's own place.
    pub credentials: Option<String>,
}

/// What a hollow machine's kubelet says it is, unless its class says otherwise.
const KUBELET_VERSION: &str = "v1.36.3";
/// What it says its container runtime is, unless its class says otherwise.
const CONTAINER_RUNTIME: (&str, &str) = ("containerd", "2.1.0");

impl MachineRequest {
    /// What a hollow machine is told that it is.
    fn shape(&self) -> Result<machine_dir::Machine, ProviderError> {
        let invalid =
            |error: quantity::ParseQuantityError| ProviderError::Invalid { message: error.to_string() };
        let (capacity, allocatable) = self.machine.amounts().map_err(invalid)?;
        let provisioning = self.machine.provisioning.clone().unwrap_or_default();
        let (runtime, version) = provisioning
            .container_runtime
            .as_ref()
            .map_or(CONTAINER_RUNTIME, |runtime| (runtime.name.as_str(), runtime.version.as_str()));
        Ok(machine_dir::Machine {
            node: self.id.node.to_string(),
            uid: self.id.uid.to_string(),
            capacity,
            allocatable,
            container_runtime: format!("{runtime}://{version}"),
            kubelet_version: provisioning
                .kubelet
                .map_or_else(|| KUBELET_VERSION.to_owned(), |kubelet| kubelet.version),
            commands: provisioning.commands.unwrap_or_default(),
        })
    }
}

/// What of a class changes a living machine in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The disruptor.
    pub failures: Option<Failures>,
    /// What its containers do by default.
    pub containers: ContainerDefaults,
}

/// Who a machine is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId {
    /// UID of its Node: its identity.
    pub uid: Arc<str>,
    /// Name of its Node.
    pub node: Arc<str>,
}

impl MachineId {
    /// The machine of a Node.
    #[must_use]
    pub fn of(node: &NodeView) -> Self {
        Self { uid: Arc::clone(&node.uid), node: Arc::clone(&node.name) }
    }
}

/// A machine as its provider sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Where in its life it is.
    pub stage: Stage,
    /// When its kubelet renewed its Lease last.
    pub lease: Renewed,
    /// What stands in its way.
    pub trouble: Option<Trouble>,
    /// How it ended last, where it was started again.
    pub last_end: Option<Trouble>,
}

/// When a kubelet renewed its Lease last, as far as the provider of its machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The Lease itself must be read.
    Unknown,
    /// Not yet.
    Never,
    /// Then.
    At(Timestamp),
}

/// Where in its life a machine is that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is on its way.
    Starting,
    /// It works, or something stands in its way.
    Up,
    /// It has ended and will not come back by itself.
    Dead,
    /// Its deletion is under way.
    Leaving,
}

/// What stands in the way of a machine: whoever runs it tries again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In the form of a condition's reason.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// Why a provider did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// It never will, until the class changes.
    #[error("{message}")]
    Invalid {
        /// What is wrong, and what to write instead.
        message: String,
    },
    /// It has no room now.
    #[error("{message}")]
    OutOfResources {
        /// What is missing.
        message: String,
    },
    /// This process has no room for it, and tells ([`Provider::watch`]) when there is some.
    #[error("{message}")]
    Full {
        /// What it is full of, and what makes room.
        message: String,
    },
    /// Something that the class names does not exist.
    #[error("{message}")]
    NotFound {
        /// What, and where it was looked for.
        message: String,
    },
    /// Where the machine is to be cannot be reached, or refuses.
    #[error("{message}")]
    Unreachable {
        /// Which place, and why.
        message: String,
    },
    /// It will be known or possible in a moment: something of the machine before is still in the way, or not all machines are
    /// known yet.
    #[error("{message}")]
    Busy {
        /// What.
        message: String,
    },
    /// It may work the next time.
    #[error("the provider failed")]
    Retryable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Reason of what has no room.
pub const OUT_OF_RESOURCES: &str = "OutOfResources";

impl ProviderError {
    /// The reason for conditions, events and metric labels.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "InvalidMachine",
            Self::OutOfResources { .. } | Self::Full { .. } => OUT_OF_RESOURCES,
            Self::NotFound { .. } => "ReferenceNotFound",
            Self::Unreachable { .. } => "ProviderUnreachable",
            Self::Busy { .. } => "ProviderBusy",
            Self::Retryable(_) => "ProviderFailed",
        }
    }

    /// Whether room is missing, and nothing else.
    #[must_use]
    pub const fn is_want_of_room(&self) -> bool {
        matches!(self, Self::OutOfResources { .. } | Self::Full { .. })
    }

    /// When to try again: what is invalid waits for a change of its class and is looked at now and then only; room is
    /// made, and what is missing created, by others, which only one that is full tells; `None` leaves it to the Node's own back-off.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Invalid { .. } | Self::Full { .. } => Some(Duration::from_mins(10)),
            Self::OutOfResources { .. } | Self::NotFound { .. } => Some(Duration::from_secs(30)),
            Self::Unreachable { .. } => Some(Duration::from_secs(5)),
            Self::Busy { .. } => Some(Duration::from_secs(1)),
            Self::Retryable(_) => None,
        }
    }
}

/// Makes, changes and deletes machines. Every call is idempotent.
pub trait Provider: Send + Sync {
    /// Its name: what `NodeClass.spec.nodeController` says, and the prefix of its providerIDs.
    fn name(&self) -> &'static str;

    /// Whether its machines live in this process, so that a restart loses them all.
    fn is_volatile(&self) -> bool {
        false
    }

    /// The `ServiceAccount` by whose token the machine of a Node asks for its certificate `system:node:<name>`, which the
    /// operator approves; None where the machine has no identity of its own.
    fn account(&self, _: &NodeView) -> Option<Account> {
        None
    }

    /// Makes a machine; one that exists already is left as it is.
    fn create<'a>(&'a self, request: &'a MachineRequest) -> BoxFuture<'a, Result<(), ProviderError>>;

    /// Brings the settings of a machine up to date; costs nothing where they are.
    fn update<'a>(
        &'a self,
        id: &'a MachineId,
        settings: &'a Settings,
    ) -> BoxFuture<'a, Result<(), ProviderError>>;

    /// Whether the machine exists.
    fn exists<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<Option<Existing>, ProviderError>>;

    /// Begins to delete a machine; one that does not exist is no error.
    fn delete<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<(), ProviderError>>;

    /// All machines that exist.
    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineId>, ProviderError>>;

    /// How many machines exist, as far as that is known. Asked at every scrape: it must not wait.
    fn count(&self) -> usize;

    /// Machines to look at again: they came, went, or changed by themselves.
    fn watch(&self) -> BoxStream<'static, MachineId>;
}
