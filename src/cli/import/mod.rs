//! `kube-node import`: prints the nodes of an existing cluster as NodeClasses and NodeSets, to test a scheduler, an
//! autoscaler or a controller on a copy.
//!
//! Reads only Nodes, and of them only what other Nodes can share: no name, no address, no state.

mod groups;
mod machine_template;

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use kube_ext::call::call;
use serde::Deserialize;

use self::{groups::Import as Imported, machine_template::MachineTemplate};
use super::{access::ClusterArgs, manifest};

/// Nodes per page: a list of thousands is megabytes.
const PAGE: u32 = 500;

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct Import {
    #[command(flatten)]
    source: Source,
    /// Label selector of the Nodes, as in kubectl; only with --from-cluster
    #[arg(short = 'l', long, value_name = "SELECTOR", requires = "from_cluster")]
    selector: Option<String>,
    /// Prefix of the names of all objects, such as copy-
    #[arg(long, value_name = "PREFIX", default_value = "", value_parser = prefix)]
    prefix: String,
    /// NodeController of the NodeClasses
    #[arg(long, value_name = "NAME", default_value = "hollow")]
    node_controller: String,
    /// Key of a label to leave out; may be repeated
    #[arg(long, value_name = "KEY")]
    drop_label: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Source of the Nodes.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// Read the Nodes of the cluster; nothing is written to it
    #[arg(long, id = "from_cluster")]
    from_cluster: bool,
    /// Read the Nodes from a file, as `kubectl get nodes --output=json` writes it; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Import {
    /// Prints the objects, and on standard error the parts of the Nodes that are left out.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let nodes = match &self.source.file {
            Some(file) => {
                let list: Nodes = serde_norway::from_str(&manifest::read(file)?).with_context(|| {
                    format!(
                        "{} is no list of Nodes: write it with kubectl get nodes --output=json",
                        file.display()
                    )
                })?;
                list.items
            }
            None => self.list().await?,
        };
        let (machine_templates, omitted) = machine_template::of_all(&nodes, &self.drop_label);
        if machine_templates.is_empty() {
            bail!("there is no Node that says what it has: name another cluster, file or --selector");
        }
        let imported = Imported::new(&machine_templates, &self.prefix, &self.node_controller)?;
        for object in imported.classes.iter().chain(&imported.sets) {
            super::say(manifest::document(object)?);
        }
        for text in omitted.into_iter().collect::<BTreeSet<_>>() {
            eprintln!("note: {text}");
        }
        let (nodes, sets, classes) = (machine_templates.len(), imported.sets.len(), imported.classes.len());
        eprintln!("{nodes} nodes are {sets} NodeSets of {classes} NodeClasses");
        Ok(ExitCode::SUCCESS)
    }

    async fn list(&self) -> anyhow::Result<Vec<Node>> {
        let api: Api<Node> = Api::all(self.cluster.client().await?);
        let (selector, mut nodes) = (self.selector.clone(), Vec::new());
        let mut params = ListParams { label_selector: selector, limit: Some(PAGE), ..ListParams::default() };
        loop {
            let page = call("list Nodes", api.list(&params)).await?;
            nodes.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(nodes),
            }
        }
    }
}

/// A Node list as kubectl writes it.
#[derive(Debug, Deserialize)]
struct Nodes {
    items: Vec<Node>,
}

/// Parses a name prefix.
fn prefix(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.len() > 20 || !text.chars().all(fits) || text.starts_with('-') {
        return Err(
            "write up to 20 lower case letters, digits and hyphens, with none of these at the beginning"
                .into(),
        );
    }
    Ok(text.to_owned())
}

impl MachineTemplate {
    /// Template of one Node in a test.
    #[cfg(test)]
    fn of(node: serde_json::Value) -> Self {
        machine_template::of_all(&[serde_json::from_value(node).unwrap()], &[]).0.remove(0)
    }
}
