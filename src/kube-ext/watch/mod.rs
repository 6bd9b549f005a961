//! Protobuf list and watch for built-in kinds. The API server encodes protobuf for its own clients anyway,
//! and it is the cheapest form to read.
//!
//! Input: a [`WatchRequest`]. Output: [`follow()`] passes [`WatchEvent`]s to the caller for as long as it is
//! polled, as client-go's reflector does. Custom resources have no protobuf encoding: kube's watcher serves
//! them as JSON.

mod follow;
mod frames;
mod newest;

use std::time::Duration;

use form_urlencoded::byte_serialize;
use kube::runtime::utils::ResetTimerBackoff;

pub use self::{
    follow::{WatchError, WatchEvent, follow},
    newest::Newest,
};
use crate::backoff::Backoff;

/// Collection to list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// URL path of the collection.
    pub path: String,
    /// Field selector.
    pub field_selector: Option<String>,
    /// Label selector.
    pub label_selector: Option<String>,
    /// Source of the initial objects.
    pub initial_list: InitialList,
    /// Minimum lifetime of one watch; the actual one is drawn between this and twice this.
    pub min_timeout: Duration,
}

/// Source of the initial objects of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialList {
    /// Paged LIST, then WATCH. The first LIST has the latest state, a later one what is known by then.
    List,
    /// WATCH with `sendInitialEvents` (client-go's `WatchListClient`); a LIST from the API server's cache
    /// where that is not supported.
    Stream,
}

/// Metrics of watches.
pub trait Meter {
    /// Lives as long as a watch is open.
    type Open;
    /// Called when a watch opens.
    fn open(&self) -> Self::Open;
    /// Called with the number of bytes received.
    fn bytes(&self, count: usize);
    /// Called for each event and each listed object.
    fn event(&self);
}

/// No metrics.
impl Meter for () {
    type Open = ();
    fn open(&self) {}
    fn bytes(&self, _: usize) {}
    fn event(&self) {}
}

/// Backoff of watches that every controller depends on. Other watches have kube's `DefaultBackoff`.
pub fn vital_backoff() -> ResetTimerBackoff<Backoff> {
    let backoff = Backoff::new(Duration::from_millis(400), Duration::from_secs(5));
    ResetTimerBackoff::new(backoff, Duration::from_secs(30))
}

/// Objects per page of a list.
const PAGE: usize = 500;

impl WatchRequest {
    /// URL of a watch from this resource version, or of one with initial events.
    pub fn request(&self, since: Option<&str>, life: Duration) -> String {
        let seconds = life.as_secs();
        let selected = self.selected();
        let from = match since {
            Some(version) => format!("resourceVersion={version}"),
            None => "resourceVersionMatch=NotOlderThan&sendInitialEvents=true".to_owned(),
        };
        format!("{}?allowWatchBookmarks=true&{selected}{from}&timeoutSeconds={seconds}&watch=true", self.path)
    }

    /// URL of a list that is not older than this version, or of the latest state; or of its page after `token`.
    pub fn list(&self, not_older: Option<u64>, token: Option<&str>) -> String {
        let range = match (self.initial_list, token, not_older) {
            (InitialList::Stream, ..) => "resourceVersion=0".to_owned(),
            (InitialList::List, Some(token), _) => format!("limit={PAGE}&continue={}", encoded(token)),
            (InitialList::List, None, None) => format!("limit={PAGE}"),
            (InitialList::List, None, Some(version)) => {
                format!("limit={PAGE}&resourceVersion={version}&resourceVersionMatch=NotOlderThan")
            }
        };
        format!("{}?{}{range}", self.path, self.selected())
    }

    fn selected(&self) -> String {
        let one = |name: &str, selector: &Option<String>| {
            selector.as_ref().map(|selector| format!("{name}={}&", encoded(selector))).unwrap_or_default()
        };
        one("fieldSelector", &self.field_selector) + &one("labelSelector", &self.label_selector)
    }
}

fn encoded(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_asked_for_page_by_page_or_whole() {
        let watch = |initial_list| WatchRequest {
            path: "/api/v1/pods".to_owned(),
            field_selector: Some("spec.nodeName!=".to_owned()),
            label_selector: Some("a=b,c".to_owned()),
            initial_list,
            min_timeout: Duration::ZERO,
        };
        let selected = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D&labelSelector=a%3Db%2Cc&";
        let listed = watch(InitialList::List);
        assert_eq!(listed.list(None, None), format!("{selected}limit=500"));
        assert_eq!(
            listed.list(Some(7), None),
            format!("{selected}limit=500&resourceVersion=7&resourceVersionMatch=NotOlderThan")
        );
        assert_eq!(listed.list(Some(7), Some("x+/=")), format!("{selected}limit=500&continue=x%2B%2F%3D"));
        assert_eq!(watch(InitialList::Stream).list(None, None), format!("{selected}resourceVersion=0"));
    }
}
