//! What every long-running process of kube-node needs, whatever it reconciles.

pub mod queue;
