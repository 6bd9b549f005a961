//! Advice for fields that the provider configuration never had.

use strsim::levenshtein;

/// Maximum edit distance at which a name counts as a typo.
const SLIP: usize = 2;
/// Fields of a provider configuration.
pub(super) const KNOWN: [&str; 8] = [
    "deletionTimeout",
    "healthyDuration",
    "image",
    "memoryCapacity",
    "numCores",
    "turnUnhealthyAfter",
    "turnUnhealthyPeriodically",
    "unhealthyDuration",
];

/// Common wrong field names in lower case, each with the corresponding NodeClass field.
const MEANT: &[(&[&str], &str)] = &[
    (&["cores", "cpu", "cpus", "numcpus", "vcpus"], "write spec.capacity.cpu in the NodeClass"),
    (&["memory", "mem", "ram", "memorysize"], "write spec.capacity.memory in the NodeClass"),
    (
        &["capacity", "extendedresources", "resourcecapacity", "kubemarkoptions"],
        "write spec.capacity in the NodeClass, extended resources too",
    ),
    (&["labels", "nodelabels"], "write spec.template.labels in the NodeClass"),
    (&["annotations"], "write spec.template.annotations in the NodeClass"),
    (&["taints", "registerwithtaints", "nodetaints"], "write spec.template.taints in the NodeClass"),
    (&["mode", "failuremode"], "write spec.failures.mode in the NodeClass"),
    (&["resources", "requests", "limits"], "write spec.kubemark.resources in the NodeClass"),
    (&["nodeselector"], "write spec.kubemark.nodeSelector in the NodeClass"),
    (&["tolerations"], "write spec.kubemark.tolerations in the NodeClass"),
    (&["affinity"], "write spec.kubemark.affinity in the NodeClass"),
    (&["imagepullsecrets", "imagepullsecret"], "write spec.kubemark.imagePullSecrets in the NodeClass"),
    (
        &["kubeconfig", "secret", "secretref", "credentialssecret", "credentialssecretref"],
        "write spec.credentialsSecretRef in the NodeClass",
    ),
    (&["replicas", "count"], "write spec.replicas in a NodeSet"),
    (
        &["version", "kubeletversion", "kubernetesversion"],
        "write spec.provisioning.kubelet.version in the NodeClass",
    ),
    (&["namespace"], "machines are pods in the namespace kubemark"),
    (&["providerid"], "kube-node chooses providerIDs itself"),
];

/// Advice for an unknown field.
pub(super) fn advice(field: &str) -> String {
    let lower = field.to_ascii_lowercase().replace(['_', '-'], "");
    let distances = KNOWN.iter().map(|known| (levenshtein(&known.to_ascii_lowercase(), &lower), known));
    if let Some((_, known)) = distances.min().filter(|(distance, _)| *distance <= SLIP) {
        return format!("is {known} meant?");
    }
    let meant = MEANT.iter().find(|(names, _)| names.contains(&&*lower));
    meant.map_or_else(
        || format!("a provider configuration has {}", KNOWN.join(", ")),
        |(_, advice)| (*advice).to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        assert_eq!(advice("numcores"), "is numCores meant?");
        assert_eq!(advice("unhealthy_duration"), "is unhealthyDuration meant?");
        assert_eq!(advice("healtyDuration"), "is healthyDuration meant?");
        assert_eq!(advice("turnUnhealthyperiodicaly"), "is turnUnhealthyPeriodically meant?");
    }

    #[test]
    fn other_names_lead_to_their_place() {
        assert!(advice("cpus").contains("spec.capacity.cpu"));
        assert!(advice("nodeLabels").contains("spec.template.labels"));
        assert!(advice("extendedResources").contains("spec.capacity"));
        assert!(advice("favouriteColour").starts_with("a provider configuration has deletionTimeout, "));
    }

    #[test]
    fn no_two_places_share_a_name() {
        let mut names: Vec<&str> = MEANT.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
