//! Watches in Kubernetes' protobuf: what the API server encodes for its own clients anyway, and what takes least to read.
//!
//! [`follow`] holds one for as long as it is polled, as client-go's reflector does, and tells what comes; what becomes of it
//! is the caller's. Custom resources have no protobuf: they are watched in JSON, by kube's watcher.

mod backoff;
mod follow;
mod frames;

use std::time::Duration;

use form_urlencoded::byte_serialize;

pub use self::{
    backoff::{Backoff, BackoffConfig},
    follow::{Ended, WatchEvent, follow},
};

/// A watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Path of the list.
    pub path: String,
    /// What of it is meant, by fields.
    pub field_selector: Option<String>,
    /// What of it is meant, by labels.
    pub label_selector: Option<String>,
    /// How it begins.
    pub initial_list: InitialList,
    /// How long it is held at least before it is made anew; twice that at most.
    pub min_timeout: Duration,
    /// How long it waits when it has failed.
    pub backoff: BackoffConfig,
}

/// How a watch comes by what there is already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialList {
    /// By a list at the latest state, page by page.
    List,
    /// It begins with it (client-go's `WatchListClient`); by a list from the API server's cache where that cannot do so.
    Stream,
}

/// Who counts what comes.
pub trait Meter {
    /// Lives as long as a watch is open.
    type Open;
    /// A watch is open.
    fn open(&self) -> Self::Open;
    /// So many bytes came.
    fn bytes(&self, count: usize);
    /// An event, or an object of a list.
    fn event(&self);
}

/// Nobody.
impl Meter for () {
    type Open = ();
    fn open(&self) {}
    fn bytes(&self, _: usize) {}
    fn event(&self) {}
}

/// Objects on a page of a list.
const PAGE: usize = 500;

impl WatchRequest {
    /// A watch after a version, or one that begins with all that there is.
    #[must_use]
    pub fn request(&self, since: Option<&str>, life: Duration) -> String {
        let seconds = life.as_secs();
        let selected = self.selected();
        let from = match since {
            Some(version) => format!("resourceVersion={version}"),
            None => "resourceVersionMatch=NotOlderThan&sendInitialEvents=true".to_owned(),
        };
        format!("{}?allowWatchBookmarks=true&{selected}{from}&timeoutSeconds={seconds}&watch=true", self.path)
    }

    /// A list, or the page of it that follows after `token`.
    #[must_use]
    pub fn list(&self, token: Option<&str>) -> String {
        let range = match (self.initial_list, token) {
            (InitialList::Stream, _) => "resourceVersion=0".to_owned(),
            (InitialList::List, None) => format!("limit={PAGE}"),
            (InitialList::List, Some(token)) => format!("limit={PAGE}&continue={}", encoded(token)),
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
            backoff: BackoffConfig::REFLECTOR,
        };
        let selected = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D&labelSelector=a%3Db%2Cc&";
        let listed = watch(InitialList::List);
        assert_eq!(listed.list(None), format!("{selected}limit=500"));
        assert_eq!(listed.list(Some("x+/=")), format!("{selected}limit=500&continue=x%2B%2F%3D"));
        assert_eq!(watch(InitialList::Stream).list(None), format!("{selected}resourceVersion=0"));
    }
}
