//! Hollow hosts: processes that carry hollow machines in the operator's place, in groups that classes name.
//!
//! A host is present by a Lease of its own, which it renews as a leader does. All who watch these Leases keep a [`Membership`] of
//! who is present, and agree on who carries what by [`share`] alone: nobody assigns anything.

mod lease;
mod membership;
mod membership_watch;
pub mod share;

pub use lease::{HostView, lease_name};
pub use membership::{Membership, Present};
pub use membership_watch::MembershipWatch;
