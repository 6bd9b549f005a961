//! The streams of exec, attach and port-forward, by whatever protocol they come.

use bytes::Bytes;
use tokio::sync::mpsc;

/// Parts of a stream that wait: who sends more has to wait with them.
pub const WAITING: usize = 16;

/// What comes from the client; it has said all when there is no more.
pub type Source = mpsc::Receiver<Bytes>;

/// What goes to the client.
#[derive(Debug)]
pub enum Out {
    /// A part of a stream.
    Data {
        /// Which.
        stream: u32,
        /// The part.
        data: Bytes,
        /// Whether it is the last one.
        last: bool,
    },
    /// A frame of the protocol itself.
    Frame(Bytes),
}

/// The way of one stream to the client.
#[derive(Clone, Debug)]
pub struct Sink {
    stream: u32,
    to: mpsc::Sender<Out>,
}

impl Sink {
    /// That of a stream.
    #[must_use]
    pub const fn new(stream: u32, to: mpsc::Sender<Out>) -> Self {
        Self { stream, to }
    }

    /// Sends a part; whether somebody is there.
    pub async fn send(&self, data: impl Into<Bytes>) -> bool {
        let data = data.into();
        data.is_empty() || self.to.send(Out::Data { stream: self.stream, data, last: false }).await.is_ok()
    }

    /// Says that all was said.
    pub async fn finish(&self) {
        let _ = self.to.send(Out::Data { stream: self.stream, data: Bytes::new(), last: true }).await;
    }
}
