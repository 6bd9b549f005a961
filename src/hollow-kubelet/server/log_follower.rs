//! A log on its way to a client: what there is, and what comes while the container runs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use jiff::Timestamp;
use kube_node_cache::{Cache, PodView};
use tokio::time::sleep;

use super::{
    Seen,
    logs::{Lines, LogOptions},
};
use crate::pod::output::{Found, Output, Run, container};

/// As much goes at once, in bytes.
const CHUNK: usize = 32 << 10;
/// How often it is looked at least whether the container runs still.
const LOOK: Duration = Duration::from_secs(1);

/// The log of a run of a container, from some line on.
pub struct Following {
    lines: Lines,
    run: Run,
    pods: Arc<Cache<PodView>>,
    key: String,
    uid: Arc<str>,
    container: String,
    wanted: LogOptions,
    next: u64,
    end: u64,
    /// How many bytes may still be sent.
    left: Option<u64>,
    /// Whether no line comes after those before `end`.
    is_over: bool,
}

impl Following {
    /// What is wanted of the log of a run.
    pub fn new(
        seen: &Seen,
        pod: &PodView,
        found: &Found<'_>,
        run: Run,
        wanted: LogOptions,
        now: Timestamp,
    ) -> Self {
        let output = Output::of(&pod.spec, found.spec, found.role, &seen.settings.containers);
        let key = format!("{}/{}", pod.namespace, pod.name);
        let container = found.spec.name.to_string();
        let lines = Lines::new(&output, format!("{container} of pod {key}"), &run);
        let range = lines.wanted(&wanted, run.ended.unwrap_or(now).min(now));
        Self {
            lines,
            run,
            pods: Arc::clone(&seen.pods),
            key,
            uid: Arc::clone(&pod.uid),
            container,
            next: range.start,
            end: range.end,
            left: wanted.limit,
            is_over: !wanted.follow || run.ended.is_some(),
            wanted,
        }
    }

    /// As the body of an answer.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static {
        stream::unfold(self, async |mut following| Some((Ok(following.chunk().await?), following)))
    }

    /// The next part of it; None at its end.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        loop {
            if self.left == Some(0) {
                return None;
            }
            if self.next < self.end {
                return Some(self.take());
            }
            if self.is_over {
                return None;
            }
            self.look();
            if self.next >= self.end && !self.is_over {
                let until = self.lines.time(self.next).duration_since(Timestamp::now());
                sleep(Duration::try_from(until).unwrap_or_default().clamp(Duration::from_millis(5), LOOK))
                    .await;
            }
        }
    }

    fn take(&mut self) -> Bytes {
        let mut chunk = Vec::new();
        while self.next < self.end && chunk.len() < CHUNK {
            chunk.extend_from_slice(self.lines.text(self.next, self.wanted.timestamps).as_bytes());
            self.next += 1;
        }
        if let Some(left) = &mut self.left {
            chunk.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= u64::try_from(chunk.len()).unwrap_or(*left);
        }
        chunk.into()
    }

    /// Looks how far the log is by now.
    fn look(&mut self) {
        let pod = self.pods.get(&self.key).filter(|pod| pod.uid == self.uid);
        let view = pod.as_ref().and_then(|pod| container(pod, &self.container)?.view);
        match view.and_then(|view| self.run.again(view)) {
            Some(Run { ended: None, .. }) => self.end = self.lines.count(Timestamp::now()),
            Some(Run { ended: Some(ended), .. }) => {
                self.end = self.lines.count(ended);
                self.is_over = true;
            }
            // Nobody knows it any more.
            None => self.is_over = true,
        }
    }
}
