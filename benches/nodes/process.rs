//! What a process has used, from /proc.

use std::fs;

use anyhow::Context;

/// Ticks of the clock in /proc/PID/stat; 100 on every Linux that Kubernetes runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that is measured; ours to end when `child` is there.
pub struct Process {
    pid: u32,
    child: Option<std::process::Child>,
}

impl Process {
    /// Somebody else's process.
    pub fn of(pid: u32) -> Self {
        Self { pid, child: None }
    }

    /// A process that ends with this value.
    pub fn owned(child: std::process::Child) -> Self {
        Self { pid: child.id(), child: Some(child) }
    }

    /// User and system time so far.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).context("the process has ended")?;
        let fields: Vec<&str> =
            stat.rsplit_once(')').context("an odd stat")?.1.split_ascii_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    /// Resident memory.
    pub fn rss_mib(&self) -> anyhow::Result<f64> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.pid)).context("the process has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib / 1_024.0)
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
