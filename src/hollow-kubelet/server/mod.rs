//! The HTTPS endpoints of hollow kubelets, for `kubectl logs|exec|attach|port-forward|top`, metrics-server and whoever else
//! asks kubelets: one port for each machine ([`doors`]), one server behind all of them.
//!
//! Who may ask is for the API server to say ([`access`]). What is answered follows from a pod's script, its status and the
//! time: no log is kept, no process runs. docs/fidelity.md says what differs from a kubelet.

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
use kube::Api;
use kube_ext::{
    error::chain,
    tls::{Certificates, Clients, Material, Pem, TlsError},
};
use kube_node_cache::{Cache, PodView};
use kube_node_planner::boot;
use prometheus::Registry;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    access::Access,
    certificate::{CertificateError, Source},
    connection_slots::ConnectionSlots,
    metrics::Metrics,
    usage::Usage,
};
pub use self::{
    listeners::{ListenerPool, Ports},
    usage::Counter,
};
use super::{Settings, Shared, node_status::Shape, state::Clock};

/// How often certificates are looked at, and the authority of clients.
const REFRESH: Duration = Duration::from_mins(1);
/// The same while something is missing.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the authority of clients may take to come.
const AUTHORITY_LIMIT: Duration = Duration::from_secs(10);
/// The ConfigMap of kube-system in which kube-apiserver says by which authority its clients are known.
const AUTHORITY: &str = "extension-apiserver-authentication";

/// What the endpoints need.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of this process, as the API server reaches it.
    pub address: IpAddr,
    /// Ports of machines.
    pub ports: Ports,
    /// Folder of tls.crt and tls.key; a certificate is made where there is none.
    pub tls_dir: Option<PathBuf>,
}

/// Why there are no endpoints.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address of another family.
    #[error("--kubelet-address {0} is no IPv4 address, which hollow Nodes have: they get no endpoints")]
    Family(IpAddr),
    /// What the system has to give is missing.
    #[error("the system has no way to wait for many ports")]
    System(#[source] io::Error),
    /// A metric is registered twice: a mistake in the program.
    #[error("a metric cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

/// Why nobody can be let in.
#[derive(Debug, thiserror::Error)]
enum RefreshError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The server of all machines of a process, to be run.
pub struct Server {
    shared: Arc<Shared>,
    doors: Arc<ListenerPool>,
    access: Access,
    metrics: Metrics,
    options: Options,
    certificates: RwLock<Option<Arc<Certificates>>>,
    places: ConnectionSlots,
    shutdown: CancellationToken,
}

/// A machine as its kubelet sees it.
struct Seen {
    uid: Arc<str>,
    node: Arc<str>,
    shape: Arc<Shape>,
    settings: Arc<Settings>,
    booted: Timestamp,
    pods: Arc<Cache<PodView>>,
}

impl Seen {
    /// A pod of the machine, by `namespace/name`.
    fn pod(&self, key: &str) -> Option<Arc<PodView>> {
        self.pods.get(key).filter(|pod| pod.node == self.node)
    }
}

impl Server {
    pub(super) fn new(
        shared: &Arc<Shared>,
        options: Options,
        registry: &Registry,
    ) -> Result<Self, ServeError> {
        let IpAddr::V4(address) = options.address else { return Err(ServeError::Family(options.address)) };
        let metrics = Metrics::new(registry)?;
        let doors = ListenerPool::new(address, options.ports, metrics.clone()).map_err(ServeError::System)?;
        Ok(Self {
            access: Access::new(shared.client.clone()),
            shared: Arc::clone(shared),
            doors: Arc::new(doors),
            metrics,
            options,
            certificates: RwLock::default(),
            places: ConnectionSlots::default(),
            shutdown: CancellationToken::new(),
        })
    }

    pub(super) fn doors(&self) -> Arc<ListenerPool> {
        Arc::clone(&self.doors)
    }

    /// Serves until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let server = Arc::new(self);
        let _all_end = server.shutdown.clone().drop_guard();
        info!(address = %server.options.address, ports = %server.options.ports, "kubelets are served");
        let all = async {
            tokio::join!(server.refresh(), async {
                let attended = server.doors.attend(&server.places, |client, machine, place| {
                    connection::begin(&server, client, machine, place);
                });
                let Err(error) = attended.await;
                warn!(error = chain(&error), "kubelets are no longer served");
            })
        };
        shutdown.run_until_cancelled(all).await;
    }

    /// Keeps certificates up to date.
    async fn refresh(&self) {
        let mut source = Source::new(self.options.tls_dir.as_deref(), self.options.address);
        let mut said = String::new();
        let mut authority = None;
        loop {
            let (asked, mut wrong) = match self.authority().await {
                Ok(found) => (Some(found), None),
                Err(why) => (None, Some(("ClientAuthority", why))),
            };
            // One that was known stays so while nobody can be asked.
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

    /// The authority by which the API server knows its clients.
    async fn authority(&self) -> Result<Pem, String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.shared.client.clone(), "kube-system");
        let map = timeout(AUTHORITY_LIMIT, maps.get(AUTHORITY)).await;
        let map = map.map_err(|_| "the API server does not answer".to_owned())?;
        let map = map.map_err(|error| chain(&error))?;
        let text = map.data.and_then(|mut data| data.remove("client-ca-file"));
        let text =
            text.ok_or_else(|| format!("the ConfigMap kube-system/{AUTHORITY} has no client-ca-file"))?;
        Ok(Pem { path: format!("the ConfigMap kube-system/{AUTHORITY}").into(), text: text.into_bytes() })
    }

    /// A machine of this process; None where it has no Node, or is to be silent.
    fn seen(&self, uid: &str) -> Option<Seen> {
        let state = self.shared.state();
        let (uid, machine) = state.machines.get_key_value(uid)?;
        let view = machine.view.as_ref()?;
        if machine.is_silent(machine.phase(Clock::now())) {
            return None;
        }
        Some(Seen {
            uid: Arc::clone(uid),
            node: Arc::clone(&machine.node),
            shape: Arc::clone(&machine.shape),
            settings: Arc::clone(&machine.settings),
            booted: machine.boot.and_then(boot::time).or(view.created).unwrap_or(Timestamp::UNIX_EPOCH),
            pods: Arc::clone(&state.pod_cache),
        })
    }

    /// CPU time of a machine that uses so much now.
    fn count(&self, seen: &Seen, usage: &Usage, now: Timestamp) -> u64 {
        let mut state = self.shared.state();
        let machine = state.machines.get_mut(&seen.uid);
        machine.map_or(1, |machine| machine.cpu.read(usage.nano_cores, seen.booted, now))
    }
}
