//! Condition writer: writes the Node's conditions at each change of phase. kubemark would write nothing for
//! up to ten seconds, and never the conditions of an injected fault.

use std::{error::Error, time::Duration};

use http::{Request, header::USER_AGENT};
use jiff::Timestamp;
use kube::Client;
use kube_node_planner::fault_injection::Behaviour;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{
    Gone, Shared,
    state::{Correction, Look},
};

/// Time limit of a request.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// First backoff after a failure; doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Longest backoff after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// User agent; the API server makes the name before the slash the field manager of a write.
const AGENT: &str = concat!("kube-node-kubemark-proxy/", env!("CARGO_PKG_VERSION"));

/// Failure to read the Node.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The Node is not this machine's.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The Node cannot be read.
    #[error("no answer of the API server")]
    Kube(#[source] Box<kube::Error>),
}

/// Reads the Node; retries until that succeeds or fails permanently.
pub async fn first_look(client: &Client, shared: &Shared) -> Result<(), LookError> {
    let mut wait = FIRST_WAIT;
    loop {
        match look(client, shared).await {
            Err(LookError::Kube(error)) if may_come_right(&error) => {
                warn!(
                    node = shared.node,
                    error = &error as &dyn Error,
                    "cannot read the Node yet, trying again"
                );
            }
            other => return other.map(drop),
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Writes the conditions at each change of phase, for ever.
pub async fn run(client: &Client, shared: &Shared) {
    let mut told = None;
    let mut wait = FIRST_WAIT;
    loop {
        let Look { behaviour, changes_in, is_alive } = shared.state().look(Timestamp::now());
        let mut again = changes_in;
        if behaviour == Behaviour::Silent {
            told = Some(behaviour);
        } else if is_alive && told != Some(behaviour) {
            match tell(client, shared, behaviour).await {
                Ok(true) => {
                    told = Some(behaviour);
                    wait = FIRST_WAIT;
                    // The write took time, so the behaviour may have changed.
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    if wait == FIRST_WAIT {
                        warn!(
                            node = shared.node,
                            error = &error as &dyn Error,
                            "cannot write the conditions, trying again"
                        );
                    }
                    again = Some(again.map_or(wait, |change| change.min(wait)));
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
        tokio::select! {
            () = sleep(again.unwrap_or(Duration::MAX)) => {}
            () = shared.news.notified() => {}
        }
    }
}

/// Writes the conditions of this behaviour; false if the kubelet has to report a status first.
async fn tell(client: &Client, shared: &Shared, behaviour: Behaviour) -> Result<bool, LookError> {
    let node = look(client, shared).await?;
    let correction = shared.change(|state| state.correction(&node, behaviour, Timestamp::now()));
    let patch = match correction {
        Correction::Needless => return Ok(true),
        Correction::NotYet => return Ok(false),
        Correction::Patch(patch) => patch,
    };
    let request = Request::patch(format!("/api/v1/nodes/{}/status", shared.node))
        .header("Content-Type", "application/strategic-merge-patch+json");
    let written = ask(client, request, patch.to_string().into_bytes()).await?;
    shared.change(|state| state.saw(&written));
    info!(node = shared.node, ?behaviour, "the Node's conditions are written");
    Ok(true)
}

/// Reads the Node; an error if it is not this machine's.
pub async fn look(client: &Client, shared: &Shared) -> Result<Value, LookError> {
    let answer = ask(client, Request::get(format!("/api/v1/nodes/{}", shared.node)), Vec::new()).await;
    let gone = shared.change(|state| {
        match &answer {
            Ok(node) => drop(state.saw(node)),
            Err(kube::Error::Api(status)) if status.code == 404 => state.is_missing(),
            Err(_) => {}
        }
        state.gone().cloned()
    });
    match gone {
        Some(gone) => Err(gone.into()),
        None => Ok(answer?),
    }
}

/// Sends a request for JSON, within the time limit.
async fn ask(client: &Client, request: http::request::Builder, body: Vec<u8>) -> Result<Value, kube::Error> {
    let request = request.header(USER_AGENT, AGENT).body(body).map_err(kube::Error::HttpError)?;
    match timeout(TIME_LIMIT, client.request::<Value>(request)).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
    }
}

impl From<kube::Error> for LookError {
    fn from(error: kube::Error) -> Self {
        Self::Kube(Box::new(error))
    }
}

/// Returns true if waiting may help.
fn may_come_right(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}
