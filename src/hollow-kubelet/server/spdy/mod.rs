//! SPDY/3.1 server for clients of Kubernetes: clients open streams, both sides write to them.
//!
//! Windows are not used, as in those clients; an unread stream makes its connection wait, which ends after
//! [`IDLE_LIMIT`].

mod frame;
mod headers;
mod streams;

use std::{
    collections::HashMap,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::stream;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_util::{io::StreamReader, sync::CancellationToken};

use self::{frame::Frame, streams::WAITING};
pub use self::{
    headers::Headers,
    streams::{BUDGET, Feed, Sink, Source},
};

/// Maximum number of streams of a connection.
const STREAMS: usize = 256;
/// Time for a client to close the connection after the last frame.
const LINGER: Duration = Duration::from_secs(5);
/// Idle timeout of a connection, as in kubelets (`streamingConnectionIdleTimeout`).
const IDLE_LIMIT: Duration = Duration::from_hours(4);

/// A stream opened by a client.
pub struct Stream {
    /// Headers, which state the purpose of the stream.
    pub headers: Headers,
    /// Data from the client.
    pub source: Source,
    /// Data to the client.
    pub sink: Sink,
}

impl Stream {
    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The stream as a connection of bytes.
    pub fn into_io(self) -> impl AsyncRead + AsyncWrite + Unpin {
        let parts = stream::unfold(self.source, async |mut source| {
            source.recv().await.map(|part| (Ok::<_, io::Error>(part), source))
        });
        tokio::io::join(StreamReader::new(Box::pin(parts)), self.sink.into_writer())
    }
}

/// Serves a connection, and its streams by `work`, until the client is gone, or until `work` has ended and
/// all queued frames are sent.
pub async fn serve_streams<F: Future<Output = ()>>(
    io: impl AsyncRead + AsyncWrite,
    work: impl FnOnce(mpsc::Receiver<Stream>) -> F,
) -> io::Result<()> {
    let (opened, streams) = mpsc::channel(WAITING);
    let done = CancellationToken::new();
    let work = async {
        work(streams).await;
        done.cancel();
        std::future::pending().await
    };
    tokio::select! {
        ended = serve(io, opened, done.clone()) => ended,
        never = work => never,
    }
}

/// Serves a connection until the client is gone, or until `done` and all queued frames are sent. Opened
/// streams go to `opened`, and are refused once its receiver is gone.
async fn serve(
    io: impl AsyncRead + AsyncWrite,
    opened: mpsc::Sender<Stream>,
    done: CancellationToken,
) -> io::Result<()> {
    let (read, write) = tokio::io::split(io);
    let (to, from) = mpsc::channel(WAITING);
    let moved = AtomicU64::new(0);
    let mut reading = Box::pin(read_all(read, to, opened, &moved));
    tokio::select! {
        ended = &mut reading => return ended,
        written = write_all(write, from, done, &moved) => written?,
        () = stands_still(&moved) => return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing moves")),
    }
    // Data that the client has sent meanwhile must be read: closing the connection over unread data would
    // discard what the client is to receive.
    timeout(LINGER, reading).await.unwrap_or(Ok(()))
}

/// Returns once `moved` has stayed the same for [`IDLE_LIMIT`].
async fn stands_still(moved: &AtomicU64) {
    let mut before = None;
    loop {
        let now = moved.load(Relaxed);
        if before.replace(now) == Some(now) {
            return;
        }
        sleep(IDLE_LIMIT).await;
    }
}

async fn write_all(
    mut write: impl AsyncWrite + Unpin,
    mut from: mpsc::Receiver<Bytes>,
    done: CancellationToken,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut all = pin!(async {
        while let Some(frame) = tokio::select! {
            biased;
            frame = from.recv() => frame,
            () = done.cancelled() => None,
        } {
            write.write_all(&frame).await?;
            if from.is_empty() {
                write.flush().await?;
            }
            moved.fetch_add(1, Relaxed);
        }
        while let Ok(frame) = from.try_recv() {
            write.write_all(&frame).await?;
        }
        write.write_all(&frame::go_away()).await?;
        write.flush().await
    });
    tokio::select! {
        written = &mut all => return written,
        () = done.cancelled() => {}
    }
    // A client that does not take the last frames is not waited for.
    timeout(LINGER, all).await?
}

async fn read_all(
    mut read: impl AsyncRead + Unpin,
    to: mpsc::Sender<Bytes>,
    opened: mpsc::Sender<Stream>,
    moved: &AtomicU64,
) -> io::Result<()> {
    let (mut headers_in, mut headers_out) = (headers::Reader::default(), headers::Writer::new()?);
    let mut streams: HashMap<u32, Feed> = HashMap::new();
    let budget = Arc::new(Semaphore::new(BUDGET));
    let mut received = BytesMut::with_capacity(16 << 10);
    let send = async |frame| _ = to.send(frame).await;
    loop {
        while let Some(frame) = frame::take(&mut received)? {
            match frame {
                Frame::Open { stream, headers, last } => {
                    // Decompressed even for a refused stream: all headers are one zlib stream.
                    let headers = headers_in.read(&headers)?;
                    let is_new = !streams.contains_key(&stream) && streams.len() < STREAMS;
                    let Some(place) = (if is_new { opened.reserve().await.ok() } else { None }) else {
                        send(frame::refuse(stream)).await;
                        continue;
                    };
                    // Replied to before any data can be sent on the stream.
                    send(frame::reply(stream, &headers_out.write_none()?)).await;
                    let (feed, source) = Feed::new(&budget);
                    if !last {
                        streams.insert(stream, feed);
                    }
                    place.send(Stream { headers, source, sink: Sink::new(stream, to.clone()) });
                }
                Frame::Data { stream, data, last } => {
                    if let Some(feed) = streams.get(&stream) {
                        // Data without a reader is dropped.
                        feed.send(&data).await;
                    }
                    if last {
                        streams.remove(&stream);
                    }
                }
                Frame::Reset(stream) => drop(streams.remove(&stream)),
                Frame::Ping(id) => send(frame::pong(id)).await,
                Frame::GoAway | Frame::Other => {}
            }
            moved.fetch_add(1, Relaxed);
        }
        if read.read_buf(&mut received).await? == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that opens a stream with headers and sends `data`.
    async fn open(io: &mut (impl AsyncWrite + Unpin), writer: &mut headers::Writer, stream: u8, data: &[u8]) {
        let headers = writer.write(&[("streamtype", "data")]).unwrap();
        let length = u8::try_from(headers.len() + 10).unwrap();
        io.write_all(&[0x80, 3, 0, 1, 0, 0, 0, length, 0, 0, 0, stream, 0, 0, 0, 0, 0, 0]).await.unwrap();
        io.write_all(&headers).await.unwrap();
        io.write_all(&frame::data(stream.into(), data, true)).await.unwrap();
    }

    #[tokio::test]
    async fn streams_go_both_ways_until_all_is_sent() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (opened, mut streams) = mpsc::channel(1);
        let done = CancellationToken::new();
        let task = tokio::spawn(serve(server, opened, done.clone()));
        let mut writer = headers::Writer::new().unwrap();
        open(&mut client, &mut writer, 1, b"question").await;
        client.write_all(&frame::pong(3)).await.unwrap();
        let mut stream = streams.recv().await.unwrap();
        assert_eq!(stream.header("streamtype"), Some("data"));
        assert_eq!(stream.source.recv().await.unwrap(), "question");
        assert_eq!(stream.source.recv().await, None);
        assert!(stream.sink.send("answer").await);
        stream.sink.finish().await;
        done.cancel();
        let mut received = BytesMut::new();
        let mut frames = Vec::new();
        while !frames.contains(&Frame::GoAway) {
            client.read_buf(&mut received).await.unwrap();
            while let Some(frame) = frame::take(&mut received).unwrap() {
                frames.push(frame);
            }
        }
        assert!(frames.contains(&Frame::Ping(3)));
        let answer = Frame::Data { stream: 1, data: Bytes::from_static(b"answer"), last: false };
        assert!(frames.contains(&answer), "{frames:?}");
        drop(client);
        task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_stream_without_a_server_is_refused() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (opened, streams) = mpsc::channel(1);
        drop(streams);
        tokio::spawn(serve(server, opened, CancellationToken::new()));
        open(&mut client, &mut headers::Writer::new().unwrap(), 1, b"").await;
        assert_eq!(next(&mut client, &mut BytesMut::new()).await, Frame::Reset(1));
    }

    async fn next(client: &mut (impl AsyncRead + Unpin), received: &mut BytesMut) -> Frame {
        loop {
            if let Some(frame) = frame::take(received).unwrap() {
                return frame;
            }
            assert_ne!(client.read_buf(received).await.unwrap(), 0, "it has ended");
        }
    }

    /// A fast client, and a slow reader behind a stream.
    #[tokio::test]
    async fn what_nobody_reads_waits_within_a_budget() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (opened, mut streams) = mpsc::channel(1);
        tokio::spawn(serve(server, opened, CancellationToken::new()));
        let mut writer = headers::Writer::new().unwrap();
        let large = vec![b'x'; 200 << 10];
        let sent = tokio::spawn(async move {
            for (stream, data) in [(1, &*large), (3, &*large), (5, &b"after"[..])] {
                open(&mut client, &mut writer, stream, data).await;
            }
            client
        });
        let _first = streams.recv().await.unwrap();
        let mut second = streams.recv().await.unwrap();
        assert!(timeout(Duration::from_millis(100), streams.recv()).await.is_err(), "there is no room");
        let mut size = 0;
        while let Some(part) = second.source.recv().await {
            size += part.len();
        }
        assert_eq!(size, 200 << 10);
        assert_eq!(streams.recv().await.unwrap().source.recv().await.unwrap(), "after");
        drop(sent.await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_is_replied_to_before_anything_is_sent_on_it() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (opened, mut streams) = mpsc::channel::<Stream>(1);
        tokio::spawn(serve(server, opened, CancellationToken::new()));
        tokio::spawn(async move {
            while let Some(stream) = streams.recv().await {
                stream.sink.send("sent at once").await;
            }
        });
        let (mut writer, mut received) = (headers::Writer::new().unwrap(), BytesMut::new());
        for stream in 1..100 {
            open(&mut client, &mut writer, stream, b"").await;
            // The parser of frames from clients does not know replies.
            assert_eq!(next(&mut client, &mut received).await, Frame::Other, "{stream}");
            assert!(matches!(next(&mut client, &mut received).await, Frame::Data { .. }), "{stream}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_that_a_client_keeps_without_taking_anything() {
        // No byte moves in either direction.
        let (_client, server) = tokio::io::duplex(64);
        let (opened, mut streams) = mpsc::channel(1);
        let ended = serve(server, opened, CancellationToken::new()).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert!(streams.recv().await.is_none());
        // The client does not take the last frames.
        let (mut client, server) = tokio::io::duplex(64);
        let (opened, mut streams) = mpsc::channel(1);
        let done = CancellationToken::new();
        let begun = tokio::time::Instant::now();
        let task = tokio::spawn(serve(server, opened, done.clone()));
        open(&mut client, &mut headers::Writer::new().unwrap(), 1, b"").await;
        let stream = streams.recv().await.unwrap();
        assert!(stream.sink.send(vec![0; 1 << 10]).await);
        done.cancel();
        task.await.unwrap().unwrap_err();
        assert!(begun.elapsed() < 3 * LINGER);
    }
}
