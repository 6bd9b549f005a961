//! Networks of the node: a /30 between host and node over a veth pair, and a /24 for pods behind the node.
//!
//! The host gets one link, one address and one route; bridge, pods and packet filters are in the node's
//! namespace. The host neither forwards nor translates packets, so pods reach only each other and the host.

use std::{
    io::{self, Write},
    net::Ipv4Addr,
    os::linux::net::SocketAddrExt,
    os::unix::net::{SocketAddr, UnixListener},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use ipnet::Ipv4Net;
use serde::Deserialize;

use crate::addresses::{NODE_CIDRS, Network};

/// Pools of networks: pairs of a /16 for pods and a /16 for links. A node takes the subnets of the same
/// number from one pair. No pool overlaps the range of hollow nodes' podCIDRs.
const POOLS: [([u8; 2], [u8; 2]); 3] =
    [([10, 126], [10, 127]), ([172, 28], [172, 29]), ([100, 80], [100, 81])];
/// Wait for another `up` that is choosing its networks.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Interface name inside the node.
const INSIDE: &str = "eth0";

impl Network {
    fn of(pool: ([u8; 2], [u8; 2]), number: u8) -> Self {
        let ([a, b], [c, d]) = pool;
        Self {
            host: Ipv4Addr::new(c, d, number, 1),
            node: Ipv4Addr::new(c, d, number, 2),
            pods: Ipv4Net::new_assert(Ipv4Addr::new(a, b, number, 0), 24),
        }
    }

    fn is_free(&self, taken: &[Ipv4Net]) -> bool {
        let overlap = |one: &Ipv4Net, other: &Ipv4Net| one.contains(other) || other.contains(one);
        let (link, pods) = (Ipv4Net::new_assert(self.host, 30).trunc(), self.pods);
        !taken.iter().chain([&NODE_CIDRS]).any(|taken| overlap(taken, &link) || overlap(taken, &pods))
    }

    /// The network of the last start if it is free, else the first free one from number `first` on.
    fn choose(taken: &[Ipv4Net], last: Option<Self>, first: u8) -> Option<Self> {
        let all_of = |pool| (0..=u8::MAX).map(move |offset| Self::of(pool, first.wrapping_add(offset)));
        last.into_iter().chain(POOLS.into_iter().flat_map(all_of)).find(|network| network.is_free(taken))
    }
}

/// Name of the host's end of the link: 11 of at most 15 characters.
pub(super) fn link_name(id: &str) -> String {
    format!("kn-{id}")
}

/// Name of the other end before it is moved into the node.
fn peer_name(id: &str) -> String {
    format!("kp-{id}")
}

/// Chooses free networks and takes them at once by making the link.
pub(crate) fn claim(id: &str, last: Option<Network>) -> anyhow::Result<Network> {
    let _lock = lock()?;
    unlink(id)?;
    let first = u8::from_str_radix(&id[..2], 16).unwrap_or_default();
    let network = Network::choose(&taken()?, last, first).context(
        "no free network for the real node: 10.126.0.0/15, 172.28.0.0/15 and 100.80.0.0/15 are all routed already; take one of these routes away",
    )?;
    link(id, &network)?;
    Ok(network)
}

/// Makes the link again: the link of an earlier node has gone with it, or is about to.
pub(super) fn renew(id: &str, network: &Network) -> anyhow::Result<()> {
    let _lock = lock()?;
    unlink(id)?;
    link(id, network)
}

/// Moves the node's end of the link into the network namespace of a process and configures it.
pub(super) fn attach(id: &str, network: &Network, pid: u32) -> anyhow::Result<()> {
    let Network { host, node, .. } = network;
    let peer = peer_name(id);
    batch(&[], "move the link into the node", &format!("link set {peer} netns {pid} name {INSIDE}\n"))?;
    let commands = format!(
        "link set lo up\nlink set {INSIDE} up\naddr add {node}/30 dev {INSIDE}\nroute add default via {host}\n"
    );
    batch(&["nsenter", &format!("--net=/proc/{pid}/ns/net")], "set up the network of the node", &commands)
}

/// Removes the link with its address and route. Returns true if it existed.
pub(super) fn unlink(id: &str) -> anyhow::Result<bool> {
    if !exists(id) {
        return Ok(false);
    }
    match batch(&[], "remove the link of the node", &format!("link delete {}\n", link_name(id))) {
        // The link goes by itself with the namespace of its other end.
        Err(_) if !exists(id) => Ok(true),
        other => other.map(|()| true),
    }
}

/// Returns true if the host has the link.
pub(super) fn exists(id: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(link_name(id)).exists()
}

fn link(id: &str, network: &Network) -> anyhow::Result<()> {
    let (name, peer) = (link_name(id), peer_name(id));
    let Network { host, node, pods } = network;
    let commands = format!(
        "link add {name} type veth peer name {peer}\naddr add {host}/30 dev {name}\nlink set {name} up\nroute add {pods} via {node} dev {name}\n"
    );
    batch(&[], "make the link of the node", &commands)
}

/// Lock for choosing networks: an abstract Unix socket. The kernel releases the name when the process ends;
/// no file stays.
fn lock() -> anyhow::Result<UnixListener> {
    let deadline = Instant::now() + LOCK_LIMIT;
    let seconds = LOCK_LIMIT.as_secs();
    let busy = || {
        format!("another kube-node has been setting up its network for {seconds} s: wait for it, or end it")
    };
    loop {
        let lock = SocketAddr::from_abstract_name("kube-node-network");
        match lock.and_then(|name| UnixListener::bind_addr(&name)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::park_timeout(Duration::from_millis(20));
            }
            other => return other.with_context(busy),
        }
    }
}

/// Destinations of this machine's routes, its own addresses included.
fn taken() -> anyhow::Result<Vec<Ipv4Net>> {
    let shown =
        run(&["ip", "-json", "-4", "route", "show", "table", "all"], "check the routes of this machine", "")?;
    parse_routes(&shown).context("cannot understand what ip says of the routes of this machine")
}

/// Destinations of the routes except the default route, which covers every address without a route.
fn parse_routes(json: &[u8]) -> Result<Vec<Ipv4Net>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Route {
        #[serde(default)]
        dst: String,
    }
    let routes: Vec<Route> = serde_json::from_slice(json)?;
    let network = |dst: &str| dst.parse::<Ipv4Net>().or_else(|_| dst.parse().map(Ipv4Addr::into)).ok();
    let networks = routes.iter().filter_map(|route| network(&route.dst));
    Ok(networks.filter(|network| network.prefix_len() > 0).collect())
}

/// Runs `ip` commands, one a line, by the command `wrapper` if there is one.
fn batch(wrapper: &[&str], action: &str, commands: &str) -> anyhow::Result<()> {
    run(&[wrapper, &["ip", "-batch", "-"]].concat(), action, commands).map(drop)
}

/// Runs a command with this standard input; returns its standard output.
fn run(command: &[&str], action: &str, input: &str) -> anyhow::Result<Vec<u8>> {
    let output = || {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = output().with_context(|| format!("cannot run ip to {action}"))?;
    let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    ensure!(output.status.success(), "cannot {action}: ip says: {errors}");
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(networks: &[&str]) -> Vec<Ipv4Net> {
        networks.iter().map(|network| network.parse().unwrap()).collect()
    }

    #[test]
    fn what_is_routed_is_not_chosen() {
        let free = Network::choose(&[], None, 7).unwrap();
        assert_eq!(free.pods, "10.126.7.0/24".parse().unwrap());
        assert_eq!((free.host, free.node), (Ipv4Addr::new(10, 127, 7, 1), Ipv4Addr::new(10, 127, 7, 2)));
        let next = Network::choose(&nets(&["10.126.7.128/25"]), None, 7).unwrap();
        assert_eq!(next.pods, "10.126.8.0/24".parse().unwrap());
        let next = Network::choose(&nets(&["10.127.7.3/32"]), None, 7).unwrap();
        assert_eq!(next.pods, "10.126.8.0/24".parse().unwrap(), "the link counts, too");
        let wide = Network::choose(&nets(&["10.0.0.0/8"]), None, 255).unwrap();
        assert_eq!(wide.pods, "172.28.255.0/24".parse().unwrap());
        assert!(Network::choose(&nets(&["10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10"]), None, 0).is_none());
    }

    #[test]
    fn the_last_network_is_kept_while_it_is_free() {
        let last = Network::choose(&[], None, 9);
        assert_eq!(Network::choose(&[], last, 1), last);
        assert_ne!(Network::choose(&nets(&["10.126.9.0/24"]), last, 1), last);
    }

    #[test]
    fn no_network_is_what_hollow_nodes_are_given() {
        let among = Network { pods: "10.244.9.0/24".parse().unwrap(), ..Network::of(POOLS[0], 9) };
        assert_ne!(Network::choose(&[], Some(among), 9), Some(among));
        assert!(
            POOLS.into_iter().all(|pool| (0..=u8::MAX).all(|number| Network::of(pool, number).is_free(&[])))
        );
    }

    #[test]
    fn routes_as_ip_shows_them() {
        let json = br#"[{"dst":"default","gateway":"192.0.2.1","dev":"eth0","flags":[]},
            {"dst":"192.0.2.0/24","dev":"eth0","protocol":"kernel","flags":[]},
            {"type":"local","dst":"192.0.2.2","dev":"eth0","table":"local","flags":[]},
            {"type":"blackhole","dst":"10.0.0.0/8","flags":[]}]"#;
        assert_eq!(parse_routes(json).unwrap(), nets(&["192.0.2.0/24", "192.0.2.2/32", "10.0.0.0/8"]));
    }

    #[test]
    fn names_of_links_fit() {
        assert!(link_name("0123abcd").len() <= 15);
    }
}
