//! Fencing: a middleware (tower layer) that sends writes only while this process leads.
//!
//! The fence is checked twice: before a request is passed on, and when a connection takes its body to send
//! it. In between, the request may wait for a connection, or the process may be stopped; a server does
//! nothing with a request whose body does not arrive. Reads pass: a standby keeps its caches filled.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures::future::{self, Either, MapErr, Ready, TryFutureExt};
use http::Request;
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use super::clock::Moment;

/// This process does not lead, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this operator does not lead: it writes nothing")]
pub struct NotLeading;

/// Permission of this process to write. Clones share one state.
#[derive(Clone, Debug)]
pub struct Fence {
    /// End of the permission, in nanoseconds since boot; `u64::MAX` for no end.
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
        self.open_until(Moment::BEGINNING);
    }

    /// Returns an error unless this process leads now.
    pub fn check(&self) -> Result<(), NotLeading> {
        let until = self.until.load(Ordering::Acquire);
        if until == u64::MAX || Moment::now().nanos() < until { Ok(()) } else { Err(NotLeading) }
    }
}

impl<S> Layer<S> for Fence {
    type Service = FencedService<S>;

    fn layer(&self, inner: S) -> FencedService<S> {
        FencedService { fence: self.clone(), inner }
    }
}

/// A service that sends writes only while this process leads.
#[derive(Clone, Debug)]
pub struct FencedService<S> {
    fence: Fence,
    inner: S,
}

impl<S> Service<Request<Body>> for FencedService<S>
where
    S: Service<Request<FencedBody>>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Either<Ready<Result<S::Response, BoxError>>, MapErr<S::Future, fn(S::Error) -> BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fence = (!request.method().is_safe()).then(|| self.fence.clone());
        if let Some(Err(error)) = fence.as_ref().map(Fence::check) {
            return Either::Left(future::err(error.into()));
        }
        let request = request.map(|body| FencedBody { fence, body });
        Either::Right(self.inner.call(request).map_err(Into::into))
    }
}

/// Request body that checks the fence when it is sent.
#[derive(Debug)]
pub struct FencedBody {
    /// None for a read.
    fence: Option<Fence>,
    body: Body,
}

impl http_body::Body for FencedBody {
    type Data = <Body as http_body::Body>::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        if let Some(Err(error)) = self.fence.as_ref().map(Fence::check) {
            return Poll::Ready(Some(Err(error.into())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, error::Error, time::Duration};

    use futures::FutureExt;
    use http::{Method, Response};
    use http_body::Body as _;
    use kube::Client;
    use parking_lot::Mutex;
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
        let server = service_fn(move |request: Request<FencedBody>| {
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

    #[test]
    fn a_write_that_waited_is_stopped_where_it_would_be_sent() {
        for (method, is_stopped) in [(Method::POST, true), (Method::GET, false)] {
            let fence = Fence::closed();
            fence.open_until(Moment::now().after(Duration::from_mins(1)));
            let waiting: Arc<Mutex<Option<FencedBody>>> = Arc::default();
            let into = Arc::clone(&waiting);
            let mut fenced = fence.layer(service_fn(move |request: Request<FencedBody>| {
                *into.lock() = Some(request.into_body());
                future::ready(Ok::<_, Infallible>(()))
            }));
            fenced.call(request(method)).now_or_never().unwrap().unwrap();
            let mut body = waiting.lock().take().unwrap();
            assert_eq!(body.size_hint().exact(), Some(2));
            fence.close();
            let frame = future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).now_or_never().unwrap();
            assert_eq!(frame.unwrap().is_err_and(|error| is_refused(&*error)), is_stopped);
        }
    }
}
