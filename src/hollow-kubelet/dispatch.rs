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

/// Writes under way in namespaces whose writes are not answered in time: a connection each, for up to the time limit.
const SLOW: usize = 16;

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
        // Neither do those of slow namespaces, and their failures say nothing about others.
        let mut slow = FuturesUnordered::new();
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
            while slow.len() < SLOW {
                let now = Clock::now();
                let Some((job, requests, client)) = shared.coordinator.lock().next_slow(now) else { break };
                let queue = if client.is_none() { &slow } else { &dedicated };
                queue.push(shared.send(client, job, requests, now.wall));
            }
            // While the concurrency limiter is full, due jobs wait for an answer.
            let is_open = limiter.has_room(running.len());
            let next_due = {
                let schedule = &shared.coordinator.lock().schedule;
                let next = schedule.next_due(limiter.pressure(under_way)).filter(|_| is_open);
                let next_slow = schedule.next_slow_due().filter(|_| slow.len() < SLOW);
                next.into_iter().chain(next_slow).min()
            };
            let timer = OptionFuture::from(next_due.map(sleep_until));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some((priority, overload)) = running.next(), if !running.is_empty() => {
                    *under_way.of(priority) -= 1;
                    // Events pause by themselves, and a refusal of one concerns its namespace.
                    limiter.answered(overload && priority != Priority::Event);
                }
                Some(_) = dedicated.next(), if !dedicated.is_empty() => {}
                Some(_) = slow.next(), if !slow.is_empty() => {}
                () = shared.wake.notified(), if is_open => {}
                Some(()) = timer => {}
            }
        }
        while running.next().await.is_some() {}
        while dedicated.next().await.is_some() {}
        while slow.next().await.is_some() {}
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
    use kube_ext::transport::{AnyMetadata, AnyObject, envelope};
    use prometheus::Registry;
    use tokio::{
        sync::{mpsc::unbounded_channel, watch},
        time::{Instant, sleep, timeout},
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

    /// A namespace whose webhook never answers has more pods than there is room for requests.
    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_is_never_answered_leaves_leases_on_time() {
        let began = Instant::now();
        let (renewals, mut renewed) = unbounded_channel();
        let server = service_fn(move |request: http::Request<Body>| {
            let path = request.uri().path().to_owned();
            if path.contains("/leases") {
                let _ = renewals.send(began.elapsed());
            }
            async move {
                if path.contains("/namespaces/dead/") {
                    pending::<()>().await;
                }
                let metadata = AnyMetadata { resource_version: Some("1000".to_owned()) };
                let object = AnyObject { metadata: Some(metadata) };
                Ok::<_, Infallible>(Response::new(Body::from(envelope("v1", "Any", &object))))
            }
        });
        let nodes = Cache::full([NodeView { name: "a".into(), uid: "a".into(), ..NodeView::default() }]);
        let pod = |number: usize| PodView {
            namespace: "dead".into(),
            name: format!("p-{number}").into(),
            uid: format!("p-{number}").into(),
            node: "a".into(),
            ..PodView::default()
        };
        let pods = Cache::full((0..1_000).map(pod));
        let client = Client::new(server, "default");
        let (hollow, kubelets) = Hollow::new(client, &nodes, &pods, RESTART, &Registry::new()).unwrap();
        hollow.create(spec("a"), None);
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(kubelets.run(shutdown.clone()));
        sleep(Duration::from_mins(2)).await;
        shutdown.cancel();
        running.await.unwrap();
        let times: Vec<_> = std::iter::from_fn(|| renewed.try_recv().ok()).collect();
        let gaps: Vec<_> = times.windows(2).map(|two| two[1].saturating_sub(two[0]).as_secs()).collect();
        assert!(gaps.len() >= 9 && gaps.iter().all(|gap| *gap < 15), "{gaps:?}");
    }
}
