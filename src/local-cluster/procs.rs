//! Process identity: pid and start time. A pid alone may have been reused by another process.
//!
//! Read from `/proc`, so Linux only. A zombie counts as dead: it holds no resources and answers no requests.

use std::{fs, time::Duration};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

/// Interval of checks of a dying process.
const POLL: Duration = Duration::from_millis(50);

/// Identity of one process, distinct from a later process with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// Process ID.
    pub pid: i32,
    /// Start time of the process, in clock ticks since boot.
    pub start_time: u64,
}

impl ProcessId {
    /// The process that has this pid now; `None` if there is none or it is a zombie.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_time) = parse_stat(&stat)?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, start_time })
    }

    /// The calling process.
    pub fn current() -> Option<Self> {
        Self::of(i32::try_from(std::process::id()).ok()?)
    }

    /// Returns true if exactly this process still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal. A process that is gone is no error.
    pub fn signal(self, signal: Signal) -> Result<(), Errno> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        parse_rss(&status)
    }

    /// Waits until the process is gone. Returns false if it still runs after the time limit.
    pub async fn wait_gone(self, limit: Duration) -> bool {
        let gone = async {
            while self.is_alive() {
                sleep(POLL).await;
            }
        };
        timeout(limit, gone).await.is_ok()
    }

    /// Sends SIGTERM, waits for `grace`, then sends SIGKILL.
    pub async fn terminate(self, grace: Duration) -> Result<(), Errno> {
        self.signal(Signal::SIGTERM)?;
        if !self.wait_gone(grace).await {
            self.signal(Signal::SIGKILL)?;
            self.wait_gone(Duration::from_secs(5)).await;
        }
        Ok(())
    }
}

/// Identity of the present boot of this machine; empty if the kernel does not say.
pub fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// State and start time from `/proc/PID/stat`. The name in the second field may contain spaces and parentheses.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of the line; `state` is field 3.
    let start_time = fields.nth(18)?.parse().ok()?;
    Some((state, start_time))
}

/// `VmRSS` from `/proc/PID/status`, in bytes.
fn parse_rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_hostile_name() {
        let stat = "42 (a) Z (b) S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10";
        assert_eq!(parse_stat(stat), Some(('S', 98765)));
        assert_eq!(parse_stat("42 (x"), None);
    }

    #[test]
    fn a_reused_pid_is_somebody_else() {
        let me = ProcessId::current().unwrap();
        assert!(me.is_alive());
        let predecessor = ProcessId { start_time: me.start_time - 1, ..me };
        assert!(!predecessor.is_alive());
        // The signal must not reach this process: SIGKILL would end the test.
        predecessor.signal(Signal::SIGKILL).unwrap();
    }

    #[test]
    fn rss_in_bytes() {
        assert_eq!(parse_rss("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 * 1024 * 1024));
        assert!(ProcessId::current().unwrap().resident_bytes().unwrap() > 0);
    }
}
