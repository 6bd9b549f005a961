//! Builds the programs of Kubernetes from the Go modules pinned in `modules/`, once for a user.
//!
//! Each program is built into a scratch folder and renamed into the cache when complete: what is in the cache is
//! whole, and a build that was cut off goes on where it stopped. A lock lets one process build at a time.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, killpg},
        statvfs::statvfs,
    },
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{interval, sleep},
};

use super::{
    binaries::{self, BinariesError, KUBERNETES_VERSION},
    files::{create_private_dir, write_public},
    go::{self, Failure},
    progress::Progress,
};

/// What a cold build needs: 0.8 GB of modules, 2 GB of Go's build cache, 0.4 GB of binaries.
pub const NEEDED_BYTES: u64 = 4 << 30;
/// How much of Go's output is kept for an error, in bytes.
const KEPT_OUTPUT: usize = 64 << 10;

/// A pinned module.
pub(super) struct Module {
    name: &'static str,
    pub(super) go_mod: &'static str,
    go_sum: &'static str,
}

pub(super) const KUBERNETES: Module = Module {
    name: "kubernetes",
    go_mod: include_str!("modules/kubernetes/go.mod"),
    go_sum: include_str!("modules/kubernetes/go.sum"),
};

pub(super) const ETCD: Module = Module {
    name: "etcd",
    go_mod: include_str!("modules/etcd/go.mod"),
    go_sum: include_str!("modules/etcd/go.sum"),
};

fn package(program: &str) -> (&'static Module, String) {
    match program {
        "etcd" => (&ETCD, "go.etcd.io/etcd/server/v3".to_owned()),
        program => (&KUBERNETES, format!("k8s.io/kubernetes/cmd/{program}")),
    }
}

/// Fills the cache folder with every program of these that it lacks.
pub(super) async fn build(
    cache: &Path,
    names: &[&'static str],
    progress: &Progress,
) -> Result<(), BinariesError> {
    create_private_dir(cache)?;
    let _lock = lock(cache, progress).await?;
    // Somebody else may have built them while we waited.
    let missing = binaries::missing(cache, names);
    if missing.is_empty() {
        return Ok(());
    }
    let scratch = cache.join("scratch");
    // What a build that was cut off has left; ours alone, thanks to the lock.
    let _ = fs::remove_dir_all(&scratch);
    create_private_dir(&scratch.join("built"))?;
    for module in [&KUBERNETES, &ETCD] {
        let dir = scratch.join(module.name);
        create_private_dir(&dir)?;
        write_public(&dir.join("go.mod"), module.go_mod)?;
        write_public(&dir.join("go.sum"), module.go_sum)?;
    }
    check_go(&scratch.join(KUBERNETES.name)).await?;
    check_disk(cache, &scratch).await?;
    progress.line(&format!(
        "Building {} of Kubernetes {KUBERNETES_VERSION} from source, once: the first takes 5 to 10 minutes on two cores",
        missing.join(", ")
    ));
    let started = Instant::now();
    for program in &missing {
        let at = names.iter().position(|name| name == program).unwrap_or_default() + 1;
        let step = format!("Building {program} ({at} of {})", names.len());
        build_one(program, &step, &scratch, cache, progress).await?;
    }
    let _ = fs::remove_dir_all(&scratch);
    progress.line(&format!("Built in {} s, kept in {}", started.elapsed().as_secs(), cache.display()));
    Ok(())
}

/// Waits for its turn to build. The system gives the lock back when a process ends, however it ends.
async fn lock(cache: &Path, progress: &Progress) -> Result<File, BinariesError> {
    let path = cache.join("lock");
    let failed = |source| BinariesError::Io { action: format!("lock {}", path.display()), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    let mut waiting = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) => {}
        }
        if !waiting {
            progress.step("Waiting for another process that builds the control plane");
            waiting = true;
        }
        progress.update("Still waiting for the other process that builds the control plane");
        sleep(Duration::from_millis(200)).await;
    }
}

/// The Go command, with nothing of the user's settings that would change what is built.
fn go_command(dir: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(dir).env("CGO_ENABLED", "0").env("GOWORK", "off").stdin(Stdio::null());
    for variable in ["GOFLAGS", "GOOS", "GOARCH", "GO111MODULE"] {
        command.env_remove(variable);
    }
    command
}

async fn check_go(dir: &Path) -> Result<(), BinariesError> {
    // In the module's folder, so that Go switches to the toolchain the module asks for where it can.
    let output = go_command(dir).arg("version").output().await.map_err(BinariesError::NoGo)?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match go::parse_version(&text) {
        Some(version) if output.status.success() && version >= go::MINIMUM => Ok(()),
        // An unreleased Go has no number: let it try.
        None if output.status.success() && text.contains("devel") => Ok(()),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            Err(BinariesError::OldGo { found: if text.is_empty() { said } else { text } })
        }
    }
}

async fn check_disk(cache: &Path, dir: &Path) -> Result<(), BinariesError> {
    let output = go_command(dir).args(["env", "GOCACHE", "GOMODCACHE"]).output().await;
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for dir in text.lines().map(Path::new).chain([cache]) {
        let Some(existing) = dir.ancestors().find(|dir| dir.exists()) else { continue };
        let Ok(stat) = statvfs(existing) else { continue };
        let free = stat.blocks_available() * stat.fragment_size();
        if free < NEEDED_BYTES {
            return Err(BinariesError::DiskFull { dir: existing.to_owned(), free: Some(free) });
        }
    }
    Ok(())
}

/// Ends the compiler's children too when a build is given up; without it they would go on for a while.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // SIGINT: Go then takes its scratch files away.
            let _ = killpg(group, Signal::SIGINT);
        }
    }
}

async fn build_one(
    program: &'static str,
    step: &str,
    scratch: &Path,
    cache: &Path,
    progress: &Progress,
) -> Result<(), BinariesError> {
    let (module, package) = package(program);
    // Beside the modules, one of which has the name of its program.
    let built = scratch.join("built").join(program);
    progress.step(step);
    let mut child = go_command(&scratch.join(module.name))
        .args(["build", "-v", "-trimpath", "-ldflags", &ldflags(), "-o"])
        .arg(&built)
        .arg(&package)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(BinariesError::NoGo)?;
    let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
    let output = follow(&mut child, step, progress).await;
    let status = child
        .wait()
        .await
        .map_err(|source| BinariesError::Io { action: format!("wait for the build of {program}"), source })?;
    group.0 = None;
    if !status.success() {
        let detail = go::last_errors(&output, 2);
        return Err(match go::classify(&output) {
            Failure::DiskFull => BinariesError::DiskFull { dir: cache.to_owned(), free: None },
            Failure::Network => BinariesError::Network { program, detail },
            Failure::TooOld => BinariesError::OldGo { found: detail },
            Failure::Killed => BinariesError::Killed { program },
            Failure::Other => BinariesError::Build { program, detail },
        });
    }
    let target: PathBuf = cache.join(program);
    fs::rename(&built, &target).map_err(|source| BinariesError::Io {
        action: format!("move {program} to {}", target.display()),
        source,
    })
}

/// Shows how far Go is: with `-v` it names each package it compiles, on standard error. Returns the end of it.
async fn follow(child: &mut Child, step: &str, progress: &Progress) -> String {
    let Some(stderr) = child.stderr.take() else { return String::new() };
    let mut lines = BufReader::new(stderr).lines();
    let mut tick = interval(Duration::from_millis(500));
    let (started, mut packages, mut downloads, mut kept) = (Instant::now(), 0_u32, 0_u32, String::new());
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => {
                    if line.starts_with("go: downloading") {
                        downloads += 1;
                    } else if !line.contains(' ') {
                        packages += 1;
                    }
                    if kept.len() < KEPT_OUTPUT || line.contains(' ') {
                        kept.push_str(&line);
                        kept.push('\n');
                    }
                }
                _ => return kept,
            },
            _ = tick.tick() => progress.update(&format!(
                "{step}: {}{packages} packages compiled, {} s",
                if downloads > 0 { format!("{downloads} modules downloaded, ") } else { String::new() },
                started.elapsed().as_secs(),
            )),
        }
    }
}

/// Without the version stamped in, the server reports v0.0.0, which clients refuse.
fn ldflags() -> String {
    let mut parts = KUBERNETES_VERSION.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let version = "-X k8s.io/component-base/version";
    format!(
        "-s -w {version}.gitVersion=v{KUBERNETES_VERSION} {version}.gitMajor={major} {version}.gitMinor={minor}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_stamped_in() {
        let flags = ldflags();
        assert!(
            flags.contains("version.gitVersion=v1.36.3 ") && flags.ends_with("version.gitMinor=36"),
            "{flags}"
        );
    }

    #[tokio::test]
    async fn the_second_builder_waits_for_the_first() {
        let dir = std::env::temp_dir().join(format!("kube-node-build-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let first = lock(&dir, &Progress::silent()).await.unwrap();
        let silent = Progress::silent();
        let mut second = Box::pin(lock(&dir, &silent));
        assert!(tokio::time::timeout(Duration::from_millis(300), &mut second).await.is_err());
        drop(first);
        second.await.unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}
