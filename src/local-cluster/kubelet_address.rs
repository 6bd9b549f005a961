//! Address of this machine at which the kubelets of hollow machines are served, and its changes.

use std::net::{IpAddr, Ipv4Addr};

use kube_ext::connection::own_address;

use super::progress::Progress;

/// Address of a machine without a network.
pub(super) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The address at which others reach this machine; `None` without a network.
pub(super) fn present() -> Option<IpAddr> {
    own_address().map(IpAddr::V4)
}

/// The address to serve at a start.
pub(super) fn choose(progress: &Progress) -> IpAddr {
    present().unwrap_or_else(|| {
        progress.line(
            "No way leads out of this machine: kubelets are served on 127.0.0.1, where /api/v1/nodes/NAME/proxy is refused",
        );
        LOCAL
    })
}

/// A change of this machine's address, which counts once two observations in a row agree: addresses come and go while a network
/// changes.
#[derive(Debug)]
pub(super) struct AddressChange {
    served: IpAddr,
    /// Other address of the last observation.
    next: Option<IpAddr>,
}

impl AddressChange {
    pub fn new(served: IpAddr) -> Self {
        Self { served, next: None }
    }

    /// Returns the address to serve from now on, if that is another one.
    pub fn observe(&mut self, address: IpAddr) -> Option<IpAddr> {
        let is_new = address != self.served;
        let is_agreed = is_new && self.next == Some(address);
        self.next = Some(address).filter(|_| is_new && !is_agreed);
        is_agreed.then(|| {
            self.served = address;
            address
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_stays_for_two_observations_is_served() {
        let [home, office, cafe] = [1, 2, 3].map(|host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)));
        let mut change = AddressChange::new(home);
        assert_eq!([home, office, home, office, cafe].map(|address| change.observe(address)), [None; 5]);
        assert_eq!(change.observe(cafe), Some(cafe));
        assert_eq!([cafe, home].map(|address| change.observe(address)), [None; 2]);
        assert_eq!(change.observe(home), Some(home));
    }
}
