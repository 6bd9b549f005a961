//! Log stream to a client: existing lines, then new ones while the container runs.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use jiff::Timestamp;
use kube_ext::environment;
use kube_node_api::time;
use kube_node_cache::{Cache, PodView};
use tokio::time::sleep;

use super::logs::{Lines, LogOptions};
use crate::{
    pod::output::{Found, Output, Run, container},
    served_machine::ServedMachine,
};

/// Size from which on a chunk is sent, in bytes.
const CHUNK: usize = 32 << 10;
/// Shortest wait for further lines: those that come meanwhile are sent together, so that a log with a line each ten milliseconds
/// costs the process no more wake-ups than another one.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval between checks whether the container still runs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Log stream of a run of a container.
pub struct LogFollower {
    lines: Lines,
    pods: Arc<Cache<PodView>>,
    key: String,
    uid: Arc<str>,
    container: String,
    /// Options of the request; the limit is that of the bytes still to be sent.
    options: LogOptions,
    /// Lines to send.
    range: Range<u64>,
    /// True if no line follows those of `range`.
    is_over: bool,
}

impl LogFollower {
    /// Requested part of the log of a run.
    pub fn new(
        machine: &ServedMachine,
        pod: &PodView,
        found: &Found<'_>,
        run: Run,
        options: LogOptions,
        now: Timestamp,
    ) -> Self {
        let output = Output::of(&pod.spec, found.spec, found.role, &machine.settings.containers);
        let key = format!("{}/{}", pod.namespace, pod.name);
        let container = found.spec.name.to_string();
        let lines = Lines::new(&output, format!("{container} of pod {key}"), run);
        let range = lines.requested(&options, run.ended.unwrap_or(now).min(now));
        Self {
            lines,
            pods: Arc::clone(&machine.pods),
            key,
            uid: Arc::clone(&pod.uid),
            container,
            range,
            is_over: !options.follow || run.ended.is_some(),
            options,
        }
    }

    /// Log stream as a response body.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static {
        stream::unfold(self, async |mut follower| Some((Ok(follower.chunk().await?), follower)))
    }

    /// Next chunk; None at the end. Cancel-safe: only a finished chunk advances the log.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        while self.options.limit != Some(0) {
            if !self.range.is_empty() {
                return Some(self.take());
            }
            if self.is_over {
                return None;
            }
            self.refresh();
            if self.range.is_empty() && !self.is_over {
                let wait = time::passed(environment::now(), self.lines.time(self.range.start));
                sleep(wait.clamp(BATCH_INTERVAL, CHECK_INTERVAL)).await;
            }
        }
        None
    }

    fn take(&mut self) -> Bytes {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK
            && let Some(line) = self.range.next()
        {
            chunk.extend_from_slice(self.lines.text(line, self.options.timestamps).as_bytes());
        }
        if let Some(left) = &mut self.options.limit {
            chunk.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= u64::try_from(chunk.len()).unwrap_or(*left);
        }
        chunk.into()
    }

    /// Updates the end of `range` and `is_over` from the pod cache.
    fn refresh(&mut self) {
        let pod = self.pods.get(&self.key).filter(|pod| pod.uid == self.uid);
        let view = pod.as_ref().and_then(|pod| container(pod, &self.container)?.view);
        match view.and_then(|view| self.lines.run.again(view)) {
            Some(Run { ended, .. }) => {
                self.range.end = self.lines.count(ended.unwrap_or_else(environment::now));
                self.is_over = ended.is_some();
            }
            // The pod or this run is no longer known.
            None => self.is_over = true,
        }
    }
}
