//! Both directions of one stream, for exec, attach and port-forward.

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

use super::frame;

/// Maximum number of queued parts of a stream; a full queue makes the sender wait.
pub const WAITING: usize = 16;

/// Maximum number of unread bytes of one connection, in all its streams.
pub const BUDGET: usize = 256 << 10;
/// Maximum size of a part, in bytes.
const PART: usize = 16 << 10;

/// Data from the client.
pub struct Source(mpsc::Receiver<(Bytes, OwnedSemaphorePermit)>);

impl Source {
    /// Next part; None once the client has sent all.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.0.recv().await.map(|(part, _)| part)
    }
}

/// Sending end of a [`Source`].
pub struct Feed {
    to: mpsc::Sender<(Bytes, OwnedSemaphorePermit)>,
    budget: Arc<Semaphore>,
}

impl Feed {
    /// Creates a source with its sending end, among those that share this budget of bytes.
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

/// Sending end of one stream to the client.
#[derive(Clone, Debug)]
pub struct Sink {
    stream: u32,
    /// Queue of the connection's frames.
    to: mpsc::Sender<Bytes>,
}

impl Sink {
    /// Sending end of this stream.
    pub const fn new(stream: u32, to: mpsc::Sender<Bytes>) -> Self {
        Self { stream, to }
    }

    /// Sends a part. Returns false if the connection is gone.
    pub async fn send(&self, data: impl AsRef<[u8]>) -> bool {
        let data = data.as_ref();
        data.is_empty() || self.to.send(frame::data(self.stream, data, false)).await.is_ok()
    }

    /// The sending end as a writer of bytes; its shutdown does not end the stream.
    pub fn into_writer(self) -> impl AsyncWrite + Unpin {
        let Self { stream, to } = self;
        let to_frame =
            move |data: Bytes| future::ok::<_, PollSendError<Bytes>>(frame::data(stream, &data, false));
        let frames =
            PollSender::new(to).with(to_frame).sink_map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
        SinkWriter::new(CopyToBytes::new(frames))
    }

    /// Ends the stream.
    pub async fn finish(&self) {
        let _ = self.to.send(frame::data(self.stream, &[], true)).await;
    }
}
