//! Downloads published programs instead of building them.
//!
//! Input: a release, a cache folder, names of programs, and the checksums pinned in `modules/checksums`. Output: those of
//! the programs that are published, in that folder. Upstream publishes no kubemark.
//!
//! Invariant: the cache gets a program only after its whole file had the pinned checksum. A file is written to a scratch
//! folder, compared, and renamed; an interrupted download of a file begins anew.

use std::{
    env::consts::ARCH,
    fs::{self, File, Permissions},
    future::poll_fn,
    io::{BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use anyhow::{Context, anyhow, bail, ensure};
use data_encoding::HEXLOWER;
use flate2::read::GzDecoder;
use http::{
    Request, Response, StatusCode, Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION},
};
use http_body::Body as _;
use kube::{Client, Config, client::Body};
use scopeguard::guard;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::{
    cache_lock,
    executable::missing,
    files::create_private_dir,
    modules::KUBEMARK,
    progress::{Progress, megabytes},
    release::Release,
};

/// Checksums in the form of sha256sum, by path below a mirror.
const CHECKSUMS: &str = include_str!("modules/checksums");
/// Where Kubernetes publishes its programs.
const KUBERNETES: &str = "https://dl.k8s.io/release";
/// Where etcd publishes its archives.
const ETCD: &str = "https://github.com/etcd-io/etcd/releases/download";
/// Time without a byte after which a download is given up.
const STALL: Duration = Duration::from_secs(30);
/// Longest chain of redirects; either publisher needs two.
const REDIRECTS: usize = 5;

/// Source of published programs.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// Replaces both publishers.
    mirror: Option<&'a str>,
    checksums: &'a str,
    stall: Duration,
}

impl<'a> Source<'a> {
    /// Both publishers, or the mirror in their place.
    pub(super) fn new(mirror: Option<&'a str>) -> Self {
        Self { mirror, checksums: CHECKSUMS, stall: STALL }
    }
}

/// A published file with one program.
struct Published {
    program: &'static str,
    publisher: &'static str,
    /// Path below the publisher or a mirror.
    path: String,
}

/// Parses the URL of a mirror.
pub(super) fn mirror(text: &str) -> Result<String, String> {
    let url = text.parse::<Uri>().ok().filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
    let url = url.ok_or("write a URL, such as https://mirror.example.com/kubernetes")?;
    if url.query().is_some() {
        Err("leave the query away".to_owned())
    } else {
        Ok(text.trim_end_matches('/').to_owned())
    }
}

/// The published file of a program; `None` if there is none.
fn published(release: &Release, program: &'static str) -> Option<Published> {
    let arch = match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let (publisher, path) = match program {
        "etcd" => (ETCD, format!("v{0}/etcd-v{0}-linux-{arch}.tar.gz", release.etcd())),
        _ if KUBEMARK.contains(&program) => return None,
        _ => (KUBERNETES, format!("v{release}/bin/linux/{arch}/{program}")),
    };
    Some(Published { program, publisher, path })
}

impl Source<'_> {
    /// Downloads those of the programs that the cache folder lacks and somebody publishes.
    pub(super) async fn download(
        &self,
        release: &Release,
        cache: &Path,
        names: &[&'static str],
        progress: &Progress,
    ) -> anyhow::Result<()> {
        if missing(cache, names).is_empty() {
            return Ok(());
        }
        let lock = cache_lock::take(cache, progress).await?;
        let files: Vec<_> =
            missing(cache, names).into_iter().filter_map(|program| published(release, program)).collect();
        let unknown: Vec<_> = files
            .iter()
            .filter(|file| self.checksum(file).is_none())
            .map(|file| file.path.as_str())
            .collect();
        ensure!(
            unknown.is_empty(),
            "no checksum is pinned for {} of Kubernetes {release} (src/local-cluster/modules/checksums): leave --download away to have the programs built",
            unknown.join(", ")
        );
        let scratch = &lock.scratch;
        create_private_dir(scratch)?;
        // Kept are the programs that arrived before an error, and nothing else.
        let _scratch = guard(scratch, |scratch| drop(fs::remove_dir_all(scratch)));
        for file in &files {
            self.fetch(file, scratch, cache, progress).await.with_context(|| {
                format!(
                    "cannot download {} (without --download it is built; --download-from names a mirror)",
                    file.program
                )
            })?;
        }
        progress.line(&format!("Downloaded {} programs, kept in {}", files.len(), cache.display()));
        Ok(())
    }

    fn checksum(&self, file: &Published) -> Option<&str> {
        let mut lines = self.checksums.lines().filter_map(|line| line.split_once("  "));
        lines.find(|(_, path)| *path == file.path).map(|(sum, _)| sum)
    }

    /// Downloads one program into the cache.
    async fn fetch(
        &self,
        file: &Published,
        scratch: &Path,
        cache: &Path,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let Published { program, publisher, path } = file;
        let url = format!("{}/{path}", self.mirror.unwrap_or(publisher));
        progress.step(&format!("Downloading {program} from {url}"));
        let whole = scratch.join("download");
        let sum = self
            .save(&url, &whole, |text| progress.update(&format!("Downloading {program}: {text}")))
            .await?;
        let pinned = self.checksum(file).unwrap_or_default();
        ensure!(
            sum == pinned,
            "{url} is not the published file: its SHA-256 is {sum}, and {pinned} is pinned"
        );
        let unpacked = if *program == "etcd" { unpack(&whole, program, scratch)? } else { whole };
        let target = cache.join(program);
        fs::set_permissions(&unpacked, Permissions::from_mode(0o755))
            .and_then(|()| fs::rename(&unpacked, &target))
            .with_context(|| format!("cannot move {program} to {}", target.display()))
    }

    /// Saves what is at a URL. Returns its SHA-256.
    async fn save(&self, url: &str, path: &Path, show: impl Fn(String)) -> anyhow::Result<String> {
        let response = self.get(url).await?;
        let headers = response.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        ensure!(
            !text(CONTENT_TYPE).starts_with("text/html"),
            "{url} answered with a web page instead of a program, as a login page or a filter does"
        );
        let total: Option<u64> = text(CONTENT_LENGTH).parse().ok();
        let of = |received| match total {
            Some(total) => format!("{} of {}", megabytes(received), megabytes(total)),
            None => megabytes(received),
        };
        let cannot_write = || format!("cannot write {}", path.display());
        let (mut file, mut hash) = (File::create(path).with_context(cannot_write)?, Sha256::new());
        let (mut body, mut received) = (response.into_body(), 0);
        loop {
            let frame = timeout(self.stall, poll_fn(|context| Pin::new(&mut body).poll_frame(context))).await;
            let frame = frame.map_err(|_| {
                anyhow!("{url} has sent nothing for {} s, after {}", self.stall.as_secs(), of(received))
            })?;
            let Some(frame) = frame else { break };
            let frame = frame.with_context(|| format!("{url} broke off after {}", of(received)))?;
            let Some(bytes) = frame.data_ref() else { continue };
            file.write_all(bytes).with_context(cannot_write)?;
            hash.update(bytes);
            received += bytes.len() as u64;
            show(of(received));
        }
        Ok(HEXLOWER.encode(&hash.finalize()))
    }

    /// The successful answer to a GET, redirects followed.
    async fn get(&self, url: &str) -> anyhow::Result<Response<Body>> {
        let mut at: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        for _ in 0..=REDIRECTS {
            let mut config = Config::new(at.clone());
            config.default_retry = false;
            config.connect_timeout = Some(self.stall);
            let target = at.path_and_query().map_or("/", |path| path.as_str());
            let request = Request::get(target).body(Body::empty())?;
            config.cluster_url = origin(&at)?;
            let client =
                Client::try_from(config).with_context(|| format!("cannot make a client for {at}"))?;
            let answer = timeout(self.stall, client.send(request)).await;
            let response = answer
                .map_err(|_| anyhow!("{at} has not answered within {} s", self.stall.as_secs()))?
                .with_context(|| format!("cannot reach {at}"))?;
            match response.status() {
                StatusCode::OK => return Ok(response),
                status if status.is_redirection() => {
                    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
                    at = redirect(&at, location.with_context(|| format!("{at} redirects nowhere"))?)?;
                }
                status => bail!("{at} answered {status}"),
            }
        }
        bail!("{url} redirects more than {REDIRECTS} times")
    }
}

/// Scheme and host of a URL.
fn origin(url: &Uri) -> anyhow::Result<Uri> {
    let (scheme, host) =
        (url.scheme_str().unwrap_or("https"), url.authority().context("a URL without a host")?);
    Ok(format!("{scheme}://{host}").parse()?)
}

/// The URL that a redirect leads to: a whole one, or a path on the same host.
fn redirect(from: &Uri, location: &str) -> anyhow::Result<Uri> {
    let whole = if location.starts_with('/') {
        format!("{}{location}", origin(from)?.to_string().trim_end_matches('/'))
    } else {
        location.to_owned()
    };
    whole.parse().with_context(|| format!("{from} redirects to {location}, which is no URL"))
}

/// Unpacks one program of an archive. Returns its path.
fn unpack(archive: &Path, program: &str, into: &Path) -> anyhow::Result<PathBuf> {
    let failed = || format!("cannot unpack {program} from {}", archive.display());
    let file = File::open(archive).with_context(failed)?;
    let mut tar = tar::Archive::new(GzDecoder::new(BufReader::new(file)));
    for entry in tar.entries().with_context(failed)? {
        let mut entry = entry.with_context(failed)?;
        let is_it = entry.path().is_ok_and(|path| path.file_name().is_some_and(|name| name == program));
        if is_it && entry.header().entry_type().is_file() {
            let path = into.join(program);
            entry.unpack(&path).with_context(failed)?;
            return Ok(path);
        }
    }
    bail!("{}: the archive has no {program}", archive.display())
}

#[cfg(test)]
#[path = "download_tests.rs"]
mod tests;
