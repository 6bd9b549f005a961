//! The way between one process and the API server: what is delayed, refused, lost or cut there, drawn from the seed.
//!
//! Inputs: the requests of the process; the classes of faults and their end. Outputs: the server's answers, or what the
//! faults make of them; each write is checked right after it (`checks`). Invariants: the draws for a request depend on
//! the seed, the process, the request and its ordinal alone, so that a fault can be taken away and the rest stays; the
//! frames of one watch are neither reordered nor repeated; a process that was killed sends nothing and hears nothing.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use http::{Method, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use kube_ext::environment::{Environment, within};
use kube_node_testing::{
    api_server::{ApiServer, Random},
    simulated_time::SimulatedTime,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tower::Service;

use crate::{
    checks::Checks,
    fault::Fault,
    faults::{AtScaleRequest, Faults, Webhook},
    process::Host,
    sent::Sent,
};

/// Longest usual time of a request on its way, in one direction.
const WAY: Duration = Duration::from_millis(20);
/// Most frames of a watch that come at once.
const FRAMES: usize = 1_000;
/// Requests of a start: an operator that has them all answered begins to work.
const OF_START: [&str; 3] = ["/apis/authorization.k8s.io/", "/openapi/", "/version"];
/// Time after which a client gives up a request that nobody answers.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(15);

/// A process's way to the server. Clones share it.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

struct Shared {
    server: ApiServer,
    checks: Arc<Checks>,
    faults: Arc<Faults>,
    host: Arc<Host>,
    process: String,
    state: Mutex<Way>,
    killed: Notify,
}

#[derive(Default)]
struct Way {
    /// Number of requests so far, by what they ask.
    ordinals: HashMap<String, u64>,
    is_dead: bool,
}

impl Network {
    pub fn new(
        server: ApiServer,
        checks: Arc<Checks>,
        faults: Arc<Faults>,
        host: Arc<Host>,
        process: String,
    ) -> Self {
        let (state, killed) = (Mutex::default(), Notify::new());
        Self { shared: Arc::new(Shared { server, checks, faults, host, process, state, killed }) }
    }

    /// Kills the process: nothing that it sends arrives any more.
    pub fn kill(&self) {
        self.shared.state.lock().is_dead = true;
        self.shared.killed.notify_one();
    }

    /// Waits until the process is killed.
    pub async fn killed(&self) {
        self.shared.killed.notified().await;
    }

    /// Returns true if the process was killed.
    pub fn is_dead(&self) -> bool {
        self.shared.state.lock().is_dead
    }

    /// Waits for ever if the process was killed.
    pub async fn alive(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Random numbers of the next request that asks for this.
    fn draws(&self, what: &str) -> Random {
        let mut state = self.shared.state.lock();
        let ordinal = state.ordinals.entry(what.to_owned()).or_default();
        *ordinal += 1;
        let mut hasher = DefaultHasher::new();
        (self.shared.faults.seed, &self.shared.process, what, *ordinal).hash(&mut hasher);
        Random::new(hasher.finish())
    }

    async fn carry(self, request: Request<kube::client::Body>) -> io::Result<Response<Body>> {
        self.alive().await;
        let (mut head, body) = request.into_parts();
        if let Some(page) = self.shared.faults.page {
            head.uri = in_pages(&head.uri, page);
        }
        let is_watch = head.uri.query().is_some_and(|query| query.contains("watch=true"));
        // kube's recorder names Events by the time of day.
        let path = head.uri.path();
        let path = path.split_once("/events/").map_or(path, |(events, _)| events);
        let what = format!("{} {path}", head.method);
        let mut draws = self.draws(&what);
        let is_write = head.method != Method::GET && !head.uri.path().contains("/apis/auth");
        let body = body.collect_bytes().await.map_err(io::Error::other)?;
        let shared = &self.shared;
        let mut sent = Sent::new(&shared.process, &head.method, head.uri.path(), body.clone());
        if is_write {
            shared.checks.sent(&shared.server, &sent);
        }
        // With the faults of a storm in dozens of them, hardly any start would succeed.
        let is_spared = shared.faults.storm && OF_START.iter().any(|start| sent.path.starts_with(start));
        let fault = shared.faults.of_request(&mut draws, (&head.method, &sent.path), is_write, is_watch);
        let fault = fault.filter(|_| !is_spared);
        let is_scale_request = sent.path.contains("/nodesets/") && sent.json()["spec"]["replicas"].is_i64();
        shared.checks.count(&sent, fault);
        let at_scale_request = if is_scale_request { shared.faults.take_scale_request() } else { None };
        let fault = at_scale_request.map(|_| Fault::DoneLater).or(fault);
        if is_scale_request && at_scale_request.is_none() {
            shared.faults.overtaken.notify_waiters();
        }
        sleep(up_to(&mut draws, shared.faults.limit(WAY))).await;
        if let Some(Fault::Slow) = fault {
            sleep(up_to(&mut draws, CLIENT_TIMEOUT)).await;
        }
        self.alive().await;
        if is_write && shared.faults.is_forbidden(head.uri.path()) {
            shared.checks.scaling().refuse();
            shared.checks.refused(&sent);
            return Ok(numbered(403, "Forbidden", "the account cannot write this resource", &mut draws));
        }
        if is_write && shared.faults.is_refused(head.uri.path()) {
            shared.checks.scaling().refuse();
            shared.checks.refused(&sent);
            return Ok(numbered(
                403,
                "Forbidden",
                "ValidatingAdmissionPolicy 'protect' denied request",
                &mut draws,
            ));
        }
        match shared.faults.webhook(head.uri.path()).filter(|_| is_write) {
            None => {}
            Some(Webhook::IsSlow) => {
                sleep(up_to(&mut draws, CLIENT_TIMEOUT)).await;
                self.alive().await;
            }
            Some(Webhook::Fails) => {
                shared.checks.refused(&sent);
                let text = "failed calling webhook \"nodes.example.com\"";
                return Ok(numbered(500, "InternalError", text, &mut draws));
            }
        }
        let is_renewal = sent.method == Method::PUT && sent.path.ends_with("/leases/kube-node-operator");
        let is_cut_off =
            || shared.host.connected_at().is_some() || is_renewal && shared.host.loses_renewals();
        if is_cut_off() {
            sleep(up_to(&mut draws, CLIENT_TIMEOUT)).await;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        match fault {
            Some(Fault::LostRequest) => {
                sleep(up_to(&mut draws, CLIENT_TIMEOUT)).await;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Some(Fault::Conflict) => return Ok(refusal(409, "Conflict", "the object has been modified")),
            Some(Fault::TooManyRequests) => return Ok(refusal(429, "TooManyRequests", "try again later")),
            Some(Fault::InternalError) => return Ok(refusal(500, "InternalError", "etcdserver: no leader")),
            Some(Fault::KilledBefore) => {
                self.kill();
                self.alive().await;
            }
            _ => {}
        }
        let body = shared.faults.released(head.uri.path(), &body);
        let request = Request::from_parts(head, kube::client::Body::from(body));
        if let Some(Fault::DoneLater) = fault {
            let (other, late) = (self.clone(), up_to(&mut draws, CLIENT_TIMEOUT));
            sent.is_given_up = true;
            // On its way, it does not stop with the process.
            let time: Arc<dyn Environment> = Arc::new(SimulatedTime::new(shared.faults.seed));
            tokio::spawn(within(time, async move {
                if at_scale_request == Some(AtScaleRequest::Kill) {
                    let _ = timeout(CLIENT_TIMEOUT, other.shared.faults.overtaken.notified()).await;
                } else {
                    sleep(late).await;
                }
                other.serve(request, &sent).await;
            }));
            if at_scale_request == Some(AtScaleRequest::Kill) {
                self.kill();
                self.alive().await;
            }
            return Err(io::ErrorKind::TimedOut.into());
        }
        let response = self.serve(request, &sent).await;
        if is_renewal && response.status().is_success() {
            shared.host.stop_at_renewal();
        }
        match fault {
            _ if shared.host.connected_at().is_some() => {
                sleep(up_to(&mut draws, CLIENT_TIMEOUT)).await;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Some(Fault::LostAnswer) => {
                sleep(up_to(&mut draws, CLIENT_TIMEOUT)).await;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Some(Fault::GatewayTimeout) => return Ok(refusal(504, "Timeout", "request timed out")),
            Some(Fault::LateAnswer) => sleep(up_to(&mut draws, CLIENT_TIMEOUT)).await,
            Some(Fault::CutAnswer) => return cut(response, &mut draws).await,
            Some(Fault::KilledAfter) => self.kill(),
            _ => {}
        }
        self.alive().await;
        sleep(up_to(&mut draws, shared.faults.limit(WAY))).await;
        if sent.method == Method::GET && !is_watch && shared.process.starts_with("operator") {
            sleep(shared.faults.list_delay(&sent.path)).await;
        }
        self.alive().await;
        if response.status().is_success() {
            shared.checks.heard(&sent);
        }
        Ok(if is_watch { self.watched(response, draws, sent.path) } else { response })
    }

    async fn serve(&self, request: Request<kube::client::Body>, sent: &Sent) -> Response<Body> {
        let shared = &self.shared;
        let response = match shared.server.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        shared.checks.check(&shared.server, Some((sent, response.status())));
        response
    }

    /// A watch whose frames come late, and that freezes or ends by the draws.
    fn watched(&self, response: Response<Body>, mut draws: Random, path: String) -> Response<Body> {
        let (head, body) = response.into_parts();
        let lag = self.shared.faults.lag(&mut draws);
        let ends = self.shared.faults.end_of_watch(&mut draws);
        let begun = Instant::now();
        // What has come while a frame was delayed comes with the next one, so that delays do not add up.
        let frames = body.into_data_stream().ready_chunks(FRAMES);
        let (network, is_operator) = (self.clone(), self.shared.process.starts_with("operator"));
        let late = move |faults: &Faults| faults.late(&path);
        let relists = self.shared.faults.relists();
        let state = Some((frames, draws, network, late, relists));
        let frames = stream::unfold(state, move |state| async move {
            let (mut frames, mut draws, network, late, mut relists) = state?;
            let end = async || match ends {
                Some(after) => sleep_until(begun + after).await,
                None => std::future::pending().await,
            };
            let chunk = tokio::select! {
                biased;
                () = end() => return None,
                () = relisted(is_operator, &mut relists) => return None,
                chunk = frames.next() => chunk?,
            };
            let delays = async {
                sleep(up_to(&mut draws, network.shared.faults.lag_of_frame(lag))).await;
                sleep(network.shared.faults.freeze(&mut draws)).await;
                sleep(late(&network.shared.faults)).await;
                while let Some(at) = network.shared.host.connected_at() {
                    sleep_until(at).await;
                }
            };
            tokio::select! {
                biased;
                () = relisted(is_operator, &mut relists) => return None,
                () = delays => {}
            }
            network.alive().await;
            let bytes = match chunk.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(frames) => Bytes::from(frames.concat()),
                Err(error) => return Some((vec![Err(io::Error::other(error))], None)),
            };
            match network.shared.faults.cut(&mut draws.apart(0xc17), bytes.len()) {
                Some(at) => {
                    Some((vec![Ok(bytes.slice(..at)), Err(io::ErrorKind::ConnectionReset.into())], None))
                }
                None => Some((vec![Ok(bytes)], Some((frames, draws, network, late, relists)))),
            }
        });
        Response::from_parts(head, Body::from_stream(frames.flat_map(stream::iter)))
    }
}

/// Waits until the watches of the operators end; for ever, if this is not one of theirs.
async fn relisted(is_operator: bool, relists: &mut watch::Receiver<()>) {
    if !is_operator || relists.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// An answer whose connection is cut before its last byte.
async fn cut(response: Response<Body>, draws: &mut Random) -> io::Result<Response<Body>> {
    let (head, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(io::Error::other)?;
    let arrives = bytes.slice(..draws.below(bytes.len().max(1)));
    let parts = [Ok(arrives), Err(io::Error::from(io::ErrorKind::ConnectionReset))];
    Ok(Response::from_parts(head, Body::from_stream(stream::iter(parts))))
}

/// The address of a list with at most so many objects in each answer, which a server may decide on.
fn in_pages(uri: &Uri, page: usize) -> Uri {
    let is_limit = |parameter: &str| parameter.starts_with("limit=");
    let Some(query) = uri.query().filter(|query| query.split('&').any(is_limit)) else { return uri.clone() };
    let limit = format!("limit={page}");
    let parameters = query.split('&').map(|parameter| if is_limit(parameter) { &limit } else { parameter });
    format!("{}?{}", uri.path(), parameters.collect::<Vec<&str>>().join("&")).parse().unwrap()
}

/// A random time below `limit`.
pub fn up_to(draws: &mut Random, limit: Duration) -> Duration {
    let limit = u64::try_from(limit.as_millis()).unwrap();
    Duration::from_millis(if limit == 0 { 0 } else { draws.number() % limit })
}

/// A refusal in words that differ each time, as where they name the request.
fn numbered(code: u16, reason: &str, message: &str, draws: &mut Random) -> Response<Body> {
    refusal(code, reason, &format!("{message} (request {:x})", draws.number()))
}

fn refusal(code: u16, reason: &str, message: &str) -> Response<Body> {
    let details = json!({ "retryAfterSeconds": 1 });
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": message, "details": details,
    });
    let builder = Response::builder()
        .status(StatusCode::from_u16(code).unwrap())
        .header(CONTENT_TYPE, "application/json");
    builder.body(status.to_string().into()).unwrap()
}

impl Service<Request<kube::client::Body>> for Network {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        Box::pin(self.clone().carry(request))
    }
}
