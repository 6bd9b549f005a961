//! What a process has used, from /proc.

use std::fs;

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Ticks of the clock in /proc/PID/stat; 100 on every Linux that Kubernetes runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that is measured; ours to end when `child` is there.
pub struct Process {
    pid: u32,
    child: Option<std::process::Child>,
}

/// A process that does nothing until this value goes.
pub struct Halted {
    pid: Pid,
}

/// What a process holds in memory, in MiB.
pub struct Memory {
    /// All that is mapped, in each process that shares it.
    pub resident: f64,
    /// What is its own alone.
    pub anonymous: f64,
    /// Of what is shared, its part.
    pub proportional: f64,
}

impl Process {
    /// The process with these words among its arguments.
    pub fn with_arguments(words: &[String]) -> anyhow::Result<Self> {
        let found = fs::read_dir("/proc")?.flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let given: Vec<&str> = line.split('\0').collect();
            words.iter().all(|word| given.contains(&word.as_str())).then_some(pid)
        });
        found.map(Self::of).with_context(|| format!("no process with the arguments {words:?}"))
    }

    /// Somebody else's process.
    pub fn of(pid: u32) -> Self {
        Self { pid, child: None }
    }

    /// A process that ends with this value.
    pub fn owned(child: std::process::Child) -> Self {
        Self { pid: child.id(), child: Some(child) }
    }

    /// The same one, which does not end with this value.
    pub fn same(&self) -> Self {
        Self::of(self.pid)
    }

    /// Halts it until the value that is returned goes.
    pub fn halt(&self) -> anyhow::Result<Halted> {
        let pid = Pid::from_raw(i32::try_from(self.pid)?);
        kill(pid, Signal::SIGSTOP).context("the process has ended")?;
        Ok(Halted { pid })
    }

    /// User and system time so far.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).context("the process has ended")?;
        let fields: Vec<&str> =
            stat.rsplit_once(')').context("an odd stat")?.1.split_ascii_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    /// Its memory.
    pub fn memory(&self) -> anyhow::Result<Memory> {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{}/{file}", self.pid)).context("the process has ended")
        };
        let (status, rollup) = (read("status")?, read("smaps_rollup")?);
        Ok(Memory {
            resident: mib(&status, "VmRSS:")?,
            anonymous: mib(&status, "RssAnon:")?,
            proportional: mib(&rollup, "Pss:")?,
        })
    }
}

/// A line of a file in /proc that counts KiB.
fn mib(text: &str, name: &str) -> anyhow::Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1_024.0)
}

impl Drop for Halted {
    fn drop(&mut self) {
        let _ = kill(self.pid, Signal::SIGCONT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
