//! Node Leases, as kubelets write them.

use std::time::Duration;

/// Lifetime of a Lease without renewal, in seconds: the default of a kubelet's `nodeLeaseDurationSeconds`.
pub const SECONDS: u64 = 40;
/// The same as a duration.
pub const DURATION: Duration = Duration::from_secs(SECONDS);
