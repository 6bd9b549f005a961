//! The admin port: `/healthz` (the process runs), `/readyz` (its watches are in sync), `/metrics` (Prometheus text).

use std::{io, net::SocketAddr, sync::Arc};

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use http::{StatusCode, header::CONTENT_TYPE};
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Says what is not ready yet; empty when all is.
pub type Readiness = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Why there is no admin port.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: choose another {flag}")]
pub struct AdminError {
    address: SocketAddr,
    flag: &'static str,
    source: io::Error,
}

/// The listening port.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    more: Router,
}

impl Admin {
    /// Takes the port; `flag` chose it.
    pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<Self, AdminError> {
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|source| AdminError { address, flag, source })?;
        Ok(Self { listener, more: Router::new() })
    }

    /// Answers these requests, too.
    #[must_use]
    pub fn with(self, more: Router) -> Self {
        Self { more: self.more.merge(more), ..self }
    }

    /// Answers until shutdown.
    pub async fn serve(
        self,
        registry: Registry,
        ready: Readiness,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        let router = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/readyz", get(readyz))
            .with_state(ready)
            .merge(Router::new().route("/metrics", get(metrics)).with_state(registry))
            .merge(self.more);
        axum::serve(self.listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
    }
}

async fn readyz(State(ready): State<Readiness>) -> impl IntoResponse {
    let missing = ready();
    if missing.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join(", ")))
    }
}

async fn metrics(State(registry): State<Registry>) -> impl IntoResponse {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}
