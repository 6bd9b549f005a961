//! Documents of a YAML file, as leaves with their paths. No I/O.
//!
//! Inputs: text with documents, and lists as kubectl writes them. Outputs: a document for each object, and one for each list
//! without its items; a line for each object or part of the text that cannot be read. Invariants: a value that JSON cannot
//! express, or a key that is there twice, cannot be read; the other objects can.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;
use serde_norway::Value as Yaml;

use super::ledger::{Leaves, Path};

/// Kind of a provider configuration.
pub(super) const CONFIG: &str = "KubemarkMachineProviderConfig";
/// API versions of Machines, MachineSets and MachineDeployments.
pub(super) const API_VERSIONS: [&str; 2] = ["cluster.k8s.io/v1alpha1", "machine.openshift.io/v1beta1"];
/// Places of a provider configuration in the specification of a machine; the second one is the older.
const CONFIG_FIELDS: [&str; 2] = ["providerSpec.value", "providerConfig.value"];

/// An object of the input.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) leaves: Leaves,
    pub(super) kind: Kind,
    /// Kind and name for messages.
    pub(super) subject: String,
}

/// Kinds that `convert` tells apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A provider configuration by itself.
    Config,
    Machine,
    MachineSet,
    MachineDeployment,
    /// A list without its items.
    List,
    /// Any other kind, with the reason why it is not converted; no reason where advice by its kind has to say it.
    Other(Option<String>),
}

impl Kind {
    fn of(kind: &str, api_version: &str) -> Self {
        let machines = match kind {
            CONFIG => return Self::Config,
            "Machine" => Self::Machine,
            "MachineSet" => Self::MachineSet,
            "MachineDeployment" => Self::MachineDeployment,
            _ if kind.ends_with("List") => return Self::List,
            _ => return Self::Other(None),
        };
        if API_VERSIONS.contains(&api_version) {
            return machines;
        }
        let known = API_VERSIONS.join(" and ");
        Self::Other(Some(format!("its apiVersion is {api_version:?}, and kube-node convert reads {known}")))
    }

    /// Path of the specification of the machine.
    pub(super) fn machine(&self) -> Path {
        Path::default().at(if *self == Self::Machine { "spec" } else { "spec.template.spec" })
    }

    /// Path of the metadata of the machine.
    pub(super) fn machine_metadata(&self) -> Path {
        Path::default().at(if *self == Self::Machine { "metadata" } else { "spec.template.metadata" })
    }
}

impl Document {
    fn new(value: &Yaml, subject: String) -> anyhow::Result<Self> {
        let mut leaves = Leaves::new();
        flatten(value, &Path::default(), &mut leaves)?;
        let text =
            |path: &str| leaves.get(&Path::default().at(path)).and_then(Value::as_str).unwrap_or_default();
        let kind = Kind::of(text("kind"), text("apiVersion"));
        Ok(Self { leaves, kind, subject })
    }

    /// Text at a path.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.leaves.get(&Path::default().at(path))?.as_str().filter(|text| !text.is_empty())
    }

    /// Path of the provider configuration.
    pub(super) fn config(&self) -> Option<Path> {
        match self.kind {
            Kind::Config => return Some(Path::default()),
            Kind::List | Kind::Other(_) => return None,
            Kind::Machine | Kind::MachineSet | Kind::MachineDeployment => {}
        }
        let is_config = |path: &Path| self.leaves.get(&path.at("kind")).is_some_and(|kind| kind == CONFIG);
        self.config_places().map(|(_, place)| place).find(is_config)
    }

    /// Places where a provider configuration can be, with their names.
    pub(super) fn config_places(&self) -> impl Iterator<Item = (&'static str, Path)> {
        let machine = self.kind.machine();
        CONFIG_FIELDS.into_iter().map(move |field| (field, machine.at(field)))
    }
}

/// All documents of a text, and lines that name what cannot be read.
pub(super) fn read(text: &str) -> (Vec<Document>, Vec<String>) {
    let (mut documents, mut unread, mut at) = (Vec::new(), Vec::new(), 0);
    for (line, piece) in pieces(text) {
        // The empty lines are for the line number in the error.
        match parse(piece).or_else(|_| parse(&format!("{}{piece}", "\n".repeat(line)))) {
            Ok((values, has_merges)) => {
                for mut value in values {
                    at += 1;
                    let mut has_unmerged = false;
                    if has_merges {
                        let mut merged = value.clone();
                        // One item of a list that cannot be merged does not stop the others: `open` merges each.
                        match merge(&mut merged) {
                            Ok(()) => value = merged,
                            Err(_) => has_unmerged = true,
                        }
                    }
                    if !value.is_null() {
                        open(value, at, has_unmerged, &mut documents, &mut unread);
                    }
                }
            }
            Err(error) => {
                at += 1;
                unread.push(format!("document {at}: not converted: correct this part of it: {error}"));
            }
        }
    }
    name_namespaces(&mut documents);
    (documents, unread)
}

/// Splits a text at its `---` lines, which no value contains. Each piece has the number of lines before it.
fn pieces(text: &str) -> Vec<(usize, &str)> {
    let is_marker = |line: &str| {
        let rest = line.strip_prefix("---");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_whitespace()))
    };
    let (mut pieces, mut begin, mut first, mut end) = (Vec::new(), 0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if is_marker(line) {
            pieces.push((first, &text[begin..end]));
            (begin, first) = (end, number);
        }
        end += line.len();
    }
    pieces.push((first, &text[begin..]));
    // Comments and directives before the first `---` are no document.
    let is_empty =
        |piece: &str| piece.lines().all(|line| line.trim().is_empty() || line.starts_with(['#', '%']));
    if pieces.len() > 1 && is_empty(pieces[0].1) {
        pieces.remove(0);
    }
    pieces
}

/// Values of a piece: several, if JSON objects follow each other. True if they may have merge keys, which JSON does not have.
fn parse(piece: &str) -> serde_norway::Result<(Vec<Yaml>, bool)> {
    let json = piece.strip_prefix("---").unwrap_or(piece).trim_start();
    if json.starts_with(['{', '['])
        && let Ok(values) = serde_json::Deserializer::from_str(json).into_iter().collect()
    {
        // JSON has escapes that YAML does not have.
        return Ok((values, false));
    }
    let values = serde_norway::Deserializer::from_str(piece).map(Yaml::deserialize);
    Ok((values.collect::<Result<_, _>>()?, piece.contains("<<")))
}

/// Applies all merge keys of a value.
fn merge(value: &mut Yaml) -> serde_norway::Result<()> {
    let mut before = Yaml::Null;
    // What is merged may have merge keys of its own.
    while *value != before {
        before = value.clone();
        value.apply_merge()?;
    }
    Ok(())
}

/// Adds an object, or the items of a list and the rest of the list.
fn open(
    mut value: Yaml,
    at: usize,
    has_merges: bool,
    documents: &mut Vec<Document>,
    unread: &mut Vec<String>,
) {
    let is_list = value["kind"].as_str().is_some_and(|kind| Kind::of(kind, "") == Kind::List);
    if is_list && let Some(Yaml::Sequence(items)) = value.get_mut("items") {
        for item in std::mem::take(items) {
            open(item, at, has_merges, documents, unread);
        }
    }
    let merged = if has_merges { merge(&mut value) } else { Ok(()) };
    let subject = subject(&value, at);
    match merged.map_err(Into::into).and_then(|()| Document::new(&value, subject.clone())) {
        Ok(document) => documents.push(document),
        Err(error) => unread.push(format!("{subject}: not converted: {error:#}")),
    }
}

/// Kind and name of an object for messages.
fn subject(value: &Yaml, at: usize) -> String {
    let metadata = &value["metadata"];
    let mut names = ["name", "generateName"].into_iter().filter_map(|field| metadata[field].as_str());
    match (value["kind"].as_str().unwrap_or_default(), names.find(|name| !name.is_empty())) {
        ("", _) => format!("document {at}"),
        (kind, Some(name)) => format!("{kind} {name}"),
        (kind, None) => format!("{kind} in document {at}"),
    }
}

/// Adds namespaces to the subjects of objects with the same kind and name.
fn name_namespaces(documents: &mut [Document]) {
    let mut counts = BTreeMap::<String, usize>::new();
    for document in documents.iter() {
        *counts.entry(document.subject.clone()).or_default() += 1;
    }
    for document in documents {
        let namespace = document.text("metadata.namespace").map(|name| format!(" in namespace {name}"));
        if let Some(namespace) = namespace.filter(|_| counts.get(&document.subject) > Some(&1)) {
            document.subject += &namespace;
        }
    }
}

fn flatten(value: &Yaml, path: &Path, leaves: &mut Leaves) -> anyhow::Result<()> {
    let leaf = match value {
        Yaml::Mapping(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let key = match key {
                    Yaml::String(key) => key.clone(),
                    other => serde_norway::to_string(other)?.trim_end().to_owned(),
                };
                flatten(value, &path.key(&key), leaves)?;
            }
            return Ok(());
        }
        Yaml::Sequence(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                flatten(item, &path.item(at), leaves)?;
            }
            return Ok(());
        }
        Yaml::Number(number) if number.as_f64().is_some_and(|number| !number.is_finite()) => {
            bail!("{path} is {number}: write a finite number")
        }
        Yaml::Tagged(tagged) => bail!("{path} has the tag {}: write the value without a tag", tagged.tag),
        leaf => serde_json::to_value(leaf).with_context(|| format!("{path} is no JSON"))?,
    };
    match leaves.insert(path.clone(), leaf) {
        Some(_) => Err(anyhow!("{path} is there twice: remove one of the two")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(text: &str) -> Vec<String> {
        let (documents, unread) = read(text);
        assert!(unread.is_empty(), "{unread:?}");
        documents.into_iter().map(|document| document.subject).collect()
    }

    #[test]
    fn lists_are_opened() {
        let text = "kind: List\nitems:\n- {kind: Machine, metadata: {name: a}}\n- {kind: MachineList, items: [{kind: Machine}]}\n---\n---\n7\n";
        assert_eq!(
            subjects(text),
            [
                "Machine a",
                "Machine in document 1",
                "MachineList in document 1",
                "List in document 1",
                "document 3"
            ]
        );
    }

    #[test]
    fn what_json_cannot_express_is_named_and_stops_nothing_else() {
        for (bad, wanted) in [
            ("a: [", "document 2: not converted: correct this part of it: "),
            ("a:\n\tb: c", "correct this part of it: found character that cannot start any token at line 6 "),
            ("a: *b", "unknown anchor at line 5 column 4"),
            ("a: 1\na: 2", "duplicate entry with key \"a\""),
            ("{\"a\": 1, \"a\": 2}", "duplicate entry with key \"a\""),
            ("a: 99999999999999999999", "correct this part of it: "),
            ("a: {b: .nan}", "document 2: not converted: a.b is .nan: write a finite number"),
            (
                "kind: A\na: !b c",
                "A in document 2: not converted: a has the tag !b: write the value without a tag",
            ),
            ("{1: a, \"1\": b}", "1 is there twice"),
        ] {
            let (documents, unread) = read(&format!("# a\n---\nkind: X\n---\n{bad}\n--- # c\nkind: Z\n"));
            let subjects: Vec<&str> = documents.iter().map(|document| document.subject.as_str()).collect();
            assert_eq!(subjects, ["X in document 1", "Z in document 3"], "{bad}");
            assert!(unread.len() == 1 && unread[0].contains(wanted), "{bad}: {unread:?}");
        }
        for bad in ["b: .inf", "<<: 5"] {
            let (documents, unread) =
                read(&format!("kind: List\nitems: [{{kind: A, {bad}}}, {{kind: B}}]\n"));
            assert_eq!((documents.len(), unread.len()), (2, 1), "{bad}");
            assert!(unread[0].starts_with("A in document 1: not converted: "), "{unread:?}");
        }
    }

    #[test]
    fn json_objects_may_follow_each_other() {
        assert_eq!(subjects("{\"kind\": \"\\ud83d\\ude00\"}\n{\"kind\": \"B\"}").len(), 2);
        assert_eq!(subjects("{kind: A}\n---\n{\"kind\": \"B\"}"), ["A in document 1", "B in document 2"]);
    }

    #[test]
    fn merge_keys_are_applied() {
        let (documents, _) = read("a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, z: 3}\n");
        let leaves = &documents[0].leaves;
        let of_c = ["c.x", "c.y", "c.z"].map(|path| leaves[&Path::default().at(path)].clone());
        assert_eq!((leaves.len(), of_c), (7, [1, 2, 3].map(Value::from)));
    }

    #[test]
    fn equal_names_have_their_namespaces() {
        let text =
            ["a", "b"].map(|namespace| format!("kind: X\nmetadata: {{name: n, namespace: {namespace}}}\n"));
        assert_eq!(subjects(&text.join("---\n")), ["X n in namespace a", "X n in namespace b"]);
    }
}
