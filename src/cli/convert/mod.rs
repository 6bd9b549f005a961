//! `kube-node convert`: converts kubemark machines of the Cluster API to NodeClasses and NodeSets.
//!
//! Input: Machines, MachineSets and MachineDeployments with a provider configuration, and provider configurations by themselves.
//! Output: a NodeClass for each configuration, and a NodeSet for each object around one.
//!
//! Invariant: each value of the input is in the output, or a line names it; a field that is there without a value is as good as
//! absent. What cannot be read or converted stops nothing else. [`ledger`] keeps the accounts; [`machines`], [`owners`] and
//! [`config`] have the rules.

mod config;
mod document;
mod fields;
mod ledger;
mod machines;
mod owners;
mod syntax;
mod values;

use std::{
    collections::BTreeSet,
    path::{Path as FilePath, PathBuf},
    process::ExitCode,
};

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use self::{
    document::{CONFIG, Document, Kind},
    ledger::{Ledger, Path},
};
use super::{import::Names, manifest};

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// File with Machines, MachineSets, MachineDeployments or provider configurations; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Name of the NodeClass and NodeSet; that of the object in the file, or of the file, when absent
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Return exit code 0 even if a part of the file is not converted
    #[arg(long)]
    allow_loss: bool,
}

impl Convert {
    /// Prints the objects. Returns exit code 1 if a part of the file is not converted.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self { file, name, allow_loss } = self;
        let converted = convert(&manifest::read(&file)?, &file, name.as_deref());
        for object in &converted.objects {
            super::print_line(manifest::document(object)?);
        }
        converted.lines().for_each(super::print_note);
        if converted.objects.is_empty() {
            bail!(
                "{} holds no KubemarkMachineProviderConfig that can be converted: its kind must be that, in a document of its own or in providerSpec.value of a Machine, MachineSet or MachineDeployment",
                file.display()
            );
        }
        let is_success = allow_loss || converted.lost.is_empty();
        Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The result for a file.
#[derive(Debug, Default)]
struct Converted {
    /// NodeClasses and NodeSets.
    objects: Vec<Value>,
    /// Parts of the file that are not converted, each with its object, its path and advice.
    lost: Vec<String>,
    notes: Vec<String>,
    /// Paths that are left out on purpose, in any object.
    left_out: BTreeSet<String>,
}

impl Converted {
    /// All that is not in the objects.
    fn lines(&self) -> impl Iterator<Item = String> {
        let paths: Vec<&str> = self.left_out.iter().map(String::as_str).collect();
        let left_out = (!paths.is_empty()).then(|| {
            format!(
                "note: left out, since servers and controllers write it, or a NodeSet has no namespace: {}",
                paths.join(", ")
            )
        });
        self.lost.iter().chain(&self.notes).cloned().chain(left_out)
    }

    /// Adds the class, and the set, of a document with a provider configuration.
    fn convert(&mut self, document: &Document, config: &Path, name: &str) {
        let mut ledger = Ledger::new(document.leaves.clone());
        let mut class = manifest::object("NodeClass", name, json!({ "nodeController": "kubemark" }));
        let mut set = manifest::object("NodeSet", name, json!({ "nodeClassName": name }));
        if document.kind == Kind::Config {
            machines::of_name(&mut ledger, &class);
        } else {
            machines::convert(document, &mut ledger, &mut set, &mut class);
            for (field, place) in document.config_places().filter(|(_, place)| place != config) {
                ledger.refuse(&place, format!("the configuration is read from {config}: remove {field}"));
            }
        }
        config::convert(&mut ledger, config, &mut class);
        self.close(&document.subject, ledger, Some(config));
        self.objects.push(class);
        self.objects.extend((document.kind != Kind::Config).then_some(set));
    }

    /// Adds the differences between a document and its owner.
    fn compare(&mut self, document: &Document, owner: &Document) {
        self.close(&document.subject, owners::compare(document, owner), None);
        self.notes
            .push(format!("{}: note: the NodeSet of {} stands for it", document.subject, owner.subject));
    }

    /// Names a document without a provider configuration.
    fn refuse(&mut self, document: &Document) {
        let reason = match &document.kind {
            Kind::List => {
                let mut ledger = Ledger::new(document.leaves.clone());
                machines::of_list(document, &mut ledger);
                return self.close(&document.subject, ledger, None);
            }
            Kind::Other(Some(reason)) => reason.clone(),
            Kind::Other(None) => fields::of_object(document.text("kind").unwrap_or_default()),
            _ => without_config(document),
        };
        self.lost.push(format!("{}: not converted: {reason}", document.subject));
    }

    /// Takes over the ledger of a document. Leaves without a reason get the advice for the inside or outside of `config`.
    fn close(&mut self, subject: &str, ledger: Ledger, config: Option<&Path>) {
        let closed = ledger.close();
        for (path, reason) in closed.lost {
            let reason = reason.unwrap_or_else(|| match config.and_then(|config| path.relative(config)) {
                Some(field) => fields::of_configuration(&field.keys()),
                None => fields::of_machine(&path.keys()),
            });
            self.lost.push(format!("{subject}: not converted: {path}: {reason}"));
        }
        self.notes.extend(closed.notes.into_iter().map(|note| format!("{subject}: note: {note}")));
        self.left_out.extend(closed.left_out.iter().map(Path::to_string));
    }
}

/// Says why a document with a machine has no provider configuration.
fn without_config(document: &Document) -> String {
    let write = format!("write kind: {CONFIG} into providerSpec.value");
    let ledger = Ledger::new(document.leaves.clone());
    let value = document.config_places().find_map(|(field, place)| Some((field, ledger.value(&place)?)));
    match value {
        None => format!("it has no providerSpec.value: {write}"),
        Some((field, Value::Object(fields))) => match fields.get("kind") {
            Some(kind) => format!("its {field} is of the kind {kind}, and kube-node convert reads {CONFIG}"),
            None => format!("its {field} has no kind: {write}"),
        },
        Some((field, value)) => format!("its {field} is {value} and has no fields: {write}"),
    }
}

/// Converts all documents of a text; `file` names those without a name, and `wanted` all of them.
fn convert(text: &str, file: &FilePath, wanted: Option<&str>) -> Converted {
    let (documents, unread) = document::read(text);
    let (mut converted, mut names) = (Converted { lost: unread, ..Converted::default() }, Names::default());
    let mut seen = BTreeSet::new();
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    for document in &documents {
        let identity = ["apiVersion", "kind", "metadata.namespace"].map(|path| document.text(path));
        let own = document.text("metadata.name");
        if own.is_some() && !seen.insert((identity, own)) {
            converted
                .lost
                .push(format!("{}: not converted: it is in the file twice: remove one", document.subject));
        } else if let Some(owner) = owners::owner(document, &documents) {
            converted.compare(document, owner);
        } else if let Some(config) = document.config() {
            let own = own.or_else(|| document.text("metadata.generateName"));
            let usable = |name: &&str| name.contains(|c: char| c.is_ascii_alphanumeric());
            let name = [wanted, own, stem].into_iter().flatten().find(usable).unwrap_or("kubemark");
            converted.convert(document, &config, &names.free(name));
        } else {
            converted.refuse(document);
        }
    }
    converted
}

#[cfg(test)]
mod tests;
