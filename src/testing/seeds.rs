//! Schedules by the thousand: which ones, and the first that fails, on all cores.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// Seeds that `KUBE_NODE_SEEDS` says; None: it is not set. Panics with what to write if they are none.
pub fn wanted() -> Option<Range<u64>> {
    let text = std::env::var("KUBE_NODE_SEEDS").ok()?;
    Some(parse(&text).unwrap_or_else(|error| panic!("{error}")))
}

/// The seeds from the first one to the one before the last one.
///
/// # Errors
/// Says how seeds are written if the text names none.
pub fn parse(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.filter(|range: &Range<u64>| !range.is_empty()).ok_or_else(|| {
        format!(
            "KUBE_NODE_SEEDS is the first seed and the one after the last, such as 0..1000 or 42..43, not {text}"
        )
    })
}

/// The first seed of these that fails, and how.
pub fn first_failure(
    seeds: Range<u64>,
    run: impl Fn(u64) -> Result<(), String> + Sync,
) -> Option<(u64, String)> {
    first_failure_until(seeds, |_| false, run)
}

/// The first seed that fails of these up to the one at which `ends` returns true.
pub fn first_failure_until(
    seeds: Range<u64>,
    ends: impl Fn(u64) -> bool + Sync,
    run: impl Fn(u64) -> Result<(), String> + Sync,
) -> Option<(u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let failed: Mutex<Option<(u64, String)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || ends(seed) || failed.lock().unwrap().is_some() {
                        return;
                    }
                    if let Err(error) = run(seed) {
                        let mut failed = failed.lock().unwrap();
                        // Those before it are under way: the first of them counts.
                        if failed.as_ref().is_none_or(|(known, _)| seed < *known) {
                            *failed = Some((seed, error));
                        }
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_seeds_is_refused() {
        assert_eq!(parse("42..43"), Ok(42..43));
        for text in ["42", "9..3", "5..5", "a..b", "0..=5", ""] {
            assert!(parse(text).unwrap_err().ends_with(&format!("not {text}")), "{text}");
        }
    }
}
