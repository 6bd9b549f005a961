//! Hosting clusters: this one, and those that credentials of classes lead to. Each is watched on its own: a
//! cluster that refuses or is unreachable delays only its own machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{Api, Client, Resource, api::ListParams, runtime::watcher};
use kube_ext::error::chain;
use kube_node_api::names;
use kube_node_cache::{Cache, EventHandler};
use parking_lot::{Mutex, RwLock};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::{
    Options,
    answers::away,
    credentials::{Credentials, CredentialsError},
    view::MachinePod,
};
use crate::providers::{ProviderError, Trouble, Watchers};

/// Interval at which an unreachable cluster is tried again, a reachable one is asked whether it still serves
/// (a running watch outlives the rights to it), and credentials are read for changes.
const RETRY: Duration = Duration::from_secs(10);
/// Time limit for the response to that.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Reason why a cluster cannot host machines now.
#[derive(Debug, thiserror::Error)]
enum HostError {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("{0}")]
    Away(String),
    #[error("the hosting cluster does not show its pods")]
    Failed(#[source] kube::Error),
    #[error("the hosting cluster gave no answer in {} s", ANSWER_LIMIT.as_secs())]
    Silent,
    #[error("the hosting cluster refuses to show its pods")]
    Refused(#[from] kube_node_cache::ReflectError),
}

/// Known state of a cluster.
#[derive(Clone)]
enum Known {
    /// There was no response yet.
    Nothing,
    /// The cluster serves this client.
    Client(Client),
    /// Reason why the cluster cannot host machines now.
    Trouble(String),
}

/// A hosting cluster.
pub struct Host {
    /// Name of its credentials Secret; None: this cluster.
    credentials: Option<String>,
    known: RwLock<Known>,
    watchers: Arc<Watchers>,
    /// Pods of its machines.
    pub pods: Arc<Cache<MachinePod>>,
}

impl Host {
    /// The API of the objects of machines, if the cluster can be used.
    pub fn api<K>(&self) -> Result<Api<K>, ProviderError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match &*self.known.read() {
            Known::Client(client) => Ok(Api::namespaced(client.clone(), names::MACHINE_NAMESPACE)),
            Known::Trouble(message) => Err(ProviderError::Unreachable(message.clone())),
            Known::Nothing => Err(self.busy()),
        }
    }

    /// Obstacle of the cluster: its machines are known only as they were before.
    pub fn trouble(&self) -> Option<Trouble> {
        let Known::Trouble(message) = &*self.known.read() else { return None };
        let error = ProviderError::Unreachable(message.clone());
        Some(Trouble { reason: error.reason().to_owned(), message: message.clone() })
    }

    /// Its machines, once all of them are listed.
    pub fn known(&self) -> Result<&Cache<MachinePod>, ProviderError> {
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
    fn set(&self, known: Known) {
        let before = self.trouble();
        *self.known.write() = known;
        if self.trouble() != before {
            self.pods.all().iter().for_each(|pod| self.watchers.notify(&pod.id));
        }
    }
}

/// A cluster and the task that follows it.
type Followed = (Arc<Host>, AbortOnDropHandle<()>);

/// All hosting clusters.
pub struct Hosts {
    /// Client of the cluster that has the Nodes and the credentials.
    client: Client,
    options: Options,
    watchers: Arc<Watchers>,
    home: Arc<Host>,
    /// Other clusters by name of their credentials.
    others: Mutex<BTreeMap<String, Followed>>,
    _home: AbortOnDropHandle<()>,
}

impl Hosts {
    /// Hosting clusters of a cluster's machines; each change of a machine goes to `watchers`.
    pub fn new(client: Client, options: Options, watchers: Arc<Watchers>) -> Self {
        let home = host(None, Known::Client(client.clone()), Arc::clone(&watchers));
        let task = tokio::spawn(follow_home(Arc::clone(&home), client.clone(), options.selector()));
        Self {
            client,
            options,
            watchers,
            home,
            others: Mutex::default(),
            _home: AbortOnDropHandle::new(task),
        }
    }

    /// The cluster of these credentials; it is followed from now on.
    pub fn of(&self, credentials: Option<&str>) -> Arc<Host> {
        let Some(name) = credentials else { return Arc::clone(&self.home) };
        let mut others = self.others.lock();
        if let Some((host, _)) = others.get(name) {
            return Arc::clone(host);
        }
        let new = host(Some(name.to_owned()), Known::Nothing, Arc::clone(&self.watchers));
        let Options { namespace, fence, insecure_credentials, .. } = &self.options;
        let follow = Follow {
            host: Arc::clone(&new),
            credentials: Credentials::new(&self.client, namespace, name, fence, *insecure_credentials),
            selector: self.options.selector(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(follow.run()));
        others.insert(name.to_owned(), (Arc::clone(&new), task));
        new
    }

    /// Follows the clusters of these credentials, and of others only those where machines are left.
    pub fn follow(&self, credentials: &BTreeSet<String>) {
        for name in credentials {
            self.of(Some(name));
        }
        let mut others = self.others.lock();
        others.retain(|name, (host, _)| credentials.contains(name) || !host.pods.is_empty());
    }

    /// All clusters that are followed.
    pub fn all(&self) -> Vec<Arc<Host>> {
        let others = self.others.lock();
        std::iter::once(&self.home).chain(others.values().map(|(host, _)| host)).map(Arc::clone).collect()
    }
}

fn host(credentials: Option<String>, known: Known, watchers: Arc<Watchers>) -> Arc<Host> {
    let host = Host { credentials, known: RwLock::new(known), watchers, pods: Arc::default() };
    host.pods.add_event_handler(Arc::new(Changes(Arc::clone(&host.watchers))));
    Arc::new(host)
}

/// Reports machines that came, changed or went.
struct Changes(Arc<Watchers>);

impl EventHandler<MachinePod> for Changes {
    fn on_change(&self, old: Option<&Arc<MachinePod>>, new: Option<&Arc<MachinePod>>) {
        if let (Some(old), Some(new)) = (old, new)
            && (old.leaving, &old.health, &old.last_end, &old.uid)
                == (new.leaving, &new.health, &new.last_end, &new.uid)
        {
            return;
        }
        if let Some(pod) = new.or(old) {
            self.0.notify(&pod.id);
        }
    }
}

async fn follow_home(host: Arc<Host>, client: Client, selector: String) {
    loop {
        let Err(error) = watch(&host, client.clone(), &selector).await else { continue };
        let message = chain(&error);
        warn!(error = message, "machines of this cluster cannot be seen");
        host.set(Known::Trouble(message));
        sleep(RETRY).await;
        host.set(Known::Client(client.clone()));
    }
}

async fn watch(host: &Host, client: Client, selector: &str) -> Result<(), HostError> {
    let pods: Api<Pod> = Api::namespaced(client, names::MACHINE_NAMESPACE);
    Ok(kube_node_cache::run(pods, watcher::Config::default().labels(selector), Arc::clone(&host.pods))
        .await?)
}

/// Follows one other cluster.
struct Follow {
    host: Arc<Host>,
    credentials: Credentials,
    selector: String,
}

impl Follow {
    async fn run(self) {
        loop {
            if let Err(error) = self.once().await {
                let message = chain(&error);
                warn!(secret = self.credentials.name(), error = message, "hosting cluster");
                self.host.set(Known::Trouble(message));
                sleep(RETRY).await;
            }
        }
    }

    /// Follows the cluster until its credentials change, or an error occurs.
    async fn once(&self) -> Result<(), HostError> {
        let (client, version) = self.credentials.connect().await?;
        self.serves(&client).await?;
        self.host.set(Known::Client(client.clone()));
        tokio::select! {
            ended = watch(&self.host, client.clone(), &self.selector) => ended,
            changed = self.changed(&client, &version) => changed,
        }
    }

    async fn changed(&self, client: &Client, version: &str) -> Result<(), HostError> {
        loop {
            sleep(RETRY).await;
            match self.credentials.changed_since(version).await {
                // If our own API server is unreachable, the other cluster's machines stay.
                Ok(false) | Err(CredentialsError::Read { .. }) => {}
                Ok(true) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            self.serves(client).await?;
        }
    }

    /// Checks that the cluster lets us list machines.
    async fn serves(&self, client: &Client) -> Result<(), HostError> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), names::MACHINE_NAMESPACE);
        let one = ListParams::default().labels(&self.selector).limit(1);
        let asked = timeout(ANSWER_LIMIT, pods.list_metadata(&one)).await;
        match asked.map_err(|_| HostError::Silent)? {
            Ok(_) => Ok(()),
            // Overloaded, but hosting.
            Err(kube::Error::Api(status)) if status.code == 429 => Ok(()),
            Err(error) => Err(away(&error).map_or(HostError::Failed(error), HostError::Away)),
        }
    }
}
