//! Logs to standard error: text for people, JSON for machines. `RUST_LOG` chooses what is logged.

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt};

/// What is logged unless `RUST_LOG` says otherwise. The client's own errors come back to us, who say what they mean.
const DEFAULT_FILTER: &str = "info,kube_client=off,kube_runtime=warn,tower=warn,hyper=warn";

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
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // Fails only if a subscriber is set, which is then the one to use.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).try_init(),
    };
}
