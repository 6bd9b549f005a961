//! What a person sees of a long step: a spinner with the time on a terminal, plain lines elsewhere, nothing in tests.
//!
//! Everything goes to standard error; standard output is for results.

use std::{
    io::{IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Where there is no terminal, an unfinished step says how far it is this often.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// A display of progress; clones write to the same place.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Mode>);

#[derive(Debug)]
enum Mode {
    Silent,
    Plain { last: Mutex<Instant> },
    Bar(ProgressBar),
}

impl Progress {
    /// Nothing is shown.
    #[must_use]
    pub fn silent() -> Self {
        Self(Arc::new(Mode::Silent))
    }

    /// A spinner when standard error is a terminal, lines when it is not.
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

    /// A new step begins.
    pub fn step(&self, text: &str) {
        match &*self.0 {
            Mode::Silent => {}
            Mode::Plain { last } => {
                say(text);
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            Mode::Bar(bar) => {
                bar.reset_elapsed();
                bar.set_message(text.to_owned());
            }
        }
    }

    /// How far the present step is; plain output shows this now and then only.
    pub fn update(&self, text: &str) {
        match &*self.0 {
            Mode::Silent => {}
            Mode::Plain { last } => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.elapsed() >= PLAIN_INTERVAL {
                    say(text);
                    *last = Instant::now();
                }
            }
            Mode::Bar(bar) => bar.set_message(text.to_owned()),
        }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        match &*self.0 {
            Mode::Silent => {}
            Mode::Plain { .. } => say(text),
            Mode::Bar(bar) if bar.is_finished() => say(text),
            Mode::Bar(bar) => bar.suspend(|| say(text)),
        }
    }

    /// Takes the spinner away; later lines are still shown.
    pub fn finish(&self) {
        if let Mode::Bar(bar) = &*self.0 {
            bar.finish_and_clear();
        }
    }
}

/// `eprintln!` would panic when the reader has gone; a cluster goes on without one.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
