//! An admission webhook that answers a deletion with a conflict, though nothing has changed: the set says so, and goes on
//! once the webhook is gone. No policy can answer so.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{Router, response::IntoResponse, routing::post, serve::Listener};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api,
    api::{DeleteParams, PropagationPolicy},
};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually, name};

/// What the webhook says.
const ANSWER: &str = "come back when the machine has been backed up";

/// A listener with TLS. A connection that fails its handshake is passed over.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, peer) = Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Refuses a request as a conflict.
async fn conflict(review: Bytes) -> impl IntoResponse {
    let review: Value = serde_json::from_slice(&review).unwrap();
    let status = json!({"code": 409, "reason": "Conflict", "message": ANSWER});
    let response = json!({"uid": review["request"]["uid"], "allowed": false, "status": status});
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    ([(CONTENT_TYPE, "application/json")], review.to_string())
}

/// Serves the webhook until the test ends. Returns its address, and its certificate as PEM.
async fn serve() -> (SocketAddr, String) {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![issued.cert.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = TlsListener { listener, acceptor: TlsAcceptor::from(Arc::new(config)) };
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(conflict))).await });
    (address, issued.cert.pem())
}

#[tokio::test]
async fn a_deletion_that_conflicts_for_ever_is_said() {
    let own = Fixture::new(&CLUSTER, "webhook-conflict", 2, class_spec()).await;
    let nodes = own.settled(2).await;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(own.client.clone());
    let (address, certificate) = serve().await;
    let webhook = json!({
        "name": "backup.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": format!("https://{address}/"), "caBundle": BASE64_STANDARD.encode(certificate)},
        "failurePolicy": "Ignore",
        "objectSelector": {"matchLabels": {"kube-node.io/nodeset": own.name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["nodes"]}],
    });
    create(&webhooks, json!({"metadata": {"name": own.name}, "webhooks": [webhook]})).await.unwrap();
    eventually("the webhook answers", LONG, async || {
        let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
        let error = own.nodes.delete(&name(&nodes[0]), &dry).await.err()?;
        error.to_string().contains(ANSWER).then_some(())
    })
    .await;
    own.patch_set(json!({"spec": {"replicas": 1}})).await;
    let message = own.set_says("Degraded", "True", "DeleteFailed").await;
    assert!(message.contains(ANSWER), "{message}");
    assert!(nodes.iter().any(|node| message.contains(&name(node))), "{message}");
    assert_eq!(own.my_nodes().await.len(), 2);
    // A set that is being deleted says the same.
    delete(&own.sets, &own.name, PropagationPolicy::Background).await;
    eventually("each Node is in the way", LONG, async || {
        let waits = own.sets.get(&own.name).await.unwrap().status.unwrap_or_default().waits;
        waits.iter().any(|wait| wait.reason == "DeleteFailed" && wait.nodes == 2).then_some(())
    })
    .await;
    delete(&webhooks, &own.name, PropagationPolicy::Background).await;
    own.clean_up().await;
}
