//! Words that thousands of objects have in common (labels, types and reasons of conditions), kept once.

use std::sync::{Arc, LazyLock};

use super::pool::Pool;

/// A shared word.
pub type Word = Arc<str>;

static WORDS: LazyLock<Pool<str>> = LazyLock::new(Pool::default);

/// The shared form of a text.
#[must_use]
pub fn word(text: &str) -> Word {
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
