//! Certificates that do not serve, and a port that is taken: said in one sentence, tried again, and the controllers go on.

use std::{fs, net::TcpListener, path::PathBuf, time::Duration};

use serde_json::json;

use super::{
    CLUSTER, caller,
    channel::{Credentials, connect},
    credentials, port,
};
use kube_node_testing::{Fixture, LONG, class_spec, eventually};

fn file(name: &str) -> PathBuf {
    CLUSTER.dir.join("autoscaler-pki").join(name)
}

async fn said(what: &str) {
    eventually(what, LONG, async || {
        let log = fs::read_to_string(CLUSTER.dir.join("logs/operator.log")).unwrap();
        log.contains(what).then_some(())
    })
    .await;
}

async fn metric(line: &str) {
    eventually(line, LONG, async || CLUSTER.metrics().lines().any(|found| found == line).then_some(())).await;
}

/// A certificate for the server that was good until yesterday, signed by an authority of its own, with its key.
fn expired() -> (String, String) {
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = time::OffsetDateTime::now_utc() - time::Duration::days(2);
    params.not_after = time::OffsetDateTime::now_utc() - time::Duration::days(1);
    let key = rcgen::KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

pub async fn what_does_not_serve() {
    let good: Vec<(&str, Vec<u8>)> =
        ["server.crt", "server.key", "ca.crt"].map(|name| (name, fs::read(file(name)).unwrap())).into();
    let restore = || good.iter().for_each(|(name, content)| fs::write(file(name), content).unwrap());
    let mut before = caller().await;
    let ours = credentials();

    // While it runs: what it has stays in place.
    let (certificate, key) = expired();
    fs::write(file("server.crt"), &certificate).unwrap();
    fs::write(file("server.key"), &key).unwrap();
    said("keeps the certificates it has").await;
    before.refresh().await.unwrap();
    connect(port(), &ours).await.unwrap();

    // When it starts: it does not run, and everything else does.
    assert!(CLUSTER.kill("operator"));
    said("the autoscaler server does not run: the certificate in").await;
    metric("kube_node_autoscaler_up 0").await;
    let own = Fixture::new(&CLUSTER, "as-without", 0, class_spec()).await;
    own.patch_set(json!({"spec": {"replicas": 2}})).await;
    own.settled(2).await;
    own.clean_up().await;
    fs::write(file("server.crt"), &good[0].1).unwrap();
    said("is not that of the certificate in").await;
    fs::remove_file(file("server.key")).unwrap();
    said("cannot read").await;
    fs::write(file("server.key"), "nonsense").unwrap();
    said("holds no private key in PEM").await;
    restore();
    metric("kube_node_autoscaler_up 1").await;
    caller().await.refresh().await.unwrap();

    // Other certificates while it runs: from then on nobody comes in with the old ones.
    let dir = CLUSTER.dir.join("other-pki");
    let other = local_cluster::pki::Pki::ensure_autoscaler(&dir).unwrap();
    for name in ["server.crt", "server.key", "ca.crt"] {
        fs::copy(other.path(name), file(name)).unwrap();
    }
    let theirs = Credentials::of(&dir);
    eventually("the new certificates serve", LONG, async || {
        let client = connect(port(), &theirs).await.ok()?;
        caller::Caller(client).refresh().await.ok()
    })
    .await;
    assert!(connect(port(), &ours).await.is_err());
    restore();
    caller().await;

    // A port that somebody else has.
    assert!(CLUSTER.kill("operator"));
    let taken = eventually("the port is free", Duration::from_secs(20), async || {
        TcpListener::bind(("127.0.0.1", port())).ok()
    })
    .await;
    said(&format!("cannot listen on 127.0.0.1:{}", port())).await;
    drop(taken);
    caller().await.refresh().await.unwrap();
}
