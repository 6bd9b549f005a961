//! Metrics of calls: count and time by method and code. Only existing methods become labels.

use std::{convert::Infallible, sync::LazyLock};

use heck::ToShoutySnakeCase;
use kube_ext::metrics::{counters, gauge, histograms};
use prometheus::{HistogramVec, IntCounterVec, IntGauge, Registry};
use prost::Message;
use prost_types::FileDescriptorSet;
use tokio::time::Instant;
use tonic::{Code, Status, body::Body, service::Routes};
use tower::ServiceExt;

use super::{
    ServeError,
    proto::{DESCRIPTORS, cloud_provider_server::SERVICE_NAME},
};

/// Histogram bounds for the time of a call, in seconds.
const CALL_SECONDS: [f64; 8] = [0.000_1, 0.000_5, 0.002, 0.01, 0.05, 0.25, 1.0, 5.0];
/// Methods of the service, which get labels of their own.
static METHODS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let descriptors = FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default();
    let services = descriptors.file.into_iter().flat_map(|file| file.service);
    services.flat_map(|service| service.method).filter_map(|method| method.name).collect()
});

/// Label of all other calls, such as health checks.
const OTHER: &str = "other";

/// The server's metrics.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    calls: IntCounterVec,
    seconds: HistogramVec,
    /// 1 while the server listens.
    pub(super) up: IntGauge,
    failures: IntCounterVec,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let methods = || METHODS.iter().map(String::as_str).chain([OTHER]);
        let calls = ("kube_node_autoscaler_calls_total", "Calls by cluster-autoscaler, by method and code");
        let successes = methods().map(|method| [method, "OK"]);
        let seconds = ("kube_node_autoscaler_call_duration_seconds", "Time of a call, by method");
        let up = ("kube_node_autoscaler_up", "Whether the server listens");
        let help = "Failures to start the server or to read its certificates again, by reason";
        let failures = ("kube_node_autoscaler_failures_total", help);
        let reasons = ServeError::REASONS.map(|reason| [reason]);
        Ok(Self {
            calls: counters(registry, calls, ["method", "code"], successes)?,
            seconds: histograms(registry, seconds, &CALL_SECONDS, "method", methods())?,
            up: gauge(registry, up)?,
            failures: counters(registry, failures, ["reason"], reasons)?,
        })
    }

    /// Counts a failure of the server.
    pub(super) fn failed(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    /// Answers a call by `routes`, and counts it.
    pub(super) async fn count(
        self,
        routes: Routes,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Infallible> {
        let (method, since) = (method(request.uri().path()), Instant::now());
        let answer = routes.oneshot(request).await?;
        self.calls.with_label_values(&[method, &code(answer.headers())]).inc();
        self.seconds.with_label_values(&[method]).observe(since.elapsed().as_secs_f64());
        Ok(answer)
    }
}

/// Method of a request; `other` if it is not one of the service.
fn method(path: &str) -> &'static str {
    let name = path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME)?.strip_prefix('/'));
    METHODS.iter().find(|method| name == Some(method)).map_or(OTHER, String::as_str)
}

/// Code of a response, such as `NOT_FOUND`. A refusal has it in the headers, a success only behind the body.
fn code(headers: &http::HeaderMap) -> String {
    let code = Status::from_header_map(headers).map_or(Code::Ok, |status| status.code());
    format!("{code:?}").to_shouty_snake_case()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_service_has_its_label() {
        let proto = include_str!("proto/externalgrpc.proto");
        let declared: Vec<&str> = proto
            .lines()
            .filter_map(|line| line.trim().strip_prefix("rpc ")?.split_once('(').map(|(name, _)| name))
            .collect();
        assert_eq!(declared, *METHODS);
        assert_eq!(method(&format!("/{SERVICE_NAME}/Refresh")), "Refresh");
        assert_eq!(method("/grpc.health.v1.Health/Check"), "other");
        assert_eq!(method(&format!("/{SERVICE_NAME}/Nonsense")), "other");
    }

    #[test]
    fn codes_are_told_by_name() {
        let mut headers = http::HeaderMap::new();
        assert_eq!(code(&headers), "OK");
        headers.insert("grpc-status", http::HeaderValue::from_static("5"));
        assert_eq!(code(&headers), "NOT_FOUND");
        headers.insert("grpc-status", http::HeaderValue::from_static("x"));
        assert_eq!(code(&headers), "UNKNOWN");
    }
}
