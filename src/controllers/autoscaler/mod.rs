//! cluster-autoscaler's `externalgrpc` cloud provider over NodeSets: every set with `spec.autoscaling` is a
//! node group.
//!
//! Calls are answered from the caches of the process; only scale requests call the API server, with one write
//! each (`writer`). [`kube_node_planner::autoscaling`] decides. A server that cannot start reports the cause
//! in one sentence and tries again: the controllers go on without it.

mod groups;
mod index;
mod listen;
mod metrics;
pub mod proto;
mod service;
mod writer;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use kube_ext::{
    environment,
    error::chain,
    log_once::LogOnce,
    tls::{Certificates, TlsError, TlsFiles},
};
use prometheus::Registry;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{
    Status,
    service::{Routes, interceptor::InterceptedService},
    transport::Server,
};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower::{layer::layer_fn, service_fn};
use tracing::{info, warn};

pub use listen::{Address, InProcess};

use self::{
    groups::Groups,
    listen::{Clients, Listener},
    metrics::Metrics,
    proto::cloud_provider_server::{CloudProviderServer, SERVICE_NAME},
    service::Service,
};
use crate::Context;

/// Delay before another try to start, and interval at which certificates are checked for changes.
const RETRY: Duration = Duration::from_secs(5);
/// Poll interval until the watches are in sync.
const SYNC_POLL: Duration = Duration::from_millis(100);
/// Time limit of a call, whatever the client asks for: a scale request takes less.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// Maximum size of a message, in bytes: a Node comes with all its labels and annotations.
const LARGEST_MESSAGE: usize = 4 << 20;
/// Concurrent calls of one connection.
const CALLS_AT_ONCE: usize = 64;
/// Maximum size of headers, in bytes.
const LARGEST_HEADERS: u32 = 16 << 10;
/// Interval of keepalive pings to a silent client, and time limit of the response.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// Maximum age of a connection: certificates may have changed, and the client's own may have expired.
const CONNECTION_AGE: Duration = Duration::from_mins(30);

/// Message of the refusal while the watches are not in sync.
const NOT_LISTED: &str = "not all Nodes, NodeSets and NodeClasses are listed yet";

/// Options of the server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Listen address.
    pub address: Address,
    /// Certificates; None: plaintext, on this machine only.
    pub tls: Option<TlsFiles>,
    /// Allowed names: a client's certificate must have one of them.
    pub client_names: Vec<String>,
    /// True if options of sets are served: cluster-autoscaler must be a release that understands the answer.
    pub options: bool,
}

/// Failure to serve.
struct ServeError {
    /// One of [`Self::REASONS`].
    reason: &'static str,
    error: anyhow::Error,
}

impl ServeError {
    /// Reasons, as a label of metrics.
    const REASONS: [&str; 7] = [
        "AddressNotAvailable",
        "CertificatesUnreadable",
        "CertificatesInvalid",
        "CertificateExpired",
        "CertificateMismatch",
        "PlaintextRefused",
        "ServerFailed",
    ];
}

impl From<TlsError> for ServeError {
    fn from(error: TlsError) -> Self {
        Self { reason: error.reason(), error: error.into() }
    }
}

impl From<anyhow::Error> for ServeError {
    fn from(error: anyhow::Error) -> Self {
        Self { reason: "ServerFailed", error }
    }
}

/// Server for cluster-autoscaler.
pub struct Autoscaler {
    options: Options,
    groups: Arc<Groups>,
    metrics: Metrics,
}

impl Autoscaler {
    /// A server over the caches of `context`.
    pub fn new(
        options: Options,
        context: Arc<Context>,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        Ok(Self { options, groups: Arc::new(Groups::new(context)), metrics: Metrics::register(registry)? })
    }

    /// Serves until `shutdown`, then takes no further call and answers those in flight.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut failure = LogOnce::default();
        while !shutdown.is_cancelled() {
            let ended = self.serve(&shutdown, &mut failure).await;
            self.metrics.up.set(0);
            if let Err(ServeError { reason, error }) = ended {
                self.metrics.failed(reason);
                let error = chain(&*error);
                if failure.is_new(&error) {
                    warn!(reason, "the autoscaler server does not run: {error}; it is tried again");
                }
                shutdown.run_until_cancelled(sleep(RETRY)).await;
            }
        }
    }

    async fn serve(&self, shutdown: &CancellationToken, failure: &mut LogOnce) -> Result<(), ServeError> {
        let Options { address, tls, client_names, options } = &self.options;
        if tls.is_none() && !address.is_local() {
            let error =
                anyhow!("plaintext is for loopback addresses and unix sockets alone: {address} is neither");
            return Err(ServeError { reason: "PlaintextRefused", error });
        }
        let certificates = match tls {
            Some(files) => Some(Arc::new(Certificates::load(files.read()?, environment::now())?)),
            None => None,
        };
        let service = Service { groups: Arc::clone(&self.groups), options: *options };
        let service = CloudProviderServer::new(service).max_decoding_message_size(LARGEST_MESSAGE);
        // With incomplete caches, groups would be missing and existing Nodes would seem gone.
        let groups = Arc::clone(&self.groups);
        let service = InterceptedService::new(service, move |request| {
            if groups.in_sync() { Ok(request) } else { Err(Status::unavailable(NOT_LISTED)) }
        });
        if let Address::InProcess(in_process) = address {
            in_process.serve(Routes::new(service), shutdown).await;
            return Ok(());
        }
        let listener = Listener::bind(address).await.with_context(|| format!("cannot listen on {address}"));
        let listener = listener.map_err(|error| ServeError { reason: "AddressNotAvailable", error })?;
        info!(address = listener.address(), "listens for cluster-autoscaler");
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .build_v1()
            .context("reflection cannot be served")?;
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::NotServing).await;
        let (sender, connections) = mpsc::channel(CALLS_AT_ONCE);
        let clients =
            certificates.clone().map(|certificates| Clients { certificates, names: client_names.clone() });
        let _accepting = AbortOnDropHandle::new(environment::spawn(listener.run(clients, sender)));
        let (interval, limit) = KEEPALIVE;
        let metrics = self.metrics.clone();
        let counted = layer_fn(move |routes: Routes| {
            let metrics = metrics.clone();
            service_fn(move |request| metrics.clone().count(routes.clone(), request))
        });
        let serving = Server::builder()
            .timeout(CALL_LIMIT)
            .concurrency_limit_per_connection(CALLS_AT_ONCE)
            .max_concurrent_streams(u32::try_from(CALLS_AT_ONCE).ok())
            .http2_max_header_list_size(LARGEST_HEADERS)
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(limit))
            .max_connection_age(CONNECTION_AGE)
            .layer(counted)
            .add_service(health_service)
            .add_service(reflection)
            .add_service(service)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(connections),
                shutdown.clone().cancelled_owned(),
            );
        self.metrics.up.set(1);
        failure.ended();
        info!(%address, mtls = certificates.is_some(), "cluster-autoscaler is served");
        let mut serving = std::pin::pin!(serving);
        let ended = tokio::select! {
            biased;
            ended = &mut serving => ended,
            () = self.supervise(health, certificates, shutdown) => serving.await,
        };
        Ok(ended.context("the server failed")?)
    }

    /// Reports the health of the server and reloads its certificates, until shutdown.
    async fn supervise(
        &self,
        health: HealthReporter,
        certificates: Option<Arc<Certificates>>,
        shutdown: &CancellationToken,
    ) {
        let work = async {
            while !self.groups.in_sync() {
                sleep(SYNC_POLL).await;
            }
            set_health(&health, ServingStatus::Serving).await;
            let (Some(certificates), Some(files)) = (certificates, &self.options.tls) else {
                return std::future::pending().await;
            };
            let mut failure = LogOnce::default();
            loop {
                sleep(RETRY).await;
                match files.read().and_then(|material| certificates.reload(material, environment::now())) {
                    Ok(is_changed) => {
                        failure.ended();
                        if is_changed {
                            info!("the autoscaler server's certificates were read again");
                        }
                    }
                    Err(tls) => {
                        let (reason, error) = (tls.reason(), chain(&tls));
                        if failure.is_new(&error) {
                            self.metrics.failed(reason);
                            warn!(reason, "the autoscaler server keeps the certificates it has: {error}");
                        }
                    }
                }
            }
        };
        shutdown.run_until_cancelled(work).await;
        set_health(&health, ServingStatus::NotServing).await;
    }
}

/// Sets the health of the server and of its service.
async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in ["", SERVICE_NAME] {
        health.set_service_status(service, status).await;
    }
}
