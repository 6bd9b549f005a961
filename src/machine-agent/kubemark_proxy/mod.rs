//! Kubemark proxy: the sidecar that makes an upstream kubemark, without a patch, behave as a machine of ours.
//!
//! The proxy listens on loopback in the pod of the machine. kubemark sends plain HTTP to it, and it forwards
//! every request to the API server with the machine's own identity, which kubemark never sees. On the way
//! - the status of the Node is rewritten to the container runtime, allocatable and recorded boot of the
//!   machine, and in an unhealthy phase to not ready (`rewrite`);
//! - writes of a silent machine end here;
//! - a deleted Node is not created again: kubemark, which always tries, is refused, and the proxy ends.
//!
//! At each change of phase the proxy writes the Node's conditions itself, at once. Responses that are not
//! rewritten are passed on as they arrive; requests are read whole, up to the API server's own limit.

mod answer;
mod condition_writer;
mod forward;
mod headers;
mod lines;
mod rewrite;
mod route;
mod state;

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use kube::Client;
use kube_ext::admin::{Admin, AdminError, Readiness};
use prometheus::Registry;
use tokio::{net::TcpListener, sync::Notify, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use self::state::Gone;
use self::{condition_writer::LookError, state::State};
use crate::{
    identity::{self, Identity, IdentityError},
    machine_dir::{Machine, MachineDir, MachineDirError, Settings},
};

/// Time limit for responses under way at shutdown.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Settings of the proxy.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the machine's Node.
    pub node: String,
    /// Folder that the provider mounts.
    pub machine_dir: PathBuf,
    /// Folder for the certificate.
    pub state_dir: PathBuf,
    /// Loopback address at which kubemark finds the API server.
    pub listen: SocketAddr,
    /// Address for probes; None for no probes.
    pub probes: Option<SocketAddr>,
}

/// Reason why the proxy ended. It is the last line of its container.
#[derive(Debug, thiserror::Error)]
pub enum KubemarkProxyError {
    /// The provider's files cannot be used.
    #[error(transparent)]
    MachineDir(#[from] MachineDirError),
    /// The identity could not be obtained, or has ended.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The listening address can be reached by others.
    #[error(
        "{address} is no loopback address: whoever reaches the kubemark proxy is the machine; write 127.0.0.1:6444"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The port cannot be opened.
    #[error("cannot listen on {address}: choose another --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The port for probes cannot be opened.
    #[error(transparent)]
    Probes(#[from] AdminError),
    /// The Node is no longer this machine's.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The Node cannot be read, and waiting would not help.
    #[error("cannot read Node {node}")]
    Node {
        /// Name of the Node.
        node: String,
        /// Error of the API server.
        source: Box<kube::Error>,
    },
}

/// State shared by the requests and the condition writer.
struct Shared {
    /// Set once the Node was read; until then every request is refused.
    client: OnceLock<Client>,
    node: String,
    state: Mutex<State>,
    /// Notified when the conditions may have to be written.
    news: Notify,
    /// Cancelled when the Node is gone.
    gone: CancellationToken,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies other settings.
    fn set(&self, settings: Settings) {
        self.change(|state| state.set_failures(settings.failures));
        self.news.notify_one();
    }

    /// Changes the state, and cancels `gone` if the Node is gone.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        if state.gone().is_some() {
            self.gone.cancel();
        }
        result
    }
}

/// Runs the proxy until `shutdown`.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), KubemarkProxyError> {
    let Options { node, machine_dir, state_dir, listen, probes } = options;
    let dir = MachineDir::new(&machine_dir);
    let proxy = Proxy::bind(listen, dir.machine(&node)?).await?;
    proxy.shared.set(dir.settings()?);
    if let Some(address) = probes {
        let admin = Admin::bind(address, "--probe-port").await?;
        tokio::spawn(admin.serve(Registry::new(), proxy.readiness(), shutdown.clone()));
    }
    let work = Box::pin(async {
        let identity = Identity::obtain(identity::Options::new(node, dir.bootstrap(), state_dir)).await?;
        let client = identity.client();
        tokio::select! {
            ended = proxy.serve(&client) => ended,
            error = identity.keep() => Err(error.into()),
            () = dir.follow(|settings| proxy.shared.set(settings)) => Ok(()),
        }
    });
    let ended = shutdown.run_until_cancelled(work).await.unwrap_or(Ok(()));
    proxy.end().await;
    ended
}

/// A proxy that listens. Every request is refused until it serves.
struct Proxy {
    shared: Arc<Shared>,
    server: JoinHandle<io::Result<()>>,
    stop: CancellationToken,
}

impl Proxy {
    /// Binds the address, which must be a loopback one.
    async fn bind(address: SocketAddr, machine: Machine) -> Result<Self, KubemarkProxyError> {
        if !address.ip().is_loopback() {
            return Err(KubemarkProxyError::NotLoopback { address });
        }
        let failed = |source| KubemarkProxyError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let shared = Arc::new(Shared {
            client: OnceLock::new(),
            node: machine.node.clone(),
            state: Mutex::new(State::new(machine)),
            news: Notify::new(),
            gone: CancellationToken::new(),
        });
        let stop = CancellationToken::new();
        let service = axum::Router::new().fallback(forward::handle).with_state(Arc::clone(&shared));
        let server = axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
        Ok(Self { shared, server: tokio::spawn(server.into_future()), stop })
    }

    /// Ready once kubemark may start.
    fn readiness(&self) -> Readiness {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || {
            let ready = shared.client.get().is_some();
            if ready { Vec::new() } else { vec!["the machine has no identity yet".to_owned()] }
        })
    }

    /// Serves kubemark with the identity of `client`, until the Node is gone.
    async fn serve(&self, client: &Client) -> Result<(), KubemarkProxyError> {
        let shared = &self.shared;
        condition_writer::first_look(client, shared).await.map_err(|error| match error {
            LookError::Gone(gone) => KubemarkProxyError::Gone(gone),
            LookError::Kube(source) => KubemarkProxyError::Node { node: shared.node.clone(), source },
        })?;
        let _ = shared.client.set(client.clone());
        info!(node = shared.node, "the machine may speak");
        tokio::select! {
            () = condition_writer::run(client, shared) => Ok(()),
            () = shared.gone.cancelled() => {
                let gone = shared.state().gone().cloned();
                gone.map_or(Ok(()), |gone| Err(gone.into()))
            }
        }
    }

    /// Stops listening. Short responses such as refusals are sent before; watches, which never end, are cut
    /// off.
    async fn end(mut self) {
        self.stop.cancel();
        if timeout(LAST_WORDS, &mut self.server).await.is_err() {
            self.server.abort();
        }
    }
}
