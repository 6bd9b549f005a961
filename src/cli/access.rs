//! Selects the cluster, by one rule for all commands that read and write objects, and reads and writes its
//! NodeSets. Each call has a time limit; each write applies only to the state that was read.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::bail;
use clap::Args;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use kube_ext::call::call;
use kube_node_api::NodeSet;
use kube_node_operator::Access;
use local_cluster::{Layout, layout::supervisor};
use serde_json::{Value, json};

/// Attempts of a write: the operator writes the status of a busy NodeSet three times a second.
const TRIES: u32 = 8;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of names in a message.
const NAMES_MAX: usize = 10;
/// Field manager of the commands' writes.
pub(super) const FIELD_MANAGER: &str = "kube-node-cli";

/// Selection of the cluster.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Kubeconfig of the cluster
    ///
    /// Without --kubeconfig and --data-dir the command uses the cluster that KUBECONFIG names; if KUBECONFIG
    /// is not set, the running cluster of `kube-node up` on this machine; if there is none, the cluster of
    /// ~/.kube/config or of the pod.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Cluster", conflicts_with = "data_dir")]
    kubeconfig: Option<PathBuf>,
    /// Folder of a cluster that `kube-node up` started on this machine
    #[arg(long, value_name = "DIR", global = true, help_heading = "Cluster")]
    data_dir: Option<PathBuf>,
}

/// Source of the access to the cluster.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    Kubeconfig(PathBuf),
    Local(Layout),
    /// KUBECONFIG, kubectl's default file, or the pod's identity, as every client looks them up.
    Usual,
}

impl ClusterArgs {
    /// Returns a client after the API server has answered.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        let access = match self.source(std::env::var_os("KUBECONFIG"), Layout::new(None).ok())? {
            Source::Kubeconfig(path) => Access::new(Some(&path)).await?,
            Source::Usual => Access::new(None).await?,
            Source::Local(layout) => {
                let dir = layout.dir().display();
                match layout.load()? {
                    None => bail!("there is no cluster in {dir}: start one with kube-node up"),
                    Some(state) if supervisor(&state).is_none() => bail!(
                        "the cluster in {dir} does not run: start it with kube-node up, or name another one with --kubeconfig"
                    ),
                    Some(_) => Access::new(Some(&layout.kubeconfig())).await?,
                }
            }
        };
        Ok(access.reached().await?)
    }

    fn source(&self, variable: Option<OsString>, default: Option<Layout>) -> anyhow::Result<Source> {
        if let Some(path) = &self.kubeconfig {
            return Ok(Source::Kubeconfig(path.clone()));
        }
        if let Some(dir) = &self.data_dir {
            return Ok(Source::Local(Layout::new(Some(dir))?));
        }
        if variable.is_some_and(|variable| !variable.is_empty()) {
            return Ok(Source::Usual);
        }
        Ok(match default {
            Some(layout) if layout.load()?.is_some() => Source::Local(layout),
            _ => Source::Usual,
        })
    }
}

/// Parses the name of a NodeSet in the forms of kubectl: NAME, nodeset/NAME, nset/NAME.
pub(super) fn set_name(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        None => text,
        Some(("nodeset" | "nodesets" | "nset" | "nodeset.kube-node.io" | "nodesets.kube-node.io", name)) => {
            name
        }
        Some((kind, name)) => return Err(format!("{kind} is no NodeSet: write nodeset/{name}")),
    };
    if name.is_empty() {
        Err("the name is missing: write nodeset/NAME".to_owned())
    } else {
        Ok(name.to_owned())
    }
}

/// A change of a NodeSet and its message.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    /// Merge patch; `None` if nothing needs a change.
    pub(super) patch: Option<Value>,
    /// Message for the user.
    pub(super) said: String,
}

/// Reads a NodeSet. The error for a missing one lists the existing NodeSets.
pub(super) async fn read_set(client: &Client, name: &str) -> anyhow::Result<NodeSet> {
    let api = Api::<NodeSet>::all(client.clone());
    match call(format_args!("read NodeSet {name}"), api.get(name)).await {
        Err(error) if error.is(404) => bail!(missing(client, name).await),
        other => Ok(other?),
    }
}

/// Error message for a missing NodeSet.
async fn missing(client: &Client, name: &str) -> String {
    let api = Api::<PartialObjectMeta<NodeSet>>::all(client.clone());
    let there = match call("list NodeSets", api.list(&ListParams::default())).await {
        Ok(there) => there.items.into_iter().filter_map(|set| set.metadata.name).collect::<Vec<_>>(),
        Err(error) if error.is(404) => {
            return "this cluster has no kind NodeSet: install it with `kube-node crds | kubectl apply --server-side -f -`, or name another cluster with --kubeconfig".to_owned();
        }
        // The right to get a NodeSet does not include the right to list them.
        Err(_) => return format!("there is no NodeSet {name}"),
    };
    if there.is_empty() {
        return format!("there is no NodeSet {name}, and no other one in this cluster");
    }
    let more = if there.len() > NAMES_MAX { ", …" } else { "" };
    let there = there.into_iter().take(NAMES_MAX).collect::<Vec<_>>().join(", ");
    format!("there is no NodeSet {name}; there are: {there}{more}")
}

/// Applies the change that `decide` returns and returns its message. Decides again after a conflict with
/// another writer.
pub(super) async fn change_set(
    client: &Client,
    name: &str,
    decide: impl Fn(&NodeSet) -> anyhow::Result<Change>,
) -> anyhow::Result<String> {
    let api = Api::<NodeSet>::all(client.clone());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let mut tries = 1;
    loop {
        let set = read_set(client, name).await?;
        let Change { patch, said } = decide(&set)?;
        let Some(mut patch) = patch else { return Ok(said) };
        patch["metadata"]["uid"] = json!(set.metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(set.metadata.resource_version);
        match call(format_args!("change NodeSet {name}"), api.patch(name, &params, &Patch::Merge(patch)))
            .await
        {
            Err(error) if error.is(409) && tries < TRIES => tries += 1,
            other => return Ok(other.map(|_| said)?),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn args(kubeconfig: Option<&str>, data_dir: Option<&str>) -> ClusterArgs {
        ClusterArgs { kubeconfig: kubeconfig.map(Into::into), data_dir: data_dir.map(Into::into) }
    }

    #[test]
    fn what_is_said_comes_first() {
        let variable = || Some("/elsewhere".into());
        let said = args(Some("/a"), None).source(variable(), None).unwrap();
        assert_eq!(said, Source::Kubeconfig("/a".into()));
        let said = args(None, Some("/d")).source(variable(), None).unwrap();
        assert_eq!(said, Source::Local(Layout::new(Some(Path::new("/d"))).unwrap()));
        let none = Layout::new(Some(Path::new("/nonexistent"))).unwrap();
        for variable in [variable(), Some("".into()), None] {
            assert_eq!(args(None, None).source(variable, Some(none.clone())).unwrap(), Source::Usual);
        }
    }

    #[test]
    fn a_set_is_named_as_kubectl_has_it() {
        for text in ["a", "nodeset/a", "nset/a", "nodesets.kube-node.io/a"] {
            assert_eq!(set_name(text).as_deref(), Ok("a"), "{text}");
        }
        assert_eq!(set_name("deployment/a").unwrap_err(), "deployment is no NodeSet: write nodeset/a");
        assert!(set_name("nodeset/").is_err() && set_name("").is_err());
    }
}
