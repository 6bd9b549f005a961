//! A Kubernetes control plane on this machine without containers: located or built, started, supervised, stopped.
//!
//! One supervisor runs one data folder ([`layout`]). It starts etcd, kube-apiserver, kube-controller-manager,
//! kube-scheduler and our operator as child processes, each in its own process group, restarts those that
//! die, and stops all in reverse order. Everything listens on 127.0.0.1 only; a TCP proxy serves each further
//! address. `cluster.json` ([`state`]) records each process by pid and start time, so that `down` and the
//! next `up` find the processes of a killed supervisor. A real node ([`real_node`]) is one more child process
//! with others inside.

mod addresses;
mod assets;
pub mod binaries;
mod build;
mod cache_lock;
mod component;
mod download;
mod executable;
mod flags;
mod fleet;
mod go;
mod health;
mod http_client;
pub mod images;
mod kept;
mod kubeconfig;
mod kubelet_address;
pub mod layout;
mod leftovers;
mod manifests;
mod modules;
pub mod operator;
pub mod pki;
mod ports;
mod process_supervisor;
pub mod procs;
pub mod progress;
pub mod real_node;
mod release;
mod state;
mod supervisor;
mod tcp_proxy;
mod template;

pub use binaries::Binaries;
pub use component::{Component, ComponentArg};
pub use fleet::{NODE_SET, count_nodes, counted};
pub use health::{Probe, client_of};
pub use kept::kept;
pub use kube_ext::files;
pub use layout::Layout;
pub use manifests::{absent, helm_release, release_secrets};
pub use ports::RANGE as PORTS;
pub use progress::Progress;
pub use release::{RELEASES, Release};
pub use state::State;
pub use supervisor::{Cluster, Options};

pub use kube_node_api::names::OPERATOR_NAMESPACE as NAMESPACE;
