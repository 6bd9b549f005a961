//! Newest resource version that is known of a collection: from its watch, and from answers to writes of its objects.
//!
//! A list that is not older than this version shows all that its reader knows of, and the API server may take it from
//! its watch cache. Versions are growing numbers (Kubernetes 1.35 on).

use std::sync::atomic::{AtomicU64, Ordering};

/// Newest known resource version. Shared by the watch of a collection and by writers of its objects.
#[derive(Debug, Default)]
pub struct Newest {
    /// 0 for none.
    version: AtomicU64,
    /// Number of writes whose version is not known.
    unknown: AtomicU64,
}

/// Oldest state that a list may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// The state at this resource version; None for the latest state.
    pub version: Option<u64>,
    /// Number of writes of unknown version that such a list shows.
    unknown: u64,
}

impl Newest {
    /// Notes a version that was seen or written. One that is no number is not known. In one order with the beginning of
    /// lists, which the cache counts.
    pub fn note(&self, version: &str) {
        match version.parse() {
            Ok(version) => drop(self.version.fetch_max(version, Ordering::SeqCst)),
            Err(_) => self.note_unknown(),
        }
    }

    /// Notes a write whose version is not known: only a list of the latest state shows it for certain.
    pub fn note_unknown(&self) {
        self.unknown.fetch_add(1, Ordering::AcqRel);
    }

    /// The oldest state that the next list may show.
    pub fn oldest(&self) -> Oldest {
        let unknown = self.unknown.load(Ordering::Acquire);
        let version = Some(self.version.load(Ordering::SeqCst));
        Oldest { version: version.filter(|version| *version > 0 && unknown == 0), unknown }
    }

    /// Notes that a list of this state is complete.
    pub fn listed(&self, Oldest { unknown, .. }: Oldest) {
        self.unknown.fetch_sub(unknown, Ordering::AcqRel);
    }

    /// Forgets the version: the API server does not have it. After a restore of etcd versions go back.
    pub fn forget(&self) {
        self.version.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_not_older_than_what_was_seen_or_written() {
        let newest = Newest::default();
        assert_eq!(newest.oldest().version, None);
        for version in ["7", "9", "8"] {
            newest.note(version);
        }
        assert_eq!(newest.oldest().version, Some(9));
        newest.note_unknown();
        let latest = newest.oldest();
        assert_eq!(latest.version, None);
        newest.note_unknown();
        newest.listed(latest);
        assert_eq!(newest.oldest().version, None, "the second write came after the list had begun");
        newest.listed(newest.oldest());
        assert_eq!(newest.oldest().version, Some(9));
        newest.forget();
        assert_eq!(newest.oldest().version, None);
    }
}
