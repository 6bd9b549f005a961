//! Revisions: the identity of a machine's specification.
//!
//! A revision is the hash of the resolved machine (class plus the set's overrides). Fields that propagate in place are
//! left out: template, deletion timeout, failures, price. Invariant: the version of the hashing is part of the name,
//! so that an operator upgrade with another hashing never takes an old Node for a changed one.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_node_api::{
    ClassOverrides, CsiNodeCreation, HollowMachine, KubemarkMachine, NodeClassSpec, Provisioning, Resources,
    quantity::{self, ParseQuantityError},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version of the hashing. Raise it when [`ResolvedMachine`] or its encoding changes.
pub const HASH_VERSION: u32 = 1;

/// Default maximum of pods of a kubelet.
const MAX_PODS: &str = "110";
/// Number of hash bytes in a revision's name; enough to rule out collisions within a class.
const SHOWN_BYTES: usize = 5;

/// Specification of a machine: the content that a revision stores and hashes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResolvedMachine {
    /// NodeController of the class.
    pub node_controller: String,
    /// Free name of the kind of machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// Resources of the machine.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub capacity: Resources,
    /// Resources reserved for the system.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub reserved: Resources,
    /// Data that the machine gets before its kubelet starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// Fields of kubemark machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubemark: Option<KubemarkMachine>,
    /// Fields of hollow machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hollow: Option<HollowMachine>,
}

impl ResolvedMachine {
    /// Machine of a class with the overrides of one set. Quantities are replaced by resource name.
    pub fn resolve(class: &NodeClassSpec, overrides: Option<&ClassOverrides>) -> Self {
        // Destructured without `..`: each new field of the class has to be handled here.
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

    /// Group of workers that runs the machine; None if it is not hollow or runs in the operator.
    pub fn hosts(&self) -> Option<&str> {
        self.hollow.as_ref()?.hosts.as_deref()
    }

    /// Label value of the hollow machine's API load; None if the machine has no such label.
    pub fn load(&self) -> Option<&'static str> {
        self.hollow.as_ref()?.load?.label()
    }

    /// Returns true if the hollow machine creates its `CSINode` in any case: the class asks for it, or the machine is to the API
    /// server what a kubelet is.
    pub fn needs_csi_node(&self) -> bool {
        let asked = self.hollow.as_ref().and_then(|hollow| hollow.csi_node);
        asked == Some(CsiNodeCreation::Always) || self.load().is_some()
    }

    /// Checks the resources: a set's overrides may contradict the class.
    pub fn check(&self) -> Result<()> {
        for (resource, reserved) in &self.reserved {
            let capacity = self.capacity.get(resource);
            let has = capacity.map(quantity::nanos).transpose()?.unwrap_or(0);
            let needs = quantity::nanos(reserved)?;
            let (reserved, capacity) = (&reserved.0, capacity.map_or("0", |capacity| &capacity.0));
            ensure!(
                needs <= has,
                "reserved.{resource} ({reserved}) is larger than capacity.{resource} ({capacity}): raise the capacity, or override reserved too"
            );
        }
        Ok(())
    }

    /// Capacity and allocatable resources as the kubelet reports them. Without a number of pods the kubelet's
    /// default counts.
    pub fn amounts(&self) -> Result<(Resources, Resources), ParseQuantityError> {
        let mut capacity = self.capacity.clone();
        capacity.entry("pods".to_owned()).or_insert_with(|| Quantity(MAX_PODS.to_owned()));
        let allocatable = quantity::allocatable(&capacity, &self.reserved)?;
        Ok((capacity, allocatable))
    }

    /// Name of the revision, for example `v1-9f86d08188`; a valid label value.
    pub fn revision(&self) -> Result<String> {
        // Equal machines encode equally: maps are BTreeMaps, fields have a fixed order, amounts a canonical form.
        let canonical =
            |amounts| quantity::canonical(amounts).context("an amount of the machine cannot be read");
        let (capacity, reserved) = (canonical(&self.capacity)?, canonical(&self.reserved)?);
        let canonical = Self { capacity, reserved, ..self.clone() };
        let encoded = serde_json::to_vec(&canonical).context("the machine cannot be encoded")?;
        let digest = Sha256::digest(encoded);
        let hash = digest.iter().take(SHOWN_BYTES).fold(0, |hash: u64, byte| hash << 8 | u64::from(*byte));
        Ok(format!("v{HASH_VERSION}-{hash:0width$x}", width = 2 * SHOWN_BYTES))
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
        ResolvedMachine::resolve(&class(change), None).revision().expect("a revision")
    }

    /// A committed name: if this fails, raise `HASH_VERSION`; otherwise an upgrade replaces all Nodes of all users.
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
        let machine = ResolvedMachine::resolve(&class(&json!({})), Some(&overrides));
        assert_eq!(machine.capacity["cpu"].0, "8");
        assert_eq!(machine.capacity["memory"].0, "16Gi");
        assert_eq!(machine.machine_type.as_deref(), Some("m.large"));
    }

    #[test]
    fn a_class_that_names_no_number_of_pods_has_a_kubelets() {
        let shown = |capacity: serde_json::Value| {
            let machine =
                ResolvedMachine::resolve(&class(&json!({"capacity": capacity, "reserved": {}})), None);
            machine.amounts().map(|(capacity, left)| (capacity["pods"].0.clone(), left["pods"].0.clone()))
        };
        assert_eq!(shown(json!({"cpu": "4"})), Ok(("110".to_owned(), "110".to_owned())));
        assert_eq!(shown(json!({"cpu": "4", "pods": "9"})), Ok(("9".to_owned(), "9".to_owned())));
    }

    #[test]
    fn overrides_that_do_not_fit_are_named() {
        let smaller: ClassOverrides =
            serde_json::from_value(json!({"capacity": {"cpu": "50m"}})).expect("overrides");
        let machine = ResolvedMachine::resolve(&class(&json!({})), Some(&smaller));
        let error = machine.check().expect_err("100m of 50m cannot be reserved").to_string();
        assert!(error.contains("reserved.cpu (100m)") && error.contains("capacity.cpu (50m)"), "{error}");
        assert!(ResolvedMachine::resolve(&class(&json!({})), None).check().is_ok());
    }

    #[test]
    fn a_stored_machine_comes_back_as_it_was() {
        let machine = ResolvedMachine::resolve(
            &class(&json!({"provisioning": {"kubelet": {"version": "v1.36.3"}}})),
            None,
        );
        let stored = serde_json::to_value(&machine).expect("json");
        assert_eq!(serde_json::from_value::<ResolvedMachine>(stored).expect("a machine"), machine);
    }
}
