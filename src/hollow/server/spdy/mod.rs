//! SPDY/3.1 as a server speaks it to clients of Kubernetes: they open streams, both sides write to them. Windows are left out,
//! as those clients do; a stream that nobody reads makes its connection wait.

mod frame;
mod headers;

use std::{collections::HashMap, io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::frame::Frame;
pub use self::headers::Headers;
use super::streams::{Out, Sink, Source, WAITING};

/// Streams of a connection at once.
const STREAMS: usize = 256;
/// How long a client may take to go once all was said.
const LINGER: Duration = Duration::from_secs(5);

/// A stream that a client opened.
pub struct Stream {
    /// What the client says it is for.
    pub headers: Headers,
    /// What it sends.
    pub source: Source,
    /// The way back.
    pub sink: Sink,
}

impl Stream {
    /// A header, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// Serves a connection until the client is gone, or `done` and all that was said is sent. Streams that are opened are given to
/// `opened`.
pub async fn serve(
    io: impl AsyncRead + AsyncWrite,
    opened: mpsc::Sender<Stream>,
    done: CancellationToken,
) -> io::Result<()> {
    let (read, write) = tokio::io::split(io);
    let (to, from) = mpsc::channel(WAITING);
    let mut reading = Box::pin(read_all(read, to, opened));
    tokio::select! {
        ended = &mut reading => return ended,
        written = write_all(write, from, done) => written?,
    }
    // What the client has sent meanwhile must be read: a connection that is closed over it would take away what it is to get.
    timeout(LINGER, reading).await.unwrap_or(Ok(()))
}

async fn write_all(
    mut write: impl AsyncWrite + Unpin,
    mut from: mpsc::Receiver<Out>,
    done: CancellationToken,
) -> io::Result<()> {
    let framed = |out: Out| match out {
        Out::Data { stream, data, last } => frame::data(stream, &data, last),
        Out::Frame(frame) => frame,
    };
    loop {
        tokio::select! {
            biased;
            out = from.recv() => match out {
                Some(out) => write.write_all(&framed(out)).await?,
                None => break,
            },
            () = done.cancelled() => break,
        }
        if from.is_empty() {
            write.flush().await?;
        }
    }
    while let Ok(out) = from.try_recv() {
        write.write_all(&framed(out)).await?;
    }
    write.write_all(&frame::go_away(0)).await?;
    write.flush().await
}

async fn read_all(
    mut read: impl AsyncRead + Unpin,
    to: mpsc::Sender<Out>,
    opened: mpsc::Sender<Stream>,
) -> io::Result<()> {
    let none = || io::Error::other("no dictionary");
    let (mut headers_in, mut headers_out) =
        (headers::Reader::default(), headers::Writer::new().ok_or_else(none)?);
    let mut streams: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
    let mut came = BytesMut::with_capacity(16 << 10);
    loop {
        while let Some(frame) = frame::take(&mut came).map_err(io::Error::other)? {
            match frame {
                Frame::Open { stream, headers, last } => {
                    // Read in any case: all headers are one zlib stream.
                    let headers = headers_in.read(&headers).map_err(io::Error::other)?;
                    let (data, source) = mpsc::channel(WAITING);
                    let is_new = !streams.contains_key(&stream) && streams.len() < STREAMS;
                    let sink = Sink::new(stream, to.clone());
                    if !is_new || opened.send(Stream { headers, source, sink }).await.is_err() {
                        say(&to, frame::reset(stream, frame::REFUSED_STREAM)).await;
                        continue;
                    }
                    if !last {
                        streams.insert(stream, data);
                    }
                    let reply = headers_out.write(&[]).ok_or_else(none)?;
                    say(&to, frame::reply(stream, &reply)).await;
                }
                Frame::Data { stream, data, last } => {
                    if let Some(own) = streams.get(&stream)
                        && !data.is_empty()
                    {
                        // Where nobody reads it any more, it is nobody's.
                        let _ = own.send(data).await;
                    }
                    if last {
                        streams.remove(&stream);
                    }
                }
                Frame::Reset(stream) => drop(streams.remove(&stream)),
                Frame::Ping(id) => say(&to, frame::pong(id)).await,
                Frame::GoAway | Frame::Other => {}
            }
        }
        if read.read_buf(&mut came).await? == 0 {
            return Ok(());
        }
    }
}

async fn say(to: &mpsc::Sender<Out>, frame: Bytes) {
    let _ = to.send(Out::Frame(frame)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that opens a stream with these headers and sends this.
    async fn open(io: &mut (impl AsyncWrite + Unpin), writer: &mut headers::Writer, stream: u8, data: &[u8]) {
        let headers = writer.write(&[("streamtype", "data")]).unwrap();
        let length = u8::try_from(headers.len() + 10).unwrap();
        io.write_all(&[0x80, 3, 0, 1, 0, 0, 0, length, 0, 0, 0, stream, 0, 0, 0, 0, 0, 0]).await.unwrap();
        io.write_all(&headers).await.unwrap();
        io.write_all(&frame::data(stream.into(), data, true)).await.unwrap();
    }

    #[tokio::test]
    async fn streams_go_both_ways_until_all_is_said() {
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
        let mut came = BytesMut::new();
        let mut frames = Vec::new();
        while !frames.contains(&Frame::GoAway) {
            client.read_buf(&mut came).await.unwrap();
            while let Some(frame) = frame::take(&mut came).unwrap() {
                frames.push(frame);
            }
        }
        assert!(frames.contains(&Frame::Ping(3)));
        let said = Frame::Data { stream: 1, data: Bytes::from_static(b"answer"), last: false };
        assert!(frames.contains(&said), "{frames:?}");
        drop(client);
        task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_stream_that_nobody_wants_is_refused() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (opened, streams) = mpsc::channel(1);
        drop(streams);
        tokio::spawn(serve(server, opened, CancellationToken::new()));
        open(&mut client, &mut headers::Writer::new().unwrap(), 1, b"").await;
        let mut came = BytesMut::new();
        let frame = loop {
            client.read_buf(&mut came).await.unwrap();
            if let Some(frame) = frame::take(&mut came).unwrap() {
                break frame;
            }
        };
        assert_eq!(frame, Frame::Reset(1));
    }
}
