//! The guard: the helper beside an upstream kubemark, which it makes behave as a machine of ours without a patch.
//!
//! It listens on loopback in the pod of the machine. kubemark speaks plain HTTP to it, and it forwards every request to
//! the API server with the machine's own identity, which kubemark never sees. On the way
//! - the status of the machine's Node says what the machine is to be: its container runtime, its allocatable, its
//!   recorded boot, and in an unhealthy phase that it is not ready ([`disguise`]);
//! - a silent machine's writes end here;
//! - a Node that was deleted is not created again: kubemark, which always tries, is told so, and the guard ends.
//!
//! At each change of phase the guard writes the Node's conditions itself, at once. Answers that it does not rewrite are
//! passed on as they come; requests are read whole, up to the length that the API server takes.

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

/// How long answers that are under way may take at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a guard needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the machine's Node.
    pub node: String,
    /// The folder that its provider mounts.
    pub machine_dir: PathBuf,
    /// The folder for its certificate.
    pub state_dir: PathBuf,
    /// Where kubemark finds the API server: an address of loopback.
    pub listen: SocketAddr,
    /// Where probes are answered; None for nowhere.
    pub probes: Option<SocketAddr>,
}

/// Why the guard ended. It is the last line of its container.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// What the provider says cannot be used.
    #[error(transparent)]
    MachineDir(#[from] MachineDirError),
    /// No identity, or no longer.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It would listen where others can reach it.
    #[error(
        "{address} is no loopback address: whoever reaches the guard is the machine; write 127.0.0.1:6444"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The port cannot be had.
    #[error("cannot listen on {address}: choose another --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// No port for probes.
    #[error(transparent)]
    Probes(#[from] AdminError),
    /// The Node is not this machine's any more.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The Node cannot be read, and waiting would not help.
    #[error("cannot read Node {node}")]
    Node {
        /// Its name.
        node: String,
        /// What the API server says.
        source: Box<kube::Error>,
    },
}

/// What requests and the speaker share.
struct Shared {
    /// Set once the Node was read; until then nobody is served.
    client: OnceLock<Client>,
    node: String,
    state: Mutex<State>,
    /// Something may be to say.
    news: Notify,
    /// The Node is gone.
    gone: CancellationToken,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes other settings over.
    fn set(&self, settings: Settings) {
        self.change(|state| state.set_failures(settings.failures));
        self.news.notify_one();
    }

    /// Changes the state, and acts on what that means for all.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        if state.gone().is_some() {
            self.gone.cancel();
        }
        result
    }
}

/// Guards the machine until `shutdown`.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), GuardError> {
    let Options { node, machine_dir, state_dir, listen, probes } = options;
    let dir = MachineDir::new(&machine_dir);
    let guard = Guard::bind(listen, dir.machine(&node)?).await?;
    guard.shared.set(dir.settings()?);
    if let Some(address) = probes {
        let admin = Admin::bind(address, "--probe-port").await?;
        tokio::spawn(admin.serve(Registry::new(), guard.readiness(), shutdown.clone()));
    }
    let work = Box::pin(async {
        let identity = Identity::obtain(identity::Options::new(node, dir.bootstrap(), state_dir)).await?;
        let client = identity.client();
        tokio::select! {
            ended = guard.serve(&client) => ended,
            error = identity.keep() => Err(error.into()),
            () = dir.follow(|settings| guard.shared.set(settings)) => Ok(()),
        }
    });
    let ended = shutdown.run_until_cancelled(work).await.unwrap_or(Ok(()));
    guard.end().await;
    ended
}

/// A guard that listens. It refuses everybody until it serves.
struct Guard {
    shared: Arc<Shared>,
    server: JoinHandle<io::Result<()>>,
    stop: CancellationToken,
}

impl Guard {
    /// Takes the port, which must be one of loopback.
    async fn bind(address: SocketAddr, machine: Machine) -> Result<Self, GuardError> {
        if !address.ip().is_loopback() {
            return Err(GuardError::NotLoopback { address });
        }
        let failed = |source| GuardError::Listen { address, source };
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
    async fn serve(&self, client: &Client) -> Result<(), GuardError> {
        let shared = &self.shared;
        condition_writer::first_look(client, shared).await.map_err(|error| match error {
            LookError::Gone(gone) => GuardError::Gone(gone),
            LookError::Kube(source) => GuardError::Node { node: shared.node.clone(), source },
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

    /// Stops to listen. Whoever asked for what cannot be is told so before; watches would go on for ever.
    async fn end(mut self) {
        self.stop.cancel();
        if timeout(LAST_WORDS, &mut self.server).await.is_err() {
            self.server.abort();
        }
    }
}
