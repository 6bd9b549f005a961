//! Clusters that host machines: this one, and those that the credentials of classes lead to. Each is watched on its own:
//! one that refuses or is away holds up its own machines, and no others.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::watcher,
};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::{Watchers, view::MachinePod};
use crate::{
    api::names,
    cache::{self, Cache, Observer},
    error::chain,
    providers::ProviderError,
    runtime::connection::limited,
};

/// Key of a credentials Secret.
const KEY_KUBECONFIG: &str = "kubeconfig";
/// When a cluster that could not be reached is tried again, and how often credentials are read for changes.
const RETRY: Duration = Duration::from_secs(30);

/// Why a cluster cannot host machines now.
#[derive(Debug, thiserror::Error)]
enum HostError {
    #[error("cannot read Secret {name} in {namespace}")]
    Read { name: String, namespace: String, source: kube::Error },
    #[error("there is no Secret {name} in namespace {namespace}: create it with the key kubeconfig")]
    Missing { name: String, namespace: String },
    #[error("Secret {name} in namespace {namespace} has no key kubeconfig")]
    NoKey { name: String, namespace: String },
    #[error("the kubeconfig in Secret {name} cannot be used")]
    Kubeconfig { name: String, source: kube::config::KubeconfigError },
    #[error(
        "the kubeconfig in Secret {name} uses {what}: the operator neither runs programs nor reads files for it; write certificates, keys or tokens into it (kubectl config view --raw --flatten)"
    )]
    NotSelfContained { name: String, what: &'static str },
    #[error("cannot make a client from Secret {name}")]
    Client { name: String, source: kube::Error },
    #[error("the hosting cluster refuses to show its pods")]
    Refused(#[from] cache::ReflectError),
}

/// What is known of a cluster.
#[derive(Clone)]
enum Known {
    /// It has not answered yet.
    Nothing,
    /// The way to it.
    Client(Client),
    /// Why it cannot host machines now.
    Trouble(String),
}

/// One cluster that hosts machines.
pub struct Host {
    /// Name of its credentials; None: this cluster.
    credentials: Option<String>,
    known: RwLock<Known>,
    /// Its machines.
    pub pods: Arc<Cache<MachinePod>>,
}

impl Host {
    /// A client, where there is one.
    pub fn client(&self) -> Result<Client, ProviderError> {
        match self.known.read().unwrap_or_else(PoisonError::into_inner).clone() {
            Known::Client(client) => Ok(client),
            Known::Trouble(message) => Err(ProviderError::Unreachable { message }),
            Known::Nothing => Err(self.busy()),
        }
    }

    /// Its machines, once all of them are known.
    pub fn known(&self) -> Result<&Cache<MachinePod>, ProviderError> {
        self.client()?;
        if self.pods.in_sync() {
            return Ok(&self.pods);
        }
        Err(self.busy())
    }

    fn busy(&self) -> ProviderError {
        let whose = self
            .credentials
            .as_ref()
            .map_or_else(|| "this cluster".to_owned(), |name| format!("the cluster of Secret {name}"));
        ProviderError::Busy { message: format!("the pods of {whose} are not listed yet") }
    }

    fn set(&self, known: Known) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

/// A cluster and the task that follows it.
type Followed = (Arc<Host>, AbortOnDropHandle<()>);

/// All of them.
pub struct Hosts {
    /// Where Nodes are, and credentials.
    client: Client,
    namespace: String,
    selector: String,
    changes: Arc<Watchers>,
    home: Arc<Host>,
    /// By name of their credentials.
    others: Mutex<BTreeMap<String, Followed>>,
    _home: AbortOnDropHandle<()>,
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosts").field("selector", &self.selector).finish_non_exhaustive()
    }
}

impl Hosts {
    /// Hosts of the machines of `cluster`; whatever happens to one of these goes to `changes`. `namespace` has the
    /// credentials.
    pub fn new(client: Client, namespace: &str, cluster: &str, changes: Arc<Watchers>) -> Self {
        let selector = format!("{}={cluster}", names::LABEL_CLUSTER);
        let home = host(None, Known::Client(client.clone()), Arc::clone(&changes));
        let task = tokio::spawn(follow_home(Arc::clone(&home), client.clone(), selector.clone()));
        Self {
            client,
            namespace: namespace.to_owned(),
            selector,
            changes,
            home,
            others: Mutex::default(),
            _home: AbortOnDropHandle::new(task),
        }
    }

    /// The one that `credentials` lead to; it is followed from now on.
    pub fn of(&self, credentials: Option<&str>) -> Arc<Host> {
        let Some(name) = credentials else { return Arc::clone(&self.home) };
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((host, _)) = others.get(name) {
            return Arc::clone(host);
        }
        let new = host(Some(name.to_owned()), Known::Nothing, Arc::clone(&self.changes));
        let follow = Follow {
            host: Arc::clone(&new),
            secrets: Api::namespaced(self.client.clone(), &self.namespace),
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            selector: self.selector.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(follow.run()));
        others.insert(name.to_owned(), (Arc::clone(&new), task));
        new
    }

    /// Those that are followed.
    pub fn all(&self) -> Vec<Arc<Host>> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.home).chain(others.values().map(|(host, _)| host)).map(Arc::clone).collect()
    }
}

fn host(credentials: Option<String>, known: Known, changes: Arc<Watchers>) -> Arc<Host> {
    let pods = Arc::new(Cache::default());
    pods.observe(Arc::new(Changes(changes)));
    Arc::new(Host { credentials, known: RwLock::new(known), pods })
}

/// Tells of machines that came, changed or went.
struct Changes(Arc<Watchers>);

impl Observer<MachinePod> for Changes {
    fn changed(&self, old: Option<&Arc<MachinePod>>, new: Option<&Arc<MachinePod>>) {
        if let (Some(old), Some(new)) = (old, new)
            && (old.leaving, &old.health, &old.last_end, &old.uid)
                == (new.leaving, &new.health, &new.last_end, &new.uid)
        {
            return;
        }
        if let Some(pod) = new.or(old) {
            self.0.tell(&pod.id);
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
    Ok(cache::run(pods, watcher::Config::default().labels(selector), Arc::clone(&host.pods)).await?)
}

/// What follows one other cluster.
struct Follow {
    host: Arc<Host>,
    secrets: Api<Secret>,
    namespace: String,
    name: String,
    selector: String,
}

impl Follow {
    async fn run(self) {
        loop {
            if let Err(error) = self.once().await {
                let message = chain(&error);
                warn!(secret = self.name, error = message, "hosting cluster");
                self.host.set(Known::Trouble(message));
                sleep(RETRY).await;
            }
        }
    }

    /// Follows the cluster until its credentials change, or something is wrong.
    async fn once(&self) -> Result<(), HostError> {
        let (client, version) = self.connect().await?;
        self.host.set(Known::Client(client.clone()));
        tokio::select! {
            ended = watch(&self.host, client, &self.selector) => ended,
            changed = self.changed(&version) => changed,
        }
    }

    async fn changed(&self, version: &str) -> Result<(), HostError> {
        loop {
            sleep(RETRY).await;
            // An API server that is away does not make the other cluster's machines go away.
            match self.secret().await {
                Err(HostError::Read { .. }) => {}
                Err(error) => return Err(error),
                Ok(secret) if secret.metadata.resource_version.as_deref() != Some(version) => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    async fn secret(&self) -> Result<Secret, HostError> {
        let (name, namespace) = (self.name.clone(), self.namespace.clone());
        match self.secrets.get_opt(&self.name).await {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) => Err(HostError::Missing { name, namespace }),
            Err(source) => Err(HostError::Read { name, namespace, source }),
        }
    }

    async fn connect(&self) -> Result<(Client, String), HostError> {
        let secret = self.secret().await?;
        let name = || self.name.clone();
        let text = secret.data.as_ref().and_then(|data| data.get(KEY_KUBECONFIG));
        let text = text.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        let text =
            text.ok_or_else(|| HostError::NoKey { name: name(), namespace: self.namespace.clone() })?;
        let wrong = |source| HostError::Kubeconfig { name: name(), source };
        let kubeconfig = Kubeconfig::from_yaml(text).map_err(wrong)?;
        if let Some(what) = foreign(&kubeconfig) {
            return Err(HostError::NotSelfContained { name: name(), what });
        }
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(wrong)?;
        let client =
            Client::try_from(limited(config)).map_err(|source| HostError::Client { name: name(), source })?;
        Ok((client, secret.metadata.resource_version.unwrap_or_default()))
    }
}

/// What of a kubeconfig would make the operator run a program or read a file of its own.
fn foreign(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let mut users = kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    let mut clusters = kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
    if clusters.any(|cluster| cluster.certificate_authority.is_some()) {
        return Some("the file certificate-authority");
    }
    users.find_map(|user| {
        [
            (user.exec.is_some(), "exec"),
            (user.auth_provider.is_some(), "auth-provider"),
            (user.token_file.is_some(), "the file tokenFile"),
            (user.client_certificate.is_some(), "the file client-certificate"),
            (user.client_key.is_some(), "the file client-key"),
        ]
        .into_iter()
        .find_map(|(used, what)| used.then_some(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_must_not_lead_to_programs_or_files_of_the_operator() {
        let with = |user: &str| {
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: \"https://c\"}}}}]\nusers: [{{name: u, user: {user}}}]\n"
            );
            foreign(&Kubeconfig::from_yaml(&text).unwrap())
        };
        assert_eq!(with("{token: t}"), None);
        assert_eq!(with("{client-certificate-data: YQ==, client-key-data: YQ==}"), None);
        assert_eq!(with("{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}}"), Some("exec"));
        assert_eq!(with("{tokenFile: /etc/shadow}"), Some("the file tokenFile"));
    }
}
