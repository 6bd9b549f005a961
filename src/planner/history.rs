//! Which stored revisions of a class may be forgotten.

use std::collections::BTreeSet;

/// How many revisions that nobody needs are kept when nothing is said: as Deployments have it.
pub const DEFAULT_LIMIT: usize = 10;

/// A revision that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name, for example `v1-9f86d08188`.
    pub revision: String,
    /// Its number: a younger one has a greater.
    pub number: i64,
}

/// The revisions to forget, the oldest first: beyond the `limit` youngest of those that are not `needed`. Never the
/// youngest of all: Nodes may be about to be made of it.
#[must_use]
pub fn surplus(stored: &[Stored], needed: &BTreeSet<String>, limit: usize) -> Vec<String> {
    let youngest = stored.iter().map(|stored| stored.number).max();
    let mut unneeded: Vec<&Stored> = stored
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
        let stored: Vec<Stored> =
            (1..=6).map(|number| Stored { revision: format!("v1-{number}"), number }).collect();
        let needed = BTreeSet::from(["v1-1".to_owned()]);
        assert_eq!(surplus(&stored, &needed, 2), ["v1-2", "v1-3"]);
        assert_eq!(surplus(&stored, &needed, 0), ["v1-2", "v1-3", "v1-4", "v1-5"]);
        assert!(surplus(&stored, &needed, 10).is_empty());
    }
}
