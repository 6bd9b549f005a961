//! Words that thousands of objects have in common (types and reasons of conditions), kept once.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

/// A shared word.
pub type Word = Arc<str>;

/// Above this many a word is not shared: somebody makes up reasons, and the set must not grow for ever.
const MOST: usize = 1_024;

static WORDS: LazyLock<Mutex<HashSet<Word>>> = LazyLock::new(Mutex::default);

/// The shared form of a text.
#[must_use]
pub fn word(text: &str) -> Word {
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = words.get(text) {
        return Arc::clone(known);
    }
    let new = Word::from(text);
    if words.len() < MOST {
        words.insert(Arc::clone(&new));
    }
    new
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
