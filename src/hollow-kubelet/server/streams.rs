//! The streams of exec, attach and port-forward, by whatever protocol they come.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Parts of a stream that wait: who sends more has to wait with them.
pub const WAITING: usize = 16;

/// Bytes of one connection that wait at most to be read, in all its streams.
pub const BUDGET: usize = 256 << 10;
/// Largest part, in bytes.
const PART: usize = 16 << 10;

/// What comes from the client.
#[derive(Debug)]
pub struct Source(mpsc::Receiver<(Bytes, OwnedSemaphorePermit)>);

impl Source {
    /// The next part; None when the client has said all.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.0.recv().await.map(|(part, _)| part)
    }
}

/// The way to a [`Source`].
#[derive(Debug)]
pub struct Feed {
    to: mpsc::Sender<(Bytes, OwnedSemaphorePermit)>,
    budget: Arc<Semaphore>,
}

impl Feed {
    /// The way to a new source, among those that share this budget of bytes.
    #[must_use]
    pub fn new(budget: &Arc<Semaphore>) -> (Self, Source) {
        let (to, from) = mpsc::channel(WAITING);
        (Self { to, budget: Arc::clone(budget) }, Source(from))
    }

    /// Sends what came, as there is room for it; whether somebody is to read it.
    pub async fn send(&self, data: &[u8]) -> bool {
        for part in data.chunks(PART) {
            if self.to.is_closed() {
                return false;
            }
            let size = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let Ok(place) = Arc::clone(&self.budget).acquire_many_owned(size).await else { return false };
            // Copied, since a few bytes would keep all that they came with.
            if self.to.send((Bytes::copy_from_slice(part), place)).await.is_err() {
                return false;
            }
        }
        true
    }
}

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
