//! `kube-node kubemark-proxy`: the sidecar that makes an upstream kubemark, without a patch, behave as a machine of ours.
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
//! The reason why the proxy ends is the last line of its container.

mod condition_writer;
mod forward;
mod headers;
mod lines;
mod refusal;
mod rewrite;
mod route;
mod state;

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Args;
use kube::Client;
use kube_ext::{admin::Admin, process::signals};
use kube_node_api::machine_files::MachineSettings;
use machine_identity::{Identity, IdentityOptions};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::{net::TcpListener, sync::Notify, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::info;

use self::state::NodeState;
use crate::{
    machine_args::{self, MachineArgs, readiness},
    machine_dir::MachineDir,
};

/// Time limit for responses under way at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

/// Arguments of `kubemark-proxy`. Its /readyz says when kubemark may start.
#[derive(Debug, Args)]
pub struct KubemarkProxy {
    #[command(flatten)]
    machine: MachineArgs,
    /// Where kubemark finds the API server: an address of loopback
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6444")]
    listen: SocketAddr,
}

impl KubemarkProxy {
    /// Runs until SIGINT or SIGTERM, or until the Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        machine_args::run(self.machine.log_format, async { self.serve(signals()?).await })
    }

    async fn serve(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self { machine: args, listen } = self;
        let dir = MachineDir::new(&args.machine_dir);
        let machine = dir.machine(&args.node)?;
        ensure!(
            listen.ip().is_loopback(),
            "{listen} is no loopback address: whoever reaches the kubemark proxy is the machine; write 127.0.0.1:6444"
        );
        let listener = TcpListener::bind(listen).await;
        let listener =
            listener.with_context(|| format!("cannot listen on {listen}: choose another --listen"))?;
        let shared = Arc::new(Shared {
            client: OnceLock::new(),
            node: machine.node.clone(),
            state: Mutex::new(NodeState::new(machine)),
            changed: Notify::new(),
            gone: CancellationToken::new(),
        });
        let stop = CancellationToken::new();
        let service = axum::Router::new().fallback(forward::handle).with_state(Arc::clone(&shared));
        let server = axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
        let server = AbortOnDropHandle::new(tokio::spawn(server.into_future()));
        shared.set(dir.settings()?);
        if let Some(address) = args.probes() {
            let ready = Arc::clone(&shared);
            // Ready once kubemark may start.
            let readiness =
                readiness("the machine has no identity yet", move || ready.client.get().is_some());
            let admin = Admin::bind(address, "--probe-port").await?;
            tokio::spawn(admin.serve(Registry::new(), readiness, shutdown.clone()));
        }
        let work = Box::pin(async {
            let options = IdentityOptions::new(args.node, dir.bootstrap(), args.state_dir);
            let identity = Identity::obtain(options).await?;
            let client = identity.client();
            tokio::select! {
                ended = shared.serve(&client) => ended,
                error = identity.keep() => Err(error.into()),
                () = dir.follow(|settings| shared.set(settings)) => Ok(()),
            }
        });
        let ended = shutdown.run_until_cancelled(work).await.unwrap_or(Ok(()));
        // Short responses such as refusals are sent before; watches, which never end, are cut off.
        stop.cancel();
        let _ = timeout(SHUTDOWN_LIMIT, server).await;
        ended
    }
}

/// State shared by the requests and the condition writer.
struct Shared {
    /// Set once the Node was read; until then every request is refused.
    client: OnceLock<Client>,
    node: String,
    state: Mutex<NodeState>,
    /// Notified when the conditions may have to be written.
    changed: Notify,
    /// Cancelled when the Node is gone.
    gone: CancellationToken,
}

impl Shared {
    /// Applies other settings.
    fn set(&self, settings: MachineSettings) {
        self.change(|state| state.failures = settings.failures);
        self.changed.notify_one();
    }

    /// Changes the state, and cancels `gone` if the Node is gone.
    fn change<T>(&self, change: impl FnOnce(&mut NodeState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        if state.gone.is_some() {
            self.gone.cancel();
        }
        result
    }

    /// Serves kubemark with the identity of `client`, until the Node is gone.
    async fn serve(&self, client: &Client) -> anyhow::Result<()> {
        condition_writer::first_read(client, self).await?;
        let _ = self.client.set(client.clone());
        info!(node = self.node, "kubemark may start");
        tokio::select! {
            () = condition_writer::run(client, self) => {}
            () = self.gone.cancelled() => {}
        }
        self.state.lock().gone.clone().map_or(Ok(()), |gone| Err(gone.into()))
    }
}
