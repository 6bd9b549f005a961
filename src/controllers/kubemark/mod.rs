//! Provider `kubemark`: a machine is one pod that runs a hollow kubelet, upstream's or our own.
//!
//! A machine is found by the label with the UID of its Node. There is no owner reference: the garbage
//! collector of another cluster would take the pod for an orphan, and a foreground deletion of the Node would
//! delete it before the drain. Beside each pod is a Secret of the same name with the bootstrap kubeconfig of
//! the machine and the files of its class.

mod answers;
pub mod credentials;
mod files;
pub mod health;
mod hosting_clusters;
mod left_secrets;
mod lookup;
mod noted_secrets;
mod pod;
mod pod_limit;
mod token_renewal;
mod view;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use kube_ext::{environment, error::chain, leader::Fence};
use kube_node_api::{NodeClass, machine_files::MachineSettings, machine_identity::Account, names};
use kube_node_cache::{Cache, CustomObject, NodeView};
use machine_identity::token;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use self::{
    answers::{gone_is_fine, refused},
    files::Sources,
    health::Health,
    hosting_clusters::{HostingCluster, HostingClusters},
    left_secrets::{SEARCH_INTERVAL, delete_noted, delete_of_machine},
    noted_secrets::NotedSecrets,
    pod::Blueprint,
    view::MachinePod,
};
use crate::{
    api::patch_params,
    provider::{
        Existing, Known, MachineId, MachineRequest, Provider, ProviderError, Renewed, Stage, Watchers,
    },
};

/// Name in `NodeClass.spec.nodeController`.
const NAME: &str = "kubemark";
/// Time limit of a provider call: several requests, each answered in well under a second.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Lifetime of the token by which a machine requests its certificate: the shortest that the API server grants.
const TOKEN_LIFE: Duration = token::LIFETIME_MIN;
/// A machine that is not Ready gets another token when its own expires sooner than this. A kubelet brings the
/// new one to the machine's folder within 2 minutes.
const TOKEN_LEFT_MIN: Duration = Duration::from_mins(5);

/// Options of the provider.
#[derive(Clone, Debug)]
pub struct Options {
    /// Namespace of credentials and of file contents.
    pub namespace: String,
    /// Namespace of machines in every hosting cluster, and of their accounts.
    pub machine_namespace: String,
    /// UID of the cluster that has the Nodes: that of its namespace kube-system.
    pub cluster: String,
    /// Our own image.
    pub image: String,
    /// Kubelet version of machines of that image whose class names none.
    pub kubelet_version: String,
    /// URL at which machines reach the API server.
    pub server: String,
    /// CA certificates of the API server (PEM).
    pub ca: String,
    /// Fence of writes to other clusters.
    pub fence: Fence,
    /// True if credentials may name servers that are not verified.
    pub insecure_credentials: bool,
}

impl Options {
    /// Label selector of this cluster's machines.
    fn selector(&self) -> String {
        format!("{}={}", names::LABEL_CLUSTER, self.cluster)
    }
}

/// Machines in pods.
pub struct KubemarkProvider {
    options: Options,
    /// Client of the cluster that has the Nodes.
    client: Client,
    sources: Sources,
    clusters: HostingClusters,
    nodes: Arc<Cache<NodeView>>,
    classes: Arc<Cache<CustomObject<NodeClass>>>,
    watchers: Arc<Watchers>,
    noted: Arc<NotedSecrets>,
    /// Expiry of the token in the Secret of each machine that this process has made, by UID.
    tokens: Mutex<HashMap<Arc<str>, Timestamp>>,
}

#[async_trait]
impl Provider for KubemarkProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn account(&self, _: &NodeView) -> Option<Account> {
        Some(Account::Kubemark)
    }

    async fn create(&self, request: &MachineRequest) -> Result<(), ProviderError> {
        in_time(self.create_pod(request)).await
    }

    async fn update(&self, id: &MachineId, settings: &MachineSettings) -> Result<(), ProviderError> {
        in_time(async {
            let Some((cluster, pod)) = self.find(id)?.filter(|(_, pod)| !pod.leaving) else { return Ok(()) };
            self.update_settings(&cluster, &pod, settings).await?;
            self.renew_token(id).await
        })
        .await
    }

    fn known(&self, id: &MachineId) -> Result<Known, ProviderError> {
        Ok(match self.find(id)? {
            Some((cluster, pod)) => Known::Machine(existing(&cluster, &pod)),
            None if self.made_lately(id).is_some() => Known::Unseen,
            None => Known::Absent,
        })
    }

    fn is_up_to_date(&self, id: &MachineId, settings: &MachineSettings) -> bool {
        match self.find(id) {
            Ok(Some((_, pod))) if !pod.leaving => {
                let settings = to_json(settings).ok();
                settings.is_some_and(|settings| pod.settings == Some(settings)) && !self.needs_token(id)
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    async fn exists(&self, id: &MachineId) -> Result<Option<Existing>, ProviderError> {
        let found = match self.find(id)? {
            None => in_time(self.find_unseen(id)).await?,
            found => found,
        };
        Ok(found.map(|(cluster, pod)| existing(&cluster, &pod)))
    }

    async fn delete(&self, id: &MachineId) -> Result<(), ProviderError> {
        in_time(self.delete_pods(id)).await
    }

    async fn list(&self) -> Vec<MachineId> {
        self.follow_classes();
        // An unreachable cluster must not hide the others.
        let known: Vec<_> =
            self.clusters.all().into_iter().filter(|cluster| cluster.machines().is_ok()).collect();
        let searched = known.iter().map(|cluster| in_time(self.search(cluster)));
        let mut results = futures::future::join_all(searched).await;
        let clusters: Vec<_> = known.iter().map(|cluster| &**cluster).collect();
        results.push(in_time(delete_noted(&self.noted, &clusters, &self.nodes)).await);
        for error in results.into_iter().filter_map(Result::err) {
            warn!(error = chain(&error), "Secrets of machines cannot be looked through");
        }
        if let Err(error) = in_time(self.delete_strays(&known)).await {
            warn!(error = chain(&error), "a pod cannot be deleted whose machine is in another cluster");
        }
        known.iter().flat_map(|cluster| cluster.pods.all()).map(|pod| pod.id.clone()).collect()
    }

    fn count(&self) -> usize {
        let pods = self.clusters.all().into_iter().flat_map(|cluster| cluster.pods.all());
        // Two credentials may lead to one cluster, whose pods both show.
        pods.map(|pod| pod.uid.clone()).collect::<HashSet<_>>().len()
    }

    fn watch(&self) -> BoxStream<'static, MachineId> {
        self.watchers.watch()
    }
}

impl KubemarkProvider {
    /// A provider for the Nodes of the cluster that `client` leads to.
    pub fn new(
        client: Client,
        nodes: Arc<Cache<NodeView>>,
        classes: Arc<Cache<CustomObject<NodeClass>>>,
        options: Options,
    ) -> Self {
        let (watchers, noted) = (Arc::new(Watchers::default()), Arc::new(NotedSecrets::default()));
        let to = (Arc::clone(&watchers), Arc::clone(&noted));
        Self {
            sources: Sources::new(&client, &options.namespace),
            clusters: HostingClusters::new(client.clone(), options.clone(), Arc::clone(&nodes), to),
            client,
            nodes,
            classes,
            watchers,
            noted,
            options,
            tokens: Mutex::default(),
        }
    }

    async fn create_pod(&self, request: &MachineRequest) -> Result<(), ProviderError> {
        let MachineRequest { id, machine, settings, credentials } = request;
        let cluster = self.clusters.of(credentials.as_deref());
        cluster.machines()?;
        if cluster.pods_of(id).iter().any(|pod| !pod.leaving) {
            return Ok(());
        }
        let (secrets, pods) = (cluster.api::<Secret>()?, cluster.api::<Pod>()?);
        let files = machine.provisioning.as_ref().and_then(|p| p.files.as_deref()).unwrap_or_default();
        let (files, contents): (Vec<_>, Vec<_>) = self.sources.read(files).await?.into_iter().unzip();
        let contents = files.iter().map(|file| file.key.clone()).zip(contents);
        let (bootstrap, expires) = self.bootstrap(id).await?;
        let secret = pod::secret(id, &self.options.cluster, bootstrap, contents);
        let blueprint = Blueprint {
            id,
            cluster: &self.options.cluster,
            machine,
            own_image: &self.options.image,
            shape: &to_json(&request.shape(&self.options.kubelet_version)?)?,
            settings: &to_json(settings)?,
        };
        let pod = pod::pod(&blueprint, &files).map_err(ProviderError::retryable)?;
        self.noted.note(&secret.name_any(), id);
        // An earlier machine may have had other files, so the whole Secret is replaced.
        let apply = PatchParams::apply(names::FIELD_MANAGER).force();
        secrets.patch(&secret.name_any(), &apply, &Patch::Apply(secret)).await.map_err(refused)?;
        self.tokens.lock().insert(Arc::clone(&id.uid), expires);
        let params =
            PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match pods.create(&params, &pod).await {
            Ok(_) => {
                debug!(pod = pod.name_any(), "pod created");
                Ok(())
            }
            // The watch lags behind, or the previous pod is not gone yet.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                Err(ProviderError::Busy(format!("pod {} is still there", pod.name_any())))
            }
            Err(error) => {
                self.noted.note(&pod.name_any(), id);
                Err(refused(error))
            }
        }
    }

    /// A new bootstrap kubeconfig of a machine, and the expiry of its token.
    async fn bootstrap(&self, id: &MachineId) -> Result<(String, Timestamp), ProviderError> {
        let accounts = Api::namespaced(self.client.clone(), &self.options.machine_namespace);
        let token = token::request(&accounts, Account::Kubemark, &id.node, &id.uid, TOKEN_LIFE).await;
        let token = token.map_err(ProviderError::retryable)?;
        let Options { server, ca, .. } = &self.options;
        Ok((token::bootstrap_kubeconfig(server, ca, &token), token.expires))
    }

    async fn update_settings(
        &self,
        cluster: &HostingCluster,
        pod: &MachinePod,
        settings: &MachineSettings,
    ) -> Result<(), ProviderError> {
        let settings = to_json(settings)?;
        if pod.settings.as_ref() == Some(&settings) {
            return Ok(());
        }
        let change = json!({ "metadata": { "uid": pod.uid, "annotations": { names::ANNOTATION_SETTINGS: settings } } });
        gone_is_fine(cluster.api::<Pod>()?.patch(&pod.name, &patch_params(), &Patch::Merge(change)).await)
    }

    /// Returns true if a machine may have missed the lifetime of its token.
    fn needs_token(&self, id: &MachineId) -> bool {
        let expires = self.tokens.lock().get(&id.uid).copied();
        let is_good = expires.is_some_and(|at| {
            Duration::try_from(at.duration_since(environment::now())).is_ok_and(|left| left > TOKEN_LEFT_MIN)
        });
        let is_unready = |node: Arc<NodeView>| node.uid == id.uid && !node.is_ready();
        !is_good && self.nodes.get(&id.node).is_some_and(is_unready)
    }

    /// Gives a machine that may have missed the lifetime of its token another one, in the cluster that the class of its Node leads to.
    async fn renew_token(&self, id: &MachineId) -> Result<(), ProviderError> {
        let node = self.nodes.get(&id.node).filter(|node| node.uid == id.uid);
        let Some(cluster) = node.and_then(|node| self.cluster_of(&node)).filter(|_| self.needs_token(id))
        else {
            return Ok(());
        };
        info!("another token: the machine has not made use of the one before");
        let secrets = cluster.api::<Secret>()?;
        let (bootstrap, expires) = self.bootstrap(id).await?;
        let change = json!({ "stringData": { pod::KEY_BOOTSTRAP: bootstrap } });
        gone_is_fine(secrets.patch(&pod::name(id), &patch_params(), &Patch::Merge(change)).await)?;
        self.tokens.lock().insert(Arc::clone(&id.uid), expires);
        Ok(())
    }

    async fn delete_pods(&self, id: &MachineId) -> Result<(), ProviderError> {
        let mut failed = None;
        for (cluster, pod) in self.clusters.pods_of(id) {
            self.tokens.lock().remove(&id.uid);
            // A pod that cannot be deleted protects no other one, here or in another cluster.
            failed = delete_pod(&cluster, &pod).await.err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Deletes the Secrets of a cluster that no machine needs, after the start and rarely.
    async fn search(&self, cluster: &HostingCluster) -> Result<(), ProviderError> {
        if !self.nodes.in_sync() || !cluster.is_search_due(SEARCH_INTERVAL) {
            return Ok(());
        }
        left_secrets::search(cluster, &self.options.selector(), &self.nodes, &self.noted).await?;
        cluster.searched();
        Ok(())
    }

    /// Follows the clusters of all classes, including those with machines left whose Node no longer leads there.
    fn follow_classes(&self) {
        if !self.classes.in_sync() {
            return;
        }
        let (credentials, is_complete) = credentials(&self.classes.all());
        self.clusters.follow(&credentials, is_complete);
    }
}

/// Names of the credentials of all classes of this provider. False if there may be more: a class that cannot be
/// read may name any.
fn credentials(classes: &[Arc<CustomObject<NodeClass>>]) -> (BTreeSet<String>, bool) {
    let specs = classes.iter().filter_map(|own| own.object.as_ref().ok()).map(|class| &class.spec);
    let ours = specs.filter(|spec| spec.node_controller == NAME);
    let named = ours.filter_map(|spec| spec.credentials_secret_ref.as_ref());
    (named.map(|secret| secret.name.clone()).collect(), classes.iter().all(|own| own.object.is_ok()))
}

/// Limits the time of a call: a cluster that does not answer must not block the caller.
async fn in_time<T>(call: impl Future<Output = Result<T, ProviderError>>) -> Result<T, ProviderError> {
    timeout(TIME_LIMIT, call).await.unwrap_or_else(|_| {
        let message = format!("the hosting cluster gave no answer in {} s", TIME_LIMIT.as_secs());
        Err(ProviderError::Unreachable(message))
    })
}

fn existing(cluster: &HostingCluster, pod: &MachinePod) -> Existing {
    let (stage, trouble) = match &pod.health {
        _ if pod.leaving => (Stage::Leaving, None),
        Health::Dead(trouble) => (Stage::Dead, Some(trouble.clone())),
        Health::Troubled(trouble) => (Stage::Up, Some(trouble.clone())),
        Health::Starting => (Stage::Starting, None),
        Health::Running => (Stage::Up, None),
    };
    // With an unreachable cluster, the state of the pod is the last known one.
    let trouble = cluster.trouble().or(trouble);
    Existing { stage, lease: Renewed::Unknown, trouble, last_end: pod.last_end.clone() }
}

/// Deletes the pod of a machine and its Secret.
async fn delete_pod(cluster: &HostingCluster, pod: &MachinePod) -> Result<(), ProviderError> {
    let this = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
    gone_is_fine(
        cluster.api::<Pod>()?.delete(&pod.name, &DeleteParams::default().preconditions(this)).await,
    )?;
    delete_of_machine(cluster, &pod.name, &pod.id).await
}

/// Content of a file in the machine's folder.
fn to_json(content: &impl Serialize) -> Result<String, ProviderError> {
    serde_json::to_string(content).map_err(ProviderError::retryable)
}

#[cfg(test)]
mod tests;
