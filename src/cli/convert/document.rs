//! Documents of a YAML file, as leaves with their paths. No I/O.
//!
//! Inputs: text with documents, and lists as kubectl writes them. Outputs: a document for each object, and one for each list
//! without its items. Invariant: a value that JSON cannot express, or a key that is there twice, is an error.

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
    fn new(value: &Yaml, at: usize) -> anyhow::Result<Self> {
        let mut leaves = Leaves::new();
        flatten(value, &Path::default(), &mut leaves)?;
        let text = |path: &str| leaves.get(&Path::default().at(path)).and_then(Value::as_str);
        let kind = text("kind").unwrap_or_default();
        let subject = match (kind, text("metadata.name").or_else(|| text("metadata.generateName"))) {
            ("", _) => format!("document {at}"),
            (kind, Some(name)) => format!("{kind} {name}"),
            (kind, None) => format!("{kind} in document {at}"),
        };
        let kind = Kind::of(kind, text("apiVersion").unwrap_or_default());
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
        let machine = self.kind.machine();
        let mut fields = CONFIG_FIELDS.into_iter().map(|field| machine.at(field));
        fields.find(|path| self.leaves.get(&path.at("kind")).is_some_and(|kind| kind == CONFIG))
    }

    /// The owner among other documents: the MachineDeployment of a MachineSet, or the MachineSet of a Machine.
    pub(super) fn owner<'a>(&self, documents: &'a [Self]) -> Option<&'a Self> {
        let (kind, name) = match self.kind {
            Kind::Machine => (Kind::MachineSet, "MachineSet"),
            Kind::MachineSet => (Kind::MachineDeployment, "MachineDeployment"),
            _ => return None,
        };
        let references = Path::default().at("metadata.ownerReferences");
        let field = |at: usize, field: &str| self.leaves.get(&references.item(at).at(field))?.as_str();
        // A reference always has a kind.
        let owners = (0..).map_while(|at| Some((field(at, "kind")?, field(at, "name"))));
        let names: Vec<_> = owners.filter(|(kind, _)| *kind == name).map(|(_, name)| name).collect();
        documents.iter().find(|other| {
            other.kind == kind
                && other.text("metadata.namespace") == self.text("metadata.namespace")
                && other.text("metadata.name").is_some_and(|name| names.contains(&Some(name)))
        })
    }
}

/// All documents of a text.
pub(super) fn read(text: &str) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for (at, document) in serde_norway::Deserializer::from_str(text).enumerate() {
        let at = at + 1;
        let value = Yaml::deserialize(document).with_context(|| format!("document {at} is no YAML"))?;
        if !value.is_null() {
            open(value, at, &mut documents).with_context(|| format!("document {at} cannot be read"))?;
        }
    }
    Ok(documents)
}

/// Adds an object, or the items of a list and the rest of the list.
fn open(mut value: Yaml, at: usize, documents: &mut Vec<Document>) -> anyhow::Result<()> {
    let is_list = value["kind"].as_str().is_some_and(|kind| Kind::of(kind, "") == Kind::List);
    if is_list && let Some(Yaml::Sequence(items)) = value.get_mut("items").map(std::mem::take) {
        for item in items {
            open(item, at, documents)?;
        }
    }
    documents.push(Document::new(&value, at)?);
    Ok(())
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
        read(text).unwrap().into_iter().map(|document| document.subject).collect()
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
    fn what_json_cannot_express_is_refused() {
        let refused = |text: &str| format!("{:#}", read(text).unwrap_err());
        for (text, wanted) in [
            ("a: [\n", "document 1 is no YAML"),
            ("a: 1\n---\na: 1\na: 2\n", "document 2 is no YAML: duplicate entry with key \"a\""),
            ("a: {b: .nan}", "a.b is .nan: write a finite number"),
            ("a: !b c", "a has the tag !b: write the value without a tag"),
            ("{1: a, \"1\": b}", "1 is there twice"),
        ] {
            assert!(refused(text).contains(wanted), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn an_owner_is_found_by_its_name_and_namespace() {
        let set =
            "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineSet\nmetadata: {name: s, namespace: n}\n";
        let machine = "apiVersion: cluster.k8s.io/v1alpha1\nkind: Machine\nmetadata: {name: m, namespace: NS, ownerReferences: [{kind: Cluster, name: s}, {kind: MachineSet, name: s}]}\n";
        for (namespace, is_owned) in [("n", true), ("o", false)] {
            let documents = read(&format!("{set}---\n{}", machine.replace("NS", namespace))).unwrap();
            assert_eq!(documents[1].owner(&documents).is_some(), is_owned);
            assert!(documents[0].owner(&documents).is_none());
        }
    }
}
