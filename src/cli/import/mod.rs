//! `kube-node import`: prints the nodes of an existing cluster as NodeClasses and NodeSets, to test a scheduler, an
//! autoscaler or a controller on a copy.
//!
//! Reads only Nodes, and of them only what other Nodes can share: no name, no address, no state.

mod groups;
mod machine_template;

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use kube_ext::objects::list_pages;
use serde::Deserialize;

pub(super) use self::{groups::Names, machine_template::is_protected};
use super::{access::ClusterArgs, manifest};

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
    pub async fn run(self) -> anyhow::Result<()> {
        let nodes = match &self.source.file {
            Some(file) => {
                let file_name = file.display();
                let wrong = || {
                    format!("{file_name} is no list of Nodes: write it with kubectl get nodes --output=json")
                };
                serde_norway::from_str::<Nodes>(&manifest::read(file)?).with_context(wrong)?.items
            }
            None => self.list().await?,
        };
        let (machine_templates, omitted) = machine_template::of_all(&nodes, &self.drop_label);
        if machine_templates.is_empty() {
            bail!("there is no Node that says what it has: name another cluster, file or --selector");
        }
        let (classes, sets) = groups::objects(&machine_templates, &self.prefix, &self.node_controller)?;
        for object in classes.iter().chain(&sets) {
            super::print_line(manifest::document(object)?);
        }
        for text in omitted.into_iter().collect::<BTreeSet<_>>() {
            super::print_note(format_args!("note: {text}"));
        }
        let (nodes, sets, classes) = (machine_templates.len(), sets.len(), classes.len());
        super::print_note(format_args!("nodes: {nodes}, NodeSets: {sets}, NodeClasses: {classes}"));
        Ok(())
    }

    async fn list(&self) -> anyhow::Result<Vec<Node>> {
        let api = Api::all(self.cluster.client().await?);
        let params = ListParams { label_selector: self.selector.clone(), ..ListParams::default() };
        let mut nodes = Vec::new();
        list_pages(&api, "Nodes", params, |node| nodes.push(node)).await?;
        Ok(nodes)
    }
}

/// A Node list as kubectl writes it.
#[derive(Debug, Deserialize)]
struct Nodes {
    items: Vec<Node>,
}

/// Parses a name prefix.
fn prefix(text: &str) -> anyhow::Result<String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.len() > 20 || !text.chars().all(fits) || text.starts_with('-') {
        bail!("write up to 20 lower case letters, digits and hyphens, with none of these at the beginning");
    }
    Ok(text.to_owned())
}
