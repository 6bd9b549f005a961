//! What a kubelet says of its machine in the status of its Node, in a form that is cheap to keep for thousands of Nodes.
//!
//! Values that differ between machines (addresses, endpoint, `nodeInfo`) are kept as a fingerprint: a kubelet only has to
//! see whether they are still its own. Amounts of resources are the same for many machines, and are kept once.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock},
};

use prost::Message;
use serde::{Deserialize, Serialize};

pub use super::protobuf::Amount;
use super::{interner::Interner, protobuf::messages};

messages! {
    /// core/v1 `NodeAddress`.
    #[derive(Serialize)]
    pub struct NodeAddress {
        /// Type, such as `InternalIP`.
        pub r#type: String = 1 (string);
        /// Address.
        pub address: String = 2 (string);
    }

    /// core/v1 `NodeSystemInfo`.
    #[derive(Serialize)]
    pub struct NodeInfo {
        /// `machineID`.
        #[serde(rename = "machineID")]
        pub machine_id: String = 1 (string);
        /// `systemUUID`.
        #[serde(rename = "systemUUID")]
        pub system_uuid: String = 2 (string);
        /// `bootID`.
        #[serde(rename = "bootID")]
        pub boot_id: String = 3 (string);
        /// `kernelVersion`.
        pub kernel_version: String = 4 (string);
        /// `osImage`.
        pub os_image: String = 5 (string);
        /// `containerRuntimeVersion`.
        pub container_runtime_version: String = 6 (string);
        /// `kubeletVersion`.
        pub kubelet_version: String = 7 (string);
        /// `kubeProxyVersion`, which a kubelet leaves empty.
        pub kube_proxy_version: String = 8 (string);
        /// `operatingSystem`.
        pub operating_system: String = 9 (string);
        /// `architecture`.
        pub architecture: String = 10 (string);
        /// `swap`; None for a machine without swap.
        pub swap: Option<Swap> = 11 (message, optional);
    }

    /// core/v1 `NodeSwapStatus`.
    #[derive(Copy, Serialize)]
    pub struct Swap {
        /// Bytes.
        pub capacity: Option<i64> = 1 (int64, optional);
    }
}

/// Fingerprint of addresses, kubelet port and `nodeInfo`; equal statuses have equal ones within a process.
pub fn fingerprint(addresses: &[NodeAddress], port: i32, info: &NodeInfo) -> u64 {
    let mut hasher = DefaultHasher::new();
    (addresses, port, info).hash(&mut hasher);
    hasher.finish()
}

/// Quantities by resource name.
pub type Amounts = BTreeMap<String, Amount>;

/// Capacity and allocatable resources of a Node, in the notation of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeAmounts {
    /// Capacity.
    pub capacity: Amounts,
    /// Allocatable resources.
    pub allocatable: Amounts,
}

static AMOUNTS: LazyLock<Interner<NodeAmounts>> = LazyLock::new(Interner::default);

impl NodeAmounts {
    /// Amounts that all Nodes with the same ones share.
    pub(super) fn shared(capacity: Amounts, allocatable: Amounts) -> Arc<Self> {
        AMOUNTS.share(Self { capacity, allocatable })
    }
}
