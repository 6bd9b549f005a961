//! Connections to an API server whose packets are dropped: by nftables, in a network of one thread.

use std::{
    net::Ipv4Addr,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::stream;
use http::Request;
use http_body::Body as _;
use kube::{Config, client::Body};
use kube_ext::connection;
use nix::sched::{CloneFlags, unshare};
use tokio::{net::TcpListener, time::timeout};

use kube_node_testing::harness::block_on;

/// What [`connection`] promises.
const LIMIT: Duration = Duration::from_secs(45);

/// Runs a program in the network of this thread.
fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn dropped_packets_are_noticed_within_45_s() {
    let alone = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        run("ip", &["link", "set", "lo", "up"]);
        block_on(watch_and_request());
    });
    alone.join().unwrap();
}

async fn watch_and_request() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // A watch begins, and goes on without a word. Other answers are whole, and leave their connections open.
    let watch = axum::routing::get(async || {
        let begins = stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(b"begins"))]);
        axum::body::Body::from_stream(futures::StreamExt::chain(begins, stream::pending()))
    });
    let router = axum::Router::new().route("/watch", watch).route("/get", axum::routing::get(async || "ok"));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let url = format!("http://127.0.0.1:{port}").parse().unwrap();
    let client = connection::client(Config::new(url)).unwrap();
    let get = |path: &'static str| client.send(Request::get(path).body(Body::empty()).unwrap());
    let mut idle = get("/watch").await.unwrap().into_body();
    let begins = futures::future::poll_fn(|cx| std::pin::Pin::new(&mut idle).poll_frame(cx)).await;
    assert!(begins.is_some_and(|frame| frame.is_ok()));
    get("/get").await.unwrap().into_body().collect_bytes().await.unwrap();

    run("nft", &["add", "table", "inet", "silence"]);
    run(
        "nft",
        &[
            "add",
            "chain",
            "inet",
            "silence",
            "input",
            "{ type filter hook input priority 0; policy accept; }",
        ],
    );
    run("nft", &["add", "rule", "inet", "silence", "input", "meta", "l4proto", "tcp", "drop"]);
    let dropped = Instant::now();
    let watch = async {
        let ended = futures::future::poll_fn(|cx| std::pin::Pin::new(&mut idle).poll_frame(cx)).await;
        assert!(ended.is_none_or(|frame| frame.is_err()));
        dropped.elapsed()
    };
    // It goes out on the connection that is open still.
    let request = async {
        assert!(get("/get").await.is_err());
        dropped.elapsed()
    };
    let noticed = timeout(Duration::from_mins(6), async { tokio::join!(watch, request) }).await;
    let (watch, request) = noticed.expect("it is noticed at all");
    println!("noticed by a watch after {watch:?}, by a request after {request:?}");
    assert!(watch <= LIMIT && request <= LIMIT, "watch {watch:?}, request {request:?}");
}
