//! Supervisor of one cluster, from the data folder to Ready nodes and back.
//!
//! [`Cluster::create`] takes the folder, [`Cluster::launch`] starts the cluster in it, [`Cluster::shutdown`]
//! stops it. Dropping a cluster kills its processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Seek, SeekFrom},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::{Args, value_parser};
use kube::Client;
use parking_lot::Mutex;
use tokio::{sync::watch, time::sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    NAMESPACE,
    addresses::Addresses,
    binaries::{self, Binaries},
    component::{Component, ComponentArg},
    executable::own_program,
    files::{read, write_private, write_public},
    flags,
    fleet::Fleet,
    health::{Probe, client_of},
    kubeconfig,
    kubelet_address::{self, AddressChange},
    layout::{DirLock, GRACE, Layout},
    manifests,
    pki::Pki,
    ports::{PortReservations, Ports},
    process_supervisor::{ProcessSpec, ProcessStatus, ProcessSupervisor},
    procs::ProcessId,
    progress::Progress,
    real_node::{self, Programs},
    state::StateFile,
    tcp_proxy,
};

/// Time limit for a component to become ready; generous, for busy machines.
const READY_LIMIT: Duration = Duration::from_mins(2);
/// Interval of observations of this machine's address.
const ADDRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of health probes of a starting component.
const POLL: Duration = Duration::from_millis(50);
/// Number of log lines in an error.
const LOG_LINES: usize = 8;
const LOG_LINE_CHARS: usize = 400;
/// Bytes at the end of a log that are searched for its last lines.
const LOG_TAIL_BYTES: u64 = 64 << 10;

/// Users with a kubeconfig: file, name, groups.
const USERS: [(&str, &str, &[&str]); 3] = [
    ("kubeconfig", "kubernetes-admin", &["system:masters"]),
    ("controller-manager.kubeconfig", "system:kube-controller-manager", &[]),
    ("scheduler.kubeconfig", "system:kube-scheduler", &[]),
];
/// Service accounts of our namespace with a kubeconfig: `<name>.kubeconfig` for `kube-node-<name>`.
const SERVICE_ACCOUNTS: [&str; 3] = ["operator", "hollow", "hollow-host"];

/// Options of a cluster, as arguments of the command that starts it.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Number of nodes; that of the last start when absent, or 10
    #[arg(long, value_name = "N", value_parser = value_parser!(i32).range(0..=100_000))]
    nodes: Option<i32>,
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    programs: binaries::Options,
    /// Port of kube-apiserver on 127.0.0.1; that of the last start or a free one when absent
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Further address of this machine at which kube-apiserver is reached, at the same port; may be repeated
    ///
    /// For machines in another cluster and for other clients. The server's certificate contains the address.
    /// Kubemark machines use the first address.
    #[arg(long, value_name = "ADDRESS")]
    listen_address: Vec<IpAddr>,
    /// Do not start the operator, without which nothing turns a NodeSet into nodes; run one yourself
    #[arg(long)]
    pub without_operator: bool,
    /// Serve cluster-autoscaler: make certificates, let the operator listen, and write a cloud-config
    #[arg(long, conflicts_with = "without_operator")]
    pub autoscaler_server: bool,
    /// Do not serve the kubelets of hollow nodes: no logs, exec, port-forward and top
    #[arg(long, conflicts_with = "without_operator")]
    without_kubelet_endpoints: bool,
    /// Extra argument for a component, such as kube-apiserver=--v=4; may be repeated
    #[arg(long, value_name = "COMPONENT=ARG")]
    component_arg: Vec<ComponentArg>,
    // Last: its heading is that of all arguments after it.
    #[command(flatten)]
    real_node: real_node::Options,
}

impl Options {
    /// The data folder, if a cluster with these options may run in it.
    pub fn layout(&self) -> anyhow::Result<Layout> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        self.programs.check(&layout.prepare()?)?;
        Ok(layout)
    }
}

/// A cluster supervised by this process.
#[derive(Debug)]
pub struct Cluster {
    options: Options,
    layout: Layout,
    addresses: Addresses,
    /// Address at which the kubelets of hollow machines are served now.
    kubelets: Mutex<Option<IpAddr>>,
    binaries: Binaries,
    /// The admin's kubeconfig.
    admin: String,
    state: Arc<StateFile>,
    /// Started processes.
    processes: Mutex<BTreeMap<Component, ProcessSupervisor>>,
    /// An earlier start had a real node and this one has none: its Node is deleted.
    forget_real_node: bool,
    /// TCP proxies to kube-apiserver.
    _proxies: Vec<AbortOnDropHandle<()>>,
    _reserved_ports: PortReservations,
    /// Released last: until then no other supervisor may use the folder.
    _lock: DirLock,
}

impl Cluster {
    /// Takes the data folder, stops leftovers of an earlier run, and makes ports, certificates and kubeconfigs.
    pub async fn create(options: Options, progress: &Progress) -> anyhow::Result<Self> {
        tcp_proxy::check(&options.listen_address)?;
        let real_node = options.real_node.clone();
        let programs = if real_node.enabled { Some(Programs::find(&real_node)?) } else { None };
        // Before the programs: an unusable folder must be reported before a build of minutes.
        let layout = options.layout()?;
        let lock = layout.lock().await?;
        layout.stop_leftovers(&lock).await?;
        layout.forget_processes(&lock)?;
        let names = programs_of(&real_node);
        let binaries = options.programs.locate(&layout.prepare()?, &names, progress).await?;
        if real_node.enabled {
            Programs::build(&real_node, progress).await?;
        }
        let id = real_node::id_of(layout.dir());
        let assembled = Self::assemble(options, programs, layout, lock, binaries, progress);
        // The networks of a real node are already taken.
        if assembled.is_err()
            && let Err(further) = real_node::remove(&id).await
        {
            progress.line(&format!("{further:#}"));
        }
        assembled
    }

    fn assemble(
        options: Options,
        programs: Option<Programs>,
        layout: Layout,
        lock: DirLock,
        binaries: Binaries,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let mut state = layout.prepare()?;
        let further = distinct(&options.listen_address);
        let (ports, reserved_ports) = Ports::choose(options.port, Some(state.addresses.ports), &further)?;
        let proxies = tcp_proxy::open_all(&further, ports.apiserver)?;
        let forget_real_node = state.addresses.network.is_some() && programs.is_none();
        let id = real_node::id_of(layout.dir());
        let claim = |_| real_node::claim(&id, state.addresses.network);
        let network = programs.as_ref().map(claim).transpose()?;
        let kubelets = (!options.without_kubelet_endpoints).then(|| kubelet_address::choose(progress));
        let addresses =
            Addresses { ports, network, further, autoscaler: options.autoscaler_server, kubelets };
        binaries.version().clone_into(&mut state.kubernetes_version);
        state.addresses.clone_from(&addresses);
        state.binaries = Some(binaries.dir().to_owned());
        state.supervisor = ProcessId::current();
        state.ready = false;
        state.save(&layout.state())?;

        let link = network.map(|network| IpAddr::V4(network.host));
        let certified: BTreeSet<IpAddr> = link.into_iter().chain(addresses.further.iter().copied()).collect();
        let pki = Pki::ensure(&layout.path("pki"), &Vec::from_iter(certified))?;
        let admin = write_kubeconfigs(&layout, &addresses, &pki)?;
        if options.autoscaler_server {
            write_cloud_config(&layout, ports.autoscaler)?;
        }
        if let (Some(programs), Some(network)) = (programs, network) {
            let dir = layout.dir();
            real_node::prepare(dir, &pki, &binaries, programs, network, ports.apiserver, progress)?;
        }
        Ok(Self {
            state: Arc::new(StateFile::new(layout.state(), state)),
            options,
            layout,
            kubelets: Mutex::new(addresses.kubelets),
            addresses,
            binaries,
            admin,
            processes: Mutex::default(),
            forget_real_node,
            _proxies: proxies,
            _reserved_ports: reserved_ports,
            _lock: lock,
        })
    }

    /// Starts everything and waits until it is ready. Returns the number of nodes requested.
    pub async fn launch(&self, progress: &Progress) -> anyhow::Result<i32> {
        let since = Instant::now();
        progress.step("Starting etcd");
        self.start(Component::Etcd).await?;
        progress.step("Starting kube-apiserver");
        self.start(Component::KubeApiserver).await?;
        let real = if self.addresses.network.is_some() { ", and the real node" } else { "" };
        progress.step(&format!("Starting kube-controller-manager and kube-scheduler{real}"));
        let client = client_of(&self.admin).await?;
        tokio::try_join!(
            self.start(Component::KubeControllerManager),
            self.start(Component::KubeScheduler),
            async {
                manifests::install(&client).await?;
                manifests::allow_references(&client).await
            },
            // Boxed: the state of its watch is large.
            Box::pin(self.start_real_node(&client)),
        )?;
        progress.line(&format!("Control plane ready after {:.1} s", since.elapsed().as_secs_f64()));
        let mut nodes = None;
        if !self.options.without_operator {
            progress.step("Starting the operator");
            self.start(Component::Operator).await?;
            let fleet = Fleet {
                nodes: self.options.nodes,
                last_nodes: self.state.last_nodes(),
                beside_real_node: self.addresses.network.is_some(),
                kubernetes: self.binaries.version(),
            };
            nodes = Some(fleet.bring_up(&client, progress).await?);
        }
        self.state.change(|state| {
            state.ready = true;
            state.nodes = nodes.or(state.nodes);
        })?;
        Ok(nodes.unwrap_or_default())
    }

    /// Starts the real node if the cluster has one, and waits until it takes pods.
    async fn start_real_node(&self, client: &Client) -> anyhow::Result<()> {
        if self.addresses.network.is_some() {
            real_node::unknown(client).await?;
            self.start(Component::RealNode).await?;
            real_node::wait_ready(client).await?;
        } else if self.forget_real_node {
            real_node::forget(client).await?;
        }
        Ok(())
    }

    /// Serves the kubelets of hollow machines at another address whenever this machine has one, as after a change of its
    /// network. Never returns.
    pub async fn follow_address(&self, progress: &Progress) {
        let served = self.addresses.kubelets.filter(|_| !self.options.without_operator);
        let Some(served) = served else { return std::future::pending().await };
        let mut change = AddressChange::new(served);
        loop {
            sleep(ADDRESS_INTERVAL).await;
            let Some(address) = change.observe(kubelet_address::present().unwrap_or(kubelet_address::LOCAL))
            else {
                continue;
            };
            progress
                .line(&format!("This machine's address is {address} now: the operator starts again with it"));
            *self.kubelets.lock() = Some(address);
            let operator = self.processes.lock().remove(&Component::Operator);
            if let Some(operator) = operator {
                operator.end(GRACE).await;
            }
            if let Err(error) = self.start(Component::Operator).await {
                progress.line(&format!("{error:#}"));
            }
        }
    }

    /// Stops everything, last started first, and releases the data folder.
    pub async fn shutdown(self, progress: &Progress) -> anyhow::Result<()> {
        let mut processes = self.processes.into_inner();
        while let Some((component, process)) = processes.pop_last() {
            progress.step(&format!("Stopping {component}"));
            process.end(GRACE).await;
        }
        // Also if the real node never started: its link is made when the networks are chosen.
        if self.addresses.network.is_some() {
            real_node::remove(&real_node::id_of(self.layout.dir())).await?;
        }
        self.state.change(|state| {
            state.supervisor = None;
            state.ready = false;
        })
    }

    /// Starts a component and waits until it is ready.
    async fn start(&self, component: Component) -> anyhow::Result<()> {
        let status = self.spawn(component).with_context(|| format!("cannot start {component}"))?;
        let Some((url, path)) = component.health(&self.addresses) else { return Ok(()) };
        let probe = Probe::new(&url, path, &self.admin).await?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let Err(unready) = probe.check().await else { return Ok(()) };
            let ProcessStatus { deaths, last_death, .. } = *status.borrow();
            let log = self.layout.log(component.name());
            let end = || format!("the end of {}:\n{}", log.display(), tail(&log));
            if deaths > 0 {
                let exit =
                    last_death.map_or_else(|| "how is unknown".to_owned(), |status| status.to_string());
                bail!("{component} ended while it was starting ({exit}); {}", end());
            }
            if Instant::now() >= deadline {
                let limit = READY_LIMIT.as_secs();
                let text = format!("{component} is not ready after {limit} s; {}\nwhen asked", end());
                return Err(unready.context(text));
            }
            sleep(POLL).await;
        }
    }

    /// Starts the process of a component.
    fn spawn(&self, component: Component) -> anyhow::Result<watch::Receiver<ProcessStatus>> {
        let name = component.name();
        let program = match component {
            Component::Operator | Component::RealNode => own_program()?,
            _ => self.binaries.path(name),
        };
        let addresses = Addresses { kubelets: *self.kubelets.lock(), ..self.addresses.clone() };
        let mut args = flags::of(component, &self.layout, &addresses);
        let more = self.options.component_arg.iter().filter(|more| more.component == component);
        args.extend(more.map(|more| more.arg.clone()));
        let state = self.state.clone();
        let record = Box::new(move |id| state.record(component, id));
        let spec = ProcessSpec { name, program, args, log: self.layout.log(name) };
        let process = ProcessSupervisor::start(spec, record)?;
        let status = process.status.clone();
        self.processes.lock().insert(component, process);
        Ok(status)
    }
}

/// Removes repeated addresses and keeps the order of first mention.
fn distinct(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    addresses.iter().copied().filter(|&address| seen.insert(address)).collect()
}

/// Programs that must be located or built.
fn programs_of(real_node: &real_node::Options) -> Vec<&'static str> {
    let mut names = binaries::CONTROL_PLANE.to_vec();
    if real_node.enabled {
        names.extend(binaries::REAL_NODE);
        names.extend(binaries::KUBEMARK.iter().filter(|_| real_node.kubemark));
    }
    names
}

/// Writes the kubeconfig of every user and returns the admin's.
fn write_kubeconfigs(layout: &Layout, addresses: &Addresses, pki: &Pki) -> anyhow::Result<String> {
    let (server, ca) = (addresses.apiserver(), pki.ca()?);
    let write = |file: &str, user: &str, groups: &[&str]| -> anyhow::Result<()> {
        let identity = pki.client(user, groups)?;
        write_private(&layout.path(file), &kubeconfig::render(&server, &ca, user, &identity))
    };
    for (file, user, groups) in USERS {
        write(file, user, groups)?;
    }
    // The groups that a token of the ServiceAccount would carry.
    let group = format!("system:serviceaccounts:{NAMESPACE}");
    for name in SERVICE_ACCOUNTS {
        let user = format!("system:serviceaccount:{NAMESPACE}:kube-node-{name}");
        write(&format!("{name}.kubeconfig"), &user, &["system:serviceaccounts", &group])?;
    }
    read(&layout.kubeconfig())
}

/// Writes the certificates with which cluster-autoscaler calls the operator, and the cloud config that names them.
fn write_cloud_config(layout: &Layout, port: u16) -> anyhow::Result<()> {
    let pki = Pki::ensure_autoscaler(&layout.path("autoscaler-pki"))?;
    let path = |file: &str| pki.path(file).display().to_string();
    let config = serde_json::json!({
        "address": format!("127.0.0.1:{port}"),
        "key": path("client.key"),
        "cert": path("client.crt"),
        "cacert": path("ca.crt"),
    });
    write_public(&layout.cloud_config(), &serde_norway::to_string(&config)?)
}

/// Last lines of a log, indented. Read errors are ignored: the text is part of another error.
fn tail(log: &Path) -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(log) {
        let length = file.metadata().map_or(0, |meta| meta.len());
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)));
        let _ = file.read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    let shown = last.iter().map(|line| format!("  {line:.LOG_LINE_CHARS$}"));
    if last.is_empty() { "  (empty)".to_owned() } else { shown.collect::<Vec<_>>().join("\n") }
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
    fn components_are_ordered_by_their_start() {
        assert!(Component::ALL.is_sorted());
    }
}
