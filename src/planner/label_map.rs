//! The labels or annotations of an object that is kept thousands of times: a sorted slice, whose texts may be shared.

use std::sync::Arc;

/// Texts by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelMap(Box<[(Arc<str>, Arc<str>)]>);

impl LabelMap {
    /// The text of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        self.0.get(at).map(|(_, text)| &**text)
    }

    /// Whether there is a text of that key.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for LabelMap {
    /// Of texts with the same key the first stays.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(texts: I) -> Self {
        let mut all: Vec<(Arc<str>, Arc<str>)> =
            texts.into_iter().map(|(key, text)| (key.into(), text.into())).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all.dedup_by(|(next, _), (first, _)| next == first);
        Self(all.into())
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>, const N: usize> From<[(K, V); N]> for LabelMap {
    fn from(texts: [(K, V); N]) -> Self {
        texts.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_by_its_key_in_whatever_order_they_came() {
        let texts = LabelMap::from([("zone", "a"), ("arch", "amd64"), ("os", "linux"), ("zone", "b")]);
        assert_eq!(
            ["arch", "os", "zone"].map(|key| texts.get(key)),
            [Some("amd64"), Some("linux"), Some("a")]
        );
        assert!(
            texts.contains_key("os") && !texts.contains_key("o") && !LabelMap::default().contains_key("")
        );
        assert_eq!(texts, LabelMap::from([("os", "linux"), ("zone", "a"), ("arch", "amd64")]));
    }
}
