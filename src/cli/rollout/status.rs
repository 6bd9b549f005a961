//! `kube-node rollout status`: shows the progress of a rollout until it ends, from one watch of the NodeSet.
//!
//! Standard output gets the lines that kubectl would print; on a terminal a progress bar replaces them.

use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Args};
use kube::{Api, Client};
use kube_ext::{call::call, process::print_line};
use kube_node_api::{GoDuration, NodeClass, NodeSet};

use super::{
    Set,
    access::read_set,
    state::{ClassVersion, state},
};
use crate::progress::{Progress, follow};

/// Arguments of `rollout status`.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    set: Set,
    /// Wait until the rollout is complete; false prints the present state once
    #[arg(short, long, action = ArgAction::Set, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    watch: bool,
    /// Maximum time to wait, for example 5m; 0 waits without a limit
    #[arg(long, value_name = "DURATION", default_value = "0")]
    timeout: GoDuration,
}

impl Status {
    /// Returns exit code 0 if the rollout is complete, or an error if it failed or timed out.
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<()> {
        let Self { set: Set { name }, watch, timeout } = self;
        let set = read_set(client, &name).await?;
        let class = class_version(client, &set.spec.node_class_name).await?;
        let state = |set: &NodeSet| state(set, class.as_ref());
        if !watch {
            match state(&set) {
                Progress::Done(text) => print_line(text),
                Progress::Failed(why) => bail!(why),
                Progress::Waiting(waiting) => print_line(waiting.text()),
            }
            return Ok(());
        }
        let uid = set.metadata.uid;
        let progress = |set: Option<&NodeSet>| match set.filter(|set| set.metadata.uid == uid) {
            Some(set) => state(set),
            None => Progress::Failed(format!("nodeset {name:?} has been deleted")),
        };
        follow(client, &name, timeout, Duration::ZERO, progress).await
    }
}

/// The present version of a class; None if there is none, or if reading it is not allowed.
async fn class_version(client: &Client, name: &str) -> anyhow::Result<Option<ClassVersion>> {
    let api = Api::<NodeClass>::all(client.clone());
    match call(format!("read NodeClass {name}"), api.get_metadata_opt(name)).await {
        Ok(class) => {
            Ok(class
                .map(|class| ClassVersion { name: name.to_owned(), generation: class.metadata.generation }))
        }
        Err(error) if error.is(403) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
