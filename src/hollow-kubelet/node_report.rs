//! Content of a machine's node status, and whether a Node shows it.
//!
//! Inputs: the machine and its Node as the cache shows it. Output: the patch that makes the Node show the report. What
//! belongs to others stays: conditions of other types, resources that a machine does not have by itself. Who does what
//! is that of a kubelet (pkg/kubelet/nodestatus/setters.go): allocatable follows the capacity of such resources.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use jiff::Timestamp;
use kube_node_api::{ARCHITECTURE, quantity};
use kube_node_cache::{
    NodeView,
    machine_status::{Amounts, NodeAddress, NodeAmounts, NodeInfo, fingerprint},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    clock::to_seconds,
    health::{KubeletCondition, READY, conditions},
    pod::allocatable::is_extended,
    shape::Shape,
};

/// OS image of the node status.
const OS_IMAGE: &str = "kube-node hollow";
/// Kernel version of the node status; parsable by programs that parse kernel versions.
const KERNEL_VERSION: &str = "6.12.0-hollow";

/// What changes between two reports of a machine: boot ID, endpoint, health.
pub type Variable = (Uuid, Ipv4Addr, u16, bool);

/// Content of a machine's node status.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Name of the Node.
    pub node: &'a str,
    /// UID of the Node.
    pub uid: &'a Arc<str>,
    /// Properties shared with other machines.
    pub shape: &'a Shape,
    /// Internal IP address.
    pub ip: Ipv4Addr,
    /// Kubelet port at that address; 0 for none.
    pub port: u16,
    /// Boot ID: a UUID of version 7, which carries the boot time.
    pub boot: Uuid,
    /// True to report the conditions of a healthy machine.
    pub healthy: bool,
}

impl Report<'_> {
    /// What changes between two reports of the machine.
    pub fn variable(&self) -> Variable {
        (self.boot, self.ip, self.port, self.healthy)
    }

    /// Returns true if `node` shows the whole report, heartbeats aside.
    pub fn is_shown_by(&self, node: &NodeView) -> bool {
        self.machine_is_shown_by(node)
            && conditions(self.healthy).iter().all(|wanted| {
                node.condition(wanted.r#type).is_some_and(|shown| {
                    // Like a kubelet, which leaves reason and message of the others alone while their status is right.
                    let is_same = || {
                        (&*shown.reason, shown.message.as_deref()) == (wanted.reason, Some(wanted.message))
                    };
                    &*shown.status == wanted.status && (wanted.r#type != READY || is_same())
                })
            })
    }

    /// Returns true if `node` shows everything but the conditions.
    fn machine_is_shown_by(&self, node: &NodeView) -> bool {
        node.machine == self.fingerprint(node)
            && node.amounts.as_ref().is_none_or(|amounts| self.amounts_are_shown_by(amounts))
    }

    fn amounts_are_shown_by(&self, shown: &NodeAmounts) -> bool {
        let is_shown = |all: &Amounts, name: &str, wanted: &str| {
            all.get(name).is_some_and(|shown| is_equal(&shown.text, wanted))
        };
        self.shape.capacity.iter().all(|(name, wanted)| is_shown(&shown.capacity, name, &wanted.0))
            && self
                .allocatable(shown)
                .into_iter()
                .all(|(name, wanted)| wanted.is_some_and(|wanted| is_shown(&shown.allocatable, name, wanted)))
    }

    /// Allocatable resources: those of the machine; all of each resource that another client has added to the capacity;
    /// None for an extended resource without a capacity, which has to go.
    fn allocatable<'a>(&'a self, shown: &'a NodeAmounts) -> BTreeMap<&'a str, Option<&'a str>> {
        let without_capacity =
            shown.allocatable.keys().filter(|name| is_extended(name)).map(|name| (&**name, None));
        let added = shown.capacity.iter().map(|(name, amount)| (&**name, Some(&*amount.text)));
        let own = self.shape.allocatable.iter().map(|(name, amount)| (&**name, Some(&*amount.0)));
        without_capacity.chain(added).chain(own).collect()
    }

    /// Fingerprint of the machine in the status of `node` after the report.
    pub fn fingerprint(&self, node: &NodeView) -> u64 {
        fingerprint(&self.addresses(), self.port.into(), &self.info(node))
    }

    fn addresses(&self) -> [NodeAddress; 2] {
        [("InternalIP", self.ip.to_string()), ("Hostname", self.node.to_owned())]
            .map(|(r#type, address)| NodeAddress { r#type: r#type.to_owned(), address })
    }

    fn info(&self, node: &NodeView) -> NodeInfo {
        let label = |key, default: &str| node.label(key).unwrap_or(default).to_owned();
        NodeInfo {
            machine_id: self.uid.replace('-', ""),
            system_uuid: self.uid.to_string(),
            boot_id: self.boot.to_string(),
            kernel_version: KERNEL_VERSION.to_owned(),
            os_image: OS_IMAGE.to_owned(),
            container_runtime_version: self.shape.container_runtime.clone(),
            kubelet_version: self.shape.kubelet_version.clone(),
            operating_system: label("kubernetes.io/os", "linux"),
            architecture: label("kubernetes.io/arch", ARCHITECTURE),
            ..NodeInfo::default()
        }
    }

    /// Strategic merge patch of `node`'s status that shows the whole report.
    pub fn patch(&self, node: &NodeView, now: Timestamp) -> Vec<u8> {
        let now = to_seconds(now);
        let conditions: Vec<Value> = conditions(self.healthy)
            .into_iter()
            .map(|KubeletCondition { r#type, status, reason, message }| {
                let before = node.condition(r#type).filter(|before| &*before.status == status);
                let since = before.and_then(|before| before.since);
                if r#type != READY && before.is_some() {
                    return json!({ "type": r#type, "lastHeartbeatTime": now });
                }
                json!({
                    "type": r#type, "status": status, "reason": reason, "message": message,
                    "lastHeartbeatTime": now, "lastTransitionTime": since.unwrap_or(now),
                })
            })
            .collect();
        let mut status = json!({ "conditions": conditions });
        if !self.machine_is_shown_by(node) {
            status["capacity"] = json!(self.shape.capacity);
            status["allocatable"] =
                json!(self.allocatable(node.amounts.as_deref().unwrap_or(&NodeAmounts::default())));
            // The list would be merged by type, and keep what another client has added.
            let [ip, name] = self.addresses();
            status["addresses"] = json!([ip, name, { "$patch": "replace" }]);
            status["daemonEndpoints"] = json!({ "kubeletEndpoint": { "Port": self.port } });
            status["nodeInfo"] = json!(self.info(node));
        }
        // The API server refuses a patch with another UID: the field is immutable.
        json!({ "metadata": { "uid": **self.uid }, "status": status }).to_string().into_bytes()
    }
}

/// Returns true if two quantities are equal: the API server stores them in its own notation.
fn is_equal(one: &str, other: &str) -> bool {
    one == other || quantity::nanos_of(one).is_ok_and(|one| quantity::nanos_of(other) == Ok(one))
}

#[cfg(test)]
#[path = "node_report_tests.rs"]
mod tests;
