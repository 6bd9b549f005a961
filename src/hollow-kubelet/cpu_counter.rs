//! Simulated CPU time of a machine.

use jiff::Timestamp;
use kube_node_api::time::passed;

/// CPU time between two moments, in nanoseconds of one core.
pub fn core_nanos(nano_cores: u64, since: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(passed(since, now).as_nanos().saturating_mul(nano_cores.into()) / 1_000_000_000)
        .unwrap_or(u64::MAX)
}

/// CPU time of a machine, counted up at each reading by its usage then: a sum of its pods' counters would go
/// back as pods leave. Starts at the machine's boot, or at its takeover by this process.
pub struct CpuCounter {
    nanos: u64,
    until: Timestamp,
}

impl CpuCounter {
    /// Creates a counter that starts at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self { nanos: 0, until: now }
    }

    /// CPU time until `now` of a machine that booted at `booted`, in nanoseconds of one core; never zero.
    pub fn read(&mut self, nano_cores: u64, booted: Timestamp, now: Timestamp) -> u64 {
        if booted > self.until {
            *self = Self::new(booted);
        }
        self.nanos = self.nanos.saturating_add(core_nanos(nano_cores, self.until, now));
        self.until = self.until.max(now);
        self.nanos.max(1)
    }
}
