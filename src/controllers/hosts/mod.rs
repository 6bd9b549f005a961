//! Workers (shards): processes that run hollow machines in the operator's place, in groups that classes name.
//!
//! A worker is present by a Lease of its own, which it renews as a leader does. Every process that watches
//! these Leases keeps a [`Membership`] and derives from it which worker runs which machine ([`share`]): there
//! is no coordinator.

mod lease;
mod membership;
mod membership_watch;
pub mod share;

pub use lease::{HostView, lease_name};
pub use membership::{Membership, Present};
pub use membership_watch::MembershipWatch;
