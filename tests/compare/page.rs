//! The part of docs/fidelity.md that this comparison writes: how often each system differs, and every difference of ours with
//! the reason, which is written by hand into the last column and kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write,
    fs,
    path::PathBuf,
};

use super::{differences::Difference, facts::Aspect};

const BEGIN: &str = "<!-- tests/compare writes: begin -->\n";
const END: &str = "<!-- tests/compare writes: end -->\n";
const COMMAND: &str = "KUBE_NODE_WRITE=1 cargo test --test real_node compare";
/// What stands where nobody has said why.
const UNEXPLAINED: &str = "?";

/// How a scenario went.
pub struct Row {
    pub scenario: &'static str,
    /// Places in which systems can differ.
    pub places: usize,
    /// In how many each other system does, ours first.
    pub differs: [usize; 4],
}

/// A fact that only one of the two shows, whatever the scenario: the aspect, and what only a kubelet or only ours shows.
type Kind = (Aspect, String, String);
type Kinds = BTreeMap<Kind, BTreeSet<String>>;

/// The rows of the second table: scenarios and the reason.
type Stored = BTreeMap<Kind, (BTreeSet<String>, String)>;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/fidelity.md")
}

/// Writes the tables, or compares those that are stored with what was found.
pub fn write_or_check(rows: &[Row], ours: &[Difference]) {
    let document = fs::read_to_string(path()).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the page says where");
    let (stored, after) = rest.split_once(END).expect("the page says how far");
    let (stored, found) = (read(stored), by_kind(ours));
    if env::var_os("KUBE_NODE_WRITE").is_some() {
        let tables = format!("{}\n{}", counts(rows), differences(found, &stored));
        return fs::write(path(), format!("{before}{BEGIN}{tables}{END}{after}")).unwrap();
    }
    let complaints = complaints(&found, &stored).join("\n");
    assert!(
        complaints.is_empty(),
        "mend these, or run `{COMMAND}` and say why in docs/fidelity.md:\n{complaints}"
    );
}

/// What was found and is not explained, and what is explained and was not found.
fn complaints(found: &Kinds, stored: &Stored) -> Vec<String> {
    let nothing = (BTreeSet::new(), UNEXPLAINED.to_owned());
    let mut complaints = Vec::new();
    for (kind, scenarios) in found {
        let (listed, why) = stored.get(kind).unwrap_or(&nothing);
        let new: Vec<_> = scenarios.difference(listed).collect();
        if why == UNEXPLAINED || !new.is_empty() {
            complaints.push(format!("not explained, of {new:?}: {kind:?}"));
        }
    }
    for (kind, (listed, _)) in stored.iter().filter(|(kind, _)| !may_pass(kind)) {
        let shown = found.get(kind).cloned().unwrap_or_default();
        let gone: Vec<_> = listed.difference(&shown).collect();
        if !gone.is_empty() {
            complaints.push(format!("explained, and no longer so, of {gone:?}: {kind:?}"));
        }
    }
    complaints
}

/// Whether a real kubelet may do without it another time: what is listed of it is what was ever seen.
fn may_pass((aspect, ..): &Kind) -> bool {
    matches!(aspect, Aspect::Phases | Aspect::Conditions | Aspect::Containers | Aspect::Events)
}

fn by_kind(ours: &[Difference]) -> Kinds {
    let mut kinds = Kinds::new();
    for Difference { aspect, missing, extra, scenario } in ours {
        let missing = missing.iter().map(|fact| (*aspect, cell(fact), String::new()));
        let extra = extra.iter().map(|fact| (*aspect, String::new(), cell(fact)));
        for kind in missing.chain(extra) {
            kinds.entry(kind).or_default().insert((*scenario).to_owned());
        }
    }
    kinds
}

/// A fact as it stands in a table.
fn cell(fact: &str) -> String {
    format!("`{}`", fact.replace('|', "/"))
}

fn counts(rows: &[Row]) -> String {
    let mut table =
        "| scenario | places | kube-node | KWOK, `pod/fast` | KWOK, `pod/general` | kubemark |\n| --- | --- | --- | --- | --- | --- |\n".to_owned();
    let mut line = |name: &str, places: usize, [ours, fast, general, kubemark]: [usize; 4]| {
        let _ = writeln!(table, "| {name} | {places} | {ours} | {fast} | {general} | {kubemark} |");
    };
    for Row { scenario, places, differs } in rows {
        line(scenario, *places, *differs);
    }
    let sum = |of: &dyn Fn(&Row) -> usize| rows.iter().map(of).sum();
    let differs = [0, 1, 2, 3].map(|system| sum(&|row: &Row| row.differs[system]));
    line("**all**", sum(&|row: &Row| row.places), differs);
    table
}

fn differences(found: Kinds, stored: &Stored) -> String {
    let mut all = found;
    for (kind, (scenarios, _)) in stored.iter().filter(|(kind, _)| may_pass(kind)) {
        all.entry(kind.clone()).or_default().extend(scenarios.iter().cloned());
    }
    let mut table =
        "| of | a kubelet alone | kube-node alone | why |\n| --- | --- | --- | --- |\n".to_owned();
    for (kind, scenarios) in all {
        let why = stored.get(&kind).map_or(UNEXPLAINED, |(_, why)| why);
        let scenarios = scenarios.into_iter().collect::<Vec<_>>().join(", ");
        let (aspect, missing, extra) = &kind;
        let _ = writeln!(table, "| {}: {scenarios} | {missing} | {extra} | {why} |", aspect.name());
    }
    table
}

/// The differences in a stored table, with their reasons.
fn read(stored: &str) -> Stored {
    let rows = stored.lines().filter_map(|line| {
        let inner = line.strip_prefix('|')?.strip_suffix('|')?;
        let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
        let [of, missing, extra, why] = cells[..] else { return None };
        let (aspect, scenarios) = of.split_once(": ")?;
        let aspect = Aspect::ALL.into_iter().find(|known| known.name() == aspect)?;
        let scenarios = scenarios.split(", ").map(str::to_owned).collect();
        Some(((aspect, missing.to_owned(), extra.to_owned()), (scenarios, why.to_owned())))
    });
    rows.collect()
}

pub mod tests {
    #[allow(clippy::wildcard_imports, reason = "tests of this file, in no module that only tests have")]
    use super::*;

    fn difference(aspect: Aspect, scenario: &'static str) -> Difference {
        Difference { aspect, missing: vec!["Failed".to_owned()], extra: vec![], scenario }
    }

    pub fn a_table_is_read_as_it_was_written_and_reasons_are_kept() {
        let found = by_kind(&[difference(Aspect::Status, "plain"), difference(Aspect::Status, "two")]);
        let table = differences(found.clone(), &Stored::new());
        assert_eq!(complaints(&found, &read(&table)).len(), 1, "nobody has said why");
        let explained = table.replace("| ? |", "| one write less |");
        assert_eq!(complaints(&found, &read(&explained)), [""; 0]);
        assert_eq!(differences(found, &read(&explained)), explained);
    }

    pub fn what_is_not_listed_and_what_is_stale_is_told() {
        let [one, two] = ["plain", "two"].map(|scenario| by_kind(&[difference(Aspect::Status, scenario)]));
        let stored = read(&differences(one.clone(), &Stored::new()).replace("| ? |", "| so |"));
        assert_eq!(complaints(&one, &stored).len(), 0);
        assert_eq!(complaints(&two, &stored).len(), 2, "one is new, one is gone");
        assert_eq!(complaints(&Kinds::new(), &stored).len(), 1);
        let passing = by_kind(&[difference(Aspect::Phases, "plain")]);
        let stored = read(&differences(passing, &Stored::new()).replace("| ? |", "| so |"));
        assert_eq!(complaints(&Kinds::new(), &stored).len(), 0, "it may pass unseen");
    }
}
