//! Logs to standard error, as text for people or JSON for machines. `RUST_LOG` sets the filter.

use clap::ValueEnum;
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, Targets},
    fmt,
    layer::{Identity, SubscriberExt},
    util::SubscriberInitExt,
};

use super::traces::Traces;

/// Form of the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text each.
    #[default]
    Text,
    /// One JSON object each.
    Json,
}

/// Starts to log; no effect if logging has started already.
pub fn start(format: LogFormat) {
    begin(format, Identity::new());
}

/// Starts to log and to trace. A separate function, since not every program contains the trace exporter.
pub fn start_with(format: LogFormat, traces: &Traces) {
    begin(format, traces.layer());
}

fn begin(format: LogFormat, besides: impl Layer<Registry> + Send + Sync) {
    let chosen = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let chosen = chosen.unwrap_or_else(usual);
    let registry = tracing_subscriber::registry().with(besides);
    let layer = fmt::layer().with_writer(std::io::stderr).with_target(false);
    // Fails only if a subscriber is set already; that one stays in use.
    let _ = match format {
        LogFormat::Text => registry.with(layer.with_ansi(false).with_filter(chosen)).try_init(),
        LogFormat::Json => {
            let layer = layer.json().flatten_event(true).with_current_span(true).with_span_list(false);
            registry.with(layer.with_filter(chosen)).try_init()
        }
    };
}

/// Log filter without `RUST_LOG`. The kube client's own errors are off: they are returned to us and logged
/// with their meaning.
fn usual() -> Targets {
    Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("kube_client", LevelFilter::OFF)
        .with_targets(["kube_runtime", "tower", "hyper"].map(|target| (target, LevelFilter::WARN)))
}
