//! Compact label or annotation map for objects that are cached by the thousands: a sorted slice of interned strings.

use std::sync::Arc;

/// An immutable map from label or annotation keys to values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelMap(Box<[(Arc<str>, Arc<str>)]>);

impl LabelMap {
    /// Value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| &**value)
    }

    /// Returns true if the key exists.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns true if both maps have the same entries, those of `key` aside.
    pub fn is_same_without(&self, other: &Self, key: &str) -> bool {
        let rest = |map: &Self| map.0.iter().filter(|(own, _)| **own != *key).cloned().collect::<Vec<_>>();
        self == other || rest(self) == rest(other)
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for LabelMap {
    /// The first value of a duplicate key wins.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut all: Vec<(Arc<str>, Arc<str>)> =
            entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all.dedup_by(|(next, _), (first, _)| next == first);
        Self(all.into())
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>, const N: usize> From<[(K, V); N]> for LabelMap {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_key_in_whatever_order_they_came() {
        let map = LabelMap::from([("zone", "a"), ("arch", "amd64"), ("os", "linux"), ("zone", "b")]);
        assert_eq!(["arch", "os", "zone"].map(|key| map.get(key)), [Some("amd64"), Some("linux"), Some("a")]);
        assert!(map.contains_key("os") && !map.contains_key("o") && !LabelMap::default().contains_key(""));
        assert_eq!(map, LabelMap::from([("os", "linux"), ("zone", "a"), ("arch", "amd64")]));
    }
}
