//! Resource version of a write, compared with the one that the watch shows.

/// Resource version that the last write of an object returned. Versions are growing numbers (Kubernetes 1.35
/// on); a version that is no number is newer than none.
///
/// After a restore of etcd the versions go back. So a write counts only until a list is complete that began
/// after its response: that list shows the result of the write, whatever its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    version: u64,
    /// Number of lists begun at the time of the response.
    lists: u64,
}

impl Written {
    pub(super) fn new(version: &str, lists: u64) -> Self {
        Self { version: version.parse().unwrap_or_default(), lists }
    }

    /// Returns true if `shown` is older than the write; `complete` is the number of the last complete list.
    pub(super) fn is_newer_than(self, shown: &str, complete: u64) -> bool {
        complete <= self.lists && shown.parse().is_ok_and(|shown: u64| shown < self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::PodView, *};
    use crate::Cache;

    #[test]
    fn a_write_is_newer_than_what_is_older() {
        let written = Written::new("10", 1);
        assert_eq!(
            ["9", "10", "11", "opaque"].map(|shown| written.is_newer_than(shown, 1)),
            [true, false, false, false]
        );
        assert!(
            !Written::new("opaque", 1).is_newer_than("9", 1) && !Written::default().is_newer_than("9", 0)
        );
    }

    #[test]
    fn nothing_is_stale_once_a_later_list_is_complete() {
        let cache = Cache::<PodView>::default();
        let list = || {
            cache.begin_list();
            cache.complete_list();
        };
        list();
        let written = cache.written("1000");
        assert!(cache.is_stale("7", written));
        cache.begin_list();
        let meanwhile = cache.written("1001");
        assert!(cache.is_stale("7", written), "the list is not complete");
        cache.complete_list();
        assert!(!cache.is_stale("7", written), "the versions went back");
        assert!(cache.is_stale("7", meanwhile), "the list may be older than the write");
        list();
        assert!(!cache.is_stale("7", meanwhile));
    }
}
