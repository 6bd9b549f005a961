//! Interner of values that many objects have in common: specs of pods of one template, and strings (labels,
//! types and reasons of conditions).

use std::{
    borrow::Borrow,
    collections::HashSet,
    hash::Hash,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

/// Minimum number of values before the first sweep for unused ones.
const FIRST_SWEEP: usize = 256;

/// Interned values.
pub struct Interner<T: ?Sized> {
    values: Mutex<Values<T>>,
}

struct Values<T: ?Sized> {
    known: HashSet<Arc<T>>,
    /// Number of values at which unused ones are swept.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { values: Mutex::new(Values { known: HashSet::new(), sweep_at: FIRST_SWEEP }) }
    }
}

impl<T: Eq + Hash + ?Sized> Interner<T> {
    /// The interned form of a value.
    pub fn share(&self, value: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        let mut values = self.values.lock();
        if let Some(known) = values.known.get(value.borrow()) {
            return Arc::clone(known);
        }
        if values.known.len() >= values.sweep_at {
            values.known.retain(|known| Arc::strong_count(known) > 1);
            // At least half of the values are new by the next sweep, so the amortized cost of a value is
            // constant.
            values.sweep_at = FIRST_SWEEP.max(2 * values.known.len());
        }
        let new: Arc<T> = value.into();
        values.known.insert(Arc::clone(&new));
        new
    }
}

/// An interned string.
pub type InternedStr = Arc<str>;

static STRINGS: LazyLock<Interner<str>> = LazyLock::new(Interner::default);

/// The interned form of a string.
pub fn intern(text: &str) -> InternedStr {
    STRINGS.share(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_kept_once() {
        assert!(Arc::ptr_eq(&intern("Ready"), &intern("Ready")));
        assert_eq!(&*intern("x"), "x");
    }

    #[test]
    fn a_value_is_kept_once_and_not_longer_than_somebody_has_it() {
        let interner = Interner::<str>::default();
        let shared = interner.share("in use");
        assert!(Arc::ptr_eq(&shared, &interner.share("in use")));
        for number in 0..10 * FIRST_SWEEP {
            interner.share(number.to_string());
        }
        assert!(interner.values.lock().known.len() <= FIRST_SWEEP + 1);
        assert!(Arc::ptr_eq(&shared, &interner.share("in use")));
    }
}
