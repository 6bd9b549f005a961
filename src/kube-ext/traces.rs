//! Traces of controllers, exported by OTLP over gRPC where the environment variables of OpenTelemetry set an
//! endpoint. Without one nothing of this runs.
//!
//! A setting that is not supported is an error at the start. An unreachable collector delays nothing: spans
//! wait in a queue, spans beyond its capacity are dropped, and the log reports that at intervals.

use std::{fs, time::Duration};

use anyhow::{Context, bail};
use opentelemetry::{Key, KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{
    SpanExporter, WithTonicConfig,
    tonic_types::transport::{Certificate, ClientTlsConfig, Identity},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchSpanProcessor, SdkTracerProvider, SpanData},
};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tracing::{Level, Metadata, Subscriber, info, level_filters::LevelFilter, warn};
use tracing_subscriber::{Layer, filter::FilterFn, registry::LookupSpan};

use crate::log_once::LogOnce;

/// Prefixes of the names of this project's crates: their spans and events make up a trace.
const OUR_CRATES: [&str; 6] =
    ["kube_node", "kube_ext", "hollow_kubelet", "machine_identity", "machine_agent", "local_cluster"];
/// Resource attributes that the environment may override.
const PROCESS: [(&str, &str); 2] =
    [("service.name", "kube-node-operator"), ("service.version", env!("CARGO_PKG_VERSION"))];
/// Time limit for exporting the last spans at the end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Trace exporter of this process.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// The exporter that the environment configures, None if it configures none. Needs a runtime.
    pub fn from_environment() -> anyhow::Result<Option<Self>> {
        let Some(settings) = Settings::read(|name| std::env::var(name).ok())? else { return Ok(None) };
        let mut exporter = SpanExporter::builder().with_tonic();
        if let Some(tls) = settings.tls()? {
            exporter = exporter.with_tls_config(tls);
        }
        let exporter =
            exporter.build().context("cannot export traces as the variables OTEL_EXPORTER_OTLP_… say")?;
        let exporter = LoggingExporter { exporter, failure: Mutex::default() };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_span_processor(BatchSpanProcessor::builder(exporter).build())
            .build();
        Ok(Some(Self(provider)))
    }

    /// Layer that exports the spans of this process.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>(&self) -> impl Layer<S> + use<S> {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("kube-node"))
            // Code locations and threads mean nothing to users.
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(FilterFn::new(is_part).with_max_level_hint(LevelFilter::DEBUG))
    }

    /// Exports the remaining spans, within a short time limit.
    pub async fn end(self) {
        let ended = spawn_blocking(move || self.0.shutdown_with_timeout(END_LIMIT)).await;
        if let Ok(Err(error)) = ended {
            warn!(%error, "the last traces are lost");
        }
    }
}

/// Returns true for what belongs to a trace: reconciliations, their calls, and what is logged meanwhile.
fn is_part(metadata: &Metadata<'_>) -> bool {
    let is_ours = OUR_CRATES.iter().any(|name| metadata.target().starts_with(name));
    is_ours && (metadata.is_span() || *metadata.level() <= Level::INFO)
}

/// Resource attributes of this process.
fn resource() -> Resource {
    let found = Resource::builder().build();
    // The library makes up a name if none is set.
    let is_set =
        |key| found.get(&Key::new(key)).is_some_and(|value| !value.as_str().starts_with("unknown_service"));
    let ours = PROCESS.into_iter().filter(|(key, _)| !is_set(*key));
    Resource::builder().with_attributes(ours.map(|(key, value)| KeyValue::new(key, value))).build()
}

/// Path of a file, and the environment variable that names it.
type File = (String, String);

fn read((path, variable): &File) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {path}, which {variable} names"))
}

/// Settings that the exporter library does not read from the environment by itself. It reads the others:
/// endpoint, headers, time limit, sampler, batches and limits of spans.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settings {
    /// True if the collector is reached by TLS.
    is_encrypted: bool,
    /// Certificate authority of the collector; those of this machine where absent.
    ca: Option<File>,
    /// Client certificate and key.
    identity: Option<(File, File)>,
}

impl Settings {
    /// Returns None if no export is configured.
    fn read(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<Self>> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        // A variable for traces alone overrides the one for all signals.
        let of_exporter = |name: &str| {
            let names = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].map(|of| format!("{of}{name}"));
            names.into_iter().find_map(|name| Some((set(&name)?, name)))
        };

        let is_off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let exporter = set("OTEL_TRACES_EXPORTER").unwrap_or_else(|| "otlp".to_owned());
        let Some((endpoint, name)) = of_exporter("ENDPOINT").filter(|_| !is_off && exporter != "none") else {
            return Ok(None);
        };
        if exporter != "otlp" {
            bail!("OTEL_TRACES_EXPORTER is {exporter}: write otlp or none");
        }
        if let Some((protocol, name)) = of_exporter("PROTOCOL").filter(|(protocol, _)| protocol != "grpc") {
            bail!(
                "{name} is {protocol}: write grpc, and the collector's port for it, which is 4317 most often"
            );
        }
        if let Some((compression, name)) = of_exporter("COMPRESSION").filter(|(how, _)| how != "none") {
            bail!("{name} is {compression}: traces are sent as they are: leave it out");
        }
        let is_encrypted = endpoint.starts_with("https://");
        if !is_encrypted && !endpoint.starts_with("http://") {
            bail!("{name} is {endpoint}: begin it with http:// or https://");
        }
        let (certificate, key) = (of_exporter("CLIENT_CERTIFICATE"), of_exporter("CLIENT_KEY"));
        if certificate.is_some() != key.is_some() {
            bail!(
                "set both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY, or neither"
            );
        }
        Ok(Some(Self { is_encrypted, ca: of_exporter("CERTIFICATE"), identity: certificate.zip(key) }))
    }

    fn tls(&self) -> anyhow::Result<Option<ClientTlsConfig>> {
        if !self.is_encrypted {
            return Ok(None);
        }
        let mut tls = match &self.ca {
            Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(file)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(Some(tls))
    }
}

/// Exporter that logs failures and recovery.
#[derive(Debug)]
struct LoggingExporter {
    exporter: SpanExporter,
    failure: Mutex<LogOnce>,
}

impl opentelemetry_sdk::trace::SpanExporter for LoggingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        let mut failure = self.failure.lock();
        match &result {
            Ok(()) if failure.ended() => info!("traces are exported again"),
            // One text: it is the same failure, whatever the collector or its network says.
            Err(error) if failure.is_new("") => {
                warn!(%error, spans, "traces cannot be exported: they are dropped until they can");
            }
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let all: HashMap<_, _> = variables.iter().copied().collect();
        Settings::read(|name| all.get(name).map(|&value| value.to_owned())).map_err(|error| error.to_string())
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    #[test]
    fn nothing_runs_that_nobody_asks_for() {
        for variables in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "a"), ("OTEL_TRACES_EXPORTER", "otlp")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://collector:4317")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert_eq!(read(variables), Ok(None), "{variables:?}");
        }
    }

    #[test]
    fn settings_that_the_library_does_not_read() {
        let file = |variable: &str, path: &str| (path.to_owned(), variable.to_owned());
        assert_eq!(read(&[ENDPOINT]), Ok(Some(Settings::default())));
        let found = read(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert"),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key"),
        ]);
        let expected = Settings {
            is_encrypted: true,
            ca: Some(file("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca")),
            identity: Some((
                file("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert"),
                file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key"),
            )),
        };
        assert_eq!(found, Ok(Some(expected)));
    }

    #[test]
    fn what_cannot_be_followed_is_an_error() {
        for (variable, message) in [
            (("OTEL_TRACES_EXPORTER", "zipkin"), "OTEL_TRACES_EXPORTER is zipkin: write otlp or none"),
            (
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
                "OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf: write grpc, and the collector's port for it, which is 4317 most often",
            ),
            (
                ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
                "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION is gzip: traces are sent as they are: leave it out",
            ),
            (
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317"),
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is collector:4317: begin it with http:// or https://",
            ),
            (
                ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
                "set both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY, or neither",
            ),
        ] {
            assert_eq!(read(&[ENDPOINT, variable]), Err(message.to_owned()));
        }
        let file =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:1"), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere")];
        let error = read(&file).unwrap().unwrap().tls().unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nowhere, which OTEL_EXPORTER_OTLP_CERTIFICATE names");
    }
}
