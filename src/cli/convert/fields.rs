//! Advice for fields that the provider configuration never had.

use std::{collections::BTreeMap, sync::LazyLock};

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

/// Common wrong field names in lower case, by the advice for them.
static MEANT: LazyLock<BTreeMap<String, Vec<String>>> =
    LazyLock::new(|| serde_norway::from_str(include_str!("fields.yaml")).unwrap_or_default());

/// Advice for an unknown field.
pub(super) fn advice(field: &str) -> String {
    let lower = field.to_ascii_lowercase().replace(['_', '-'], "");
    let distances = KNOWN.iter().map(|known| (levenshtein(&known.to_ascii_lowercase(), &lower), known));
    if let Some((_, known)) = distances.min().filter(|(distance, _)| *distance <= SLIP) {
        return format!("is {known} meant?");
    }
    match MEANT.iter().find(|(_, names)| names.contains(&lower)) {
        Some((advice, _)) => advice.clone(),
        None => format!("a provider configuration has {}", KNOWN.join(", ")),
    }
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
        let mut names: Vec<&str> = MEANT.values().flatten().map(String::as_str).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
