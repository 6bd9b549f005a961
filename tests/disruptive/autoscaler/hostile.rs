//! Nonsense and strangers: each is refused by its name, nothing changes, and the server goes on.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube_node_controllers::autoscaler::proto::ExternalGrpcNode;
use rustls::version::{TLS12, TLS13};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tonic::Code;

use super::{
    CLUSTER, caller,
    caller::{external, fake},
    channel::{Credentials, config, connect, connect_plainly},
    credentials, group, port, replicas,
};
use kube_node_testing::{class_spec, create};

pub async fn nonsense() {
    let own = group("as-hostile", 2, 1, 5, class_spec()).await;
    let other = group("as-other", 1, 0, 5, class_spec()).await;
    let nodes = own.settled(2).await;
    let foreign = other.settled(1).await.remove(0);
    let mut caller = caller().await;

    for delta in [0, -1, i32::MIN] {
        assert_eq!(caller.increase("as-hostile", delta).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(caller.increase("as-hostile", i32::MAX).await.unwrap_err().code(), Code::OutOfRange);
    for delta in [0, 1, i32::MAX] {
        assert_eq!(caller.decrease("as-hostile", delta).await.unwrap_err().code(), Code::InvalidArgument);
    }
    for id in ["", "nobody", "../as-hostile", "AS-HOSTILE", &"x".repeat(1_000)] {
        assert_eq!(caller.target(id).await.unwrap_err().code(), Code::NotFound, "{id}");
        assert_eq!(caller.nodes(id).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(caller.template(id).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(caller.increase(id, 1).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(caller.delete(id, vec![external(&nodes[0])]).await.unwrap_err().code(), Code::NotFound);
    }

    // Somebody else's Node, alone and among others: nothing of the call happens.
    let both = vec![external(&nodes[0]), external(&foreign)];
    assert_eq!(caller.delete("as-hostile", both).await.unwrap_err().code(), Code::InvalidArgument);
    let by_hand: Api<Node> = own.nodes.clone();
    create(
        &by_hand,
        json!({"metadata": {"name": "as-by-hand"}, "spec": {"providerID": "cloud://as-by-hand"}}),
    )
    .await
    .unwrap();
    let stranger = fake("cloud://as-by-hand");
    assert_eq!(caller.group_of(stranger.clone()).await.unwrap(), "");
    kube_node_testing::eventually("the Node is known", kube_node_testing::LONG, async || {
        (caller.delete("as-hostile", vec![stranger.clone()]).await.err()?.code() == Code::InvalidArgument)
            .then_some(())
    })
    .await;
    // Its labels are claims; what the server itself knows counts.
    let claims = ExternalGrpcNode { labels: external(&nodes[0]).labels, ..stranger };
    assert_eq!(caller.group_of(claims).await.unwrap(), "");

    // Other forms of a providerID are other providerIDs.
    let id = external(&nodes[0]).provider_id;
    for form in [
        id.replace(':', "%3A"),
        id.to_uppercase(),
        format!("{id}/"),
        format!("{id} "),
        id.replace("//", "///"),
    ] {
        assert_eq!(caller.group_of(fake(&form)).await.unwrap(), "", "{form}");
        let disguised = ExternalGrpcNode { provider_id: form, ..external(&nodes[0]) };
        assert_eq!(caller.group_of(disguised.clone()).await.unwrap(), "");
        assert_eq!(
            caller.delete("as-hostile", vec![disguised]).await.unwrap_err().code(),
            Code::InvalidArgument
        );
    }
    let nameless = vec![ExternalGrpcNode::default()];
    assert_eq!(caller.delete("as-hostile", nameless).await.unwrap_err().code(), Code::InvalidArgument);

    // A hundred thousand at once: those that fit into a message, and those that do not.
    let many = |of: &str| (0..100_000).map(|i| fake(&format!("{of}{i}"))).collect::<Vec<_>>();
    assert_eq!(caller.delete("as-hostile", many("h://")).await.unwrap_err().code(), Code::ResourceExhausted);
    let refused = caller.delete("as-hostile", many(&"h".repeat(100))).await.unwrap_err();
    assert!(matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted), "{refused}");

    assert_eq!((replicas(&own).await, replicas(&other).await), (2, 1));
    own.settled(2).await;
    caller.refresh().await.unwrap();
    let metrics = CLUSTER.metrics();
    let counted = r#"kube_node_autoscaler_calls_total{code="NOT_FOUND",method="NodeGroupTargetSize"} "#;
    assert!(metrics.contains(counted), "{metrics}");
    CLUSTER.kubectl(&["delete", "node", "as-by-hand"]);
    own.clean_up().await;
    other.clean_up().await;
}

pub async fn who_may_not_call() {
    let ours = credentials();
    let refused = async |credentials: &Credentials| match connect(port(), credentials).await {
        Err(_) => true,
        // With TLS 1.3 a client hears of its refusal after its own part of the handshake.
        Ok(client) => caller::Caller(client).refresh().await.is_err(),
    };
    assert!(!refused(&ours).await);
    assert!(refused(&Credentials { ca: ours.ca.clone(), own: None }).await, "without a certificate");
    // A certificate that the cluster's own authority has signed, for an admin at that.
    let pki = CLUSTER.dir.join("pki");
    let read = |file: &str| std::fs::read(pki.join(file)).unwrap();
    let admin = (read("kubelet-client.crt"), read("kubelet-client.key"));
    assert!(refused(&Credentials { ca: ours.ca.clone(), own: Some(admin) }).await, "of another authority");
    // The server's own certificate is no client's.
    let pki = CLUSTER.dir.join("autoscaler-pki");
    let read = |file: &str| std::fs::read(pki.join(file)).unwrap();
    let server = (read("server.crt"), read("server.key"));
    assert!(refused(&Credentials { ca: ours.ca.clone(), own: Some(server) }).await, "for another use");
    let plain = match connect_plainly(port()).await {
        Err(_) => true,
        Ok(client) => caller::Caller(client).refresh().await.is_err(),
    };
    assert!(plain, "in plain text");
    let handshake = async |versions: &[&'static rustls::SupportedProtocolVersion]| {
        let stream = TcpStream::connect(("127.0.0.1", port())).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(config(&ours, versions)).connect(name, stream).await.is_ok()
    };
    assert!(handshake(&[&TLS13]).await);
    assert!(!handshake(&[&TLS12]).await, "an older TLS");

    // Those who say nothing, or nonsense, keep nobody else out.
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(("127.0.0.1", port())).await.unwrap());
    }
    let mut babbler = TcpStream::connect(("127.0.0.1", port())).await.unwrap();
    let _ = babbler.write_all(&[0xff; 4096]).await;
    let mut answer = Vec::new();
    let _ = babbler.read_to_end(&mut answer).await;
    let mut caller = caller().await;
    caller.refresh().await.unwrap();
    drop(silent);
}
