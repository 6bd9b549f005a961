//! The one loop that sends what is due.

use std::sync::Arc;

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    request::{self, Window},
    schedule::Lane,
    state::Clock,
};

/// The kubelets of all machines, to be run.
pub struct Kubelets {
    shared: Arc<Shared>,
}

impl Kubelets {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Serves the machines until `shutdown`; then finishes the writes under way and comes back.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = &*self.shared;
        let mut window = Window::default();
        let mut running = FuturesUnordered::new();
        loop {
            while window.has_room(running.len()) {
                let now = Clock::now();
                let Some((job, requests)) = shared.state().next(now) else { break };
                if job.lane == Lane::Lease {
                    shared.metrics.lease_delay.observe(now.at.duration_since(job.due).as_secs_f64());
                }
                running.push(async move {
                    let answer = request::send(&shared.client, requests).await;
                    (job, now.wall, answer)
                });
            }
            let next_due = shared.state().schedule.next_due();
            let is_open = window.has_room(running.len());
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some((job, sent, answer)) = running.next(), if !running.is_empty() => {
                    let answer = answer.as_deref();
                    window.answered(answer);
                    shared.metrics.written(job.lane, answer.map_or_else(|error| error.label(), |_| "ok"));
                    shared.state().finish(&job, answer, sent, Clock::now());
                }
                () = shared.wake.notified(), if is_open => {}
                () = async { match next_due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                } }, if is_open => {}
            }
        }
        while let Some((job, sent, answer)) = running.next().await {
            let answer = answer.as_deref();
            shared.metrics.written(job.lane, answer.map_or_else(|error| error.label(), |_| "ok"));
            shared.state().finish(&job, answer, sent, Clock::now());
        }
    }
}
