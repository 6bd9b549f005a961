//! Builds programs from the Go modules pinned in `modules/`, once per user.
//!
//! Input: a cache folder and the names of programs. Output: the programs in that folder.
//!
//! Each program is built into a scratch folder and renamed into the cache when complete, so the cache never
//! holds a partial program. An interrupted build resumes thanks to Go's own cache.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use futures::future::try_join_all;
use nix::{
    sys::{
        signal::{Signal, killpg},
        statvfs::statvfs,
    },
    unistd::Pid,
};
use scopeguard::{ScopeGuard, guard};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::interval,
};

use super::{
    cache_lock,
    executable::{missing, release_in},
    files::{create_private_dir, write_public},
    go::{self, Failure},
    modules::Module,
    progress::Progress,
};

/// Oldest Go that builds every release.
pub(super) const MINIMUM_GO: (u32, u32) = (1, 26);
/// Disk space of a cold build in bytes: 0.8 GB of modules, 2 GB of Go's build cache, 0.4 GB of binaries.
const NEEDED_BYTES: u64 = 4 << 30;
/// Longest output of Go that is remembered whole, in bytes; beyond it names of packages are left out.
const OUTPUT_LIMIT: usize = 64 << 10;

/// Builds each of these programs of the modules that the cache folder lacks.
pub(super) async fn build(
    cache: &Path,
    modules: &[&'static Module],
    names: &[&'static str],
    progress: &Progress,
) -> anyhow::Result<()> {
    if missing(cache, names).is_empty() {
        return Ok(());
    }
    let lock = cache_lock::take(cache, progress).await?;
    // Another process may have built them during the wait for the lock.
    let missing = missing(cache, names);
    if missing.is_empty() {
        return Ok(());
    }
    let scratch = &lock.scratch;
    let batches = batches(scratch, modules, &missing)?;
    check_go(&batches[0].dir).await?;
    check_disk(cache, scratch).await?;
    let list = missing.join(", ");
    progress.line(&format!(
        "Building {list} from source, once: a whole control plane takes about 5 minutes on two cores"
    ));
    progress.step(&format!("Building {list}"));
    let (started, count) = (Instant::now(), Count::default());
    let builds = try_join_all(batches.iter().map(|batch| batch.build(cache, &count)));
    tokio::select! {
        built = builds => built.map(drop)?,
        () = count.show(&list, progress) => unreachable!("the count is shown until the builds end"),
    }
    let _ = fs::remove_dir_all(scratch);
    progress.line(&format!("Built in {} s, kept in {}", started.elapsed().as_secs(), cache.display()));
    Ok(())
}

/// Programs of one module, built by one call of Go, so that no module waits for the linking of another.
struct Batch {
    module: &'static Module,
    programs: Vec<&'static str>,
    /// Folder of go.mod.
    dir: PathBuf,
    /// Folder that Go writes to.
    built: PathBuf,
}

/// Groups the programs by module and writes the files that pin each module.
fn batches(
    scratch: &Path,
    modules: &[&'static Module],
    programs: &[&'static str],
) -> anyhow::Result<Vec<Batch>> {
    let mut batches: Vec<Batch> = Vec::new();
    for &module in modules {
        let programs: Vec<_> =
            programs.iter().copied().filter(|program| module.package(program).is_some()).collect();
        if programs.is_empty() {
            continue;
        }
        let dir = scratch.join(module.name());
        let built = dir.join("built");
        create_private_dir(&built)?;
        write_public(&dir.join("go.mod"), module.go_mod)?;
        write_public(&dir.join("go.sum"), module.go_sum)?;
        batches.push(Batch { module, programs, dir, built });
    }
    Ok(batches)
}

/// The Go command, without the user's settings that would change the result of the build.
fn go_command(dir: &Path, cgo: bool) -> Command {
    let mut command = Command::new("go");
    command.current_dir(dir).env("CGO_ENABLED", if cgo { "1" } else { "0" }).env("GOWORK", "off");
    for variable in ["GOFLAGS", "GOOS", "GOARCH", "GO111MODULE", "CGO_CFLAGS", "CGO_LDFLAGS"] {
        command.env_remove(variable);
    }
    if cgo && std::env::var_os("CC").is_none() {
        // Rust links with `cc`; Go's default is gcc, which may be missing.
        command.env("CC", "cc");
    }
    command.stdin(Stdio::null());
    command
}

async fn check_go(dir: &Path) -> anyhow::Result<()> {
    // Run in the module's folder, so that Go switches to the toolchain that go.mod names, if it can.
    let output = go_command(dir, false).arg("version").output().await.with_context(no_go)?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match release_in(&text) {
        Some(version) if output.status.success() && version >= MINIMUM_GO => Ok(()),
        // A development build of Go has no version number; the build is attempted.
        None if output.status.success() && text.contains("devel") => Ok(()),
        _ => {
            let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            bail!(too_old(if text.is_empty() { &errors } else { &text }))
        }
    }
}

async fn check_disk(cache: &Path, dir: &Path) -> anyhow::Result<()> {
    let output = go_command(dir, false).args(["env", "GOCACHE", "GOMODCACHE"]).output().await;
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for dir in text.lines().map(Path::new).chain([cache]) {
        let Some(existing) = dir.ancestors().find(|dir| dir.exists()) else { continue };
        let Ok(stat) = statvfs(existing) else { continue };
        let free = stat.blocks_available() * stat.fragment_size();
        if free < NEEDED_BYTES {
            bail!("{}, there are {:.1}", disk_full(existing), free as f64 / f64::from(1 << 30));
        }
    }
    Ok(())
}

fn no_go() -> String {
    let (major, minor) = MINIMUM_GO;
    format!(
        "Go is not installed: the programs of a cluster are built from source once, which needs Go {major}.{minor} or later on PATH (https://go.dev/dl), or name ready binaries with --binaries"
    )
}

fn too_old(found: &str) -> String {
    let (major, minor) = MINIMUM_GO;
    format!(
        "Go is too old: {found}; the programs of a cluster need Go {major}.{minor} or later (https://go.dev/dl), or name ready binaries with --binaries"
    )
}

fn disk_full(dir: &Path) -> String {
    let needed = NEEDED_BYTES >> 30;
    format!("not enough room on the disk: building needs {needed} GiB free in {}", dir.display())
}

impl Batch {
    async fn build(&self, cache: &Path, count: &Count) -> anyhow::Result<()> {
        let Self { module, programs, dir, built } = self;
        let mut command = go_command(dir, module.cgo);
        command.args(["build", "-v", "-trimpath", "-tags", module.tags, "-ldflags", &module.ldflags()]);
        if let Some((file, text)) = module.replaced {
            self.replace(file, text, cache).await?;
        }
        let mut child = command
            .arg("-o")
            // The trailing slash makes the path a folder, for one program as for several.
            .arg(format!("{}/", built.display()))
            .args(programs.iter().filter_map(|program| module.package(program)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(no_go)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        // Ends the child processes of the compiler too when the build is abandoned; otherwise they would run on for a while.
        // On SIGINT, Go removes its scratch files.
        let abandoned = guard(group, |group| {
            let _ = group.map(|group| killpg(group, Signal::SIGINT));
        });
        let output = count.follow(&mut child).await;
        let status = child.wait().await;
        let status =
            status.with_context(|| format!("cannot wait for the build of {}", programs.join(", ")))?;
        ScopeGuard::into_inner(abandoned);
        if !status.success() {
            return Err(self.failed(&output, cache));
        }
        for program in programs {
            let target = cache.join(program);
            fs::rename(built.join(Module::file_name(program)), &target)
                .with_context(|| format!("cannot move {program} to {}", target.display()))?;
        }
        Ok(())
    }

    fn failed(&self, output: &str, cache: &Path) -> anyhow::Error {
        let (programs, detail) = (self.programs.join(", "), go::last_errors(output, 2));
        match go::classify(output) {
            Failure::DiskFull => anyhow!(disk_full(cache)),
            Failure::Network => anyhow!(
                "cannot download the Go modules of {programs}: check the network and the variables GOPROXY and HTTPS_PROXY, then try again; what is built already is kept ({detail})"
            ),
            Failure::TooOld => anyhow!(too_old(&detail)),
            Failure::Killed => anyhow!(
                "the build of {programs} was killed, most likely because memory ran out: it needs about 2 GB free; what is built already is kept"
            ),
            Failure::NoCompiler => anyhow!(
                "no C compiler: {programs} is partly C; install one (on Debian and Ubuntu gcc and libc6-dev), or name a ready one with --runc ({detail})"
            ),
            Failure::Other => anyhow!("the build of {programs} failed: {detail}"),
        }
    }

    /// Vendors the module's dependencies beside its go.mod, from where Go then builds, and replaces one vendored file.
    async fn replace(&self, file: &str, text: &str, cache: &Path) -> anyhow::Result<()> {
        let vendor = go_command(&self.dir, false).args(["mod", "vendor"]).output().await;
        let output = vendor.with_context(no_go)?;
        if !output.status.success() {
            return Err(self.failed(&String::from_utf8_lossy(&output.stderr), cache));
        }
        write_public(&self.dir.join("vendor").join(file), text)
    }
}

/// Progress of all batches together.
#[derive(Default)]
struct Count {
    packages: AtomicU32,
    downloads: AtomicU32,
}

impl Count {
    /// Counts the packages that Go compiles (named on standard error because of `-v`). Returns the end of the output.
    async fn follow(&self, child: &mut Child) -> String {
        let mut output = String::new();
        let Some(stderr) = child.stderr.take() else { return output };
        let mut lines = BufReader::new(stderr).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.starts_with("go: downloading") {
                self.downloads.fetch_add(1, Ordering::Relaxed);
            } else if !line.contains(' ') {
                self.packages.fetch_add(1, Ordering::Relaxed);
            }
            if output.len() < OUTPUT_LIMIT || line.contains(' ') {
                output.push_str(&line);
                output.push('\n');
            }
        }
        output
    }

    /// Shows the counts until dropped.
    async fn show(&self, what: &str, progress: &Progress) {
        let (mut tick, started) = (interval(Duration::from_millis(500)), Instant::now());
        loop {
            tick.tick().await;
            let downloads = match self.downloads.load(Ordering::Relaxed) {
                0 => String::new(),
                downloads => format!("{downloads} modules downloaded, "),
            };
            let packages = self.packages.load(Ordering::Relaxed);
            let seconds = started.elapsed().as_secs();
            progress
                .update(&format!("Building {what}: {downloads}{packages} packages compiled, {seconds} s"));
        }
    }
}
