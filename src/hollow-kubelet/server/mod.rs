//! HTTPS endpoints of hollow kubelets, for `kubectl logs|exec|attach|port-forward|top`, metrics-server and
//! other clients of kubelets: one listener per machine ([`listeners`]), one server behind all of them.
//!
//! The API server authenticates and authorizes clients ([`access`]). Answers follow from a pod's script, its
//! status and the time: no log is stored, no process runs. docs/fidelity.md lists the differences from a
//! kubelet.

mod access;
mod answers;
mod certificate;
mod connection;
mod connection_slots;
mod exec;
mod listeners;
mod log_follower;
mod logs;
pub(super) mod metrics;
mod port_forward;
mod route;
mod shell;
mod spdy;
mod stats;
mod streams;
mod upgrade;
mod usage;

use std::{
    io,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use kube_ext::{
    error::chain,
    tls::{Certificates, Clients, Material, Pem, TlsError},
};
use prometheus::Registry;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::listeners::{ListenerPool, Ports};
use self::{
    access::Access,
    certificate::{CertificateError, Source},
    connection_slots::ConnectionSlots,
    metrics::Metrics,
};
use super::served_machine::ServedMachines;

/// Refresh interval of certificates and of the client CA.
const REFRESH: Duration = Duration::from_mins(1);
/// Refresh interval while one of them is missing.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of the request for the client CA.
const AUTHORITY_LIMIT: Duration = Duration::from_secs(10);
/// ConfigMap in kube-system with the CA by which kube-apiserver authenticates its clients.
const AUTHORITY: &str = "extension-apiserver-authentication";

/// Options of the endpoints.
#[derive(Clone, Debug)]
pub struct Options {
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

/// Failure to refresh the certificates.
#[derive(Debug, thiserror::Error)]
enum RefreshError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The server of all machines of a process, to be run.
pub struct Server {
    client: Client,
    machines: Arc<dyn ServedMachines>,
    listeners: Arc<ListenerPool>,
    access: Access,
    metrics: Metrics,
    options: Options,
    certificates: RwLock<Option<Arc<Certificates>>>,
    places: ConnectionSlots,
    shutdown: CancellationToken,
}

impl Server {
    pub(super) fn new(
        client: Client,
        machines: Arc<dyn ServedMachines>,
        options: Options,
        registry: &Registry,
    ) -> Result<Self, ServeError> {
        let IpAddr::V4(address) = options.address else { return Err(ServeError::Family(options.address)) };
        let metrics = Metrics::new(registry)?;
        let listeners =
            ListenerPool::new(address, options.ports, metrics.clone()).map_err(ServeError::System)?;
        Ok(Self {
            access: Access::new(client.clone()),
            client,
            machines,
            listeners: Arc::new(listeners),
            metrics,
            options,
            certificates: RwLock::default(),
            places: ConnectionSlots::default(),
            shutdown: CancellationToken::new(),
        })
    }

    pub(super) fn listeners(&self) -> Arc<ListenerPool> {
        Arc::clone(&self.listeners)
    }

    /// Serves until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let server = Arc::new(self);
        let _all_end = server.shutdown.clone().drop_guard();
        info!(address = %server.options.address, ports = %server.options.ports, "kubelets are served");
        let all = async {
            tokio::join!(server.refresh(), async {
                let attended = server.listeners.attend(&server.places, |client, machine, place| {
                    connection::begin(&server, client, machine, place);
                });
                let Err(error) = attended.await;
                warn!(error = chain(&error), "kubelets are no longer served");
            })
        };
        shutdown.run_until_cancelled(all).await;
    }

    /// Keeps certificates and the client CA up to date.
    async fn refresh(&self) {
        let mut source = Source::new(self.options.tls_dir.as_deref(), self.options.address);
        let mut said = String::new();
        let mut authority = None;
        loop {
            let (asked, mut wrong) = match self.authority().await {
                Ok(found) => (Some(found), None),
                Err(why) => (None, Some(("ClientAuthority", why))),
            };
            // A known client CA stays in use while the API server cannot be asked.
            authority = asked.or(authority);
            match self.renew(&mut source, authority.clone()) {
                Ok(true) => info!("certificates of kubelets were read"),
                Ok(false) => {}
                Err(error) => wrong = Some(("Certificates", chain(&error))),
            }
            let wait = if wrong.is_none() { REFRESH } else { PATIENCE };
            match wrong {
                Some((reason, why)) if said != why => {
                    self.metrics.failed(reason);
                    warn!(reason, "kubelets are served with what is known: {why}");
                    said = why;
                }
                Some(_) => {}
                None => said.clear(),
            }
            sleep(wait).await;
        }
    }

    fn renew(&self, source: &mut Source, authority: Option<Pem>) -> Result<bool, RefreshError> {
        let now = Timestamp::now();
        let (cert, key) = source.take(now)?;
        let material = Material { cert, key, clients: Clients::Any(authority), protocol: b"http/1.1" };
        if let Some(certificates) = self.certificates() {
            return Ok(certificates.reload(&material, now)?);
        }
        let certificates = Arc::new(Certificates::load(&material, now)?);
        *self.certificates.write().unwrap_or_else(PoisonError::into_inner) = Some(certificates);
        Ok(true)
    }

    fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// CA by which the API server authenticates its clients.
    async fn authority(&self) -> Result<Pem, String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let map = timeout(AUTHORITY_LIMIT, maps.get(AUTHORITY)).await;
        let map = map.map_err(|_| "the API server does not answer".to_owned())?;
        let map = map.map_err(|error| chain(&error))?;
        let text = map.data.and_then(|mut data| data.remove("client-ca-file"));
        let text =
            text.ok_or_else(|| format!("the ConfigMap kube-system/{AUTHORITY} has no client-ca-file"))?;
        Ok(Pem { path: format!("the ConfigMap kube-system/{AUTHORITY}").into(), text: text.into_bytes() })
    }
}
