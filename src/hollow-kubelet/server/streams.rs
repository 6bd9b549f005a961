//! Streams of exec, attach and port-forward, independent of their protocol.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures::{SinkExt, future};
use tokio::{
    io::AsyncWrite,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_util::{
    io::{CopyToBytes, SinkWriter},
    sync::{PollSendError, PollSender},
};

/// Maximum number of queued parts of a stream; a full queue makes the sender wait.
pub const WAITING: usize = 16;

/// Maximum number of unread bytes of one connection, in all its streams.
pub const BUDGET: usize = 256 << 10;
/// Maximum size of a part, in bytes.
const PART: usize = 16 << 10;

/// Data from the client.
#[derive(Debug)]
pub struct Source(mpsc::Receiver<(Bytes, OwnedSemaphorePermit)>);

impl Source {
    /// Next part; None once the client has sent all.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.0.recv().await.map(|(part, _)| part)
    }
}

/// Sending end of a [`Source`].
#[derive(Debug)]
pub struct Feed {
    to: mpsc::Sender<(Bytes, OwnedSemaphorePermit)>,
    budget: Arc<Semaphore>,
}

impl Feed {
    /// Creates a source with its sending end, among those that share this budget of bytes.
    #[must_use]
    pub fn new(budget: &Arc<Semaphore>) -> (Self, Source) {
        let (to, from) = mpsc::channel(WAITING);
        (Self { to, budget: Arc::clone(budget) }, Source(from))
    }

    /// Sends data as the budget has room for it. Returns false if no reader is left.
    pub async fn send(&self, data: &[u8]) -> bool {
        for part in data.chunks(PART) {
            if self.to.is_closed() {
                return false;
            }
            let size = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let Ok(permit) = Arc::clone(&self.budget).acquire_many_owned(size).await else { return false };
            // Copied, since a small slice would keep the whole buffer in memory.
            if self.to.send((Bytes::copy_from_slice(part), permit)).await.is_err() {
                return false;
            }
        }
        true
    }
}

/// Data to the client.
#[derive(Debug)]
pub enum Out {
    /// Part of a stream.
    Data {
        /// Number of the stream.
        stream: u32,
        /// Data of the part.
        data: Bytes,
        /// True for the last part.
        last: bool,
    },
    /// Frame of the protocol itself.
    Frame(Bytes),
}

/// Sending end of one stream to the client.
#[derive(Clone, Debug)]
pub struct Sink {
    stream: u32,
    to: mpsc::Sender<Out>,
}

impl Sink {
    /// Sending end of this stream.
    #[must_use]
    pub const fn new(stream: u32, to: mpsc::Sender<Out>) -> Self {
        Self { stream, to }
    }

    /// Sends a part. Returns false if the connection is gone.
    pub async fn send(&self, data: impl Into<Bytes>) -> bool {
        let data = data.into();
        data.is_empty() || self.to.send(Out::Data { stream: self.stream, data, last: false }).await.is_ok()
    }

    /// The sending end as a writer of bytes; its shutdown does not end the stream.
    pub fn into_writer(self) -> impl AsyncWrite + Unpin {
        let Self { stream, to } = self;
        let out = move |data| future::ok::<_, PollSendError<Out>>(Out::Data { stream, data, last: false });
        let parts =
            PollSender::new(to).with(out).sink_map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
        SinkWriter::new(CopyToBytes::new(parts))
    }

    /// Ends the stream.
    pub async fn finish(&self) {
        let _ = self.to.send(Out::Data { stream: self.stream, data: Bytes::new(), last: true }).await;
    }
}
