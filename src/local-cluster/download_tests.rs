//! Downloads from a server that behaves well, badly, or not at all.

use std::{
    io::{BufRead, BufReader as Reader, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

use flate2::{Compression, write::GzEncoder};

use super::*;
use crate::modules::CONTROL_PLANE;

/// A time limit that a test can wait for.
const SOON: Duration = Duration::from_millis(300);

/// A server that answers each request by a function of its path and connection. Returns its URL. Its thread ends with the tests.
fn server(answer: impl Fn(&str, TcpStream) + Send + Sync + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (connection, answer) = (connection.unwrap(), answer.clone());
            thread::spawn(move || {
                let mut lines = Reader::new(&connection).lines().map_while(Result::ok);
                let Some(request) = lines.next() else { return };
                let _ = lines.find(String::is_empty);
                answer(request.split(' ').nth(1).unwrap(), connection.try_clone().unwrap());
            });
        }
    });
    url
}

fn respond(mut connection: &TcpStream, head: &str, body: &[u8]) {
    let length = body.len();
    let head = format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body));
}

/// What is published at a path: an archive for etcd, the path itself for others.
fn content(path: &str) -> Vec<u8> {
    if !path.ends_with(".tar.gz") {
        return format!("program {path}").into_bytes();
    }
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, text) in [("etcd-v3/etcd", "etcd itself"), ("etcd-v3/etcdctl", "another program")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn release() -> &'static Release {
    Release::parse("1.37").unwrap()
}

/// The checksums of everything that is published.
fn checksums() -> String {
    let files = CONTROL_PLANE.into_iter().filter_map(|program| published(release(), program));
    let lines = files
        .map(|file| format!("{}  {}\n", HEXLOWER.encode(&Sha256::digest(content(&file.path))), file.path));
    format!("# a comment\n{}", lines.collect::<String>())
}

/// A cache folder, deleted with its test.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("kube-node-download-{name}-{}", std::process::id())))
    }

    async fn download(&self, url: &str, names: &[&'static str]) -> anyhow::Result<()> {
        let source = Source { mirror: Some(url), checksums: &checksums(), stall: SOON };
        source.download(release(), &self.0, names, &Progress::silent()).await
    }

    /// The files in the folder.
    fn files(&self) -> Vec<String> {
        let entries =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.filter(|name| name != "lock").collect();
        names.sort();
        names
    }

    /// The sentence of a download that fails and leaves nothing.
    async fn refusal(&self, url: &str) -> String {
        let error = self.download(url, &["kubectl"]).await.unwrap_err();
        assert_eq!(self.files(), [""; 0], "{error:#}");
        let text = format!("{error:#}");
        let remedy =
            "cannot download kubectl (without --download it is built; --download-from names a mirror): ";
        text.strip_prefix(remedy).unwrap_or_else(|| panic!("{text}")).to_owned()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[expect(clippy::disallowed_methods, reason = "each connection has a thread of its own, and no runtime")]
fn wait(time: Duration) {
    thread::sleep(time);
}

#[tokio::test]
async fn published_programs_arrive_whole_and_can_be_run() {
    let url = server(|path, connection| respond(&connection, "200 OK", &content(&path[1..])));
    let cache = Cache::new("whole");
    cache.download(&url, &CONTROL_PLANE).await.unwrap();
    assert_eq!(cache.files(), CONTROL_PLANE);
    assert!(missing(&cache.0, &CONTROL_PLANE).is_empty());
    assert_eq!(fs::read_to_string(cache.0.join("etcd")).unwrap(), "etcd itself");
    let kubectl = fs::read_to_string(cache.0.join("kubectl")).unwrap();
    assert!(kubectl.starts_with("program v1.37.2/bin/linux/") && kubectl.ends_with("/kubectl"), "{kubectl}");
}

#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let url = server(|path, mut connection| {
        let body = content(&path[1..]);
        let _ = write!(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        for piece in body.chunks(body.len() / 8) {
            wait(SOON / 3);
            let _ = connection.write_all(piece);
        }
    });
    let cache = Cache::new("slow");
    cache.download(&url, &["kubectl"]).await.unwrap();
    assert_eq!(cache.files(), ["kubectl"]);
}

#[tokio::test]
async fn redirects_are_followed_and_end() {
    let there =
        server(|path, connection| respond(&connection, "200 OK", &content(&path["/elsewhere/".len()..])));
    let here = server(move |path, connection| {
        let to = match path.strip_prefix("/moved") {
            Some(path) => format!("{there}/elsewhere{path}"),
            None => format!("/moved{path}"),
        };
        respond(&connection, &format!("302 Found\r\nLocation: {to}"), b"");
    });
    let cache = Cache::new("moved");
    cache.download(&here, &["kubectl"]).await.unwrap();
    let round =
        server(|path, connection| respond(&connection, &format!("302 Found\r\nLocation: {path}"), b""));
    let refusal = Cache::new("round").refusal(&round).await;
    assert!(refusal.contains("/kubectl redirects more than 5 times"), "{refusal}");
}

#[tokio::test]
async fn each_failure_is_one_sentence_and_leaves_nothing() {
    let refusal =
        async |name: &str, answer: fn(&str, TcpStream)| Cache::new(name).refusal(&server(answer)).await;

    let wrong = refusal("wrong", |_, connection| respond(&connection, "200 OK", b"another program")).await;
    assert!(wrong.contains("/kubectl is not the published file: its SHA-256 is "), "{wrong}");
    let page = |_: &str, connection: TcpStream| {
        respond(&connection, "200 OK\r\nContent-Type: text/html; charset=utf-8", b"<html>log in</html>");
    };
    let page = refusal("page", page).await;
    assert!(page.contains("/kubectl answered with a web page instead of a program"), "{page}");
    let absent = refusal("absent", |_, connection| respond(&connection, "404 Not Found", b"")).await;
    assert!(absent.ends_with("/kubectl answered 404 Not Found"), "{absent}");
    let cut = |_: &str, mut connection: TcpStream| {
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\nhalf");
    };
    let cut = refusal("cut", cut).await;
    assert!(cut.contains("/kubectl broke off after 0.0 MB of 5.0 MB"), "{cut}");
    let stalled = |_: &str, mut connection: TcpStream| {
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\nhalf");
        wait(10 * SOON);
    };
    let stalled = refusal("stalled", stalled).await;
    assert!(stalled.contains("/kubectl has sent nothing for 0 s, after 0.0 MB of 5.0 MB"), "{stalled}");
    let silent = refusal("silent", |_, connection| {
        wait(10 * SOON);
        drop(connection);
    })
    .await;
    assert!(silent.contains("/kubectl has not answered within 0 s"), "{silent}");
    let nobody = Cache::new("nobody").refusal("http://127.0.0.1:1").await;
    assert!(nobody.starts_with("cannot reach http://127.0.0.1:1/v1.37.2/"), "{nobody}");
}

#[tokio::test]
async fn programs_that_arrived_before_a_failure_are_kept() {
    let url = server(|path, connection| {
        let found = !path.ends_with("kubectl");
        respond(&connection, if found { "200 OK" } else { "503 Service Unavailable" }, &content(&path[1..]));
    });
    let cache = Cache::new("kept");
    cache.download(&url, &["kube-scheduler", "kubectl"]).await.unwrap_err();
    assert_eq!(cache.files(), ["kube-scheduler"]);
}

#[tokio::test]
async fn a_release_without_checksums_is_refused_before_anything_is_asked_for() {
    let cache = Cache::new("unpinned");
    let source = Source { mirror: Some("http://127.0.0.1:1"), checksums: "# none yet\n", stall: SOON };
    let refused = source.download(release(), &cache.0, &["etcd", "kubemark"], &Progress::silent()).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.starts_with("no checksum is pinned for v3.7.0/etcd-v3.7.0-linux-"), "{error}");
    // Kubemark is not published, and so it is left to the build.
    source.download(release(), &cache.0, &["kubemark"], &Progress::silent()).await.unwrap();
    assert_eq!(cache.files(), [""; 0]);
}

/// The published files of a release, for any architecture.
fn files_of(release: &Release) -> Vec<String> {
    let programs = CONTROL_PLANE.iter().chain(&crate::binaries::REAL_NODE);
    programs
        .filter_map(|program| published(release, program))
        .map(|file| file.path.replace("amd64", "ARCH").replace("arm64", "ARCH"))
        .collect()
}

#[test]
fn all_files_of_the_default_release_are_pinned() {
    for file in files_of(<&Release>::default()) {
        for arch in ["amd64", "arm64"] {
            let path = format!("  {}", file.replace("ARCH", arch));
            assert!(CHECKSUMS.lines().any(|line| line.ends_with(&path)), "{path}");
        }
    }
}

#[test]
fn pinned_checksums_are_those_of_published_files() {
    let paths: Vec<String> = crate::RELEASES.iter().flat_map(files_of).collect();
    for line in CHECKSUMS.lines().filter(|line| !line.starts_with('#')) {
        let (sum, path) = line.split_once("  ").unwrap();
        assert_eq!(HEXLOWER.decode(sum.as_bytes()).unwrap().len(), 32, "{line}");
        let path = path.replace("amd64", "ARCH").replace("arm64", "ARCH");
        assert!(paths.contains(&path), "no release has {line}");
    }
}

#[test]
fn mirrors_are_urls() {
    assert_eq!(mirror("https://mirror.example.com/k8s/").unwrap(), "https://mirror.example.com/k8s");
    for wrong in [
        "mirror.example.com",
        "ftp://mirror.example.com",
        "/srv/mirror",
        "https://mirror.example.com/?a=b",
        "https://user:word@mirror.example.com",
        "",
    ] {
        assert!(mirror(wrong).is_err(), "{wrong}");
    }
}
