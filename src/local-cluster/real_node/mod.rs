//! A real node in the local cluster: containerd, kubelet and kube-proxy in namespaces of their own.
//!
//! Process tree, with the task of each process:
//!
//! ```text
//! up ── real-node host ── unshare ── init ── daemons ── containerd, kubelet, kube-proxy
//!       link, TCP proxy,             root,   restarts   (their shims are init's orphans)
//!       cgroups                      reaps
//! ```
//!
//! [`host`] stays in the host's namespaces; every process from `init` on has its own mount, PID, network, IPC
//! and UTS namespaces. The end of `init` therefore removes every process, mount, bridge, address and packet
//! filter, and several clusters run side by side. Outside the namespaces are the link ([`network`]), the
//! cgroups below one parent ([`cgroups`]) and the files of the data folder. Their names derive from the
//! folder's path, so [`cleanup`] finds the remains of a killed node without further input.

mod cgroups;
mod cleanup;
mod config;
mod daemons;
mod description;
mod host;
mod init;
mod machine;
mod network;
mod prepare;
mod programs;
mod ready;

pub(super) use cleanup::remove;
pub use cleanup::{daemons, id_of};
pub use daemons::{DaemonName, run as run_daemons};
pub use description::NAME;
pub use host::run as run_host;
pub use init::run as run_init;
pub(super) use network::claim;
pub(super) use prepare::prepare;
pub use programs::{Options, Programs};
pub(super) use ready::{forget, unknown, wait_ready};
