//! HTTPS endpoints of hollow kubelets, for `kubectl logs|exec|attach|port-forward|top`, metrics-server and
//! other clients of kubelets: one listener per machine ([`listeners`]), one server behind all of them.
//!
//! The API server authenticates and authorizes clients ([`access`]). Answers follow from a pod's script, its
//! status and the time: no log is stored, no process runs. docs/fidelity.md lists the differences from a
//! kubelet.

mod access;
mod certificate;
mod connection;
mod connection_slots;
mod exec;
mod listeners;
mod log_follower;
mod logs;
pub(super) mod metrics;
mod port_forward;
mod query;
mod router;
mod shell;
mod spdy;
mod stats;
mod stream_shares;
mod upgrade;
mod usage;

use std::{
    io,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use kube_ext::{
    call::call,
    environment,
    error::chain,
    log_once::LogOnce,
    tls::{Certificates, ClientAuth, Pem, TlsMaterial},
};
use prometheus::Registry;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(super) use self::listeners::ListenerPool;
pub use self::listeners::Ports;
use self::{
    access::Access, certificate::CertificateSource, connection_slots::ConnectionSlots, metrics::Metrics,
    stream_shares::StreamShares,
};
use super::served_machine::ServedMachines;

/// Refresh interval of certificates and of the client CA.
const REFRESH: Duration = Duration::from_mins(1);
/// Refresh interval while one of them is missing.
const RETRY: Duration = Duration::from_secs(5);
/// ConfigMap in kube-system with the CA by which kube-apiserver authenticates its clients.
const CLIENT_CA: &str = "extension-apiserver-authentication";

/// Options of the endpoints.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address of this process, as the API server reaches it.
    pub address: IpAddr,
    /// Ports of machines.
    pub ports: Ports,
    /// Folder of tls.crt and tls.key; None for a self-signed certificate.
    pub tls_dir: Option<PathBuf>,
}

/// Reason for which no endpoints are served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is no IPv4 address.
    #[error("--kubelet-address {0} is no IPv4 address, which hollow Nodes have: they get no endpoints")]
    Family(IpAddr),
    /// The system has no epoll set to give.
    #[error("the system has no way to wait for many ports")]
    System(#[source] io::Error),
    /// A metric is registered twice: a mistake in the program.
    #[error("a metric cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

/// The server of all machines of a process, to be run.
pub struct Server {
    client: Client,
    machines: Arc<dyn ServedMachines>,
    pub(super) listeners: Arc<ListenerPool>,
    access: Access,
    metrics: Metrics,
    options: ServerOptions,
    /// Certificates, once they could be read.
    certificates: OnceLock<Certificates>,
    slots: ConnectionSlots,
    streams: Arc<StreamShares>,
    shutdown: CancellationToken,
}

impl Server {
    pub(super) fn new(
        client: Client,
        machines: Arc<dyn ServedMachines>,
        options: ServerOptions,
        registry: &Registry,
    ) -> Result<Self, ServeError> {
        let IpAddr::V4(address) = options.address else { return Err(ServeError::Family(options.address)) };
        let metrics = Metrics::new(registry)?;
        let listeners =
            ListenerPool::new(address, options.ports, metrics.clone()).map_err(ServeError::System)?;
        let listeners = Arc::new(listeners);
        Ok(Self {
            access: Access::new(client.clone(), Arc::clone(&listeners)),
            client,
            machines,
            listeners,
            metrics,
            options,
            certificates: OnceLock::new(),
            slots: ConnectionSlots::default(),
            streams: Arc::default(),
            shutdown: CancellationToken::new(),
        })
    }

    /// Serves until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let server = Arc::new(self);
        let router = router::router(&server);
        let _connections_end = server.shutdown.clone().drop_guard();
        info!(address = %server.options.address, ports = %server.options.ports, "kubelets are served");
        let accepting = async {
            let accepted = server.listeners.accept_all(&server.slots, |client, machine, slot| {
                connection::spawn(&server, &router, client, machine, slot);
            });
            let Err(error) = accepted.await;
            warn!(error = chain(&error), "kubelets are no longer served");
        };
        shutdown.run_until_cancelled(async { tokio::join!(server.refresh(), accepting) }).await;
    }

    /// Keeps certificates and the client CA up to date.
    async fn refresh(&self) {
        let mut source = CertificateSource::new(self.options.tls_dir.clone(), self.options.address);
        let (mut client_ca, mut failure) = (None, LogOnce::default());
        loop {
            // A known client CA stays in use while the API server cannot be reached.
            let read = self.client_ca().await.map(|ca| client_ca = Some(ca));
            let renewed = self.renew(&mut source, client_ca.clone()).map_err(|error| ("Certificates", error));
            let result = renewed.and(read.map_err(|error| ("ClientAuthority", error)));
            let Err((reason, error)) = result else {
                failure.ended();
                sleep(REFRESH).await;
                continue;
            };
            let message = chain(error.as_ref());
            if failure.is_new(&message) {
                self.metrics.failed(reason);
                warn!(reason, "kubelets are served with what is known: {message}");
            }
            sleep(RETRY).await;
        }
    }

    /// Reads the certificates.
    fn renew(&self, source: &mut CertificateSource, client_ca: Option<Pem>) -> anyhow::Result<()> {
        let now = environment::now();
        let (cert, key) = source.take(now)?;
        let material = TlsMaterial { cert, key, clients: ClientAuth::Any(client_ca), protocol: b"http/1.1" };
        let has_changed = match self.certificates.get() {
            Some(certificates) => certificates.reload(material, now)?,
            None => self.certificates.set(Certificates::load(material, now)?).is_ok(),
        };
        if has_changed {
            info!("certificates of kubelets were read");
        }
        Ok(())
    }

    /// CA by which the API server authenticates its clients.
    async fn client_ca(&self) -> anyhow::Result<Pem> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let name = format!("the ConfigMap kube-system/{CLIENT_CA}");
        let map = call(format!("read {name}"), maps.get(CLIENT_CA)).await?;
        let ca = map.data.and_then(|mut data| data.remove("client-ca-file"));
        let text = ca.with_context(|| format!("{name} has no client-ca-file"))?.into_bytes();
        Ok(Pem { path: name.into(), text })
    }
}
