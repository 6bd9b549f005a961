//! Connections to ports of a pod (`port-forward`): each is two streams, one for data and one for errors.
//! Every port serves a page that names the pod, its node and the port.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube_node_cache::PodView;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream},
    sync::mpsc,
    time::{Instant, interval},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::debug;

use super::{
    Server,
    answers::text,
    connection::Caller,
    spdy,
    streams::{Sink, Source, WAITING},
    upgrade,
};
use crate::served_machine::ServedMachine;

/// Protocol of the streams.
const PROTOCOL: &str = "portforward.k8s.io";
/// Maximum number of connections of a client; two streams each.
const CONNECTIONS: usize = 64;
/// Buffer between a stream and its page, in bytes.
const BUFFER: usize = 16 << 10;
/// Longest wait of a stream for the other one of its connection, as in a kubelet.
const PAIR_LIMIT: Duration = Duration::from_secs(30);
/// Interval between checks for streams past that limit.
const LOOK: Duration = Duration::from_secs(10);

/// Answers a request for connections to a pod.
pub fn answer(
    server: &Arc<Server>,
    caller: &Caller,
    seen: &ServedMachine,
    pod: &PodView,
    request: Request<Incoming>,
) -> Response<Body> {
    if &*pod.status.phase != "Running" {
        let why =
            format!("unable to do port forwarding: pod is not running. Current status={}", pod.status.phase);
        return text(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    let page = Page { pod: format!("{}/{}", pod.namespace, pod.name), node: Arc::clone(&seen.node) };
    upgrade::spdy(server, caller, request, &[PROTOCOL], |io, _| forward(io, page))
}

/// Page at each port of a pod.
#[derive(Clone)]
struct Page {
    pod: String,
    node: Arc<str>,
}

impl Page {
    fn text(&self, port: u16) -> String {
        format!("hollow pod {} on node {}, port {port}\n", self.pod, self.node)
    }
}

/// Streams of a connection; one may still be missing.
struct Pair {
    data: Option<spdy::Stream>,
    /// Error stream: the client sends nothing on it.
    error: Option<Sink>,
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

async fn forward(io: impl AsyncRead + AsyncWrite + Send, page: Page) {
    let (opened, streams) = mpsc::channel(WAITING);
    let work = async {
        join(streams, page).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = spdy::serve(io, opened, CancellationToken::new()) => {
            if let Err(error) = ended {
                debug!(%error, "the connections to a pod ended");
            }
        }
        () = work => {}
    }
}

/// Serves connections as their streams are opened, until no further stream can come.
async fn join(mut streams: mpsc::Receiver<spdy::Stream>, page: Page) {
    let mut pairs: HashMap<String, Pair> = HashMap::new();
    let mut running = Vec::new();
    let mut look = interval(LOOK);
    loop {
        let stream = tokio::select! {
            stream = streams.recv() => stream,
            _ = look.tick() => {
                let late = pairs.extract_if(|_, pair| pair.since.elapsed() >= PAIR_LIMIT);
                let late: Vec<_> = late.collect();
                for (id, pair) in late {
                    pair.end(&id).await;
                }
                continue;
            }
        };
        let Some(stream) = stream else { return };
        running.retain(|task: &AbortOnDropHandle<()>| !task.is_finished());
        let Some(id) = stream.header("requestid").map(ToOwned::to_owned) else { continue };
        if pairs.len() + running.len() >= CONNECTIONS {
            refuse(&stream).await;
            continue;
        }
        let new = || Pair { data: None, error: None, since: Instant::now() };
        let pair = pairs.entry(id.clone()).or_insert_with(new);
        match stream.header("streamtype") {
            Some("data") => pair.data = Some(stream),
            Some("error") => pair.error = Some(stream.sink),
            _ => continue,
        }
        if let Some(Pair { data: Some(data), error: Some(error), .. }) = pairs
            .get(&id)
            .is_some_and(|pair| pair.data.is_some() && pair.error.is_some())
            .then(|| pairs.remove(&id))
            .flatten()
        {
            let connected = connect(data, error, page.clone());
            running.push(AbortOnDropHandle::new(tokio::spawn(connected)));
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
async fn connect(data: spdy::Stream, error: Sink, page: Page) {
    let port = data.header("port").and_then(|port| port.parse().ok()).filter(|port| *port != 0);
    let Some(port) = port else {
        error.send("the stream names no port").await;
        data.sink.finish().await;
        error.finish().await;
        return;
    };
    let spdy::Stream { source, sink, .. } = data;
    let (near, far) = tokio::io::duplex(BUFFER);
    tokio::join!(carry(source, &sink, near), serve(far, page.text(port)));
    sink.finish().await;
    error.finish().await;
}

/// Copies a stream to the page behind the port, and back.
async fn carry(mut source: Source, sink: &Sink, near: DuplexStream) {
    let (mut read, mut write) = tokio::io::split(near);
    let there = async {
        while let Some(part) = source.recv().await {
            if write.write_all(&part).await.is_err() {
                return;
            }
        }
        let _ = write.shutdown().await;
    };
    let back = async {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            if !sink.send(buffer[..count].to_vec()).await {
                return;
            }
        }
    };
    let mut back = std::pin::pin!(back);
    tokio::select! {
        () = &mut back => {}
        () = there => back.await,
    }
}

/// Serves the page behind a port.
async fn serve(far: DuplexStream, page: String) {
    let service = service_fn(|_: Request<Incoming>| {
        let answer = text(StatusCode::OK, page.clone());
        async { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        // A client may close its side after the request and wait for the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(far), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "what came to a port was no HTTP");
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::{
        super::streams::{BUDGET, Feed, Out},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn a_stream_does_not_wait_for_its_other_one_for_good() {
        let (opened, streams) = mpsc::channel(1);
        tokio::spawn(join(streams, Page { pod: "default/web".to_owned(), node: "n".into() }));
        let (feed, source) = Feed::new(&Arc::new(Semaphore::new(BUDGET)));
        let (to, mut said) = mpsc::channel(1);
        let headers = [("streamtype", "data"), ("requestid", "1"), ("port", "80")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        opened.send(spdy::Stream { headers, source, sink: Sink::new(1, to) }).await.unwrap();
        let begun = Instant::now();
        assert!(!feed.send(&vec![0; 2 * BUDGET]).await, "nobody reads it");
        assert!(begun.elapsed() < 2 * PAIR_LIMIT);
        assert!(matches!(said.recv().await, Some(Out::Data { stream: 1, last: true, .. })));
    }

    #[tokio::test]
    async fn a_page_says_where_one_has_come_to() {
        let page = Page { pod: "default/web".to_owned(), node: "n".into() };
        let (mut near, far) = tokio::io::duplex(BUFFER);
        let asked = async {
            near.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            near.shutdown().await.unwrap();
            let mut answer = String::new();
            near.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let ((), answer) = tokio::join!(serve(far, page.text(8080)), asked);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("port 8080\n"), "{answer}");
    }
}
