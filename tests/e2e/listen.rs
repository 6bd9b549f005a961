//! `up --listen-address`: kube-apiserver at a further address of this machine. 127.0.0.2 is one that every machine has.

use std::{net::TcpListener, process::Output};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use kube_node_testing::{LONG, TemporaryCluster, eventually, git_version, test_target};

fn port(cluster: &TemporaryCluster) -> u64 {
    cluster.state()["ports"]["apiserver"].as_u64().unwrap()
}

/// The server's version, by way of this address; the certificate has to have it.
async fn version_at(cluster: &TemporaryCluster, address: &str) -> Result<String, kube::Error> {
    let mut kubeconfig = Kubeconfig::read_from(cluster.dir.join("kubeconfig")).unwrap();
    let server = &mut kubeconfig.clusters[0].cluster.as_mut().unwrap().server;
    assert_eq!(server.as_deref(), Some(&*format!("https://127.0.0.1:{}", port(cluster))));
    *server = Some(format!("https://{address}:{}", port(cluster)));
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    Ok(client.apiserver_version().await?.git_version)
}

fn status(cluster: &TemporaryCluster) -> Value {
    serde_json::from_slice(&cluster.kube_node(&["status", "-o", "json"]).stdout).unwrap()
}

#[tokio::test]
async fn the_api_server_is_reached_at_the_addresses_of_this_start() {
    let cluster = TemporaryCluster::start(
        test_target!(),
        "listen",
        &["--without-operator", "--listen-address", "127.0.0.2"],
    );
    assert_eq!(version_at(&cluster, "127.0.0.2").await.unwrap(), git_version());
    assert_eq!(version_at(&cluster, "127.0.0.1").await.unwrap(), git_version());
    let url = format!("https://127.0.0.2:{}", port(&cluster));
    assert_eq!(status(&cluster)["reachedAt"], serde_json::json!([url]));
    let text = String::from_utf8(cluster.kube_node(&["status"]).stdout).unwrap();
    assert!(text.contains(&format!("Reached at   {url}\n")), "{text}");
    cluster.down();
    assert!(version_at(&cluster, "127.0.0.2").await.is_err(), "it goes with the cluster");
    assert_eq!(status(&cluster)["reachedAt"], serde_json::json!([]));

    // The port stays; the certificate follows.
    let before = port(&cluster);
    let both = ["--listen-address", "127.0.0.3", "--listen-address", "127.0.0.4"];
    cluster.up(&[&["--without-operator"][..], &both].concat());
    assert_eq!(port(&cluster), before);
    for address in ["127.0.0.3", "127.0.0.4"] {
        assert_eq!(version_at(&cluster, address).await.unwrap(), git_version(), "{address}");
    }
    assert!(version_at(&cluster, "127.0.0.2").await.is_err(), "not asked for any more");

    // Without its supervisor the server goes on, on 127.0.0.1.
    let supervisor = i32::try_from(cluster.state()["supervisor"]["pid"].as_i64().unwrap()).unwrap();
    kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
    eventually("the way in is closed", LONG, async || {
        version_at(&cluster, "127.0.0.3").await.is_err().then_some(())
    })
    .await;
    assert_eq!(version_at(&cluster, "127.0.0.1").await.unwrap(), git_version());
    assert_eq!(status(&cluster)["reachedAt"], serde_json::json!([]));
}

#[test]
fn addresses_and_ports_that_cannot_be_had_are_refused() {
    let cluster = TemporaryCluster::folder(test_target!(), "listen-refused");
    let refusal = |args: &[&str]| {
        let output: Output = cluster.kube_node(&[&["up"], args].concat());
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refusal(&["--listen-address", "192.0.2.7"]);
    assert!(said.contains("192.0.2.7 is no address of this machine: give --listen-address one"), "{said}");
    let said = refusal(&["--listen-address", "0.0.0.0"]);
    assert!(said.contains("0.0.0.0 is no single address of this machine"), "{said}");
    assert!(!cluster.dir.exists(), "nothing was begun");
    let taken = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let said = refusal(&["--listen-address", "127.0.0.2", "--port", &port.to_string()]);
    assert!(
        said.contains(&format!("port {port} is taken at 127.0.0.2: choose another --port, or none")),
        "{said}"
    );
    let output = cluster.kube_node(&["up", "--listen-address", "here"]);
    assert_eq!(output.status.code(), Some(2), "no address at all");
}
