//! Progress display of long steps: a spinner with the elapsed time on a terminal, plain lines elsewhere,
//! nothing in tests.
//!
//! All output goes to standard error; standard output is for results.

use std::{io::Write, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use kube_ext::printable::{on_one_line, printable};

/// Interval of progress lines of an unfinished step, without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A progress display. Clones share the output.
#[derive(Clone, Debug)]
pub struct Progress {
    is_silent: bool,
    /// Hidden, unless standard error is a terminal; it then only measures the time since the last line.
    bar: ProgressBar,
}

impl Progress {
    /// A display without output.
    pub fn silent() -> Self {
        Self { is_silent: true, bar: ProgressBar::hidden() }
    }

    /// A spinner if standard error is a terminal, lines otherwise.
    pub fn stderr() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Self { is_silent: false, bar }
    }

    /// Starts a new step.
    pub fn step(&self, text: &str) {
        self.bar.reset_elapsed();
        if self.bar.is_hidden() {
            self.line(text);
        } else {
            self.bar.set_message(on_one_line(text).into_owned());
        }
    }

    /// Updates the progress of the present step. Without a terminal only some updates are printed.
    pub fn update(&self, text: &str) {
        if !self.bar.is_hidden() {
            self.bar.set_message(on_one_line(text).into_owned());
        } else if self.bar.elapsed() >= LINE_INTERVAL {
            self.step(text);
        }
    }

    /// Prints a line that stays. Unlike `eprintln!`, ignores a closed standard error: the cluster keeps running
    /// without a reader.
    pub fn line(&self, text: &str) {
        if !self.is_silent {
            self.bar.suspend(|| drop(writeln!(std::io::stderr(), "{}", printable(text))));
        }
    }

    /// Removes the spinner. Later lines are still printed.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Size as shown to people.
#[must_use]
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
