//! The providers of this project. Input: machine requests of the NodeController. Output: machines, each an entry of a
//! hollow kubelet or a pod.

mod hollow;
pub mod kubemark;

pub(crate) use hollow::{HollowProvider, InProcess};
pub(crate) use kubemark::KubemarkProvider;
