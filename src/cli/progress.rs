//! Follows a NodeSet until a goal is reached, with a progress bar on a terminal and lines elsewhere.

use std::{
    io::{self, IsTerminal},
    pin::pin,
    time::Duration,
};

use anyhow::bail;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use kube_ext::{
    error::refusal,
    printable::{on_one_line, printable},
    process::print_line,
};
use kube_node_api::{GoDuration, NodeSet};
use tokio::time::{Instant, sleep, timeout};

/// Update interval of the bar's clock.
const TICK: Duration = Duration::from_millis(250);
/// Time limit for an operator to observe a NodeSet; afterwards a note says that none seems to run.
const UNOBSERVED: Duration = Duration::from_secs(20);

/// Progress of a NodeSet towards a goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The goal is reached.
    Done(String),
    /// The goal cannot be reached without the user.
    Failed(String),
    /// The NodeSet is on its way.
    Waiting(Waiting),
}

/// Progress of a NodeSet and what it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Progress as a line; one that ends with an ellipsis reads on with the delay.
    pub(super) line: String,
    /// Reason and message of a delay.
    pub(super) delay: Option<String>,
    /// Progress in a few words.
    pub(super) counts: String,
    /// Completed steps.
    pub(super) done: u64,
    /// All steps, as far as they are known.
    pub(super) total: u64,
    /// True if the operator has observed the present spec.
    pub(super) is_observed: bool,
}

impl Waiting {
    /// The line with the delay.
    pub(super) fn text(&self) -> String {
        match &self.delay {
            Some(delay) if self.line.ends_with("...") => format!("{} {delay}", self.line),
            Some(delay) => format!("{} ({delay})", self.line),
            None => self.line.clone(),
        }
    }
}

/// Follows the NodeSet to the goal and prints the result. After the time limit, which zero switches off, returns an
/// error with the last progress. Lines have at least this interval.
pub(super) async fn follow(
    client: &Client,
    name: &str,
    limit: GoDuration,
    line_interval: Duration,
    progress: impl Fn(Option<&NodeSet>) -> Progress,
) -> anyhow::Result<()> {
    let mut display = Display::new(line_interval);
    let time = if limit.0.is_zero() { Duration::MAX } else { limit.0 };
    let Ok(done) = timeout(time, watch(client, name, &mut display, progress)).await else {
        let last = display.last.map_or_else(|| "nothing was heard of it".to_owned(), |last| last.text());
        bail!("timed out after {limit}: {last}");
    };
    drop(display);
    print_line(done?);
    Ok(())
}

async fn watch(
    client: &Client,
    name: &str,
    display: &mut Display,
    progress: impl Fn(Option<&NodeSet>) -> Progress,
) -> anyhow::Result<String> {
    let mut changes = pin!(watch_object(Api::<NodeSet>::all(client.clone()), name).default_backoff());
    let mut unobserved = pin!(sleep(UNOBSERVED));
    let (mut is_warned, mut is_broken) = (false, false);
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            () = &mut unobserved, if !is_warned && display.last.as_ref().is_none_or(|last| !last.is_observed) => {
                is_warned = true;
                display.note("No operator has reconciled it yet: does one run? kube-node doctor finds out.");
                continue;
            }
        };
        let Some(change) = change else {
            bail!("the watch of NodeSet {name} ended by itself: start the command again");
        };
        let was_broken = std::mem::replace(&mut is_broken, change.is_err());
        match change.map(|set| progress(set.as_ref())) {
            Ok(Progress::Done(text)) => return Ok(text),
            Ok(Progress::Failed(reason)) => bail!(reason),
            Ok(Progress::Waiting(waiting)) => display.show(waiting),
            Err(error) => match refusal(&error) {
                // A retry cannot succeed: the identity is unknown or has no right to watch.
                Some(status) if matches!(status.code, 401 | 403) => {
                    bail!("cannot watch NodeSet {name}: {}", status.message);
                }
                _ if was_broken => {}
                _ => display.note("The watch broke: trying again..."),
            },
        }
    }
}

/// A progress bar on a terminal, which disappears at the end, and lines elsewhere.
struct Display {
    bar: Option<ProgressBar>,
    /// Highest number of steps so far: progress is measured from it.
    most: u64,
    line_interval: Duration,
    /// Time and text of the last line.
    printed: Option<(Instant, String)>,
    last: Option<Waiting>,
}

impl Display {
    fn new(line_interval: Duration) -> Self {
        let is_terminal = io::stderr().is_terminal() && io::stdout().is_terminal();
        Self { bar: is_terminal.then(bar), most: 0, line_interval, printed: None, last: None }
    }

    fn show(&mut self, waiting: Waiting) {
        if let Some(bar) = &self.bar {
            self.most = self.most.max(waiting.total);
            bar.set_length(self.most);
            bar.set_position(self.most - (waiting.total - waiting.done).min(self.most));
            bar.set_prefix(waiting.counts.clone());
            let message = waiting.delay.as_ref().unwrap_or(&waiting.line);
            bar.set_message(on_one_line(message).into_owned());
        } else {
            let (now, text) = (Instant::now(), waiting.text());
            let is_news = |(at, last): &(Instant, String)| *last != text && now - *at >= self.line_interval;
            if self.printed.as_ref().is_none_or(is_news) {
                print_line(&text);
                self.printed = Some((now, text));
            }
        }
        self.last = Some(waiting);
    }

    /// Prints a line beside the progress.
    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(printable(text)),
            None => print_line(text),
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0).with_finish(ProgressFinish::AndClear);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {prefix} {elapsed}\n{wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}
