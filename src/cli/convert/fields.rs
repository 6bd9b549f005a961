//! Advice for what has no place in a NodeClass or NodeSet. No I/O.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use strsim::levenshtein;

/// Maximum edit distance at which a name counts as a typo.
const SLIP: usize = 2;
/// Fields of a provider configuration.
pub(super) const CONFIGURATION: [&str; 8] = [
    "deletionTimeout",
    "healthyDuration",
    "image",
    "memoryCapacity",
    "numCores",
    "turnUnhealthyAfter",
    "turnUnhealthyPeriodically",
    "unhealthyDuration",
];
/// Fields of Machines, MachineSets and MachineDeployments that are converted.
const MACHINE: [&str; 14] = [
    "annotations",
    "deletePolicy",
    "kubelet",
    "labels",
    "maxSurge",
    "maxUnavailable",
    "minReadySeconds",
    "paused",
    "progressDeadlineSeconds",
    "replicas",
    "revisionHistoryLimit",
    "rollingUpdate",
    "taints",
    "versions",
];

/// Names in lower case, by the advice for them.
type Advice = BTreeMap<String, Vec<String>>;

#[derive(Default, Deserialize)]
struct Fields {
    configuration: Advice,
    machine: Advice,
    object: Advice,
}

static FIELDS: LazyLock<Fields> =
    LazyLock::new(|| serde_norway::from_str(include_str!("fields.yaml")).unwrap_or_default());

/// Advice for a field of a provider configuration.
pub(super) fn of_configuration(keys: &[&str]) -> String {
    advice(keys, &CONFIGURATION, &FIELDS.configuration)
        .unwrap_or_else(|| format!("a provider configuration has {}", CONFIGURATION.join(", ")))
}

/// Advice for a field around a provider configuration.
pub(super) fn of_machine(keys: &[&str]) -> String {
    advice(keys, &MACHINE, &FIELDS.machine)
        .unwrap_or_else(|| "neither NodeClass nor NodeSet has a field for it".to_owned())
}

/// Advice for a whole object.
pub(super) fn of_object(kind: &str) -> String {
    find(kind, &FIELDS.object).unwrap_or_else(|| {
        "kube-node convert reads Machines, MachineSets, MachineDeployments and KubemarkMachineProviderConfigs".to_owned()
    })
}

/// Advice for the outermost key that has some, or the known name that the innermost one was meant to be.
fn advice(keys: &[&str], known: &[&str], advice: &Advice) -> Option<String> {
    let last = *keys.last()?;
    let distances = known.iter().map(|known| (levenshtein(&normal(known), &normal(last)), known));
    let nearest = distances.min().filter(|(distance, known)| *distance <= SLIP && **known != last);
    let meant = nearest.map(|(_, known)| format!("is {known} meant?"));
    meant.or_else(|| keys.iter().find_map(|key| find(key, advice)))
}

fn find(name: &str, advice: &Advice) -> Option<String> {
    let name = normal(name);
    advice.iter().find(|(_, names)| names.contains(&name)).map(|(advice, _)| advice.clone())
}

fn normal(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '-'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(field: &str) -> String {
        of_configuration(&[field])
    }

    #[test]
    fn slips_are_recognised() {
        assert_eq!(configuration("numcores"), "is numCores meant?");
        assert_eq!(configuration("unhealthy_duration"), "is unhealthyDuration meant?");
        assert_eq!(configuration("healtyDuration"), "is healthyDuration meant?");
        assert_eq!(configuration("turnUnhealthyperiodicaly"), "is turnUnhealthyPeriodically meant?");
        assert_eq!(of_machine(&["spec", "replica"]), "is replicas meant?");
        assert!(of_machine(&["spec", "strategy", "replicas"]).starts_with("neither NodeClass "));
    }

    #[test]
    fn other_names_lead_to_their_place() {
        assert!(configuration("cpus").contains("spec.capacity.cpu"));
        assert!(configuration("nodeLabels").contains("spec.template.labels"));
        assert!(configuration("extendedResources").contains("spec.capacity"));
        assert!(
            configuration("favouriteColour").starts_with("a provider configuration has deletionTimeout, ")
        );
        let hook = ["spec", "lifecycleHooks", "preDrain", "name"];
        assert!(of_machine(&hook).contains("kube-node.io/do-not-evict"));
        assert!(of_object("MachineAutoscaler").contains("spec.autoscaling"));
        assert!(of_object("Deployment").starts_with("kube-node convert reads "));
    }

    #[test]
    fn no_two_places_share_a_name() {
        for advice in [&FIELDS.configuration, &FIELDS.machine, &FIELDS.object] {
            let mut names: Vec<&str> = advice.values().flatten().map(String::as_str).collect();
            assert!(names.iter().all(|name| *name == normal(name)), "{names:?}");
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert!(all > 0 && names.len() == all);
        }
    }
}
