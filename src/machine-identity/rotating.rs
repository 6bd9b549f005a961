//! A client whose certificate can be replaced while it is in use.
//!
//! The API server checks the certificate of a connection at each request, so a connection must not outlive
//! its certificate: a new certificate comes with a new connection pool. Requests on the old pool (watches)
//! end by themselves.

use std::sync::Arc;

use kube::{Client, client::Body};
use parking_lot::RwLock;
use tower::service_fn;

/// A client that forwards each request to the newest one.
pub(super) fn rotating(newest: &Arc<RwLock<Client>>) -> Client {
    let namespace = newest.read().default_namespace().to_owned();
    let newest = Arc::clone(newest);
    let service = service_fn(move |request: http::Request<Body>| {
        let client = newest.read().clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A client whose server responds with this text.
    fn answering(text: &'static str) -> Client {
        let answer = move |_: http::Request<Body>| async move {
            Ok::<_, Infallible>(http::Response::new(Body::from(text.as_bytes().to_vec())))
        };
        Client::new(service_fn(answer), "default")
    }

    async fn response(client: &Client) -> String {
        client.request_text(http::Request::get("/").body(Vec::new()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_client_handed_out_before_uses_the_newest() {
        let newest = Arc::new(RwLock::new(answering("first")));
        let client = rotating(&newest);
        assert_eq!(response(&client).await, "first");
        *newest.write() = answering("second");
        assert_eq!(response(&client).await, "second");
    }
}
