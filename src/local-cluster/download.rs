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
    io::{BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail, ensure};
use data_encoding::HEXLOWER;
use flate2::read::GzDecoder;
use http::Uri;
use reqwest::{Response, StatusCode, Url, header::CONTENT_TYPE, redirect::Policy};
use scopeguard::guard;
use sha2::{Digest, Sha256};

use super::{
    cache_lock,
    executable::missing,
    files::{self, create_private_dir},
    http_client,
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
/// Most bytes of a file; kube-apiserver has a tenth of it.
const SIZE_MAX: u64 = 1 << 30;
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
    } else if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        Err("leave user and password away: the URL is printed".to_owned())
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
        let mut response = self.get(url).await?;
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        ensure!(
            !content_type.unwrap_or_default().starts_with("text/html"),
            "{url} answered with a web page instead of a program, as a login page or a filter does"
        );
        let total = response.content_length();
        let of = |received| match total {
            Some(total) => format!("{} of {}", megabytes(received), megabytes(total)),
            None => megabytes(received),
        };
        let cannot_write = |error| files::cannot_write(path, error);
        let (mut file, mut hash) = (File::create(path).map_err(cannot_write)?, Sha256::new());
        let mut received = 0;
        loop {
            let piece = response.chunk().await.map_err(|error| {
                let what = if error.is_timeout() {
                    format!("{url} has sent nothing for {} s, after {}", self.stall.as_secs(), of(received))
                } else {
                    format!("{url} broke off after {}", of(received))
                };
                anyhow!(error.without_url()).context(what)
            })?;
            let Some(bytes) = piece else { break };
            let is_small = received + bytes.len() as u64 <= SIZE_MAX;
            ensure!(is_small, "{url} has sent more than {}: no program is so large", megabytes(SIZE_MAX));
            file.write_all(&bytes).map_err(cannot_write)?;
            hash.update(&bytes);
            received += bytes.len() as u64;
            show(of(received));
        }
        Ok(HEXLOWER.encode(&hash.finalize()))
    }

    /// The successful answer to a GET, redirects followed.
    async fn get(&self, url: &str) -> anyhow::Result<Response> {
        let at = Url::parse(url).with_context(|| format!("{url} is no URL"))?;
        let client = http_client::build(at.host_str().unwrap_or_default(), |builder| {
            builder.redirect(Policy::limited(REDIRECTS)).connect_timeout(self.stall).read_timeout(self.stall)
        })?;
        let response = client.get(at).send().await.map_err(|error| {
            let what = if error.is_redirect() {
                format!("{url} redirects more than {REDIRECTS} times, or to what is no URL")
            } else if error.is_timeout() && !error.is_connect() {
                format!("{url} has not answered within {} s", self.stall.as_secs())
            } else {
                format!("cannot reach {url}")
            };
            anyhow!(error.without_url()).context(what)
        })?;
        ensure!(response.status() == StatusCode::OK, "{url} answered {}", response.status());
        Ok(response)
    }
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
