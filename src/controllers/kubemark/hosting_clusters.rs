//! Hosting clusters: this one, and those that credentials of classes lead to. Each is watched on its own: a
//! cluster that refuses or is unreachable delays only its own machines.
//!
//! Several credentials can lead to one cluster, so a pod can stand in several caches. A pod whose deletion one
//! cache shows leaves the others too: theirs may be the watch that is down, and would keep the pod for ever. One cluster is one
//! server that TLS has verified. Another cluster that shows the name and the UID of the pod says nothing of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{Api, Client, Resource, api::ListParams, runtime::watcher};
use kube_ext::{environment, error::chain, log_once::LogOnce};
use kube_node_cache::{Cache, EventHandler, NodeView, View};
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::provider::{MachineId, ProviderError, Trouble, Watchers};

use super::{
    Options,
    answers::away,
    credentials::{Connected, Credentials},
    noted_secrets::NotedSecrets,
    pod_limit::{PAGE, drop_strangers, exceeded},
    view::MachinePod,
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

/// Identity of the server of a cluster, as of its last connection; None for this cluster, which has no credentials, and before the
/// first connection.
type Server = Arc<RwLock<Option<String>>>;

/// A hosting cluster.
pub struct HostingCluster {
    /// Name of its credentials Secret; None: this cluster.
    credentials: Option<String>,
    /// Namespace of machines.
    namespace: String,
    connection: RwLock<Connection>,
    /// Identity of its server.
    pub server: Server,
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
        deletions: UnboundedSender<Deletion>,
    ) -> Arc<Self> {
        let (pods, server) = (Arc::<Cache<MachinePod>>::default(), Server::default());
        pods.add_event_handler(Arc::clone(&watchers) as _);
        pods.add_event_handler(Arc::new(Deletions { to: deletions, server: Arc::clone(&server) }));
        let namespace = namespace.to_owned();
        let (connection, searched) = (RwLock::new(connection), Mutex::default());
        Arc::new(Self { credentials, namespace, connection, server, watchers, pods, searched })
    }

    /// Returns true if both are known to be one cluster.
    fn is_same(&self, server: Option<&str>) -> bool {
        server.is_some() && self.server.read().as_deref() == server
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
    nodes: Arc<Cache<NodeView>>,
    deletions: UnboundedSender<Deletion>,
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
        nodes: Arc<Cache<NodeView>>,
        (watchers, noted): (Arc<Watchers>, Arc<NotedSecrets>),
    ) -> Self {
        let (deletions, deleted) = unbounded_channel();
        let connection = Connection::Up(client.clone());
        let (namespace, into) = (&options.machine_namespace, Arc::clone(&watchers));
        let home = HostingCluster::new(None, namespace, connection, into, deletions.clone());
        let others = Arc::default();
        let clusters = (Arc::clone(&home), Arc::clone(&others));
        let remover = environment::spawn(remove_deleted(deleted, clusters, noted));
        let task = environment::spawn(follow_home(Arc::clone(&home), client.clone(), options.selector()));
        let home = (home, AbortOnDropHandle::new(task));
        let remover = AbortOnDropHandle::new(remover);
        Self { client, options, watchers, nodes, deletions, home, others, _remover: remover }
    }

    /// The cluster of these credentials; it is followed from now on.
    pub fn of(&self, credentials: Option<&str>) -> Arc<HostingCluster> {
        let Some(name) = credentials else { return Arc::clone(&self.home.0) };
        let mut others = self.others.lock();
        if let Some((cluster, _)) = others.get(name) {
            return Arc::clone(cluster);
        }
        let (watchers, deletions) = (Arc::clone(&self.watchers), self.deletions.clone());
        let Options { namespace, machine_namespace, fence, insecure_credentials, .. } = &self.options;
        let (name_of, pending) = (Some(name.to_owned()), Connection::Pending);
        let new = HostingCluster::new(name_of, machine_namespace, pending, watchers, deletions);
        let follow = Follow {
            cluster: Arc::clone(&new),
            credentials: Credentials::new(&self.client, namespace, name, fence, *insecure_credentials),
            nodes: Arc::clone(&self.nodes),
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
        pods.filter(|(cluster, pod)| seen.insert((cluster.server.read().clone(), pod.uid.clone()))).collect()
    }
}

fn all(home: &Arc<HostingCluster>, others: &Mutex<BTreeMap<String, Followed>>) -> Vec<Arc<HostingCluster>> {
    let others = others.lock();
    std::iter::once(home).chain(others.values().map(|(cluster, _)| cluster)).map(Arc::clone).collect()
}

/// A deleted pod, and the server that had it.
type Deletion = (Option<String>, Arc<MachinePod>);

/// Passes the deleted pods of a cluster on. A cache must not be changed while another one is: two of them would wait for each
/// other.
struct Deletions {
    to: UnboundedSender<Deletion>,
    server: Server,
}

impl EventHandler<MachinePod> for Deletions {
    fn on_change(&self, old: Option<&Arc<MachinePod>>, new: Option<&Arc<MachinePod>>) {
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            // The receiver ends with the process alone.
            let _ = self.to.send((self.server.read().clone(), Arc::clone(old)));
        }
    }
}

async fn remove_deleted(
    mut deleted: UnboundedReceiver<Deletion>,
    (home, others): (Arc<HostingCluster>, Arc<Mutex<BTreeMap<String, Followed>>>),
    noted: Arc<NotedSecrets>,
) {
    while let Some((server, gone)) = deleted.recv().await {
        noted.note(&gone.name, &gone.id);
        for cluster in all(&home, &others).iter().filter(|cluster| cluster.is_same(server.as_deref())) {
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
    let config = watcher::Config::default().labels(selector).page_size(PAGE);
    let ended = kube_node_cache::run(pods, config, Arc::clone(&cluster.pods)).await;
    ended.context("the hosting cluster refuses to show its pods")
}

/// Follows one other cluster.
struct Follow {
    cluster: Arc<HostingCluster>,
    credentials: Credentials,
    nodes: Arc<Cache<NodeView>>,
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
        let connected = self.credentials.connect().await?;
        self.serves(&connected.client).await?;
        *self.cluster.server.write() = Some(connected.server.clone());
        self.cluster.set(Connection::Up(connected.client.clone()));
        tokio::select! {
            biased;
            ended = watch(&self.cluster, connected.client.clone(), &self.selector) => ended,
            changed = self.changed(&connected) => changed,
            error = exceeded(&self.cluster.pods, &self.nodes) => {
                // Before any pod leaves the cache: its machine must not seem to be gone.
                self.cluster.set(Connection::Down(chain(&*error)));
                drop_strangers(&self.cluster.pods, &self.nodes);
                Err(error)
            }
        }
    }

    /// Waits until the credentials change. Checks at each interval that the cluster still serves, and renews the token in time.
    async fn changed(&self, connected: &Connected) -> anyhow::Result<()> {
        let mut failure = LogOnce::default();
        loop {
            sleep(RETRY).await;
            match self.credentials.renew(connected).await.map_err(|error| chain(&*error)) {
                Ok(()) => drop(failure.ended()),
                Err(error) if failure.is_new(&error) => {
                    warn!(
                        secret = self.credentials.name,
                        error, "the token for the hosting cluster is not renewed"
                    );
                }
                Err(_) => {}
            }
            if self.credentials.have_changed_since(&connected.version).await {
                return Ok(());
            }
            self.serves(&connected.client).await?;
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
