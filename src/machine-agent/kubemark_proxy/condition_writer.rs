//! Condition writer: writes the Node's conditions at each change of phase. kubemark would write nothing for
//! up to ten seconds, and never the conditions of an injected fault.

use std::time::Duration;

use hollow_kubelet::fault_injection::Behaviour;
use http::{Request, header::USER_AGENT};
use jiff::Timestamp;
use kube::{Client, runtime::utils::Backoff as _};
use kube_ext::{backoff::Backoff, error::chain, log_once::LogOnce};
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{
    Shared,
    state::{Correction, NodeGone, Presence},
};

/// Time limit of a request.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Backoff after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(8));
/// User agent; the API server makes the name before the slash the field manager of a write.
const AGENT: &str = concat!("kube-node-kubemark-proxy/", env!("CARGO_PKG_VERSION"));

/// Failure to read the Node.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The Node is not this machine's.
    #[error(transparent)]
    Gone(#[from] NodeGone),
    /// The Node cannot be read.
    #[error("cannot read the Node")]
    Kube(#[from] kube::Error),
}

/// Reads the Node; retries until that succeeds or fails permanently.
pub async fn first_read(client: &Client, shared: &Shared) -> Result<(), ReadError> {
    let mut backoff = BACKOFF;
    loop {
        match read_node(client, shared).await {
            Err(ReadError::Kube(error)) if is_temporary(&error) => {
                warn!(node = shared.node, error = chain(&error), "cannot read the Node yet, trying again");
            }
            other => return other.map(drop),
        }
        sleep(backoff.wait()).await;
    }
}

/// Writes the conditions at each change of phase, for ever.
pub async fn run(client: &Client, shared: &Shared) {
    let (mut written, mut backoff, mut failure) = (None, BACKOFF, LogOnce::default());
    loop {
        let Presence { behaviour, changes_in, is_alive } = shared.state.lock().presence(Timestamp::now());
        let mut again = changes_in.unwrap_or(Duration::MAX);
        if behaviour == Behaviour::Silent {
            written = Some(behaviour);
        } else if is_alive && written != Some(behaviour) {
            match write(client, shared, behaviour).await {
                Ok(true) => {
                    written = Some(behaviour);
                    backoff.reset();
                    failure.ended();
                    // The write took time, so the behaviour may have changed.
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    let error = chain(&error);
                    if failure.is_new(&error) {
                        warn!(node = shared.node, error, "cannot write the conditions, trying again");
                    }
                    again = again.min(backoff.wait());
                }
            }
        }
        tokio::select! {
            () = sleep(again) => {}
            () = shared.changed.notified() => {}
        }
    }
}

/// Writes the conditions of this behaviour; false if the kubelet has to report a status first.
async fn write(client: &Client, shared: &Shared, behaviour: Behaviour) -> Result<bool, ReadError> {
    let node = read_node(client, shared).await?;
    let correction = shared.change(|state| state.correction(&node, behaviour, Timestamp::now()));
    let patch = match correction {
        Correction::Needless => return Ok(true),
        Correction::NotYet => return Ok(false),
        Correction::Patch(patch) => patch,
    };
    let request = Request::patch(format!("/api/v1/nodes/{}/status", shared.node))
        .header("Content-Type", "application/strategic-merge-patch+json");
    let written = send(client, request, patch.to_string().into_bytes()).await?;
    shared.change(|state| state.observe(&written));
    info!(node = shared.node, ?behaviour, "the Node's conditions are written");
    Ok(true)
}

/// Reads the Node; an error if it is not this machine's.
pub async fn read_node(client: &Client, shared: &Shared) -> Result<Value, ReadError> {
    let answer = send(client, Request::get(format!("/api/v1/nodes/{}", shared.node)), Vec::new()).await;
    let gone = shared.change(|state| {
        match &answer {
            Ok(node) => drop(state.observe(node)),
            Err(kube::Error::Api(status)) if status.code == 404 => state.mark_deleted(),
            Err(_) => {}
        }
        state.gone.clone()
    });
    match gone {
        Some(gone) => Err(gone.into()),
        None => Ok(answer?),
    }
}

/// Sends a request for JSON, within the time limit.
async fn send(client: &Client, request: http::request::Builder, body: Vec<u8>) -> Result<Value, kube::Error> {
    let request = request.header(USER_AGENT, AGENT).body(body).map_err(kube::Error::HttpError)?;
    let answer = timeout(TIME_LIMIT, client.request(request)).await;
    answer.unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())))
}

/// Returns true if waiting may help.
fn is_temporary(error: &kube::Error) -> bool {
    !matches!(error, kube::Error::Api(status) if status.code < 500 && status.code != 429)
}
