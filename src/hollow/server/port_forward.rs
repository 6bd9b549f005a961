//! Connections to ports of a pod (`port-forward`): each is two streams, one for data and one for what is wrong. Behind every
//! port is a page that says where one has come to.

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::debug;

use super::{
    Seen, Server,
    answers::text,
    connection::Caller,
    spdy,
    streams::{Sink, Source, WAITING},
    upgrade,
};
use crate::cache::PodView;

/// The protocol of the streams.
const PROTOCOL: &str = "portforward.k8s.io";
/// Connections of a client at once; two streams each.
const CONNECTIONS: usize = 64;
/// What waits between a stream and its page, in bytes.
const BUFFER: usize = 16 << 10;

/// Answers a request for connections to a pod.
pub fn answer(
    server: &Arc<Server>,
    caller: &Caller,
    seen: &Seen,
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

/// What is behind each port of a pod.
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

/// The streams of a connection, of which one may not be there yet.
#[derive(Default)]
struct Pair {
    data: Option<spdy::Stream>,
    error: Option<spdy::Stream>,
}

async fn forward(io: impl AsyncRead + AsyncWrite + Send, page: Page) {
    let (opened, mut streams) = mpsc::channel::<spdy::Stream>(WAITING);
    let work = async {
        let mut pairs: HashMap<String, Pair> = HashMap::new();
        let mut running = Vec::new();
        while let Some(stream) = streams.recv().await {
            running.retain(|task: &AbortOnDropHandle<()>| !task.is_finished());
            let Some(id) = stream.header("requestid").map(ToOwned::to_owned) else { continue };
            if pairs.len() + running.len() >= CONNECTIONS {
                refuse(&stream).await;
                continue;
            }
            let pair = pairs.entry(id.clone()).or_default();
            match stream.header("streamtype") {
                Some("data") => pair.data = Some(stream),
                Some("error") => pair.error = Some(stream),
                _ => continue,
            }
            if let Some(Pair { data: Some(data), error: Some(error) }) = pairs
                .get(&id)
                .is_some_and(|pair| pair.data.is_some() && pair.error.is_some())
                .then(|| pairs.remove(&id))
                .flatten()
            {
                let connected = connect(data, error, page.clone());
                running.push(AbortOnDropHandle::new(tokio::spawn(connected)));
            }
        }
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

async fn refuse(stream: &spdy::Stream) {
    if stream.header("streamtype") == Some("error") {
        stream.sink.send(format!("there are {CONNECTIONS} connections already")).await;
    }
    stream.sink.finish().await;
}

/// Serves one connection.
async fn connect(data: spdy::Stream, error: spdy::Stream, page: Page) {
    let port = data.header("port").and_then(|port| port.parse().ok()).filter(|port| *port != 0);
    let Some(port) = port else {
        error.sink.send("the stream names no port").await;
        data.sink.finish().await;
        error.sink.finish().await;
        return;
    };
    let spdy::Stream { source, sink, .. } = data;
    let (near, far) = tokio::io::duplex(BUFFER);
    tokio::join!(carry(source, &sink, near), serve(far, page.text(port)));
    sink.finish().await;
    error.sink.finish().await;
}

/// Carries a stream to what is behind the port, and back.
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

/// The page behind a port.
async fn serve(far: DuplexStream, page: String) {
    let service = service_fn(|_: Request<Incoming>| {
        let answer = text(StatusCode::OK, page.clone());
        async { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        // Who has asked may have nothing more to say, and waits for the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(far), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "what came to a port was no HTTP");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
