//! Logs to standard error: text for people, JSON for machines. `RUST_LOG` chooses what is logged.

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

/// Begins to log; without effect where somebody has begun already.
pub fn start(format: LogFormat) {
    begin(format, Identity::new());
}

/// Begins to log and to trace. Not every program has the latter in it.
pub fn start_with(format: LogFormat, traces: &Traces) {
    begin(format, traces.layer());
}

fn begin(format: LogFormat, besides: impl Layer<Registry> + Send + Sync) {
    let chosen = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let chosen = chosen.unwrap_or_else(usual);
    let registry = tracing_subscriber::registry().with(besides);
    let layer = fmt::layer().with_writer(std::io::stderr).with_target(false);
    // Fails only if a subscriber is set, which is then the one to use.
    let _ = match format {
        LogFormat::Text => registry.with(layer.with_ansi(false).with_filter(chosen)).try_init(),
        LogFormat::Json => {
            let layer = layer.json().flatten_event(true).with_current_span(true).with_span_list(false);
            registry.with(layer.with_filter(chosen)).try_init()
        }
    };
}

/// What is logged unless `RUST_LOG` says otherwise. The client's own errors come back to us, who say what they mean.
fn usual() -> Targets {
    Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("kube_client", LevelFilter::OFF)
        .with_targets(["kube_runtime", "tower", "hyper"].map(|target| (target, LevelFilter::WARN)))
}
