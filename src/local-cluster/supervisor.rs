//! Supervisor of one cluster, from the data folder to Ready nodes and back.
//!
//! [`Cluster::create`] takes the folder, [`Cluster::launch`] starts the cluster in it, [`Cluster::shutdown`]
//! stops it; [`Cluster::start`] combines the first two. Dropping a cluster kills its processes.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use kube::Client;
use kube_ext::connection::own_address;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::{
    binaries::{self, Binaries, KUBERNETES_VERSION},
    component::{Addresses, Component, ComponentArg},
    error::ClusterError,
    files::{write_private, write_public},
    fleet::{self, Nodes},
    health::{Probe, client_of},
    kubeconfig,
    layout::{DirLock, GRACE, Layout},
    manifests,
    pki::{AutoscalerPki, Pki},
    ports::Ports,
    process_supervisor::{Plan, ProcessSupervisor},
    procs::ProcessId,
    progress::Progress,
    real_node::{self, Ingredients},
    state::StateFile,
    tcp_proxy,
};

/// Time limit for a component to become ready; generous, for busy machines.
pub(super) const READY_LIMIT: Duration = Duration::from_mins(2);
/// Interval of health probes of a starting component.
const POLL: Duration = Duration::from_millis(50);
/// Number of log lines in an error.
const LOG_LINES: usize = 8;
const LOG_LINE_CHARS: usize = 400;
/// Bytes at the end of a log that are searched for its last lines.
const LOG_TAIL_BYTES: u64 = 64 << 10;

/// Users with a kubeconfig: file, name, groups.
const USERS: [(&str, &str, &[&str]); 6] = [
    ("kubeconfig", "kubernetes-admin", &["system:masters"]),
    ("controller-manager.kubeconfig", "system:kube-controller-manager", &[]),
    ("scheduler.kubeconfig", "system:kube-scheduler", &[]),
    (
        "operator.kubeconfig",
        "system:serviceaccount:kube-node-system:kube-node-operator",
        SERVICE_ACCOUNT_GROUPS,
    ),
    ("hollow.kubeconfig", "system:serviceaccount:kube-node-system:kube-node-hollow", SERVICE_ACCOUNT_GROUPS),
    (
        "hollow-host.kubeconfig",
        "system:serviceaccount:kube-node-system:kube-node-hollow-host",
        SERVICE_ACCOUNT_GROUPS,
    ),
];
/// Groups in the certificate of a ServiceAccount, as a token of the ServiceAccount would carry them.
const SERVICE_ACCOUNT_GROUPS: &[&str] =
    &["system:serviceaccounts", "system:serviceaccounts:kube-node-system"];

/// Options of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Data folder; the user's default one when absent.
    pub data_dir: Option<PathBuf>,
    /// Folder of the control plane's programs; located or built when absent.
    pub binaries: Option<PathBuf>,
    /// Port of kube-apiserver on 127.0.0.1; that of the last start or a free one when absent.
    pub port: Option<u16>,
    /// Further addresses of this machine for kube-apiserver, at the same port.
    pub listen_addresses: Vec<IpAddr>,
    /// Further arguments of the components.
    pub component_args: Vec<ComponentArg>,
    /// True if the operator runs; without it nothing turns a NodeSet into Nodes.
    pub with_operator: bool,
    /// Program with the `operator` command; the running program when absent. A test binary lacks this command.
    pub operator_program: Option<PathBuf>,
    /// Initial nodes; none without the operator.
    pub nodes: Nodes,
    /// True if the operator serves cluster-autoscaler.
    pub autoscaler: bool,
    /// True if the kubelets of hollow machines are served, to every authorized client.
    pub kubelets: bool,
    /// A real node with containers, in addition to hollow nodes.
    pub real_node: Option<real_node::Options>,
}

/// A cluster supervised by this process.
#[derive(Debug)]
pub struct Cluster {
    layout: Layout,
    binaries: Binaries,
    addresses: Addresses,
    pki: Pki,
    admin: String,
    state: Arc<StateFile>,
    /// Process supervisors in the order of [`Component::ALL`].
    keepers: [ProcessSupervisor; 6],
    with_operator: bool,
    /// An earlier start had a real node and this one has none: its Node is deleted.
    forget_real_node: bool,
    nodes: Nodes,
    /// TCP proxies to kube-apiserver.
    _doors: Vec<AbortOnDropHandle<()>>,
    /// Released last: until then no other supervisor may use the folder.
    _lock: DirLock,
}

impl Cluster {
    /// Creates and launches a cluster. If that fails, every process already started is stopped.
    pub async fn start(options: Options, progress: &Progress) -> Result<Self, ClusterError> {
        let cluster = Self::create(options, progress).await?;
        match cluster.launch(progress).await {
            Ok(_) => Ok(cluster),
            Err(error) => {
                cluster.shutdown(progress).await?;
                Err(error)
            }
        }
    }

    /// Takes the data folder, stops leftovers of an earlier run, and makes ports, certificates and kubeconfigs.
    pub async fn create(options: Options, progress: &Progress) -> Result<Self, ClusterError> {
        tcp_proxy::check(&options.listen_addresses)?;
        let programs = options.real_node.as_ref().map(real_node::Programs::find).transpose()?;
        let layout = Layout::new(options.data_dir.as_deref())?;
        // Before the programs: an unusable folder must be reported before a build of minutes.
        layout.prepare(KUBERNETES_VERSION)?;
        let lock = layout.lock().await?;
        layout.stop_leftovers(&lock).await?;
        let names = programs_of(options.real_node.as_ref());
        let binaries = Binaries::locate(options.binaries.as_deref(), &names, progress).await?;
        if let Some(real_node) = &options.real_node {
            real_node::Programs::build(real_node, progress).await?;
        }
        let data_dir = layout.dir().to_owned();
        let assembled = Self::assemble(options, programs, layout, lock, binaries, progress);
        if assembled.is_err() {
            // The networks of a real node are already taken.
            real_node::remove(&data_dir).await?;
        }
        assembled
    }

    fn assemble(
        options: Options,
        programs: Option<real_node::Programs>,
        layout: Layout,
        lock: DirLock,
        binaries: Binaries,
        progress: &Progress,
    ) -> Result<Self, ClusterError> {
        let mut state = layout.prepare(KUBERNETES_VERSION)?;
        let further = distinct(&options.listen_addresses);
        let ports = Ports::choose(options.port, state.ports, &further)?;
        let doors = tcp_proxy::open_all(&further, ports.apiserver)?;
        let forget_real_node = state.network.is_some() && programs.is_none();
        let network = match &programs {
            Some(_) => Some(real_node::claim(layout.dir(), state.network)?),
            None => None,
        };
        let kubelets = options.kubelets.then(|| {
            own_address().map_or_else(
                || {
                    progress.line(
                        "No way leads out of this machine: kubelets are served on 127.0.0.1, where /api/v1/nodes/NAME/proxy is refused",
                    );
                    Ipv4Addr::LOCALHOST.into()
                },
                IpAddr::V4,
            )
        });
        let autoscaler = options.autoscaler;
        let addresses = Addresses { ports, network, further, autoscaler, kubelets };
        KUBERNETES_VERSION.clone_into(&mut state.kubernetes_version);
        state.ports = Some(ports);
        state.network = network;
        state.listen_addresses.clone_from(&addresses.further);
        state.binaries = Some(binaries.dir().to_owned());
        state.supervisor = ProcessId::current();
        state.ready = false;
        state.save(&layout.state())?;

        let link = network.map(|network| IpAddr::V4(network.host));
        let certified: BTreeSet<IpAddr> = link.into_iter().chain(addresses.further.iter().copied()).collect();
        let pki = Pki::ensure(&layout.pki(), &Vec::from_iter(certified))?;
        let admin = write_kubeconfigs(&layout, &addresses, &pki)?;
        if options.autoscaler {
            write_cloud_config(&layout, ports.autoscaler)?;
        }
        let state = Arc::new(StateFile::new(layout.state(), state));
        let itself = match options.operator_program {
            Some(program) => program,
            None => std::env::current_exe().map_err(ClusterError::Itself)?,
        };
        if let (Some(programs), Some(network)) = (programs, network) {
            let (layout, binaries, itself) = (&layout, &binaries, &itself);
            let apiserver_port = ports.apiserver;
            let pki = &pki;
            let ingredients =
                Ingredients { layout, pki, binaries, programs, network, apiserver_port, itself };
            real_node::prepare(&ingredients, progress)?;
        }
        let keepers = Component::ALL.map(|component| {
            let mut args = component.arguments(&layout, &addresses);
            let more = options.component_args.iter().filter(|more| more.component == component);
            args.extend(more.map(|more| more.arg.clone()));
            let program = match component {
                Component::Operator | Component::RealNode => itself.clone(),
                _ => binaries.path(component.name()),
            };
            let state = state.clone();
            let note = Box::new(move |id| state.note(component, id));
            let name = component.name();
            ProcessSupervisor::new(Plan { name, program, args, log: layout.log(name) }, note)
        });
        Ok(Self {
            layout,
            binaries,
            addresses,
            pki,
            admin,
            state,
            keepers,
            with_operator: options.with_operator,
            forget_real_node,
            nodes: options.nodes,
            _doors: doors,
            _lock: lock,
        })
    }

    /// Starts everything and waits until it is ready. Returns the number of nodes requested.
    pub async fn launch(&self, progress: &Progress) -> Result<i32, ClusterError> {
        let since = Instant::now();
        progress.step("Starting etcd");
        self.start_component(Component::Etcd).await?;
        progress.step("Starting kube-apiserver");
        self.start_component(Component::Apiserver).await?;
        let real = if self.addresses.network.is_some() { ", and the real node" } else { "" };
        progress.step(&format!("Starting kube-controller-manager and kube-scheduler{real}"));
        let client = self.client().await?;
        let furnish = async { manifests::install(&client).await.map_err(ClusterError::from) };
        tokio::try_join!(
            self.start_component(Component::ControllerManager),
            self.start_component(Component::Scheduler),
            furnish,
            // Boxed: the state of its watch is large.
            Box::pin(self.start_real_node(&client)),
        )?;
        progress.line(&format!("Control plane ready after {:.1} s", since.elapsed().as_secs_f64()));
        let mut nodes = 0;
        if self.with_operator {
            progress.step("Starting the operator");
            self.start_component(Component::Operator).await?;
            nodes = fleet::bring_up(&client, self.nodes, self.addresses.network.is_some(), progress).await?;
        }
        self.state.change(|state| state.ready = true)?;
        Ok(nodes)
    }

    /// Starts the real node if the cluster has one, and waits until it takes pods.
    async fn start_real_node(&self, client: &Client) -> Result<(), ClusterError> {
        if self.addresses.network.is_none() {
            if self.forget_real_node {
                real_node::forget(client).await?;
            }
            return Ok(());
        }
        real_node::unknown(client).await?;
        self.start_component(Component::RealNode).await?;
        Ok(real_node::wait_ready(client).await?)
    }

    /// Stops everything, last started first, and releases the data folder.
    pub async fn shutdown(self, progress: &Progress) -> Result<(), ClusterError> {
        for component in Component::ALL.into_iter().rev() {
            if self.pid(component).is_some() {
                progress.step(&format!("Stopping {component}"));
            }
            self.stop_component(component).await;
        }
        // Also if the real node never started: its link is made when the networks are chosen.
        if self.addresses.network.is_some() {
            real_node::remove(self.layout.dir()).await?;
        }
        self.state.change(|state| {
            state.supervisor = None;
            state.ready = false;
        })?;
        Ok(())
    }

    /// Starts a component if it does not run, and waits until it is ready.
    pub async fn start_component(&self, component: Component) -> Result<(), ClusterError> {
        let keeper = self.keeper(component);
        let deaths = keeper.run().deaths;
        keeper.start().await.map_err(|source| ClusterError::Start { component, source })?;
        let Some((url, path)) = component.health(&self.addresses) else { return Ok(()) };
        let probe = Probe::new(&url, path, &self.admin).await?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let Err(source) = probe.check().await else { return Ok(()) };
            let run = keeper.run();
            let log = self.layout.log(component.name());
            if run.deaths > deaths {
                return Err(ClusterError::Ended { component, status: run.last_death, tail: tail(&log), log });
            }
            if Instant::now() >= deadline {
                return Err(ClusterError::NotReady { component, tail: tail(&log), log, source });
            }
            sleep(POLL).await;
        }
    }

    /// Stops a component gracefully. It stays down until [`Self::start_component`].
    pub async fn stop_component(&self, component: Component) {
        self.keeper(component).end(Some(GRACE)).await;
    }

    /// Kills a component with SIGKILL. It stays down until [`Self::start_component`].
    pub async fn kill_component(&self, component: Component) {
        self.keeper(component).end(None).await;
    }

    /// The pid of a running component.
    #[must_use]
    pub fn pid(&self, component: Component) -> Option<i32> {
        self.keeper(component).run().id.map(|id| id.pid)
    }

    /// URL of a component; `None` for a real node that the cluster does not have.
    #[must_use]
    pub fn address(&self, component: Component) -> Option<String> {
        component.address(&self.addresses)
    }

    /// Path of the admin's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// Kubeconfig text for any user and at most two groups, with a new certificate of the cluster's
    /// certificate authority.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<String, ClusterError> {
        kubeconfig_for(&self.addresses, &self.pki, user, groups)
    }

    /// A client with the admin's rights.
    pub async fn client(&self) -> Result<Client, ClusterError> {
        Ok(client_of(&self.admin).await?)
    }

    /// Paths in the data folder.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The programs of the cluster.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    fn keeper(&self, component: Component) -> &ProcessSupervisor {
        &self.keepers[component as usize]
    }
}

fn kubeconfig_for(
    addresses: &Addresses,
    pki: &Pki,
    user: &str,
    groups: &[&str],
) -> Result<String, ClusterError> {
    let identity = pki.client(user, groups)?;
    let server = Component::Apiserver.address(addresses).unwrap_or_default();
    Ok(kubeconfig::render(&server, &pki.ca()?, user, &identity))
}

/// Removes repeated addresses and keeps the order of first mention.
fn distinct(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    addresses.iter().copied().filter(|&address| seen.insert(address)).collect()
}

/// Programs that must be located or built.
fn programs_of(real_node: Option<&real_node::Options>) -> Vec<&'static str> {
    let mut names = binaries::CONTROL_PLANE.to_vec();
    if let Some(real_node) = real_node {
        names.extend(binaries::REAL_NODE);
        names.extend(binaries::KUBEMARK.iter().filter(|_| real_node.kubemark));
    }
    names
}

/// Writes the kubeconfig of every user and returns the admin's.
fn write_kubeconfigs(layout: &Layout, addresses: &Addresses, pki: &Pki) -> Result<String, ClusterError> {
    for (file, user, groups) in USERS {
        write_private(&layout.path(file), &kubeconfig_for(addresses, pki, user, groups)?)?;
    }
    Ok(super::files::read(&layout.kubeconfig())?)
}

/// Writes the certificates with which cluster-autoscaler calls the operator, and the cloud config that names them.
fn write_cloud_config(layout: &Layout, port: u16) -> Result<(), ClusterError> {
    let pki = AutoscalerPki::ensure(&layout.autoscaler_pki())?;
    let path = |file: &str| pki.path(file).display().to_string();
    let config = serde_json::json!({
        "address": format!("127.0.0.1:{port}"),
        "key": path("client.key"),
        "cert": path("client.crt"),
        "cacert": path("ca.crt"),
    });
    let text = serde_norway::to_string(&config).unwrap_or_else(|_| config.to_string());
    Ok(write_public(&layout.cloud_config(), &text)?)
}

/// Last lines of a log, indented. Read errors are ignored: the text is part of another error.
fn tail(log: &Path) -> String {
    let mut lines = VecDeque::new();
    if let Ok(mut file) = File::open(log) {
        let length = file.metadata().map_or(0, |meta| meta.len());
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)));
        for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            lines.push_back(format!("  {}", line.chars().take(LOG_LINE_CHARS).collect::<String>()));
            if lines.len() > LOG_LINES {
                lines.pop_front();
            }
        }
    }
    if lines.is_empty() { "  (empty)".to_owned() } else { Vec::from(lines).join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log() {
        let path = std::env::temp_dir().join(format!("kube-node-tail-{}", std::process::id()));
        let text = (0..50_000).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n") + "\n";
        std::fs::write(&path, text).unwrap();
        let tail = tail(&path);
        assert_eq!(tail.lines().count(), LOG_LINES);
        assert!(tail.starts_with("  line 49992\n") && tail.ends_with("  line 49999"), "{tail}");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(super::tail(&path), "  (empty)");
    }

    #[test]
    fn keepers_are_found_by_component() {
        for (index, component) in Component::ALL.into_iter().enumerate() {
            assert_eq!(component as usize, index);
        }
    }
}
