//! Membership watch: the membership of all groups, kept by the watch of the workers' Leases.

use std::{
    collections::BTreeSet,
    future::pending,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube_ext::leader::clock::Moment;
use kube_node_cache::EventHandler;
use tokio::{sync::Notify, time::sleep};

use super::{HostView, Membership, Present};

/// The workers that are present, as far as the watch has shown them.
#[derive(Debug, Default)]
pub struct MembershipWatch {
    heard: Mutex<Heard>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Heard {
    roll: Membership,
    /// Own heartbeat, which proves that the watch works; None: the watch is trusted.
    echo: Option<OwnHeartbeat>,
}

/// The Lease of this process, which renews it continuously.
#[derive(Debug)]
struct OwnHeartbeat {
    group: Arc<str>,
    host: Arc<str>,
    seen: Moment,
}

impl Heard {
    /// Time up to which the membership is known. A worker that has stopped receiving its own heartbeats does
    /// not declare other workers lost: without them this time stands still.
    fn now(&self) -> Moment {
        let now = Moment::now();
        self.echo.as_ref().map_or(now, |echo| echo.seen.min(now))
    }
}

impl MembershipWatch {
    /// Membership for a process that is no worker.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Membership for a worker, which takes over the machines of lost workers.
    #[must_use]
    pub fn seen_by(group: &str, host: &str) -> Arc<Self> {
        let echo = OwnHeartbeat { group: group.into(), host: host.into(), seen: Moment::BEGINNING };
        Arc::new(Self {
            heard: Mutex::new(Heard { roll: Membership::default(), echo: Some(echo) }),
            news: Notify::new(),
        })
    }

    /// The workers that are present.
    #[must_use]
    pub fn present(&self) -> Present {
        let heard = self.heard();
        heard.roll.present(heard.now())
    }

    /// Number of present workers of a group.
    #[must_use]
    pub fn count(&self, group: &str) -> usize {
        self.present().get(group).map_or(0, BTreeSet::len)
    }

    /// Time at which the watch last showed this worker's own heartbeat.
    #[must_use]
    pub fn echoed(&self) -> Option<Moment> {
        self.heard().echo.as_ref().map(|echo| echo.seen)
    }

    /// Waits until the present workers differ from `known`.
    pub async fn changed(&self, known: &Present) -> Present {
        loop {
            let mut news = pin!(self.news.notified());
            // From here on no notification is missed.
            news.as_mut().enable();
            let (present, end) = {
                let heard = self.heard();
                let now = heard.now();
                (heard.roll.present(now), heard.roll.next_end(now).filter(|_| heard.echo.is_none()))
            };
            if present != *known {
                return present;
            }
            let end = async {
                match end {
                    Some(end) => sleep(Moment::now().until(end)).await,
                    // Each own heartbeat notifies.
                    None => pending().await,
                }
            };
            tokio::select! {
                () = news => {}
                () = end => {}
            }
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventHandler<HostView> for MembershipWatch {
    fn on_change(&self, old: Option<&Arc<HostView>>, new: Option<&Arc<HostView>>) {
        let now = Moment::now();
        let mut heard = self.heard();
        match new.and_then(|new| Some((&**new, new.lasts?))) {
            Some((HostView { group, host, version, .. }, lasts)) => {
                heard.roll.saw(group, host, version, lasts, now);
                let is_news = old.is_none_or(|old| old.version != *version);
                if let Some(echo) = &mut heard.echo
                    && is_news
                    && (&echo.group, &echo.host) == (group, host)
                {
                    echo.seen = now;
                }
            }
            None => {
                if let Some(gone) = new.or(old) {
                    heard.roll.left(&gone.group, &gone.host);
                }
            }
        }
        drop(heard);
        self.news.notify_waiters();
    }
}
