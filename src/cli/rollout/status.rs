//! `kube-node rollout status`: shows the progress of a rollout until it ends, from one watch of the NodeSet.
//!
//! Standard output gets the lines that kubectl would print; on a terminal a progress bar replaces them.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use anyhow::bail;
use clap::{ArgAction, Args};
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use kube::{
    Api, Client,
    core::Status as Answer,
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};
use kube_ext::process::say;
use kube_node_api::{GoDuration, NodeSet};

use super::{
    Set,
    access::read_set,
    verdict::{Verdict, Waiting, verdict},
};

/// Update interval of the bar's clock.
const TICK: Duration = Duration::from_millis(250);

/// Arguments of `rollout status`.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    set: Set,
    /// Wait until the rollout is complete; false prints the present state once
    #[arg(short, long, action = ArgAction::Set, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    watch: bool,
    /// Maximum time to wait, for example 5m; 0 waits without a limit
    #[arg(long, value_name = "DURATION", default_value = "0")]
    timeout: GoDuration,
}

impl Status {
    /// Returns exit code 0 if the rollout is complete, or an error if it failed or timed out.
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<ExitCode> {
        let Self { set: Set { name }, watch, timeout: GoDuration(timeout) } = self;
        let set = read_set(client, &name).await?;
        let mut display = Display::new(watch);
        if display.shows_end(&set)? || !watch {
            return Ok(ExitCode::SUCCESS);
        }
        let follow = follow(client, &set, &name, &mut display);
        if timeout.is_zero() {
            follow.await?;
        } else if let Ok(ended) = tokio::time::timeout(timeout, follow).await {
            ended?;
        } else {
            display.clear();
            bail!("timed out after {}: {}", GoDuration(timeout), display.last);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Follows the NodeSet until its rollout has ended.
async fn follow(client: &Client, seen: &NodeSet, name: &str, display: &mut Display) -> anyhow::Result<()> {
    let mut changes = Box::pin(watch_object(Api::<NodeSet>::all(client.clone()), name).default_backoff());
    let mut is_away = false;
    while let Some(change) = changes.next().await {
        match change {
            Ok(Some(set)) if set.metadata.uid == seen.metadata.uid => {
                is_away = false;
                if display.shows_end(&set)? {
                    return Ok(());
                }
            }
            Ok(_) => {
                display.clear();
                bail!("nodeset {name:?} has been deleted");
            }
            Err(error) => match answer(&error) {
                // A retry cannot succeed: the identity is unknown or has no right to watch.
                Some(status) if matches!(status.code, 401 | 403) => {
                    display.clear();
                    bail!("cannot watch NodeSet {name}: {}", status.message);
                }
                _ if is_away => {}
                _ => {
                    is_away = true;
                    display.note("The watch broke: trying again...");
                }
            },
        }
    }
    bail!("the watch of NodeSet {name} ended by itself: start the command again")
}

/// The API server's answer in an error, if there was one.
fn answer(error: &watcher::Error) -> Option<&Answer> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// A progress bar on a terminal, lines elsewhere.
struct Display {
    bar: Option<ProgressBar>,
    /// The last line shown.
    last: String,
}

impl Display {
    fn new(watch: bool) -> Self {
        let person = watch && io::stderr().is_terminal() && io::stdout().is_terminal();
        Self { bar: person.then(bar), last: String::new() }
    }

    /// Shows the state of the NodeSet. Returns true if its rollout is complete, an error if it failed.
    fn shows_end(&mut self, set: &NodeSet) -> anyhow::Result<bool> {
        match verdict(set) {
            Verdict::Done(text) => {
                self.clear();
                say(text);
                Ok(true)
            }
            Verdict::Failed(why) => {
                self.clear();
                bail!(why)
            }
            Verdict::Waiting(waiting) => {
                self.show(&waiting);
                Ok(false)
            }
        }
    }

    fn show(&mut self, waiting: &Waiting) {
        let Waiting { line, why, counts, done, total } = waiting;
        let text = match why {
            Some(why) => format!("{line} {why}"),
            None => line.clone(),
        };
        if text == self.last && self.bar.is_none() {
            return;
        }
        match &self.bar {
            Some(bar) => {
                bar.set_length(*total);
                bar.set_position(*done);
                bar.set_prefix(counts.clone());
                bar.set_message(why.as_ref().unwrap_or(line).clone());
            }
            None => say(&text),
        }
        self.last = text;
    }

    /// Prints a line beside the result.
    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say(text),
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {prefix} {elapsed}\n{wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}
