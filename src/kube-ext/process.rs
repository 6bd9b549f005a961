//! Process services of all programs: output, the runtime, signals, and the exit code.

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::environment;

/// Exit code of a command; a failure is printed as one line.
pub fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Prints a line of the result. `println!` panics when the reader, such as `head`, has closed the pipe.
pub fn print_line(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Runs the asynchronous part of a command.
pub fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}

/// A token that SIGINT and SIGTERM cancel.
pub fn signals() -> io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    environment::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("told to stop");
        cancelled.cancel();
    });
    Ok(token)
}
