//! Listener pool: one port per machine, all at the address of this process.
//!
//! Ten thousand listeners must cost next to nothing: a listener is a socket in one epoll set, without a task
//! or a buffer. Opening one is a system call that does not block, so it is allowed under the lock of the
//! machines. Ports to try are kept as a set: a search takes no longer where there are none.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    convert::Infallible,
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use kube_ext::{environment, error::chain};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        resource::{Resource, getrlimit, setrlimit},
    },
};
use parking_lot::Mutex;
use strum::IntoStaticStr;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep},
};
use tracing::{debug, warn};

use super::{
    connection_slots::{ADMITTED, ConnectionSlot, ConnectionSlots, UNADMITTED},
    metrics::Metrics,
};

/// Open files needed besides the listeners: connections above all, and some hundreds of the process's own.
const OTHER_FILES: u64 = (ADMITTED + UNADMITTED + 768) as u64;
/// Pause in accepting when the process has no file descriptor left.
const NO_FILE: Duration = Duration::from_secs(1);
/// Time after which ports that other processes had are tried again.
const TAKEN: Duration = Duration::from_mins(1);
/// Events taken from the epoll set at once.
const EVENTS: usize = 64;

/// Range of ports for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ports = text
            .split_once('-')
            .and_then(|(first, last)| Some(Self { first: first.parse().ok()?, last: last.parse().ok()? }));
        ports
            .filter(|ports| ports.first >= 1_024 && ports.first <= ports.last)
            .ok_or_else(|| "write the first port and the last one, from 1024 on: 11000-29999".to_owned())
    }
}

/// Reason for which a machine has no port; the names of the variants are labels of the failure metric.
#[derive(Debug, thiserror::Error, IntoStaticStr)]
enum ListenError {
    #[error(
        "no port of {ports} is free at {address}: widen --kubelet-ports, or share the machines out to hosts"
    )]
    NoFreePort { address: Ipv4Addr, ports: Ports },
    #[error(
        "a process may have {limit} open files, which is too few for a port of each machine: raise its limit (ulimit -Hn, LimitNOFILE)"
    )]
    TooManyFiles { limit: u64 },
    #[error("cannot listen at {address}: give --kubelet-address an address of this machine")]
    AddressNotAvailable { address: Ipv4Addr, source: io::Error },
}

/// Listeners of this process.
pub struct ListenerPool {
    /// Address of all listeners.
    pub address: Ipv4Addr,
    ports: Ports,
    /// Limit of open files.
    files: u64,
    epoll: Epoll,
    table: Mutex<Table>,
    metrics: Metrics,
}

#[derive(Default)]
struct Table {
    /// Open listeners, each with the UID of its machine.
    open: HashMap<u16, (TcpListener, Arc<str>)>,
    /// Ports shown by Nodes whose machines are about to be created here, or are another process's.
    claimed: HashSet<u16>,
    /// Ports to try: neither open nor claimed, nor another process's at the last attempt.
    free: BTreeSet<u16>,
    /// Port at which the search for a free one continues.
    next: u16,
    /// Time from which ports that other processes had are tried again.
    refill: Option<Instant>,
    /// Number of machines with a dedicated client, whose connection takes a file each.
    dedicated_clients: u64,
    /// Failure reasons already logged.
    logged: HashSet<&'static str>,
}

impl ListenerPool {
    /// Creates a pool without listeners.
    pub fn new(address: Ipv4Addr, ports: Ports, metrics: Metrics) -> io::Result<Self> {
        // Random start, so that processes on one host try different ports.
        let half = ports.first + (ports.last - ports.first) / 2;
        let next = environment::random_range(ports.first..=half);
        let table = Table { next, free: (ports.first..=ports.last).collect(), ..Table::default() };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { address, ports, files: raise_open_files()?, epoll, table: Mutex::new(table), metrics })
    }

    /// Opens a listener for a machine, at this port or at a free one. Returns None on failure; each failure
    /// reason is logged once.
    pub fn open(&self, machine: &Arc<str>, at: Option<u16>) -> Option<u16> {
        let mut table = self.table.lock();
        let opened = match at {
            // Another process may have taken the port meanwhile, which is no failure.
            Some(port) => self.bind(&mut table, port, machine).map(|is_bound| is_bound.then_some(port)),
            None => self.open_any(&mut table, machine).map(Some),
        };
        self.count(&table);
        opened.unwrap_or_else(|error| {
            let reason: &str = (&error).into();
            self.metrics.failed(reason);
            if table.logged.insert(reason) {
                warn!(error = chain(&error), "Nodes have no endpoints");
            }
            None
        })
    }

    fn open_any(&self, table: &mut Table, machine: &Arc<str>) -> Result<u16, ListenError> {
        let Ports { first, last } = self.ports;
        if table.free.is_empty() && table.refill.is_none_or(|at| at <= Instant::now()) {
            table.refill = Some(Instant::now() + TAKEN);
            table.free = (first..=last)
                .filter(|port| !(table.open.contains_key(port) || table.claimed.contains(port)))
                .collect();
        }
        while let Some(port) = table.free.range(table.next..).next().or_else(|| table.free.first()).copied() {
            if self.bind(table, port, machine)? {
                table.next = if port == last { first } else { port + 1 };
                return Ok(port);
            }
            table.free.remove(&port);
        }
        Err(ListenError::NoFreePort { address: self.address, ports: self.ports })
    }

    /// Returns true if the port was free.
    fn bind(&self, table: &mut Table, port: u16, machine: &Arc<str>) -> Result<bool, ListenError> {
        if table.open.contains_key(&port) || !(self.ports.first..=self.ports.last).contains(&port) {
            return Ok(false);
        }
        let out_of_files = || ListenError::TooManyFiles { limit: self.files };
        if table.open.len() as u64 + OTHER_FILES + table.dedicated_clients >= self.files {
            return Err(out_of_files());
        }
        let failed = |source| ListenError::AddressNotAvailable { address: self.address, source };
        let listener = match TcpListener::bind(SocketAddrV4::new(self.address, port)) {
            Ok(listener) => listener,
            Err(error) if is_any(&error, [Errno::EADDRINUSE, Errno::EACCES]) => return Ok(false),
            Err(error) if is_any(&error, OUT_OF_FILES) => return Err(out_of_files()),
            Err(error) => return Err(failed(error)),
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, port.into());
        self.epoll.add(&listener, event).map_err(|errno| failed(errno.into()))?;
        table.open.insert(port, (listener, Arc::clone(machine)));
        table.free.remove(&port);
        Ok(true)
    }

    /// Closes a listener; its socket leaves the epoll set with that.
    pub fn close(&self, port: u16) {
        let mut table = self.table.lock();
        table.open.remove(&port);
        self.offer(&mut table, port);
        self.count(&table);
    }

    /// Number of open listeners.
    pub fn len(&self) -> usize {
        self.table.lock().open.len()
    }

    /// Makes a port one to try if it can be used again.
    fn offer(&self, table: &mut Table, port: u16) {
        let is_used = table.open.contains_key(&port) || table.claimed.contains(&port);
        if !is_used && (self.ports.first..=self.ports.last).contains(&port) {
            table.free.insert(port);
        }
    }

    fn count(&self, table: &Table) {
        self.metrics.open.set(i64::try_from(table.open.len()).unwrap_or(i64::MAX));
    }

    /// Reserves a port that a Node shows.
    pub fn claim(&self, port: u16) {
        let mut table = self.table.lock();
        table.claimed.insert(port);
        table.free.remove(&port);
    }

    /// Frees a port that no Node shows any more.
    pub fn release(&self, port: u16) {
        let mut table = self.table.lock();
        table.claimed.remove(&port);
        self.offer(&mut table, port);
    }

    /// Changes the number of open files reserved for dedicated clients of machines.
    pub fn reserve_files(&self, change: i64) {
        let mut table = self.table.lock();
        table.dedicated_clients = table.dedicated_clients.saturating_add_signed(change);
    }

    /// Accepts connections while polled; passes each to `serve` with its address, the UID of the listener's
    /// machine, and a connection slot.
    pub async fn accept_all(
        &self,
        slots: &ConnectionSlots,
        serve: impl Fn((TcpStream, IpAddr), Arc<str>, ConnectionSlot) + Send,
    ) -> io::Result<Infallible> {
        #[expect(
            deprecated,
            reason = "what may be unsound is a descriptor that others close; this one is owned"
        )]
        let epoll = AsyncFd::with_interest(self.epoll.0.try_clone()?, Interest::READABLE)?;
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let mut ready = epoll.readable().await?;
            let count = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if count == 0 {
                ready.clear_ready();
                continue;
            }
            for event in &events[..count] {
                let Ok(port) = u16::try_from(event.data()) else { continue };
                match self.accept(port) {
                    Ok(Some((stream, address, machine))) => {
                        serve((stream, address), machine, slots.take(address));
                    }
                    Ok(None) => {}
                    Err(error) if is_any(&error, OUT_OF_FILES) => {
                        self.metrics.failed(ListenError::TooManyFiles { limit: self.files }.into());
                        // The pending connection would keep the listener ready, again and again.
                        sleep(NO_FILE).await;
                        break;
                    }
                    Err(error) => debug!(%error, "a connection was lost before it was accepted"),
                }
            }
        }
    }

    /// Accepts a connection at a port, with its address and the listener's machine; None if none is pending.
    fn accept(&self, port: u16) -> io::Result<Option<(TcpStream, IpAddr, Arc<str>)>> {
        let table = self.table.lock();
        let Some((listener, machine)) = table.open.get(&port) else { return Ok(None) };
        match listener.accept() {
            Ok((stream, address)) => Ok(Some((stream, address.ip(), Arc::clone(machine)))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The process, or the system, has no file descriptor left.
const OUT_OF_FILES: [Errno; 2] = [Errno::EMFILE, Errno::ENFILE];

fn is_any(error: &io::Error, errnos: [Errno; 2]) -> bool {
    errnos.map(|errno| Some(errno as i32)).contains(&error.raw_os_error())
}

/// Raises the soft limit of open files to the hard limit, and returns that.
fn raise_open_files() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pool(ports: &str) -> ListenerPool {
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        ListenerPool::new(Ipv4Addr::LOCALHOST, ports.parse().unwrap(), metrics).unwrap()
    }

    fn uid(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn ports_are_read() {
        assert_eq!("11000-29999".parse::<Ports>().unwrap().to_string(), "11000-29999");
        for text in ["", "11000", "2-1", "80-90", "29999-11000", "11000-70000"] {
            assert!(text.parse::<Ports>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_machine_has_a_port_of_its_own_that_no_node_shows() {
        // Concurrent tests take ports too: free ones are found by trying.
        let pool = pool("10100-10139");
        pool.claim(10_110);
        let mut taken = HashSet::new();
        while let Some(port) = pool.open(&uid("u"), None) {
            assert!(taken.insert(port) && port != 10_110);
        }
        assert!(taken.len() > 20, "{taken:?}");
        assert_eq!(pool.metrics.failures("NoFreePort"), 1);
        let one = *taken.iter().next().unwrap();
        assert_eq!(pool.open(&uid("v"), Some(one)), None, "it is another's");
        pool.close(one);
        assert_eq!(pool.open(&uid("v"), Some(one)), Some(one));
        pool.release(10_110);
        assert_eq!(pool.open(&uid("v"), None), Some(10_110));
    }

    /// A search that tries each port takes a second for these attempts.
    #[test]
    fn an_attempt_costs_the_same_whether_a_port_is_left_or_not() {
        let pool = pool("1024-65535");
        (1_024..=u16::MAX).for_each(|port| pool.claim(port));
        let began = std::time::Instant::now();
        assert!((0..1_000).all(|_| pool.open(&uid("u"), None).is_none()));
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_of_another_process_is_tried_again_after_a_while() {
        let others = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = others.local_addr().unwrap().port();
        let pool = pool(&format!("{port}-{port}"));
        let open = || pool.open(&uid("u"), None);
        assert_eq!(open(), None);
        drop(others);
        sleep(TAKEN).await;
        assert_eq!(open(), Some(port));
    }

    #[tokio::test]
    async fn a_connection_reaches_the_machine_of_its_listener() {
        let pool = pool("10140-10199");
        let ports = ["a", "b"].map(|name| pool.open(&uid(name), None).unwrap());
        let (sender, mut accepted) = tokio::sync::mpsc::unbounded_channel();
        let slots = ConnectionSlots::default();
        let accepting = pool.accept_all(&slots, |_, machine, _| sender.send(machine).unwrap());
        let connecting = async {
            for (at, name) in [(1, "b"), (0, "a"), (1, "b")] {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, ports[at])).unwrap();
                stream.write_all(b"x").unwrap();
                assert_eq!(&*accepted.recv().await.unwrap(), name);
            }
        };
        tokio::select! {
            ended = accepting => panic!("{ended:?}"),
            () = connecting => {}
        }
    }
}
