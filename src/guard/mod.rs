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
mod disguise;
mod forward;
mod headers;
mod lines;
mod route;
mod speaker;
mod state;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use kube::Client;
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use self::state::Gone;
use self::{speaker::LookError, state::State};
use crate::api::{Failures, Resources};

/// How long answers that are under way may take at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The machine that is guarded.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name of its Node.
    pub node: String,
    /// UID of its Node: under another one the machine has nothing to do.
    pub uid: String,
    /// What it reports as its container runtime, such as `containerd://2.1.0`; what kubemark says when None.
    pub container_runtime: Option<String>,
    /// What pods may use of it; what kubemark says when None.
    pub allocatable: Option<Resources>,
}

/// Why the guard ended.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
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
    /// The port failed.
    #[error("the port failed")]
    Serve(#[source] Option<io::Error>),
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

/// A guard that listens. It refuses everybody until it runs.
pub struct Guard {
    shared: Arc<Shared>,
    server: JoinHandle<io::Result<()>>,
    stop: CancellationToken,
}

impl Guard {
    /// Takes the port, which must be one of loopback.
    pub async fn bind(address: SocketAddr, machine: Machine) -> Result<Self, GuardError> {
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

    /// Serves kubemark with the identity of `client` until `shutdown`, or until the Node is gone. `failures` may change.
    pub async fn run(
        mut self,
        client: Client,
        mut failures: watch::Receiver<Option<Failures>>,
        shutdown: CancellationToken,
    ) -> Result<(), GuardError> {
        let shared = Arc::clone(&self.shared);
        let work = async {
            shared.change(|state| state.set_failures(failures.borrow_and_update().clone()));
            speaker::first_look(&client, &shared).await.map_err(|error| match error {
                LookError::Gone(gone) => GuardError::Gone(gone),
                LookError::Kube(source) => GuardError::Node { node: shared.node.clone(), source },
            })?;
            let _ = shared.client.set(client.clone());
            info!(node = shared.node, "the machine may speak");
            tokio::select! {
                () = speaker::run(&client, &shared) => Ok(()),
                () = follow(&mut failures, &shared) => Ok(()),
                () = shared.gone.cancelled() => {
                    let gone = shared.state().gone().cloned();
                    gone.map_or(Ok(()), |gone| Err(gone.into()))
                }
            }
        };
        let ended = tokio::select! {
            ended = work => ended,
            () = shutdown.cancelled() => Ok(()),
            served = &mut self.server => return Err(GuardError::Serve(served.ok().and_then(Result::err))),
        };
        self.stop.cancel();
        // Whoever asked for what cannot be is told so; watches would go on for ever.
        let _ = timeout(LAST_WORDS, &mut self.server).await;
        ended
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Takes over other failures for as long as somebody may change them.
async fn follow(failures: &mut watch::Receiver<Option<Failures>>, shared: &Shared) {
    while failures.changed().await.is_ok() {
        let new = failures.borrow_and_update().clone();
        shared.change(|state| state.set_failures(new));
        shared.news.notify_one();
    }
    std::future::pending().await
}
