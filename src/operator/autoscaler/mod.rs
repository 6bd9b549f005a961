//! cluster-autoscaler's `externalgrpc` cloud provider over NodeSets: every set with `spec.autoscaling` is a node group.
//!
//! Calls are answered from the caches of the process; only orders to resize ask the API server, one write each
//! ([`writer`]). What they come to is decided in `core::autoscaling`. A server that cannot start says so in one sentence,
//! and is tried again: the controllers go on without it.

mod groups;
mod index;
mod listen;
mod metrics;
pub mod proto;
mod service;
mod writer;

use std::{io, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_ext::{
    error::chain,
    tls::{Certificates, Files, TlsError},
};
use prometheus::Registry;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, service::interceptor::InterceptedService, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};
use tracing::{info, warn};

pub use listen::Address;

use self::{
    groups::Groups,
    listen::{Clients, Listener},
    metrics::Metrics,
    proto::cloud_provider_server::{CloudProviderServer, SERVICE_NAME},
    service::Service,
};
use crate::controllers::Context;

/// How long until a server that could not start is tried again, and how often its certificates are looked at.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether the watches are in sync.
const SYNC_POLL: Duration = Duration::from_millis(100);
/// Longest time for a call, whatever its sender says: an order takes less.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// Largest message that is taken, in bytes: a Node is named with all its labels and annotations.
const LARGEST_MESSAGE: usize = 4 << 20;
/// Calls of one connection at once.
const CALLS_AT_ONCE: usize = 64;
/// Largest headers that are taken, in bytes.
const LARGEST_HEADERS: u32 = 16 << 10;
/// How often a silent client is asked whether it lives, and how long it may take to say so.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// After this a client is to connect anew: certificates may have changed, and its own may not be good any more.
const CONNECTION_AGE: Duration = Duration::from_mins(30);

/// Why no call is answered yet.
const NOT_LISTED: &str = "not all Nodes, NodeSets and NodeClasses are listed yet";

/// What the server needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub address: Address,
    /// Its certificates; none where it speaks plainly, on this machine alone.
    pub tls: Option<Files>,
    /// Names of which a client's certificate must have one.
    pub client_names: Vec<String>,
    /// Whether options of sets are served: cluster-autoscaler has to be one that understands the answer.
    pub options: bool,
}

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot listen on {address}")]
    Bind {
        address: Address,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("plaintext is for loopback addresses and unix sockets alone: {address} is neither")]
    Open { address: Address },
    #[error("the server failed")]
    Serve(#[source] tonic::transport::Error),
    #[error("reflection cannot be served")]
    Reflection(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ServeError {
    /// All that [`Self::reason`] says.
    const REASONS: [&str; 7] = [
        "AddressNotAvailable",
        "CertificatesUnreadable",
        "CertificatesInvalid",
        "CertificateExpired",
        "CertificateMismatch",
        "PlaintextRefused",
        "ServerFailed",
    ];

    const fn reason(&self) -> &'static str {
        match self {
            Self::Bind { .. } => "AddressNotAvailable",
            Self::Tls(error) => error.reason(),
            Self::Open { .. } => "PlaintextRefused",
            Self::Serve(_) | Self::Reflection(_) => "ServerFailed",
        }
    }
}

/// The server.
pub struct Autoscaler {
    options: Options,
    groups: Arc<Groups>,
    metrics: Metrics,
}

impl Autoscaler {
    /// A server over the caches of `context`; to be made before their watches begin.
    pub fn new(
        options: Options,
        context: Arc<Context>,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        Ok(Self { options, groups: Arc::new(Groups::new(context)), metrics: Metrics::register(registry)? })
    }

    /// Serves until `shutdown`; then no further call is taken, and those under way are answered.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut said = String::new();
        while !shutdown.is_cancelled() {
            let ended = self.serve(&shutdown, &mut said).await;
            self.metrics.up(false);
            if let Err(error) = ended {
                self.metrics.failed(error.reason());
                let text = chain(&error);
                if said != text {
                    warn!(
                        reason = error.reason(),
                        "the autoscaler server does not run: {text}; it is tried again"
                    );
                    said = text;
                }
                shutdown.run_until_cancelled(sleep(PATIENCE)).await;
            }
        }
    }

    async fn serve(&self, shutdown: &CancellationToken, said: &mut String) -> Result<(), ServeError> {
        let Options { address, tls, client_names, options } = &self.options;
        if tls.is_none() && !address.is_local() {
            return Err(ServeError::Open { address: address.clone() });
        }
        let certificates = match tls {
            Some(files) => Some(Arc::new(Certificates::load(&files.read()?, Timestamp::now())?)),
            None => None,
        };
        let bound = Listener::bind(address).await;
        let listener = bound.map_err(|source| ServeError::Bind { address: address.clone(), source })?;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .build_v1()
            .map_err(|error| ServeError::Reflection(Box::new(error)))?;
        let (health, health_service) = tonic_health::server::health_reporter();
        for service in ["", SERVICE_NAME] {
            health.set_service_status(service, ServingStatus::NotServing).await;
        }
        let service = Service { groups: Arc::clone(&self.groups), options: *options };
        let service = CloudProviderServer::new(service).max_decoding_message_size(LARGEST_MESSAGE);
        // From half a list everything looks wrong: groups would be missing, and Nodes that are there would be gone.
        let groups = Arc::clone(&self.groups);
        let service = InterceptedService::new(service, move |request| {
            if groups.in_sync() { Ok(request) } else { Err(Status::unavailable(NOT_LISTED)) }
        });
        let (sender, connections) = mpsc::channel(CALLS_AT_ONCE);
        let clients =
            certificates.clone().map(|certificates| Clients { certificates, names: client_names.clone() });
        let door = tokio::spawn(listener.run(clients, sender));
        let (interval, patience) = KEEPALIVE;
        let serving = Server::builder()
            .timeout(CALL_LIMIT)
            .concurrency_limit_per_connection(CALLS_AT_ONCE)
            .max_concurrent_streams(u32::try_from(CALLS_AT_ONCE).ok())
            .http2_max_header_list_size(LARGEST_HEADERS)
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(patience))
            .max_connection_age(CONNECTION_AGE)
            .layer(self.metrics.clone())
            .add_service(health_service)
            .add_service(reflection)
            .add_service(service)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(connections),
                shutdown.clone().cancelled_owned(),
            );
        self.metrics.up(true);
        said.clear();
        info!(%address, mtls = certificates.is_some(), "cluster-autoscaler is served");
        let ended = {
            let mut serving = std::pin::pin!(serving);
            tokio::select! {
                ended = &mut serving => ended,
                () = self.attend(health, certificates, shutdown) => serving.await,
            }
        };
        door.abort();
        ended.map_err(ServeError::Serve)
    }

    /// Says how healthy the server is, and looks after its certificates; comes back at shutdown.
    async fn attend(
        &self,
        health: HealthReporter,
        certificates: Option<Arc<Certificates>>,
        shutdown: &CancellationToken,
    ) {
        let healthy = async |status| {
            for service in ["", SERVICE_NAME] {
                health.set_service_status(service, status).await;
            }
        };
        let work = async {
            while !self.groups.in_sync() {
                sleep(SYNC_POLL).await;
            }
            healthy(ServingStatus::Serving).await;
            let (Some(certificates), Some(files)) = (certificates, &self.options.tls) else {
                return std::future::pending().await;
            };
            let mut said = String::new();
            loop {
                sleep(PATIENCE).await;
                match files.read().and_then(|material| certificates.reload(&material, Timestamp::now())) {
                    Ok(false) => said.clear(),
                    Ok(true) => {
                        said.clear();
                        info!("the autoscaler server's certificates were read again");
                    }
                    Err(error) => {
                        let text = chain(&error);
                        if said != text {
                            self.metrics.failed(error.reason());
                            warn!(
                                reason = error.reason(),
                                "the autoscaler server keeps the certificates it has: {text}"
                            );
                            said = text;
                        }
                    }
                }
            }
        };
        shutdown.run_until_cancelled(work).await;
        healthy(ServingStatus::NotServing).await;
    }
}
