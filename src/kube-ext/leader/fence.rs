//! Fencing: a client that sends writes only while this process leads.
//!
//! The fence is checked twice: before a request is passed on (a tower layer), and where a connection gives bytes
//! to the kernel. In between, a request may wait for a connection or in its buffer, and the process may be
//! stopped meanwhile. Reads of a process that does not lead yet pass: a standby keeps its caches filled. A process
//! that has lost leadership sends nothing any more: it ends.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::Request;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use kube::client::Body;
use tower::{
    BoxError, Layer,
    filter::{Filter, Predicate},
};

use super::clock::Moment;

/// This process does not lead, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this operator does not lead: it writes nothing")]
pub struct NotLeading;

/// Permission of this process to write. Clones share one state.
#[derive(Clone, Debug)]
pub struct Fence {
    /// End of the permission, in nanoseconds since boot; `u64::MAX` for no end, 0 if there was none yet.
    until: Arc<AtomicU64>,
}

impl Fence {
    /// An open fence, for a process without leader election, which is the only one.
    pub fn open() -> Self {
        Self { until: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// A closed fence, for a process that does not lead yet.
    pub fn closed() -> Self {
        Self { until: Arc::default() }
    }

    /// Opens the fence until `moment`.
    pub fn open_until(&self, moment: Moment) {
        self.until.store(moment.nanos(), Ordering::Release);
    }

    /// Closes the fence.
    pub fn close(&self) {
        self.until.store(1, Ordering::Release);
    }

    /// Returns an error unless this process leads now.
    pub fn check(&self) -> Result<(), NotLeading> {
        let until = self.until.load(Ordering::Acquire);
        if until == u64::MAX || Moment::now().nanos() < until { Ok(()) } else { Err(NotLeading) }
    }

    /// Returns an error if this process has led and does not now.
    fn check_lost(&self) -> io::Result<()> {
        if self.until.load(Ordering::Acquire) == 0 { Ok(()) } else { self.check().map_err(io::Error::other) }
    }
}

impl<S> Layer<S> for Fence {
    type Service = Filter<S, Self>;

    fn layer(&self, inner: S) -> Filter<S, Self> {
        Filter::new(inner, self.clone())
    }
}

/// Lets writes pass only while this process leads.
impl Predicate<Request<Body>> for Fence {
    type Request = Request<Body>;

    fn check(&mut self, request: Request<Body>) -> Result<Request<Body>, BoxError> {
        if !request.method().is_safe() {
            Self::check(self)?;
        }
        Ok(request)
    }
}

/// A connection that sends nothing once leadership is lost.
#[derive(Debug)]
pub struct FencedStream<S> {
    fence: Fence,
    stream: S,
}

impl<S> FencedStream<S> {
    /// Puts the fence before a connection.
    pub fn new(fence: Fence, stream: S) -> Self {
        Self { fence, stream }
    }
}

impl<S: Write + Unpin> Write for FencedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.fence.check_lost()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.fence.check_lost()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: Read + Unpin> Read for FencedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: Connection> Connection for FencedStream<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, error::Error, time::Duration};

    use futures::future::poll_fn;
    use http::{Method, Response};
    use hyper_util::rt::TokioIo;
    use kube::Client;
    use parking_lot::Mutex;
    use tokio::io::duplex;
    use tower::service_fn;

    use super::*;

    fn request(method: Method) -> Request<Body> {
        Request::builder().method(method).uri("/").body(Body::from(b"{}".to_vec())).unwrap()
    }

    fn is_refused(error: &(dyn Error + 'static)) -> bool {
        error.downcast_ref() == Some(&NotLeading) || error.source().is_some_and(is_refused)
    }

    /// A client whose server records the methods that arrive.
    fn client(fence: &Fence) -> (Client, Arc<Mutex<Vec<Method>>>) {
        let arrived: Arc<Mutex<Vec<Method>>> = Arc::default();
        let into = Arc::clone(&arrived);
        let server = service_fn(move |request: Request<Body>| {
            into.lock().push(request.method().clone());
            async { Ok::<_, Infallible>(Response::new(Body::empty())) }
        });
        (Client::new(fence.layer(server), "default"), arrived)
    }

    #[tokio::test]
    async fn who_does_not_lead_reads_and_does_not_write() {
        let fence = Fence::closed();
        let (client, arrived) = client(&fence);
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        client.send(request(Method::GET)).await.unwrap();
        for method in &writes {
            let error = client.send(request(method.clone())).await.unwrap_err();
            assert!(is_refused(&error), "{error:?}");
        }
        assert_eq!(*arrived.lock(), [Method::GET]);
        fence.open_until(Moment::now().after(Duration::from_mins(1)));
        for method in &writes {
            client.send(request(method.clone())).await.unwrap();
        }
        assert_eq!(arrived.lock()[1..], writes);
        // Leadership that expires needs no call to close the fence.
        fence.open_until(Moment::now());
        assert!(is_refused(&client.send(request(Method::POST)).await.unwrap_err()));
        assert_eq!(Fence::open().check(), Ok(()));
    }

    #[tokio::test]
    async fn bytes_that_waited_are_not_sent_once_leadership_is_lost() {
        let (fence, (own, _peer)) = (Fence::closed(), duplex(64));
        let mut stream = FencedStream::new(fence.clone(), TokioIo::new(own));
        let mut sent = async || poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, b"{}")).await;
        assert_eq!(sent().await.unwrap(), 2, "a standby reads");
        let led = Moment::now().after(Duration::from_mins(1));
        fence.open_until(led);
        assert_eq!(sent().await.unwrap(), 2);
        fence.open_until(Moment::now());
        assert!(sent().await.unwrap_err().get_ref().is_some_and(|error| is_refused(error)));
        fence.open_until(led);
        fence.close();
        assert!(sent().await.unwrap_err().get_ref().is_some_and(|error| is_refused(error)));
    }
}
