//! Interned strings that thousands of objects have in common (labels, types and reasons of conditions).

use std::sync::{Arc, LazyLock};

use super::interner::Interner;

/// An interned string.
pub type InternedStr = Arc<str>;

static WORDS: LazyLock<Interner<str>> = LazyLock::new(Interner::default);

/// The interned form of a text.
#[must_use]
pub fn word(text: &str) -> InternedStr {
    WORDS.share(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_kept_once() {
        assert!(Arc::ptr_eq(&word("Ready"), &word("Ready")));
        assert_eq!(&*word("x"), "x");
    }
}
