//! `kube-node convert`: converts configurations of the Cluster API kubemark provider to NodeClasses.

mod config;
mod fields;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use self::config::{Conversion, convert, find};
use super::manifest;

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// File with configurations, also inside machines and machine sets; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Name of the NodeClass; that of the object around the configuration, or of the file, when absent
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

impl Convert {
    /// Prints the NodeClasses. Returns exit code 1 if a setting could not be converted.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let text = manifest::read(&self.file)?;
        let mut losses = 0;
        for (name, config) in self.configs(&text)? {
            let Conversion { class, lost, notes, .. } = convert(&name, &config);
            super::print_line(manifest::document(&class)?);
            losses += lost.len();
            for text in &lost {
                eprintln!("{name}: not converted: {text}");
            }
            for text in &notes {
                eprintln!("{name}: note: {text}");
            }
        }
        Ok(if losses == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Configurations of all documents, each with the name of its class.
    fn configs(&self, text: &str) -> anyhow::Result<Vec<(String, Value)>> {
        let mut found = Vec::new();
        for (at, document) in serde_norway::Deserializer::from_str(text).enumerate() {
            let document = Value::deserialize(document)
                .with_context(|| format!("document {} of {} is no YAML", at + 1, self.file.display()))?;
            let name = document.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
            found.extend(find(&document).into_iter().map(|config| (name.clone(), config.clone())));
        }
        if found.is_empty() {
            bail!(
                "{} holds no KubemarkMachineProviderConfig: its kind must be that, in a document of its own or inside a Machine",
                self.file.display()
            );
        }
        let many = found.len() > 1;
        let stem = self.file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
        let classes = found.into_iter().enumerate().map(|(at, (name, config))| {
            let base = self.name.as_deref().or(name.as_deref()).or(stem).unwrap_or("kubemark");
            // Equal names would make each class replace the one before.
            let is_shared = self.name.is_some() || name.is_none();
            let name = if many && is_shared { format!("{base}-{}", at + 1) } else { base.to_owned() };
            (object_name(&name), config)
        });
        Ok(classes.collect())
    }
}

/// Makes an object name of a text: lower-case letters, digits and dashes.
fn object_name(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "kubemark".to_owned() } else { name.chars().take(63).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: Option<&str>, file: &str, text: &str) -> Vec<String> {
        let command = Convert { file: file.into(), name: name.map(str::to_owned) };
        command.configs(text).unwrap().into_iter().map(|(name, _)| name).collect()
    }

    const ONE: &str = "kind: KubemarkMachineProviderConfig\n";

    #[test]
    fn a_class_has_a_name_of_its_own() {
        assert_eq!(names(Some("a"), "f.yaml", ONE), ["a"]);
        assert_eq!(names(None, "dir/My_Config.yaml", ONE), ["my-config"]);
        assert_eq!(names(None, "-", ONE), ["kubemark"]);
        let two = format!("{ONE}---\n{ONE}");
        assert_eq!(names(Some("a"), "f.yaml", &two), ["a-1", "a-2"]);
        let machine = "kind: Machine\nmetadata: {name: m1}\nspec:\n  providerSpec:\n    value:\n      kind: KubemarkMachineProviderConfig\n";
        assert_eq!(names(None, "f.yaml", &format!("{machine}---\n{ONE}")), ["m1", "f-2"]);
    }

    #[test]
    fn what_holds_none_is_named() {
        let command = Convert { file: "f.yaml".into(), name: None };
        let said = |text| command.configs(text).map(|_| ()).unwrap_err();
        assert!(
            said("kind: Machine\n").to_string().contains("f.yaml holds no KubemarkMachineProviderConfig")
        );
        assert!(said("a: [\n").to_string().contains("document 1 of f.yaml is no YAML"));
    }
}
