//! Revision history limit of a class: stored revisions that can be deleted.

use std::collections::BTreeSet;

/// Default number of unneeded revisions to keep, as for Deployments.
pub const DEFAULT_LIMIT: usize = 10;

/// A stored revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRevision {
    /// Name of the revision, for example `v1-9f86d08188`.
    pub revision: String,
    /// Sequence number; a newer revision has a greater one.
    pub number: i64,
}

/// Revisions to delete, oldest first: those not `needed`, except the newest `limit` of them. The newest
/// revision of all is always kept, since Nodes may be about to be created from it.
pub fn surplus(stored: &[StoredRevision], needed: &BTreeSet<String>, limit: usize) -> Vec<String> {
    let youngest = stored.iter().map(|stored| stored.number).max();
    let mut unneeded: Vec<&StoredRevision> = stored
        .iter()
        .filter(|stored| !needed.contains(&stored.revision) && Some(stored.number) != youngest)
        .collect();
    unneeded.sort_by_key(|stored| stored.number);
    let count = unneeded.len().saturating_sub(limit);
    unneeded.into_iter().take(count).map(|stored| stored.revision.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_and_the_youngest_stay() {
        let stored: Vec<StoredRevision> =
            (1..=6).map(|number| StoredRevision { revision: format!("v1-{number}"), number }).collect();
        let needed = BTreeSet::from(["v1-1".to_owned()]);
        assert_eq!(surplus(&stored, &needed, 2), ["v1-2", "v1-3"]);
        assert_eq!(surplus(&stored, &needed, 0), ["v1-2", "v1-3", "v1-4", "v1-5"]);
        assert!(surplus(&stored, &needed, 10).is_empty());
    }
}
