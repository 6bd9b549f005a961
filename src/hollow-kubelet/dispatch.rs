//! Dispatcher: the one loop that sends due jobs.

use std::sync::Arc;

use futures::{StreamExt, future::OptionFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use kube_ext::transport::TransportError;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::{
    DedicatedClient, Shared,
    clock::Clock,
    request::{self, ConcurrencyLimiter, Request, UnderWay},
    schedule::{Job, Priority},
};

/// The kubelets of all machines, to be run.
pub struct Kubelets {
    pub(super) shared: Arc<Shared>,
}

impl Kubelets {
    /// Serves the machines until `shutdown`, then finishes the writes under way and returns.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = &*self.shared;
        let mut limiter = ConcurrencyLimiter::default();
        let mut running = FuturesUnordered::new();
        let mut under_way = UnderWay::default();
        // A machine with a dedicated client has its own connection and rate limit: its requests take no room
        // in the concurrency limiter, and their failures say nothing about other machines. Their number is
        // bounded by the pods plus two per machine, since each job is under way once.
        let mut dedicated = FuturesUnordered::new();
        loop {
            while limiter.has_room(running.len()) {
                let now = Clock::now();
                let next = shared.coordinator.lock().next(now, limiter.pressure(under_way));
                let Some((job, requests, client)) = next else { break };
                if matches!(job.priority, Priority::Prompt | Priority::Lease | Priority::Renewal) {
                    shared.metrics.lease_delay.observe(now.at.duration_since(job.due).as_secs_f64());
                }
                let queue = if client.is_none() {
                    *under_way.of(job.priority) += 1;
                    &running
                } else {
                    &dedicated
                };
                queue.push(shared.send(client, job, requests, now.wall));
            }
            let next_due = shared.coordinator.lock().schedule.next_due(limiter.pressure(under_way));
            let timer = OptionFuture::from(next_due.map(sleep_until));
            // While the concurrency limiter is full, due jobs wait for an answer.
            let is_open = limiter.has_room(running.len());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some((priority, overload)) = running.next(), if !running.is_empty() => {
                    *under_way.of(priority) -= 1;
                    limiter.answered(overload);
                }
                Some(_) = dedicated.next(), if !dedicated.is_empty() => {}
                () = shared.wake.notified(), if is_open => {}
                Some(()) = timer, if is_open => {}
            }
        }
        while running.next().await.is_some() {}
        while dedicated.next().await.is_some() {}
    }
}

impl Shared {
    /// Sends a job's requests and applies the answer; returns the job's priority, and true if the server is
    /// overloaded.
    async fn send(
        &self,
        dedicated: Option<DedicatedClient>,
        job: Job,
        requests: Vec<Request>,
        sent: Timestamp,
    ) -> (Priority, bool) {
        let answer = match &dedicated {
            None => request::send(&self.client, None, requests).await,
            Some(client) => request::send_dedicated(client, requests).await,
        };
        self.metrics.written(job.priority, answer.as_ref().err().map(TransportError::label));
        self.coordinator.lock().finish(&job, answer.as_deref(), sent, Clock::now());
        (job.priority, answer.is_err_and(|error| error.is_overload()))
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending, time::Duration};

    use http::Response;
    use kube::{Client, client::Body};
    use prometheus::Registry;
    use tokio::{
        sync::{mpsc::unbounded_channel, watch},
        time::timeout,
    };
    use tower::service_fn;

    use super::*;
    use crate::{Hollow, MachineSpec, RESTART};
    use kube_node_api::{Resources, machine_files::MachineSettings};
    use kube_node_cache::{Cache, NodeView, PodView};

    fn spec(name: &str) -> MachineSpec {
        MachineSpec {
            node: name.into(),
            uid: name.into(),
            capacity: Resources::new(),
            allocatable: Resources::new(),
            kubelet_version: String::new(),
            container_runtime: String::new(),
            ip: None,
            settings: MachineSettings::default(),
        }
    }

    /// A hundred machines with dedicated clients that are never answered, and one with the shared client.
    #[tokio::test(start_paused = true)]
    async fn requests_of_dedicated_clients_take_no_room() {
        let names: Vec<String> = (0..100).map(|number| format!("dedicated-{number}")).collect();
        let all = names.iter().map(String::as_str).chain(["shared"]);
        let node = |name: &str| NodeView { name: name.into(), uid: name.into(), ..NodeView::default() };
        let (paths, mut received) = unbounded_channel();
        let everybody = Client::new(
            service_fn(move |request: http::Request<Body>| {
                let _ = paths.send(request.uri().path().to_owned());
                async { Ok::<_, Infallible>(Response::new(Body::empty())) }
            }),
            "default",
        );
        let deaf = Client::new(
            service_fn(|_: http::Request<Body>| pending::<Result<Response<Body>, Infallible>>()),
            "default",
        );
        let nodes = Cache::full(all.map(node).collect::<Vec<_>>());
        let (hollow, kubelets) =
            Hollow::new(everybody, &nodes, &Cache::<PodView>::full([]), RESTART, &Registry::new()).unwrap();
        for name in &names {
            let client = DedicatedClient {
                client: deaf.clone(),
                rate: Arc::default(),
                silent: watch::Sender::new(false),
            };
            hollow.create(spec(name), Some(client));
        }
        hollow.create(spec("shared"), None);
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(kubelets.run(shutdown.clone()));
        let first = timeout(Duration::from_secs(1), received.recv()).await;
        assert!(first.unwrap().is_some_and(|path| path.contains("shared") || path.ends_with("/leases")));
        shutdown.cancel();
        running.await.unwrap();
    }
}
