//! Property: every leaf of a generated object is in the output at the place that its rule says, or a line names it.
//!
//! [`violations`] compares the expectations with a result; that it finds a value that vanished is tested with results from which
//! one was taken.

use proptest::prelude::*;

use super::{
    cases::{Case, Fate, KINDS, any_case, leaves, shown},
    *,
};

fn result(case: &Case) -> Converted {
    converted(None, "f.yaml", &case.value.to_string())
}

/// Expectations that a result does not meet.
fn violations(case: &Case, result: &Converted) -> Vec<String> {
    let mut all = Vec::new();
    leaves(&case.value, &[], &mut all);
    let expected: BTreeSet<&str> = case.fates.iter().map(|(path, _)| path.as_str()).collect();
    let mut found: Vec<String> = all.iter().map(|leaf| shown(leaf)).collect();
    found.retain(|leaf| !expected.contains(leaf.as_str()));
    let prefix = format!("{} case: not converted: ", case.kind);
    let named = result.lost.iter().filter_map(|line| line.strip_prefix(&prefix)?.split_once(": "));
    let named: Vec<&str> = named.map(|(path, _)| path).collect();
    let is_around = |around: &str, path: &str| {
        path.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    for (path, fate) in &case.fates {
        let is_named = named.iter().any(|around| is_around(around, path));
        let is_met = match fate {
            Fate::Placed(kind, pointer, value) => {
                let object = result.objects.iter().find(|object| object["kind"] == *kind);
                !is_named && object.and_then(|object| object.pointer(pointer)) == Some(value)
            }
            Fate::Lost => is_named,
            Fate::LeftOut => !is_named && result.left_out.iter().any(|around| is_around(around, path)),
            Fate::Noted => {
                let note = format!("{} case: note: {path} has no effect ", case.kind);
                !is_named && result.notes.iter().any(|line| line.starts_with(&note))
            }
            Fate::Implied => !is_named,
        };
        if !is_met {
            found.push(format!("{path}: {fate:?}"));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_leaf_has_its_place_or_is_named(case in any_case()) {
        let result = result(&case);
        let violations = violations(&case, &result);
        prop_assert!(violations.is_empty(), "{violations:#?}\n{:#}\n{result:#?}", case.value);
        prop_assert_eq!(result.objects.len(), if case.kind == KINDS[0] { 1 } else { 2 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The property can fail: a result that lost a line, or a value, does not have it.
    #[test]
    fn what_vanishes_is_noticed(case in any_case(), at in any::<prop::sample::Index>()) {
        let whole = result(&case);
        if whole.lost.is_empty() {
            prop_assert_eq!(case.planted, 0, "a planted field is always named");
        } else {
            let mut lost = result(&case);
            lost.lost.remove(at.index(whole.lost.len()));
            prop_assert!(!violations(&case, &lost).is_empty(), "{:?}", whole.lost);
        }
        let placed: Vec<_> = case.fates.iter().filter_map(|(_, fate)| match fate {
            Fate::Placed(kind, pointer, _) => Some((*kind, pointer)),
            _ => None,
        }).collect();
        let (kind, pointer) = placed[at.index(placed.len())];
        let mut lost = result(&case);
        let object = lost.objects.iter_mut().find(|object| object["kind"] == kind);
        *object.and_then(|object| object.pointer_mut(pointer)).unwrap() = Value::Null;
        prop_assert!(!violations(&case, &lost).is_empty(), "{pointer}");
    }
}
