//! Providers make machines. A machine is known by the UID of its Node, so that asking twice makes one.

mod hollow;

use std::{sync::Arc, time::Duration};

use futures::{future::BoxFuture, stream::BoxStream};
use jiff::Timestamp;

use crate::{
    api::{ContainerDefaults, Failures},
    core::revision,
};

pub use hollow::HollowProvider;

/// A machine to be made.
#[derive(Clone, Debug)]
pub struct Order {
    /// Who it is.
    pub id: MachineId,
    /// What it is made from: the content of the revision that the Node names.
    pub machine: revision::Machine,
    /// What can change while it lives.
    pub settings: Settings,
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

/// A machine as its provider sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Whether its deletion is under way.
    pub leaving: bool,
    /// When its kubelet renewed its Lease last, where the provider knows; else the Lease itself must be read.
    pub lease_renewed: Option<Timestamp>,
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
    /// It may work the next time.
    #[error("the provider failed")]
    Retryable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ProviderError {
    /// The reason for conditions, events and metric labels.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "InvalidMachine",
            Self::OutOfResources { .. } => "OutOfResources",
            Self::Retryable(_) => "ProviderFailed",
        }
    }

    /// When to try again: what is invalid waits for a change of its class and is looked at now and then only; room is
    /// made by others; `None` leaves it to the Node's own back-off.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Invalid { .. } => Some(Duration::from_mins(10)),
            Self::OutOfResources { .. } => Some(Duration::from_secs(30)),
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

    /// Whether each of its machines asks for a certificate `system:node:<name>`, which the operator approves.
    fn has_identities(&self) -> bool {
        false
    }

    /// Makes a machine; one that exists already is left as it is.
    fn create<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<(), ProviderError>>;

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

    /// Machines to look at again: they came, went, or changed by themselves.
    fn watch(&self) -> BoxStream<'static, MachineId>;
}
