//! Connections to ports of a pod (`port-forward`): each is two streams, one for data and one for errors.
//! Every port serves a page that names the pod, its node and the port.

use std::{collections::HashMap, convert::Infallible, num::NonZeroU16, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube_node_cache::PodView;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{access::Refusal, spdy, upgrade};
use crate::served_machine::ServedMachine;

/// Protocol of the streams.
const PROTOCOL: &str = "portforward.k8s.io";
/// Maximum number of connections of a client; two streams each.
const CONNECTIONS: usize = 64;
/// Longest wait of a stream for the other one of its connection, as in a kubelet.
const PAIR_LIMIT: Duration = Duration::from_secs(30);
/// Interval between checks for streams past that limit.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Answers a request for connections to a pod.
pub fn answer(
    shutdown: &CancellationToken,
    machine: &ServedMachine,
    pod: &PodView,
    request: Request,
) -> Result<Response, Refusal> {
    let phase = &pod.status.phase;
    if &**phase != "Running" {
        let why = format!("unable to do port forwarding: pod is not running. Current status={phase}");
        return Err((StatusCode::INTERNAL_SERVER_ERROR, why));
    }
    let pod = format!("hollow pod {}/{} on node {}", pod.namespace, pod.name, machine.node);
    Ok(upgrade::spdy(shutdown, request, PROTOCOL, |streams| join(streams, pod)))
}

/// Streams of a connection; one may still be missing.
struct Pair {
    data: Option<spdy::Stream>,
    /// Error stream: the client sends nothing on it.
    error: Option<spdy::Sink>,
    since: Instant,
}

impl Pair {
    /// Stops waiting for the other stream.
    async fn end(self, id: &str) {
        if let Some(error) = &self.error {
            error.send(format!("timed out waiting for the streams of connection {id}")).await;
        }
        for sink in self.data.iter().map(|data| &data.sink).chain(&self.error) {
            sink.finish().await;
        }
    }
}

/// Serves connections to `pod` as their streams are opened, until no further stream can come.
async fn join(mut streams: mpsc::Receiver<spdy::Stream>, pod: String) {
    let mut pairs: HashMap<String, Pair> = HashMap::new();
    let mut running = JoinSet::new();
    let mut check = interval(CHECK_INTERVAL);
    loop {
        let stream = tokio::select! {
            stream = streams.recv() => stream,
            _ = check.tick() => {
                let late: Vec<_> =
                    pairs.extract_if(|_, pair| pair.since.elapsed() >= PAIR_LIMIT).collect();
                for (id, pair) in late {
                    pair.end(&id).await;
                }
                continue;
            }
        };
        let Some(stream) = stream else { return };
        while running.try_join_next().is_some() {}
        let Some(id) = stream.header("requestid").map(ToOwned::to_owned) else { continue };
        if pairs.len() + running.len() >= CONNECTIONS {
            refuse(&stream).await;
            continue;
        }
        let new = || Pair { data: None, error: None, since: Instant::now() };
        let mut pair = pairs.remove(&id).unwrap_or_else(new);
        match stream.header("streamtype") {
            Some("data") => pair.data = Some(stream),
            Some("error") => pair.error = Some(stream.sink),
            _ => {}
        }
        match pair {
            Pair { data: Some(data), error: Some(error), .. } => {
                running.spawn(connect(data, error, pod.clone()));
            }
            pair => drop(pairs.insert(id, pair)),
        }
    }
}

async fn refuse(stream: &spdy::Stream) {
    if stream.header("streamtype") == Some("error") {
        stream.sink.send(format!("there are {CONNECTIONS} connections already")).await;
    }
    stream.sink.finish().await;
}

/// Serves one connection.
async fn connect(data: spdy::Stream, error: spdy::Sink, pod: String) {
    let port: Option<NonZeroU16> = data.header("port").and_then(|port| port.parse().ok());
    let sink = data.sink.clone();
    if let Some(port) = port {
        serve(data.into_io(), format!("{pod}, port {port}\n")).await;
    } else {
        error.send("the stream names no port").await;
    }
    sink.finish().await;
    error.finish().await;
}

/// Serves the page behind a port.
async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, page: String) {
    let service = service_fn(|_: hyper::Request<Incoming>| {
        let response = page.clone().into_response();
        async { Ok::<Response<Body>, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        // A client may close its side after the request and wait for the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(io), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a client of a port does not speak HTTP");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::Semaphore,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_does_not_wait_for_its_other_one_for_good() {
        let (opened, streams) = mpsc::channel(1);
        tokio::spawn(join(streams, "hollow pod default/web on node n".to_owned()));
        let (feed, source) = spdy::Feed::new(&Arc::new(Semaphore::new(spdy::BUDGET)));
        let (to, mut sent) = mpsc::channel(1);
        let headers = [("streamtype", "data"), ("requestid", "1"), ("port", "80")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        opened.send(spdy::Stream { headers, source, sink: spdy::Sink::new(1, to) }).await.unwrap();
        let begun = Instant::now();
        assert!(!feed.send(&vec![0; 2 * spdy::BUDGET]).await, "nobody reads it");
        assert!(begun.elapsed() < 2 * PAIR_LIMIT);
        let last_of_stream_1 = [0, 0, 0, 1, 1, 0, 0, 0];
        assert_eq!(sent.recv().await.unwrap()[..], last_of_stream_1);
    }

    #[tokio::test]
    async fn a_page_names_the_pod_and_the_port() {
        let page = "hollow pod default/web on node n, port 8080\n".to_owned();
        let (mut near, far) = tokio::io::duplex(1 << 10);
        let request = async {
            near.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            near.shutdown().await.unwrap();
            let mut answer = String::new();
            near.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let ((), answer) = tokio::join!(serve(far, page), request);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("port 8080\n"), "{answer}");
    }
}
