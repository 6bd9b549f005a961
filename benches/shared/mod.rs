//! What benchmarks on control planes have in common.

// Each benchmark uses a part of it.
#![allow(dead_code, unused_imports)]

mod costs;
mod counter;
mod figures;
mod plane;
mod process;

pub use costs::{COMPONENTS, Costs, Spent};
pub use counter::Counter;
pub use figures::{median, spread};
pub use plane::{KUBE_NODE, Plane};
pub use process::{Memory, Process};
