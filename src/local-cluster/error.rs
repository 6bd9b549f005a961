//! Errors of a local cluster.

use std::{io, path::PathBuf, process::ExitStatus};

use super::{
    binaries::BinariesError, component::Component, files::FileError, fleet::FleetError, health::ProbeError,
    layout::LayoutError, manifests::ManifestError, pki::PkiError, ports::PortError,
    process_supervisor::ProcessSupervisorError, real_node, state::StateError, supervisor::READY_LIMIT,
    tcp_proxy::TcpProxyError,
};

/// Reason why a cluster does not run.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The programs are not available.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// The data folder cannot be used.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The state cannot be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// No ports are free.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// A further address cannot serve kube-apiserver.
    #[error(transparent)]
    TcpProxy(#[from] TcpProxyError),
    /// The certificates cannot be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A kubeconfig cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// No client can be made for the cluster.
    #[error(transparent)]
    Client(#[from] ProbeError),
    /// This machine cannot have a real node.
    #[error(transparent)]
    Programs(#[from] real_node::ProgramsError),
    /// The network of the real node cannot be made.
    #[error(transparent)]
    Network(#[from] real_node::NetworkError),
    /// The real node cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] real_node::PrepareError),
    /// Remains of the real node cannot be removed.
    #[error(transparent)]
    Remove(#[from] real_node::RemoveError),
    /// The real node is not Ready.
    #[error(transparent)]
    Ready(#[from] real_node::ReadyError),
    /// The path of the kube-node program cannot be found.
    #[error("cannot find the program of kube-node itself")]
    Itself(#[source] io::Error),
    /// A component cannot be started.
    #[error("cannot start {component}")]
    Start {
        /// The component.
        component: Component,
        /// The error.
        source: ProcessSupervisorError,
    },
    /// A component ended during its start.
    #[error("{component} ended while it was starting ({}); the end of {}:\n{tail}", status.map_or_else(|| "how is unknown".to_owned(), |status| status.to_string()), log.display())]
    Ended {
        /// The component.
        component: Component,
        /// Exit status, if known.
        status: Option<ExitStatus>,
        /// Path of its log.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
    /// A component did not become ready.
    #[error("{component} is not ready after {} s; the end of {}:\n{tail}\nwhen asked", READY_LIMIT.as_secs(), log.display())]
    NotReady {
        /// The component.
        component: Component,
        /// Path of its log.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
        /// Result of the last probe.
        source: ProbeError,
    },
    /// The CRDs or manifests could not be installed.
    #[error(transparent)]
    Manifests(#[from] ManifestError),
    /// The nodes of `up` are not Ready.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}
