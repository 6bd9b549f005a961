//! Progress display of long steps: a spinner with the elapsed time on a terminal, plain lines elsewhere,
//! nothing in tests.
//!
//! All output goes to standard error; standard output is for results.

use std::{
    io::{IsTerminal, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

/// Interval of progress lines of an unfinished step, without a terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// A progress display. Clones share the output.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Mode>);

#[derive(Debug)]
enum Mode {
    Silent,
    Plain { last: Mutex<Instant> },
    Bar(ProgressBar),
}

impl Progress {
    /// A display without output.
    #[must_use]
    pub fn silent() -> Self {
        Self(Arc::new(Mode::Silent))
    }

    /// A spinner if standard error is a terminal, lines otherwise.
    #[must_use]
    pub fn stderr() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(Arc::new(Mode::Plain { last: Mutex::new(Instant::now()) }));
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(Arc::new(Mode::Bar(bar)))
    }

    /// Starts a new step.
    pub fn step(&self, text: &str) {
        match &*self.0 {
            Mode::Silent => {}
            Mode::Plain { last } => {
                say(text);
                *last.lock() = Instant::now();
            }
            Mode::Bar(bar) => {
                bar.reset_elapsed();
                bar.set_message(text.to_owned());
            }
        }
    }

    /// Updates the progress of the present step. Without a terminal only some updates are printed.
    pub fn update(&self, text: &str) {
        match &*self.0 {
            Mode::Silent => {}
            Mode::Plain { last } => {
                let mut last = last.lock();
                if last.elapsed() >= PLAIN_INTERVAL {
                    say(text);
                    *last = Instant::now();
                }
            }
            Mode::Bar(bar) => bar.set_message(text.to_owned()),
        }
    }

    /// Prints a line that stays.
    pub fn line(&self, text: &str) {
        match &*self.0 {
            Mode::Silent => {}
            Mode::Plain { .. } => say(text),
            Mode::Bar(bar) if bar.is_finished() => say(text),
            Mode::Bar(bar) => bar.suspend(|| say(text)),
        }
    }

    /// Removes the spinner. Later lines are still printed.
    pub fn finish(&self) {
        if let Mode::Bar(bar) = &*self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Unlike `eprintln!`, ignores a closed standard error: the cluster keeps running without a reader.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
