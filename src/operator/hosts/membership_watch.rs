//! The roll of all hosts, kept by the watch of their Leases.

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

/// Who is present, for all that the watch has shown.
#[derive(Debug, Default)]
pub struct MembershipWatch {
    heard: Mutex<Heard>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Heard {
    roll: Membership,
    /// Whose renewals prove that the watch is alive; None: it is taken for granted.
    echo: Option<OwnHeartbeat>,
}

/// The Lease of this process, which renews it all the time.
#[derive(Debug)]
struct OwnHeartbeat {
    group: Arc<str>,
    host: Arc<str>,
    seen: Moment,
}

impl Heard {
    /// Until when something is known. Where the watch shows not even what this process writes, silence says nothing of
    /// others, so time stands still: nobody is taken for lost by one who is deaf.
    fn now(&self) -> Moment {
        let now = Moment::now();
        self.echo.as_ref().map_or(now, |echo| echo.seen.min(now))
    }
}

impl MembershipWatch {
    /// Of whoever only wants to know.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Of a host, which takes over what others leave.
    #[must_use]
    pub fn seen_by(group: &str, host: &str) -> Arc<Self> {
        let echo = OwnHeartbeat { group: group.into(), host: host.into(), seen: Moment::BEGINNING };
        Arc::new(Self {
            heard: Mutex::new(Heard { roll: Membership::default(), echo: Some(echo) }),
            news: Notify::new(),
        })
    }

    /// Who is present.
    #[must_use]
    pub fn present(&self) -> Present {
        let heard = self.heard();
        heard.roll.present(heard.now())
    }

    /// How many hosts of a group are present.
    #[must_use]
    pub fn count(&self, group: &str) -> usize {
        self.present().get(group).map_or(0, BTreeSet::len)
    }

    /// When this host was seen by itself last.
    #[must_use]
    pub fn echoed(&self) -> Option<Moment> {
        self.heard().echo.as_ref().map(|echo| echo.seen)
    }

    /// Waits until others are present than those that are `known`.
    pub async fn changed(&self, known: &Present) -> Present {
        loop {
            let mut news = pin!(self.news.notified());
            // From here on nothing is missed.
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
                    // Each echo is news.
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
    fn changed(&self, old: Option<&Arc<HostView>>, new: Option<&Arc<HostView>>) {
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
