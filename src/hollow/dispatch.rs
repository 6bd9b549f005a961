//! The one loop that sends what is due.

use std::{future::pending, sync::Arc};

use futures::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use kube::Client;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    request::{self, Request, Window},
    schedule::{Job, Lane},
    state::Clock,
};
use crate::wire::WireError;

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
                let Some((job, requests, own)) = shared.next(now) else { break };
                if job.lane == Lane::Lease {
                    shared.metrics.lease_delay.observe(now.at.duration_since(job.due).as_secs_f64());
                }
                running.push(shared.send(own, job, requests, now.wall));
            }
            let next_due = shared.state().schedule.next_due();
            let timer = async {
                match next_due {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            // A full window makes what is due wait for an answer.
            let is_open = window.has_room(running.len());
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(overload) = running.next(), if !running.is_empty() => window.answered(overload),
                () = shared.wake.notified(), if is_open => {}
                () = timer, if is_open => {}
            }
        }
        while running.next().await.is_some() {}
    }
}

impl Shared {
    /// The next job, and the client of the machine that sends it, where it has one of its own.
    fn next(&self, now: Clock) -> Option<(Job, Vec<Request>, Option<Client>)> {
        let mut state = self.state();
        let (job, requests) = state.next(now)?;
        let own = state.own_client(&job);
        Some((job, requests, own))
    }

    /// Sends the requests of a job and concludes it; tells whether the server is overloaded.
    async fn send(&self, own: Option<Client>, job: Job, requests: Vec<Request>, sent: Timestamp) -> bool {
        if let Some(own) = &own {
            request::read_before(own, &requests).await;
        }
        let answer = request::send(own.as_ref().unwrap_or(&self.client), requests).await;
        let answer = answer.as_deref();
        self.metrics.written(job.lane, answer.err().map(WireError::label));
        self.state().finish(&job, answer, sent, Clock::now());
        answer.is_err_and(WireError::is_overload)
    }
}
