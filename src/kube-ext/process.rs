//! Process services of all programs: output, the runtime, signals, and the exit code.

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
    sync::OnceLock,
};

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{environment, printable::printable};

/// The first failure to write a line of the result.
static OUTPUT_FAILURE: OnceLock<io::Error> = OnceLock::new();

/// A command that a signal ended before its work was done.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted {
    /// Exit code that shells give a process ended by the signal: 128 and the signal's number.
    code: u8,
}

impl Interrupted {
    /// The signal of Ctrl-C.
    pub const BY_CTRL_C: Self = Self { code: 130 };
    /// SIGTERM.
    pub const BY_TERMINATION: Self = Self { code: 143 };
    /// SIGHUP.
    pub const BY_HANGUP: Self = Self { code: 129 };
}

/// Waits for SIGINT or SIGTERM; from the first poll on, neither ends the process by itself.
pub async fn interrupted() -> io::Result<Interrupted> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => Interrupted::BY_CTRL_C,
        _ = terminate.recv() => Interrupted::BY_TERMINATION,
    })
}

/// Exit code of a command; a failure is printed as one line. A result that could not be written is a failure too.
pub fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    let result = result.and_then(|code| match OUTPUT_FAILURE.get() {
        Some(error) => bail!("cannot write the output: {error}"),
        None => Ok(code),
    });
    result.unwrap_or_else(|error| {
        print_note(format_args!("error: {error:#}"));
        error.downcast_ref().map_or(ExitCode::FAILURE, |Interrupted { code }| ExitCode::from(*code))
    })
}

/// Prints a line of the result, [printable](printable()). A reader that has closed the pipe, such as `head`, has what it
/// wants; `println!` would panic. Any other failure is that of the command, once it ends.
pub fn print_line(line: impl Display) {
    if let Err(error) = writeln!(io::stdout(), "{}", printable(&line.to_string()))
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = OUTPUT_FAILURE.set(error);
    }
}

/// Prints a line for people on standard error, [printable](printable()). `eprintln!` panics where nobody can read it, such as on a full disk.
pub fn print_note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", printable(&line.to_string()));
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
