//! `kube-node conformance`: checks the NodeController of a class against the contract of
//! docs/node-controllers.md, in the given cluster, and reports each clause.
//!
//! The controller is observed from outside only: by its writes, as watches record them, and by the user's
//! commands (`--machines`, `--restart`). All objects of a test run share one name and are deleted at the end,
//! even after an error.

mod checks;
mod cleanup;
mod contract;
mod housekeeping;
mod manifests;
mod record;
mod report;
mod steps;
mod test_run;
mod timeouts;
mod user_commands;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, bail, ensure};
use clap::{Args, value_parser};
use kube::{Api, Client};
use kube_ext::{objects, process::interrupted};
use kube_node_api::{GoDuration, NodeClass};
use serde::Deserialize;
use serde_json::Value;

use self::test_run::TestRun;

/// Field manager of the test run's writes.
const FIELD_MANAGER: &str = "kube-node-cli";

/// Arguments of the conformance check.
#[derive(Debug, Args)]
pub struct Check {
    /// NodeClass whose NodeController is checked: a file with one, or the name of one in the cluster
    ///
    /// The test run copies the class; neither the class nor its Nodes are changed.
    #[arg(long, value_name = "FILE|NAME")]
    class: String,
    /// Initial number of nodes in the NodeSet
    #[arg(long, value_name = "NODES", default_value_t = 3, value_parser = value_parser!(i32).range(2..=100))]
    nodes: i32,
    /// Time limit of each step; must be longer than a machine needs to start or to end
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: GoDuration,
    /// Command that lists the existing machines, one per line, each with its Node's name, UID or providerID
    #[arg(long, value_name = "COMMAND")]
    machines: Option<String>,
    /// Command that restarts the controller
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
    /// JSON merge patch of the class's spec that makes a new revision
    ///
    /// By default a class with a capacity gets one more resource.
    #[arg(long, value_name = "JSON", value_parser = json)]
    change: Option<Value>,
    /// Image of the pods for the drain checks
    #[arg(long, value_name = "IMAGE", default_value = "registry.k8s.io/pause:3.10.1")]
    image: String,
}

fn json(text: &str) -> anyhow::Result<Value> {
    let value: Value = serde_json::from_str(text)?;
    ensure!(value.is_object(), "it is no object: write for example {{\"machineType\": \"large\"}}");
    Ok(value)
}

impl Check {
    /// Returns exit code 0 if no clause is broken, else 1.
    pub async fn run(self, client: &Client) -> anyhow::Result<ExitCode> {
        let class = self.class(client).await?;
        let test_run = TestRun::new(client.clone(), class.spec, self).await?;
        test_run.introduce();
        let ran = tokio::select! {
            ran = steps::all(&test_run) => ran,
            never = housekeeping::run(&test_run) => match never {},
            interrupted = interrupted() => {
                interrupted.context("cannot receive signals").and_then(|interrupted| Err(interrupted.into()))
            }
        };
        if ran.is_ok() {
            test_run.skip_missing();
        }
        let cleaned = cleanup::clean_up(&test_run).await;
        let passed = test_run.summarize();
        ran.and(cleaned)?;
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The NodeClass to copy.
    async fn class(&self, client: &Client) -> anyhow::Result<NodeClass> {
        let class = &self.class;
        if !Path::new(class).is_file() {
            let found = objects::read(&Api::all(client.clone()), class).await?;
            return found
                .with_context(|| format!("{class} is neither a file nor a NodeClass of this cluster"));
        }
        let text = std::fs::read_to_string(class).with_context(|| format!("cannot read {class}"))?;
        for document in serde_norway::Deserializer::from_str(&text) {
            let value = Value::deserialize(document).with_context(|| format!("{class} is no YAML"))?;
            if value["kind"] == "NodeClass" {
                let unfit = || format!("the NodeClass in {class} does not fit its definition");
                return serde_json::from_value(value).with_context(unfit);
            }
        }
        bail!("there is no NodeClass in {class}")
    }
}
