//! Why a cluster does not run.

use std::{io, path::PathBuf, process::ExitStatus};

use super::{
    binaries::BinariesError, component::Component, files::FileError, fleet::FleetError, health::ProbeError,
    layout::LayoutError, manifests::ManifestError, pki::PkiError, ports::PortError,
    process_supervisor::ProcessSupervisorError, real_node, state::StateError, supervisor::READY_LIMIT,
    tcp_proxy::TcpProxyError,
};

/// Why a cluster does not run.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There are no programs.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// The data folder does not serve.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The state cannot be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// There are no ports.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// It cannot be reached at a further address.
    #[error(transparent)]
    TcpProxy(#[from] TcpProxyError),
    /// There are no certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A kubeconfig cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no client for the cluster.
    #[error(transparent)]
    Client(#[from] ProbeError),
    /// This machine cannot have a real node.
    #[error(transparent)]
    Programs(#[from] real_node::ProgramsError),
    /// There is no network for the real node.
    #[error(transparent)]
    Network(#[from] real_node::NetworkError),
    /// The real node cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] real_node::PrepareError),
    /// What the real node has left cannot be removed.
    #[error(transparent)]
    Remove(#[from] real_node::RemoveError),
    /// The real node is not Ready.
    #[error(transparent)]
    Ready(#[from] real_node::ReadyError),
    /// Our own program cannot be found.
    #[error("cannot find the program of kube-node itself")]
    Itself(#[source] io::Error),
    /// A component cannot be started.
    #[error("cannot start {component}")]
    Start {
        /// Which one.
        component: Component,
        /// Why.
        source: ProcessSupervisorError,
    },
    /// A component ended while it was starting.
    #[error("{component} ended while it was starting ({}); the end of {}:\n{tail}", status.map_or_else(|| "how is unknown".to_owned(), |status| status.to_string()), log.display())]
    Ended {
        /// Which one.
        component: Component,
        /// How.
        status: Option<ExitStatus>,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// A component did not become ready.
    #[error("{component} is not ready after {} s; the end of {}:\n{tail}\nwhen asked", READY_LIMIT.as_secs(), log.display())]
    NotReady {
        /// Which one.
        component: Component,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
        /// What it said, or did not.
        source: ProbeError,
    },
    /// The cluster could not be furnished.
    #[error(transparent)]
    Manifests(#[from] ManifestError),
    /// The nodes are not there.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}
