//! Owners: an object beside its owner is not converted again, and each difference between them is named. No I/O.
//!
//! A MachineDeployment owns MachineSets, and a MachineSet owns Machines. The NodeSet of the outermost owner stands for all.

use serde_json::{Value, json};

use super::{
    config::API_VERSION,
    document::{Document, Kind},
    ledger::{Ledger, Path},
    machines,
};

/// Label that the controller of MachineDeployments adds to its MachineSets and their Machines.
const TEMPLATE_HASH: &str = "machine-template-hash";

/// The outermost owner among other documents that is converted.
pub(super) fn owner<'a>(document: &Document, documents: &'a [Document]) -> Option<&'a Document> {
    let (kind, name) = match document.kind {
        Kind::Machine => (Kind::MachineSet, "MachineSet"),
        Kind::MachineSet => (Kind::MachineDeployment, "MachineDeployment"),
        _ => return None,
    };
    let references = Path::default().at("metadata.ownerReferences");
    let field = |at: usize, field: &str| document.leaves.get(&references.item(at).at(field))?.as_str();
    // A reference always has a kind.
    let owners = (0..).map_while(|at| Some((field(at, "kind")?, field(at, "name"))));
    let names: Vec<_> = owners.filter(|(kind, _)| *kind == name).filter_map(|(_, name)| name).collect();
    let namespace = document.text("metadata.namespace");
    // A file for kubectl may leave the namespace to the command line.
    let is_near = |other: &&Document| match (namespace, other.text("metadata.namespace")) {
        (Some(own), Some(other)) => own == other,
        _ => true,
    };
    let is_named = |other: &&Document| other.text("metadata.name").is_some_and(|name| names.contains(&name));
    let owners = documents.iter().filter(|other| other.kind == kind).filter(is_named).filter(is_near);
    let nearest = owners.min_by_key(|other| other.text("metadata.namespace") != namespace)?;
    owner(nearest, documents).or_else(|| nearest.config().is_some().then_some(nearest))
}

/// Compares a document with its owner. Differences stay open, and so do fields that only the owner has.
pub(super) fn compare(document: &Document, owner: &Document) -> Ledger {
    let root = Path::default();
    let (mut ledger, owners) = (stripped(document), stripped(owner));
    if let Some(name) = document.leaves.get(&root.at("metadata.name")) {
        // The note about objects with an owner has the name.
        ledger.same(&root.at("metadata.name"), name);
    }
    ledger.leave_out(&root.at("metadata.generateName"));
    ledger.leave_out(&root.at("metadata.ownerReferences"));
    ledger.leave_out(&document.kind.machine().at("providerID"));
    // Places with the same meaning, in the document and in its owner.
    let mut places: Vec<(Path, Path)> = document.config().zip(owner.config()).into_iter().collect();
    for field in ["labels", "annotations"] {
        places.push((document.kind.machine_metadata().at(field), owner.kind.machine_metadata().at(field)));
    }
    places.push((document.kind.machine(), owner.kind.machine()));
    if document.kind == Kind::MachineSet {
        for (field, _, _) in machines::SET_RULES {
            places.push((root.at(field), root.at(field)));
        }
    }
    for (leaf, value) in owners.open() {
        let own = places.iter().find_map(|(own, owners)| leaf.moved(owners, own));
        if let Some(own) = own.filter(|own| !document.leaves.contains_key(own))
            && !is_default(&own, value)
        {
            ledger.add(own, format!("not set here, {} has {value}", owner.subject));
        }
    }
    if document.kind == Kind::MachineSet {
        // The controller copies annotations to the MachineSet itself, and labels of the template.
        places.push((root.at("spec"), root.at("spec")));
        places.push((root.at("metadata"), root.at("metadata")));
        places.push((root.at("metadata.labels"), owner.kind.machine_metadata().at("labels")));
    }
    for (own, place) in &places {
        ledger.same_below(own, owners.open(), place);
    }
    for path in document.leaves.keys() {
        ledger.refuse(path, format!("{} has another value or none", owner.subject));
    }
    ledger
}

/// The leaves that people write.
fn stripped(document: &Document) -> Ledger {
    let mut ledger = Ledger::new(document.leaves.clone());
    machines::object(document, &mut ledger);
    for labels in [
        "metadata.labels",
        "spec.selector.matchLabels",
        "spec.template.metadata.labels",
        "spec.template.spec.metadata.labels",
    ] {
        ledger.leave_out(&Path::default().at(labels).key(TEMPLATE_HASH));
    }
    ledger
}

/// Returns true for a value that a field without a value has as well.
fn is_default(path: &Path, value: &Value) -> bool {
    let defaults = [json!(null), json!(""), json!(false), json!(0), json!("0s"), json!({}), json!([])];
    defaults.contains(value)
        || *value == API_VERSION
        || (*path == Path::default().at("spec.replicas") && *value == 1)
}

#[cfg(test)]
mod tests {
    use super::{super::document::read, *};

    const SET: &str = "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineSet\nmetadata: {name: s, namespace: NS}\nspec: {template: {spec: {providerSpec: {value: {kind: KubemarkMachineProviderConfig}}}}}\n";
    const MACHINE: &str = "apiVersion: cluster.k8s.io/v1alpha1\nkind: Machine\nmetadata: {name: m, namespace: NS, ownerReferences: [{kind: Cluster, name: s}, {kind: MachineSet, name: s}]}\n";

    #[test]
    fn an_owner_is_found_by_its_name_and_namespace() {
        for (machine, set, is_owned) in
            [("n", "n", true), ("n", "o", false), ("n", "", true), ("", "n", true), ("", "", true)]
        {
            let text = format!("{}---\n{}", SET.replace("NS", set), MACHINE.replace("NS", machine));
            let (documents, _) = read(&text);
            assert_eq!(owner(&documents[1], &documents).is_some(), is_owned, "{machine} {set}");
            assert!(owner(&documents[0], &documents).is_none());
        }
    }

    #[test]
    fn only_an_owner_that_is_converted_stands_for_its_machines() {
        let other = SET.replace("Kubemark", "AWS");
        let (documents, _) = read(&format!("{other}---\n{MACHINE}").replace("NS", "n"));
        assert!(owner(&documents[1], &documents).is_none());
    }

    #[test]
    fn the_outermost_owner_stands_for_all() {
        let deployment = SET.replace("MachineSet", "MachineDeployment").replace("name: s", "name: d");
        let set = SET.replace("name: s", "name: s, ownerReferences: [{kind: MachineDeployment, name: d}]");
        let (documents, _) = read(&format!("{MACHINE}---\n{set}---\n{deployment}").replace("NS", "n"));
        let owners = documents.iter().map(|document| owner(document, &documents));
        let owners: Vec<_> = owners.map(|owner| owner.map_or("", |owner| owner.subject.as_str())).collect();
        assert_eq!(owners, ["MachineDeployment d", "MachineDeployment d", ""]);
    }
}
