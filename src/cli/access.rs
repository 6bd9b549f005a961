//! Selects the cluster, by one rule for all commands that read and write objects, and reads and writes its
//! NodeSets. Each call has a time limit; each write applies only to the state that was read.

use std::{
    ffi::OsString,
    io::{self, BufRead, IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use kube::{Api, Client, ResourceExt, api::ListParams, core::PartialObjectMeta};
use kube_ext::{
    call::{ApiError, call},
    objects,
    process::print_note,
};
use kube_node_api::NodeSet;
use kube_node_controllers::Access;
use local_cluster::{Layout, layout::supervisor};
use serde_json::{Value, json};

use crate::text::{NAMES_MAX, names};

/// Attempts of a write: the operator writes the status of a busy NodeSet three times a second.
const TRIES: u32 = 8;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Field manager of the commands' writes.
pub(super) const FIELD_MANAGER: &str = "kube-node-cli";

/// Selection of the cluster.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Kubeconfig of the cluster
    ///
    /// Without --kubeconfig, --context and --data-dir the command uses the cluster that KUBECONFIG names; if
    /// KUBECONFIG is not set, the cluster of `kube-node up` on this machine, which must run; if there is none,
    /// the cluster of ~/.kube/config or of the pod.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Cluster", conflicts_with = "data_dir")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; its current one when absent
    ///
    /// The kubeconfig is that of --kubeconfig, else of KUBECONFIG, else ~/.kube/config.
    #[arg(long, value_name = "NAME", global = true, help_heading = "Cluster", conflicts_with = "data_dir")]
    context: Option<String>,
    /// Folder of a cluster that `kube-node up` started on this machine
    #[arg(long, value_name = "DIR", global = true, help_heading = "Cluster")]
    data_dir: Option<PathBuf>,
}

/// A command that begins with the connection to its cluster.
#[derive(Debug, Args)]
pub struct InCluster<C: Args> {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    command: C,
}

impl<C: Args> InCluster<C> {
    /// Connects to the cluster, then runs the command.
    pub(super) async fn run<T>(
        self,
        run: impl AsyncFnOnce(C, &Client) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let client = self.cluster.client().await?;
        run(self.command, &client).await
    }

    /// As [`Self::run`], for a command that writes to the cluster: first says which cluster that is.
    pub(super) async fn run_writing<T>(
        self,
        run: impl AsyncFnOnce(C, &Client) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let client = self.cluster.client_to_write().await?;
        run(self.command, &client).await
    }

    /// The command.
    pub(super) const fn command(&self) -> &C {
        &self.command
    }
}

/// Source of the access to the cluster.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// This kubeconfig; if `None`, `KUBECONFIG`, kubectl's default file, or the pod's identity, as every client
    /// looks them up.
    Kubeconfig(Option<PathBuf>),
    Local(Layout),
}

impl ClusterArgs {
    /// Returns a client after the API server has answered.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        self.access().await?.0.connected().await
    }

    /// As [`Self::client`], and prints which cluster the command is about to change: a variable of the shell may name another
    /// cluster than the user believes. A script that names the cluster by a flag needs no such line.
    pub(super) async fn client_to_write(&self) -> anyhow::Result<Client> {
        let (access, source) = self.access().await?;
        let client = access.connected().await?;
        let is_named = self.data_dir.is_some() || self.kubeconfig.is_some() || self.context.is_some();
        if !is_named || io::stderr().is_terminal() {
            print_note(format_args!("Cluster: {}", place(&access, &source)));
        }
        Ok(client)
    }

    async fn access(&self) -> anyhow::Result<(Access, Source)> {
        let source = self.source(std::env::var_os("KUBECONFIG"), Layout::new(None).ok())?;
        let kubeconfig = match &source {
            Source::Kubeconfig(path) => path.clone(),
            Source::Local(layout) => {
                let dir = layout.dir().display();
                match layout.load()? {
                    None => bail!("there is no cluster in {dir}: start one with kube-node up"),
                    Some(state) if supervisor(&state).is_none() => bail!(
                        "the cluster in {dir} does not run: start it with kube-node up, or name another one with --kubeconfig"
                    ),
                    Some(_) => Some(layout.kubeconfig()),
                }
            }
        };
        Ok((Access::new(kubeconfig.as_deref(), self.context.as_deref()).await?, source))
    }

    fn source(&self, variable: Option<OsString>, default: Option<Layout>) -> anyhow::Result<Source> {
        if let Some(dir) = &self.data_dir {
            return Ok(Source::Local(Layout::new(Some(dir))?));
        }
        let is_named = self.kubeconfig.is_some() || self.context.is_some();
        if is_named || variable.is_some_and(|variable| !variable.is_empty()) {
            return Ok(Source::Kubeconfig(self.kubeconfig.clone()));
        }
        Ok(match default.map(|layout| (layout.load(), layout)) {
            Some((Ok(Some(_)), layout)) => Source::Local(layout),
            Some((Err(unusable), _)) => {
                print_note(format_args!("note: the cluster of kube-node up is left out: {unusable:#}"));
                Source::Kubeconfig(None)
            }
            Some((Ok(None), _)) | None => Source::Kubeconfig(None),
        })
    }
}

/// A cluster in words: where its access comes from, and its address.
fn place(access: &Access, source: &Source) -> String {
    let from = match (source, &access.context) {
        (Source::Local(layout), _) => format!("kube-node up in {}", layout.dir().display()),
        (Source::Kubeconfig(Some(path)), Some(context)) => format!("context {context} of {}", path.display()),
        (Source::Kubeconfig(None), Some(context)) => {
            format!("context {context} of KUBECONFIG or ~/.kube/config")
        }
        (Source::Kubeconfig(_), None) => "this pod's".to_owned(),
    };
    format!("{from}, {}", access.url)
}

/// Asks for a confirmation at a terminal; without one the command goes on, as it does for `--yes`.
pub(super) fn confirm(question: &str, yes: bool) -> anyhow::Result<()> {
    let (stdin, stderr) = (io::stdin(), io::stderr());
    if yes || !stdin.is_terminal() || !stderr.is_terminal() {
        return Ok(());
    }
    write!(stderr.lock(), "{question} [y/N] ").context("cannot ask: give --yes")?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).context("cannot read the answer: give --yes")?;
    ensure!(is_consent(&answer), "nothing was changed");
    Ok(())
}

fn is_consent(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// Parses the name of a NodeSet in the forms of kubectl: NAME, nodeset/NAME, nset/NAME.
pub(super) fn set_name(text: &str) -> anyhow::Result<String> {
    const KINDS: [&str; 5] = ["nodeset", "nodesets", "nset", "nodeset.kube-node.io", "nodesets.kube-node.io"];
    let (kind, name) = text.split_once('/').unwrap_or(("nodeset", text));
    ensure!(KINDS.contains(&kind), "{kind} is no NodeSet: write nodeset/{name}");
    ensure!(!name.is_empty(), "the name is missing: write nodeset/NAME");
    Ok(name.to_owned())
}

/// A change of a NodeSet and its message.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    /// Merge patch; `None` if nothing needs a change.
    pub(super) patch: Option<Value>,
    /// Message for the user.
    pub(super) message: String,
}

/// Reads a NodeSet. The error for a missing one lists the existing NodeSets.
pub(super) async fn read_set(client: &Client, name: &str) -> anyhow::Result<NodeSet> {
    match objects::read(&Api::<NodeSet>::all(client.clone()), name).await? {
        Some(set) => Ok(set),
        None => bail!(missing(client, name).await),
    }
}

/// Error message for a missing NodeSet.
async fn missing(client: &Client, name: &str) -> String {
    let api = Api::<PartialObjectMeta<NodeSet>>::all(client.clone());
    match objects::list(&api, "NodeSets", &ListParams::default()).await {
        Ok(sets) if sets.is_empty() => {
            format!("there is no NodeSet {name}, and no other one in this cluster")
        }
        Ok(sets) => {
            let sets: Vec<String> = sets.iter().map(ResourceExt::name_any).collect();
            format!("there is no NodeSet {name}; there are: {}", names(&sets, NAMES_MAX))
        }
        Err(error) if error.is_not_found() => "this cluster has no kind NodeSet: install it with `kube-node crds | kubectl apply --server-side -f -`, or name another cluster with --kubeconfig".to_owned(),
        // The right to get a NodeSet does not include the right to list them.
        Err(_) => format!("there is no NodeSet {name}"),
    }
}

/// Names of the objects of a kind that a label selector selects; none if the kind is not installed.
pub(super) async fn object_names<K: objects::Typed>(
    api: &Api<K>,
    selector: &str,
) -> Result<Vec<String>, ApiError> {
    let params = ListParams::default().labels(selector);
    match call(format_args!("list {} objects", K::kind(&())), api.list_metadata(&params)).await {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => Ok(listed?.iter().map(ResourceExt::name_any).collect()),
    }
}

/// Applies the change that `decide` returns and returns its message. Decides again after a conflict with
/// another writer.
pub(super) async fn change_set(
    client: &Client,
    name: &str,
    decide: impl Fn(&NodeSet) -> anyhow::Result<Change>,
) -> anyhow::Result<String> {
    let api = Api::<NodeSet>::all(client.clone());
    let mut tries = 1;
    loop {
        let set = read_set(client, name).await?;
        let Change { patch, message } = decide(&set)?;
        let Some(mut patch) = patch else { return Ok(message) };
        patch["metadata"]["uid"] = json!(set.metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(set.metadata.resource_version);
        match objects::patch(&api, name, FIELD_MANAGER, patch).await {
            Err(error) if error.is_conflict() && tries < TRIES => tries += 1,
            other => return Ok(other.map(|_| message)?),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn args(kubeconfig: Option<&str>, context: Option<&str>, data_dir: Option<&str>) -> ClusterArgs {
        ClusterArgs {
            kubeconfig: kubeconfig.map(Into::into),
            context: context.map(Into::into),
            data_dir: data_dir.map(Into::into),
        }
    }

    #[test]
    fn flags_come_first_then_the_variable_then_the_local_cluster() {
        let variable = || Some("/elsewhere".into());
        let source = args(Some("/a"), None, None).source(variable(), None).unwrap();
        assert_eq!(source, Source::Kubeconfig(Some("/a".into())));
        let source = args(None, None, Some("/d")).source(variable(), None).unwrap();
        assert_eq!(source, Source::Local(Layout::new(Some(Path::new("/d"))).unwrap()));
        let none = Layout::new(Some(Path::new("/nonexistent"))).unwrap();
        for variable in [variable(), Some("".into()), None] {
            let source = args(None, None, None).source(variable, Some(none.clone())).unwrap();
            assert_eq!(source, Source::Kubeconfig(None));
        }
        // A local cluster has no contexts to choose from.
        let dir = std::env::temp_dir().join(format!("kube-node-source-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let local = Layout::new(Some(&dir)).unwrap();
        std::fs::write(dir.join("cluster.json"), r#"{"formatVersion": 1, "kubernetesVersion": ""}"#).unwrap();
        let source = args(None, None, None).source(None, Some(local.clone())).unwrap();
        assert_eq!(source, Source::Local(local.clone()));
        let source = args(None, Some("c"), None).source(None, Some(local)).unwrap();
        assert_eq!(source, Source::Kubeconfig(None));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_damaged_local_cluster_is_left_out() {
        let dir = std::env::temp_dir().join(format!("kube-node-damaged-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("cluster.json"), "{").unwrap();
        let local = Layout::new(Some(&dir)).unwrap();
        let source = args(None, None, None).source(None, Some(local)).unwrap();
        assert_eq!(source, Source::Kubeconfig(None));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn only_yes_is_a_consent() {
        for answer in ["y\n", "YES\n", " yes \n"] {
            assert!(is_consent(answer), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "no\n", "yesterday\n"] {
            assert!(!is_consent(answer), "{answer:?}");
        }
        confirm("Delete?", true).unwrap();
    }

    #[test]
    fn a_set_is_named_as_kubectl_has_it() {
        for text in ["a", "nodeset/a", "nset/a", "nodesets.kube-node.io/a"] {
            assert_eq!(set_name(text).unwrap(), "a", "{text}");
        }
        let refused = set_name("deployment/a").unwrap_err();
        assert_eq!(refused.to_string(), "deployment is no NodeSet: write nodeset/a");
        assert!(set_name("nodeset/").is_err() && set_name("").is_err());
    }
}
