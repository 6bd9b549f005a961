//! The version that a write made, against what the watch shows.

/// What the last write of an object made of its resourceVersion. Versions are numbers that grow (Kubernetes 1.35 on); any
/// other outruns nothing.
///
/// After a restore of etcd they go back. So a write is remembered no longer than until a list is complete that began after its
/// answer: the list shows what became of the write, whatever the version says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    version: u64,
    /// How many lists had begun at the answer.
    lists: u64,
}

impl Written {
    pub(super) fn new(version: &str, lists: u64) -> Self {
        Self { version: version.parse().unwrap_or_default(), lists }
    }

    /// Whether `shown` is older, where `complete` lists have begun up to the one that was completed last.
    pub(super) fn outruns(self, shown: &str, complete: u64) -> bool {
        complete <= self.lists && shown.parse().is_ok_and(|shown: u64| shown < self.version)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::PodView, *};
    use crate::Cache;

    #[test]
    fn a_write_outruns_what_is_older() {
        let written = Written::new("10", 1);
        assert_eq!(
            ["9", "10", "11", "opaque"].map(|shown| written.outruns(shown, 1)),
            [true, false, false, false]
        );
        assert!(!Written::new("opaque", 1).outruns("9", 1) && !Written::default().outruns("9", 0));
    }

    #[test]
    fn nothing_is_outrun_once_a_later_list_is_complete() {
        let cache = Cache::<PodView>::default();
        let list = || {
            cache.relisting();
            cache.on_resync(&BTreeSet::new());
        };
        list();
        let written = cache.written("1000");
        assert!(cache.is_outrun("7", written));
        cache.relisting();
        let meanwhile = cache.written("1001");
        assert!(cache.is_outrun("7", written), "the list is not complete");
        cache.on_resync(&BTreeSet::new());
        assert!(!cache.is_outrun("7", written), "the versions went back");
        assert!(cache.is_outrun("7", meanwhile), "the list may be older than the write");
        list();
        assert!(!cache.is_outrun("7", meanwhile));
    }
}
