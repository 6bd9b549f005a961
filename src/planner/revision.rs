//! Revisions: the identity of what shapes a machine.
//!
//! A revision is the hash of the resolved machine (class plus the set's overrides) without what propagates in place:
//! template, deletion timeout, failures, price. The version of the hashing is part of the name, so that an upgrade of
//! the operator that hashes differently never takes an old Node for a changed one.

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_node_api::{ClassOverrides, HollowMachine, KubemarkMachine, NodeClassSpec, Provisioning, Resources};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::quantity::{self, ParseQuantityError};

/// Version of the hashing. Raise it when [`Machine`] or its encoding changes.
pub const HASH_VERSION: u32 = 1;

/// Pods that a kubelet takes unless it is told otherwise.
const MAX_PODS: &str = "110";
/// Bytes of the hash that a revision's name shows: enough that two revisions of a class never meet by chance.
const SHOWN_BYTES: usize = 5;

/// What a machine is made from: all that its revision stores, and all that its revision hashes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// The NodeController that serves it.
    pub node_controller: String,
    /// Free name of the kind of machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// What it has.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub capacity: Resources,
    /// What the system keeps of it.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub reserved: Resources,
    /// What reaches it before its kubelet starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// What only a kubemark machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubemark: Option<KubemarkMachine>,
    /// What only a hollow machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hollow: Option<HollowMachine>,
}

/// Why there can be no such machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// An amount is no quantity.
    #[error(transparent)]
    Amount(#[from] ParseQuantityError),
    /// The system keeps more than there is.
    #[error(
        "reserved.{resource} ({reserved}) is larger than capacity.{resource} ({capacity}): raise the capacity, or override reserved too"
    )]
    ReservedExceedsCapacity {
        /// Which resource.
        resource: String,
        /// What is reserved.
        reserved: String,
        /// What there is.
        capacity: String,
    },
}

/// Why a machine has no revision.
#[derive(Debug, thiserror::Error)]
pub enum RevisionError {
    /// An amount is no quantity.
    #[error("an amount of the machine cannot be read")]
    Amount(#[from] ParseQuantityError),
    /// The machine cannot be written as JSON.
    #[error("the machine cannot be encoded")]
    Encode(#[from] serde_json::Error),
}

impl Machine {
    /// The machine of a class, as one set changes it. Amounts are replaced name by name.
    #[must_use]
    pub fn resolve(class: &NodeClassSpec, overrides: Option<&ClassOverrides>) -> Self {
        // Taken apart without `..`: a new field of the class must be decided on here.
        let NodeClassSpec {
            node_controller,
            machine_type,
            capacity,
            reserved,
            provisioning,
            kubemark,
            hollow,
            credentials_secret_ref: _,
            template: _,
            price: _,
            deletion_timeout: _,
            failures: _,
            limits: _,
        } = class;
        let changed = |own: Option<&Resources>, change: Option<&Resources>| {
            let mut amounts = own.cloned().unwrap_or_default();
            amounts.extend(change.cloned().unwrap_or_default());
            amounts
        };
        Self {
            node_controller: node_controller.clone(),
            machine_type: overrides.and_then(|o| o.machine_type.clone()).or_else(|| machine_type.clone()),
            capacity: changed(capacity.as_ref(), overrides.and_then(|o| o.capacity.as_ref())),
            reserved: changed(reserved.as_ref(), overrides.and_then(|o| o.reserved.as_ref())),
            provisioning: provisioning.clone(),
            kubemark: kubemark.clone(),
            hollow: hollow.clone(),
        }
    }

    /// The group of hosts that carries it; None where it is not hollow, or the operator carries it.
    #[must_use]
    pub fn hosts(&self) -> Option<&str> {
        self.hollow.as_ref()?.hosts.as_deref()
    }

    /// What of a hollow machine's load its Node is to show; None where it is one of many.
    #[must_use]
    pub fn load(&self) -> Option<&'static str> {
        self.hollow.as_ref()?.load?.label()
    }

    /// Whether such a machine can be: a set may override amounts that fit its class's alone.
    pub fn check(&self) -> Result<(), MachineError> {
        for (resource, reserved) in &self.reserved {
            let capacity = self.capacity.get(resource);
            let has = capacity.map(quantity::nanos).transpose()?.unwrap_or(0);
            if quantity::nanos(reserved)? > has {
                return Err(MachineError::ReservedExceedsCapacity {
                    resource: resource.clone(),
                    reserved: reserved.0.clone(),
                    capacity: capacity.map_or("0", |capacity| &capacity.0).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// What it has, and what pods may use of that, as its kubelet shows them: a class that names no number of pods means a
    /// kubelet's own.
    pub fn amounts(&self) -> Result<(Resources, Resources), ParseQuantityError> {
        let mut capacity = self.capacity.clone();
        capacity.entry("pods".to_owned()).or_insert_with(|| Quantity(MAX_PODS.to_owned()));
        let allocatable = quantity::allocatable(&capacity, &self.reserved)?;
        Ok((capacity, allocatable))
    }

    /// The revision's name, for example `v1-9f86d08188`. It fits into a label value.
    pub fn revision(&self) -> Result<String, RevisionError> {
        // Maps are BTreeMaps, fields have one order and amounts one form, so equal machines encode equally.
        let canonical = Self {
            capacity: quantity::canonical(&self.capacity)?,
            reserved: quantity::canonical(&self.reserved)?,
            ..self.clone()
        };
        let digest = Sha256::digest(serde_json::to_vec(&canonical)?);
        let mut name = format!("v{HASH_VERSION}-");
        for byte in digest.iter().take(SHOWN_BYTES) {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(change: &serde_json::Value) -> NodeClassSpec {
        let mut spec = json!({
            "nodeController": "hollow",
            "machineType": "m.medium",
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "reserved": {"cpu": "100m"}
        });
        for (key, value) in change.as_object().expect("a map") {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).expect("a class")
    }

    fn revision(change: &serde_json::Value) -> String {
        Machine::resolve(&class(change), None).revision().expect("a revision")
    }

    /// A committed name: if this fails, raise `HASH_VERSION`, or an upgrade would roll every node of every user.
    #[test]
    fn the_hash_is_stable() {
        assert_eq!(revision(&json!({})), "v1-d79bda7cd3");
    }

    #[test]
    fn a_number_and_its_text_are_one_machine() {
        assert_eq!(
            revision(&json!({"capacity": {"cpu": 4, "memory": "16Gi", "pods": 110}})),
            revision(&json!({}))
        );
    }

    #[test]
    fn what_propagates_in_place_is_not_hashed() {
        for change in [
            json!({"template": {"labels": {"a": "b"}, "taints": [{"key": "k", "effect": "NoSchedule"}]}}),
            json!({"deletionTimeout": "30s"}),
            json!({"failures": {"unhealthyDuration": "5s", "turnUnhealthyAfter": true}}),
        ] {
            assert_eq!(revision(&change), revision(&json!({})), "{change}");
        }
    }

    #[test]
    fn what_shapes_the_machine_is_hashed() {
        for change in [
            json!({"capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"}}),
            json!({"reserved": {"cpu": "200m"}}),
            json!({"machineType": "m.large"}),
            json!({"provisioning": {"kubelet": {"version": "v1.36.3"}}}),
            json!({"hollow": {"containers": {"runTime": "5s"}}}),
            json!({"hollow": {"hosts": "big"}}),
        ] {
            assert_ne!(revision(&change), revision(&json!({})), "{change}");
        }
    }

    #[test]
    fn overrides_replace_amounts_name_by_name() {
        let overrides: ClassOverrides =
            serde_json::from_value(json!({"capacity": {"cpu": "8"}, "machineType": "m.large"}))
                .expect("overrides");
        let machine = Machine::resolve(&class(&json!({})), Some(&overrides));
        assert_eq!(machine.capacity["cpu"].0, "8");
        assert_eq!(machine.capacity["memory"].0, "16Gi");
        assert_eq!(machine.machine_type.as_deref(), Some("m.large"));
    }

    #[test]
    fn a_class_that_names_no_number_of_pods_has_a_kubelets() {
        let shown = |capacity: serde_json::Value| {
            let machine = Machine::resolve(&class(&json!({"capacity": capacity, "reserved": {}})), None);
            machine.amounts().map(|(capacity, left)| (capacity["pods"].0.clone(), left["pods"].0.clone()))
        };
        assert_eq!(shown(json!({"cpu": "4"})), Ok(("110".to_owned(), "110".to_owned())));
        assert_eq!(shown(json!({"cpu": "4", "pods": "9"})), Ok(("9".to_owned(), "9".to_owned())));
    }

    #[test]
    fn overrides_that_do_not_fit_are_named() {
        let smaller: ClassOverrides =
            serde_json::from_value(json!({"capacity": {"cpu": "50m"}})).expect("overrides");
        let machine = Machine::resolve(&class(&json!({})), Some(&smaller));
        let error = machine.check().expect_err("100m of 50m cannot be reserved").to_string();
        assert!(error.contains("reserved.cpu (100m)") && error.contains("capacity.cpu (50m)"), "{error}");
        assert!(Machine::resolve(&class(&json!({})), None).check().is_ok());
    }

    #[test]
    fn a_stored_machine_comes_back_as_it_was() {
        let machine =
            Machine::resolve(&class(&json!({"provisioning": {"kubelet": {"version": "v1.36.3"}}})), None);
        let stored = serde_json::to_value(&machine).expect("json");
        assert_eq!(serde_json::from_value::<Machine>(stored).expect("a machine"), machine);
    }
}
