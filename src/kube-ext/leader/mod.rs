//! Leader election by a Lease, with fencing. Operators elect one leader; each worker holds a Lease of its own
//! name.
//!
//! [`elector`] decides, [`Election`] sends the API requests, and [`Fence`] stands before every write of the
//! process: it is open while leadership lasts and closes by itself. A process that loses its Lease ends: its
//! caches and plans are of no further use.
//!
//! Limit: a write that was sent in time and arrives late cannot be recalled. Nearly all writes name the
//! resource version or the UID that they were decided on, and the next leader starts no sooner than lease
//! duration minus renew deadline later.

pub mod clock;
pub mod elector;
mod fence;
mod leadership;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

pub use elector::{Loss, Timing};
pub use fence::{Fence, FencedStream, NotLeading};
pub use leadership::{LEADER, Leadership, MEMBER};

use self::{
    clock::Moment,
    elector::{Elector, ElectorStep, LeaseRequest, LeaseResponse, Record},
};
use crate::{environment, error::chain, log_once::LogOnce};

/// Time limit for giving the Lease back.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// Lease duration of a Lease that was given back, in seconds: the least that the API server accepts. No
/// standby waits for it.
const RELEASED_SECONDS: i32 = 1;

/// Settings of an election.
#[derive(Clone, Debug)]
pub struct ElectionOptions {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Labels of the Lease, by which others find it.
    pub labels: BTreeMap<String, String>,
    /// Identity of this process, unique among all processes, former ones included.
    pub identity: String,
    /// Times of the election.
    pub timing: Timing,
}

impl ElectionOptions {
    fn lease(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// This process's part in an election.
pub struct Election {
    api: Api<Lease>,
    options: ElectionOptions,
    elector: Elector,
    /// The Lease as last read or written.
    lease: Option<Lease>,
    leadership: Arc<Leadership>,
    failure: LogOnce,
}

impl Election {
    /// Sends no request yet. `client` must not go through the fence of `leadership`, which the election itself
    /// opens.
    pub fn new(client: Client, options: ElectionOptions, leadership: Arc<Leadership>) -> Self {
        Self {
            api: Api::namespaced(client, &options.namespace),
            elector: Elector::new(options.identity.clone(), options.timing),
            options,
            lease: None,
            leadership,
            failure: LogOnce::default(),
        }
    }

    /// Takes the Lease if it is free. Returns true if this process leads now, false if another one does.
    pub async fn begin(&mut self) -> anyhow::Result<bool> {
        while self.elector.held().is_none() && !self.elector.waits(Moment::now()) {
            self.step().await?;
        }
        Ok(self.elector.held().is_some())
    }

    /// Waits until this process leads.
    pub async fn win(&mut self) -> anyhow::Result<()> {
        while self.elector.held().is_none() {
            self.step().await?;
        }
        Ok(())
    }

    /// Renews the Lease until leadership is lost.
    pub async fn keep(&mut self) -> anyhow::Error {
        loop {
            if let Err(lost) = self.step().await {
                return lost;
            }
        }
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        match self.elector.next(Moment::now()) {
            ElectorStep::Wait(time) => sleep(time).await,
            ElectorStep::Lost(source) => {
                self.leadership.fence().close();
                let (identity, lease) = (&self.options.identity, self.options.lease());
                return Err(anyhow::Error::new(source).context(format!(
                    "{identity} has lost the Lease {lease}, so it ends: another process works, or will"
                )));
            }
            ElectorStep::Request(request) => {
                let sent = Moment::now();
                let left = self.elector.held().map_or(Duration::MAX, |until| sent.until(until));
                let limit = self.options.timing.request_timeout().min(left);
                let answer = timeout(limit, self.send(request)).await;
                let response = self.interpret(request, answer.ok());
                let led = self.elector.held().is_some();
                self.elector.take_response(sent, Moment::now(), response);
                if let Some(until) = self.elector.held() {
                    self.leadership.fence().open_until(until);
                }
                let leads = self.elector.held().is_some();
                if leads && !led {
                    info!(identity = self.options.identity, lease = self.options.lease(), "has the Lease");
                }
                self.leadership.observed(self.lease.as_ref().and_then(holder), leads);
            }
        }
        Ok(())
    }

    async fn send(&self, request: LeaseRequest) -> kube::Result<Option<Lease>> {
        let params = PostParams::default();
        match request {
            LeaseRequest::Read => self.api.get_opt(&self.options.name).await,
            LeaseRequest::Create => self.api.create(&params, &self.written(None)).await.map(Some),
            LeaseRequest::Replace => {
                let lease = self.written(self.lease.as_ref());
                self.api.replace(&self.options.name, &params, &lease).await.map(Some)
            }
        }
    }

    /// Interprets a response; None stands for a timeout.
    fn interpret(
        &mut self,
        request: LeaseRequest,
        answer: Option<kube::Result<Option<Lease>>>,
    ) -> LeaseResponse {
        let (response, result) = match answer {
            Some(Ok(lease)) => {
                self.lease = lease;
                let read = LeaseResponse::Read(self.lease.as_ref().map(record));
                (if request == LeaseRequest::Read { read } else { LeaseResponse::Written }, "success")
            }
            // 404 to a replace: the Lease is gone. 404 to a create is a failure: the namespace does not
            // exist.
            Some(Err(kube::Error::Api(status))) if status.code == 404 && request == LeaseRequest::Replace => {
                self.lease = None;
                (LeaseResponse::Read(None), "conflict")
            }
            Some(Err(kube::Error::Api(status))) if status.code == 409 => {
                (LeaseResponse::Conflict, "conflict")
            }
            failed => {
                let text = match failed {
                    Some(Err(error)) => chain(&error),
                    _ => format!("no answer within {:?}", self.options.timing.request_timeout()),
                };
                if self.failure.is_new(&text) {
                    warn!(lease = self.options.lease(), error = text, "cannot ask for the Lease");
                }
                (LeaseResponse::Nothing, "failure")
            }
        };
        if response != LeaseResponse::Nothing {
            self.failure.ended();
        }
        if request != LeaseRequest::Read {
            self.leadership.wrote(result);
        }
        response
    }

    /// The Lease with this process as its holder.
    fn written(&self, before: Option<&Lease>) -> Lease {
        let now = MicroTime(environment::now());
        let spec = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let is_ours = spec.holder_identity.as_ref() == Some(&self.options.identity);
        let transitions = spec.lease_transitions.unwrap_or_default();
        let mut metadata = before.map_or_else(
            || ObjectMeta { name: Some(self.options.name.clone()), ..ObjectMeta::default() },
            |lease| lease.metadata.clone(),
        );
        metadata.labels.get_or_insert_default().extend(self.options.labels.clone());
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.options.identity.clone()),
                lease_duration_seconds: Some(self.options.timing.lease_seconds()),
                acquire_time: spec.acquire_time.filter(|_| is_ours).or_else(|| Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(transitions.saturating_add(i32::from(before.is_some() && !is_ours))),
                ..spec
            }),
        }
    }

    /// Gives the Lease back if this process holds it, so that the next leader need not wait for its expiry.
    /// Call this once no work is under way: the next leader starts at once.
    pub async fn release(mut self) {
        self.leadership.fence().close();
        self.leadership.observed(None, false);
        match timeout(RELEASE_LIMIT, self.give_back()).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => info!(identity = self.options.identity, "gave the Lease back"),
            Ok(Err(error)) => {
                warn!(error = chain(&error), "cannot give the Lease back: the next one waits for its end");
            }
            Err(_) => warn!("no answer when giving the Lease back: the next one may wait for its end"),
        }
    }

    /// Returns true if this process held the Lease. The Lease is read first: a renewal may have been under
    /// way.
    async fn give_back(&mut self) -> kube::Result<bool> {
        loop {
            let Some(mut lease) = self.api.get_opt(&self.options.name).await? else { return Ok(false) };
            if holder(&lease).as_ref() != Some(&self.options.identity) {
                return Ok(false);
            }
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(RELEASED_SECONDS);
                spec.renew_time = Some(MicroTime(environment::now()));
            }
            match self.api.replace(&self.options.name, &PostParams::default(), &lease).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                other => return other.map(|_| true),
            }
        }
    }
}

fn holder(lease: &Lease) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    spec.holder_identity.clone().filter(|holder| !holder.is_empty())
}

fn record(lease: &Lease) -> Record {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    Record {
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        holder: holder(lease),
        lasts: seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs),
    }
}
