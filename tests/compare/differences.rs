//! Where a system differs from the real one.

use std::collections::BTreeSet;

use super::facts::{Aspect, Fact, Facts};

/// One place: what only the real one shows there, and what only the other one does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    pub aspect: Aspect,
    pub missing: Vec<String>,
    pub extra: Vec<String>,
    pub scenario: &'static str,
}

/// The places of a scenario where `other` differs from `real`.
pub fn between(scenario: &'static str, real: &Facts, other: &Facts) -> Vec<Difference> {
    let aspects: BTreeSet<Aspect> = real.keys().chain(other.keys()).copied().collect();
    let of = |facts: &Facts, aspect: &Aspect| facts.get(aspect).cloned().unwrap_or_default();
    let without = |one: &[Fact], two: &[Fact]| -> Vec<Fact> {
        one.iter().filter(|fact| !two.iter().any(|other| other.text == fact.text)).cloned().collect()
    };
    let texts = |facts: Vec<Fact>| facts.into_iter().map(|fact| fact.text).collect();
    let places = aspects.into_iter().map(|aspect| {
        let (real, other) = (of(real, &aspect), of(other, &aspect));
        let mut extra = without(&other, &real);
        extra.retain(|fact| !fact.passes);
        Difference { aspect, missing: texts(without(&real, &other)), extra: texts(extra), scenario }
    });
    places.filter(|place| !place.missing.is_empty() || !place.extra.is_empty()).collect()
}

pub mod tests {
    #[allow(clippy::wildcard_imports, reason = "tests of this file, in no module that only tests have")]
    use super::*;

    fn facts(rows: &[(Aspect, &[&str])]) -> Facts {
        let fact = |text: &&str| Fact { text: (*text).to_owned(), passes: text.starts_with("waiting") };
        rows.iter().map(|(aspect, lines)| (*aspect, lines.iter().map(fact).collect())).collect()
    }

    fn found(real: &Facts, other: &Facts) -> Vec<(Aspect, Vec<String>, Vec<String>)> {
        let found = between("plain", real, other).into_iter();
        found.map(|place| (place.aspect, place.missing, place.extra)).collect()
    }

    pub fn what_is_missing_and_what_is_extra_is_one_place() {
        let texts_of = |texts_of: &[&str]| texts_of.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let real = facts(&[(Aspect::Phases, &["Failed"]), (Aspect::Events, &["Pulled", "Started"])]);
        assert_eq!(found(&real, &real), []);
        let other = facts(&[(Aspect::Phases, &["Succeeded"]), (Aspect::Events, &["Started"])]);
        let expected = [
            (Aspect::Phases, texts_of(&["Failed"]), texts_of(&["Succeeded"])),
            (Aspect::Events, texts_of(&["Pulled"]), texts_of(&[])),
        ];
        assert_eq!(found(&real, &other), expected);
        assert_eq!(found(&real, &Facts::new()).len(), 2, "a system that shows nothing");
    }

    pub fn a_step_that_a_slow_kubelet_left_out_is_no_difference_and_one_that_is_missing_is() {
        let short = facts(&[(Aspect::Containers, &["running"])]);
        let long = facts(&[(Aspect::Containers, &["waiting", "running"])]);
        assert_eq!(found(&short, &long), []);
        assert_eq!(found(&long, &short).len(), 1);
    }
}
