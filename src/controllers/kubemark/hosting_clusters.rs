//! Hosting clusters: this one, and those that credentials of classes lead to. Each is watched on its own: a
//! cluster that refuses or is unreachable delays only its own machines.
//!
//! Several credentials can lead to one cluster, so a pod can stand in several caches. A pod whose deletion one
//! cache shows leaves the others too: theirs may be the watch that is down, and would keep the pod for ever.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{Api, Client, Resource, api::ListParams, runtime::watcher};
use kube_ext::{environment, error::chain};
use kube_node_cache::{Cache, EventHandler, View};
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::provider::{MachineId, ProviderError, Trouble, Watchers};

use super::{
    Options, answers::away, credentials::Credentials, noted_secrets::NotedSecrets, view::MachinePod,
};

/// Interval at which an unreachable cluster is tried again, a reachable one is asked whether it still serves
/// (a running watch outlives the rights to it), and credentials are read for changes.
const RETRY: Duration = Duration::from_secs(10);
/// Time limit for the response to that.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// State of the connection to a cluster.
enum Connection {
    /// There was no response yet.
    Pending,
    /// The cluster serves this client.
    Up(Client),
    /// Reason why the cluster cannot host machines now.
    Down(String),
}

/// A hosting cluster.
pub struct HostingCluster {
    /// Name of its credentials Secret; None: this cluster.
    credentials: Option<String>,
    /// Namespace of machines.
    namespace: String,
    connection: RwLock<Connection>,
    watchers: Arc<Watchers>,
    /// Pods of its machines.
    pub pods: Arc<Cache<MachinePod>>,
    /// Time of the last complete search for Secrets that no machine needs.
    searched: Mutex<Option<Instant>>,
}

impl HostingCluster {
    fn new(
        credentials: Option<String>,
        namespace: &str,
        connection: Connection,
        watchers: Arc<Watchers>,
        deletions: Arc<Deletions>,
    ) -> Arc<Self> {
        let pods: Arc<Cache<MachinePod>> = Arc::default();
        pods.add_event_handler(Arc::clone(&watchers) as _);
        pods.add_event_handler(deletions);
        let namespace = namespace.to_owned();
        let (connection, searched) = (RwLock::new(connection), Mutex::default());
        Arc::new(Self { credentials, namespace, connection, watchers, pods, searched })
    }

    /// Returns true if the last complete search for Secrets that no machine needs is this long ago.
    pub fn is_search_due(&self, interval: Duration) -> bool {
        self.searched.lock().is_none_or(|last| last.elapsed() >= interval)
    }

    /// Notes a complete search.
    pub fn searched(&self) {
        *self.searched.lock() = Some(Instant::now());
    }

    /// The API of the objects of machines, if the cluster can be used.
    pub fn api<K>(&self) -> Result<Api<K>, ProviderError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match &*self.connection.read() {
            Connection::Up(client) => Ok(Api::namespaced(client.clone(), &self.namespace)),
            Connection::Down(message) => Err(ProviderError::Unreachable(message.clone())),
            Connection::Pending => Err(self.busy()),
        }
    }

    /// The pods of the machine in this cluster, as far as they are known. A pod with the UID of a Node and the name of another one is
    /// no machine of either.
    pub fn pods_of(&self, id: &MachineId) -> Vec<Arc<MachinePod>> {
        self.pods.by_index(&id.uid).into_iter().filter(|pod| pod.id == *id).collect()
    }

    /// Obstacle of the cluster: its machines are known only as they were before.
    pub fn trouble(&self) -> Option<Trouble> {
        let Connection::Down(message) = &*self.connection.read() else { return None };
        let error = ProviderError::Unreachable(message.clone());
        Some(Trouble { reason: error.reason().to_owned(), message: message.clone() })
    }

    /// Its machines, once all of them are listed.
    pub fn machines(&self) -> Result<&Cache<MachinePod>, ProviderError> {
        self.api::<Pod>()?;
        if self.pods.in_sync() {
            return Ok(&self.pods);
        }
        Err(self.busy())
    }

    fn busy(&self) -> ProviderError {
        ProviderError::Busy(match &self.credentials {
            None => "the pods of this cluster are not listed yet".to_owned(),
            Some(name) => format!("the pods of the cluster of Secret {name} are not listed yet"),
        })
    }

    /// Sets the state. Reports all machines of the cluster if its obstacle comes, changes or ends.
    fn set(&self, connection: Connection) {
        let before = self.trouble();
        *self.connection.write() = connection;
        if self.trouble() != before {
            self.pods.all().iter().for_each(|pod| self.watchers.notify(&pod.id));
        }
    }
}

/// A cluster and the task that follows it.
type Followed = (Arc<HostingCluster>, AbortOnDropHandle<()>);

/// All hosting clusters.
pub struct HostingClusters {
    /// Client of the cluster that has the Nodes and the credentials.
    client: Client,
    options: Options,
    watchers: Arc<Watchers>,
    deletions: Arc<Deletions>,
    home: Followed,
    /// Other clusters by name of their credentials.
    others: Arc<Mutex<BTreeMap<String, Followed>>>,
    /// Removes deleted pods from the caches of the others.
    _remover: AbortOnDropHandle<()>,
}

impl HostingClusters {
    /// Hosting clusters of a cluster's machines; each change of a machine goes to `watchers`, and the Secrets of pods that
    /// went to `noted`.
    pub fn new(
        client: Client,
        options: Options,
        (watchers, noted): (Arc<Watchers>, Arc<NotedSecrets>),
    ) -> Self {
        let (sender, deleted) = unbounded_channel();
        let deletions = Arc::new(Deletions(sender));
        let connection = Connection::Up(client.clone());
        let (namespace, into) = (&options.machine_namespace, Arc::clone(&watchers));
        let home = HostingCluster::new(None, namespace, connection, into, Arc::clone(&deletions));
        let others = Arc::default();
        let clusters = (Arc::clone(&home), Arc::clone(&others));
        let remover = environment::spawn(remove_deleted(deleted, clusters, noted));
        let task = environment::spawn(follow_home(Arc::clone(&home), client.clone(), options.selector()));
        let home = (home, AbortOnDropHandle::new(task));
        let remover = AbortOnDropHandle::new(remover);
        Self { client, options, watchers, deletions, home, others, _remover: remover }
    }

    /// The cluster of these credentials; it is followed from now on.
    pub fn of(&self, credentials: Option<&str>) -> Arc<HostingCluster> {
        let Some(name) = credentials else { return Arc::clone(&self.home.0) };
        let mut others = self.others.lock();
        if let Some((cluster, _)) = others.get(name) {
            return Arc::clone(cluster);
        }
        let (watchers, deletions) = (Arc::clone(&self.watchers), Arc::clone(&self.deletions));
        let Options { namespace, machine_namespace, fence, insecure_credentials, .. } = &self.options;
        let (name_of, pending) = (Some(name.to_owned()), Connection::Pending);
        let new = HostingCluster::new(name_of, machine_namespace, pending, watchers, deletions);
        let follow = Follow {
            cluster: Arc::clone(&new),
            credentials: Credentials::new(&self.client, namespace, name, fence, *insecure_credentials),
            selector: self.options.selector(),
        };
        let task = AbortOnDropHandle::new(environment::spawn(follow.run()));
        others.insert(name.to_owned(), (Arc::clone(&new), task));
        new
    }

    /// Follows the clusters of these credentials, and of others those where machines are left. With `is_complete`
    /// false there may be more credentials, and no cluster is given up.
    pub fn follow(&self, credentials: &BTreeSet<String>, is_complete: bool) {
        for name in credentials {
            self.of(Some(name));
        }
        if is_complete {
            let mut others = self.others.lock();
            others.retain(|name, (cluster, _)| credentials.contains(name) || !cluster.pods.is_empty());
        }
    }

    /// All clusters that are followed.
    pub fn all(&self) -> Vec<Arc<HostingCluster>> {
        all(&self.home.0, &self.others)
    }

    /// The pods of the machine, each once: from a cluster that can be used if there is one. Any of these clusters may have made
    /// them.
    pub fn pods_of(&self, id: &MachineId) -> Vec<(Arc<HostingCluster>, Arc<MachinePod>)> {
        let mut clusters = self.all();
        clusters.sort_by_key(|cluster| cluster.machines().is_err());
        let mut seen = BTreeSet::new();
        let pods = clusters
            .into_iter()
            .flat_map(|cluster| cluster.pods_of(id).into_iter().map(move |pod| (Arc::clone(&cluster), pod)));
        pods.filter(|(_, pod)| seen.insert(pod.uid.clone())).collect()
    }
}

fn all(home: &Arc<HostingCluster>, others: &Mutex<BTreeMap<String, Followed>>) -> Vec<Arc<HostingCluster>> {
    let others = others.lock();
    std::iter::once(home).chain(others.values().map(|(cluster, _)| cluster)).map(Arc::clone).collect()
}

/// Passes deleted pods on. A cache must not be changed while another one is: two of them would wait for each
/// other.
struct Deletions(UnboundedSender<Arc<MachinePod>>);

impl EventHandler<MachinePod> for Deletions {
    fn on_change(&self, old: Option<&Arc<MachinePod>>, new: Option<&Arc<MachinePod>>) {
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            // The receiver ends with the process alone.
            let _ = self.0.send(Arc::clone(old));
        }
    }
}

async fn remove_deleted(
    mut deleted: UnboundedReceiver<Arc<MachinePod>>,
    (home, others): (Arc<HostingCluster>, Arc<Mutex<BTreeMap<String, Followed>>>),
    noted: Arc<NotedSecrets>,
) {
    while let Some(gone) = deleted.recv().await {
        noted.note(&gone.name, &gone.id);
        for cluster in all(&home, &others) {
            cluster.pods.remove_if(&gone.key(), |pod| pod.uid == gone.uid);
        }
    }
}

/// Reports machines that came, changed or went.
impl EventHandler<MachinePod> for Watchers {
    fn on_change(&self, old: Option<&Arc<MachinePod>>, new: Option<&Arc<MachinePod>>) {
        if let (Some(old), Some(new)) = (old, new)
            && (old.leaving, &old.health, &old.last_end, &old.uid)
                == (new.leaving, &new.health, &new.last_end, &new.uid)
        {
            return;
        }
        if let Some(pod) = new.or(old) {
            self.notify(&pod.id);
        }
    }
}

async fn follow_home(cluster: Arc<HostingCluster>, client: Client, selector: String) {
    loop {
        let Err(error) = watch(&cluster, client.clone(), &selector).await else { continue };
        let message = chain(&*error);
        warn!(error = message, "machines of this cluster cannot be seen");
        cluster.set(Connection::Down(message));
        sleep(RETRY).await;
        cluster.set(Connection::Up(client.clone()));
    }
}

async fn watch(cluster: &HostingCluster, client: Client, selector: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, &cluster.namespace);
    let config = watcher::Config::default().labels(selector);
    let ended = kube_node_cache::run(pods, config, Arc::clone(&cluster.pods)).await;
    ended.context("the hosting cluster refuses to show its pods")
}

/// Follows one other cluster.
struct Follow {
    cluster: Arc<HostingCluster>,
    credentials: Credentials,
    selector: String,
}

impl Follow {
    async fn run(self) {
        loop {
            if let Err(error) = self.once().await {
                let message = chain(&*error);
                warn!(secret = self.credentials.name, error = message, "hosting cluster");
                self.cluster.set(Connection::Down(message));
                sleep(RETRY).await;
            }
        }
    }

    /// Follows the cluster until its credentials change, or an error occurs.
    async fn once(&self) -> anyhow::Result<()> {
        let (client, version) = self.credentials.connect().await?;
        self.serves(&client).await?;
        self.cluster.set(Connection::Up(client.clone()));
        tokio::select! {
            biased;
            ended = watch(&self.cluster, client.clone(), &self.selector) => ended,
            changed = self.changed(&client, &version) => changed,
        }
    }

    /// Waits until the credentials change. Checks at each interval that the cluster still serves.
    async fn changed(&self, client: &Client, version: &str) -> anyhow::Result<()> {
        loop {
            sleep(RETRY).await;
            if self.credentials.have_changed_since(version).await {
                return Ok(());
            }
            self.serves(client).await?;
        }
    }

    /// Checks that the cluster lets us list machines.
    async fn serves(&self, client: &Client) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.cluster.namespace);
        let one = ListParams::default().labels(&self.selector).limit(1);
        let listed = timeout(ANSWER_LIMIT, pods.list_metadata(&one)).await;
        let silent = || format!("the hosting cluster gave no answer in {} s", ANSWER_LIMIT.as_secs());
        match listed.map_err(|_| anyhow!(silent()))? {
            Ok(_) => Ok(()),
            // Overloaded, but hosting.
            Err(kube::Error::Api(status)) if status.code == 429 => Ok(()),
            Err(error) => match away(&error) {
                Some(message) => bail!(message),
                None => Err(error).context("the hosting cluster does not show its pods"),
            },
        }
    }
}
