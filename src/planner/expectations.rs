//! Expectations: creations and deletions that were sent and that the watch has not shown yet.
//!
//! A reconciliation before the watch shows the new Nodes must not create them twice, nor choose a second
//! victim while a deletion is under way. The watch alone is not enough, since it lags behind.

use std::collections::BTreeMap;

/// Pending creations and deletions of one set by Node name. Names are never reused, so a name is enough.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    creations: BTreeMap<String, PendingCreation>,
    /// Resource version of the Node for which the deletion was sent; None once the API server accepted it.
    deletions: BTreeMap<String, Option<String>>,
    /// Number of lists that the watch has started.
    epoch: u32,
}

/// A creation that the watch has not shown.
#[derive(Clone, Debug)]
struct PendingCreation {
    /// Revision of the Node.
    revision: String,
    /// Epoch of the watch in which the API server confirmed the creation; None while the outcome is unknown.
    confirmed: Option<u32>,
}

impl Expectations {
    /// Expects the creation of a Node of this revision. Call it before the request: the watch event may arrive first.
    pub fn creating(&mut self, name: &str, revision: &str) {
        let creation = PendingCreation { revision: revision.to_owned(), confirmed: None };
        self.creations.insert(name.to_owned(), creation);
    }

    /// The API server confirmed the creation.
    pub fn created(&mut self, name: &str) {
        if let Some(creation) = self.creations.get_mut(name) {
            creation.confirmed = Some(self.epoch);
        }
    }

    /// The API server refused the creation for good: the Node will never appear.
    pub fn refused(&mut self, name: &str) {
        self.creations.remove(name);
    }

    /// Expects the deletion of a Node in this version. Call it before the request: even if the response is
    /// lost, the Node counts as leaving, and no other Node goes in its place. Returns true if the deletion of this version was
    /// sent before without a response: it may have taken effect, whatever the answer to this one is.
    pub fn deleting(&mut self, name: &str, version: &str) -> bool {
        let before = self.deletions.insert(name.to_owned(), Some(version.to_owned())).flatten();
        before.is_some_and(|before| before == version)
    }

    /// The API server accepted the deletion.
    pub fn deleted(&mut self, name: &str) {
        if let Some(deletion) = self.deletions.get_mut(name) {
            *deletion = None;
        }
    }

    /// The API server refused the deletion for good, and no earlier attempt may have taken effect.
    pub fn not_deleted(&mut self, name: &str) {
        self.deletions.remove(name);
    }

    /// The watch showed the Node in this version; `leaving` if the Node has a deletion timestamp. Returns true if that was
    /// expected.
    pub fn seen(&mut self, name: &str, version: &str, leaving: bool) -> bool {
        let is_created = self.creations.remove(name).is_some();
        // A deletion has its version as precondition: another version that is not leaving means that it failed.
        let is_over = |sent: &Option<String>| leaving || sent.as_ref().is_some_and(|sent| sent != version);
        let is_decided = self.deletions.get(name).is_some_and(is_over);
        if is_decided {
            self.deletions.remove(name);
        }
        is_created || is_decided
    }

    /// The watch showed that the Node is gone.
    pub fn gone(&mut self, name: &str) {
        self.creations.remove(name);
        self.deletions.remove(name);
    }

    /// The watch is about to start a new list.
    pub fn relisting(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The announced list has arrived, which shows every creation that was confirmed before the list began. A Node whose creation was confirmed
    /// before the list and that the list lacks is gone again. A deletion of a Node that the list lacks is
    /// over too. A deletion of a listed Node stays pending: the list may have been read before the deletion
    /// took effect; if it had no effect, it is sent again.
    pub fn on_resync(&mut self, listed: impl Fn(&str) -> bool) {
        let before = |creation: &PendingCreation| creation.confirmed.is_some_and(|epoch| epoch != self.epoch);
        self.creations.retain(|name, creation| !before(creation) && !listed(name));
        self.deletions.retain(|name, _| listed(name));
    }

    /// Names of the pending creations, which count as existing Nodes.
    pub fn creations(&self) -> impl Iterator<Item = &str> {
        self.creations.keys().map(String::as_str)
    }

    /// Number of pending creations, which count as existing Nodes.
    pub fn pending_creations(&self) -> usize {
        self.creations.len()
    }

    /// Creations with an unknown outcome, name and revision of each Node, to be sent again under the same name; harmless if
    /// the first one succeeded.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (&str, &str)> {
        let unconfirmed = self.creations.iter().filter(|(_, creation)| creation.confirmed.is_none());
        unconfirmed.map(|(name, creation)| (name.as_str(), creation.revision.as_str()))
    }

    /// Returns true if the Node's deletion is pending, even if the watch does not show it.
    pub fn is_leaving(&self, name: &str) -> bool {
        self.deletions.contains_key(name)
    }

    /// Returns true if the API server accepted the Node's deletion and the watch does not show it yet.
    pub fn is_deleted(&self, name: &str) -> bool {
        self.deletions.get(name).is_some_and(Option::is_none)
    }

    /// Deletions with an unknown outcome, name and version of each Node, to be sent again for this version alone; harmless
    /// if the first one succeeded. In another version the Node is decided on anew.
    pub fn unanswered(&self) -> impl Iterator<Item = (&str, &str)> {
        self.deletions.iter().filter_map(|(name, version)| Some((name.as_str(), version.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn an_echo_before_the_answer_leaves_nothing_behind() {
        let mut expectations = Expectations::default();
        expectations.creating("a", "v1-0");
        expectations.seen("a", "1", false);
        expectations.created("a");
        assert_eq!(expectations.pending_creations(), 0);
    }

    #[test]
    fn a_node_that_came_and_went_during_a_relist_is_not_waited_for() {
        let mut expectations = Expectations::default();
        for name in ["came-and-went", "in-the-list", "unknown"] {
            expectations.creating(name, "v1-0");
        }
        expectations.created("came-and-went");
        expectations.created("in-the-list");
        expectations.relisting();
        expectations.creating("after-the-list-was-asked-for", "v1-0");
        expectations.created("after-the-list-was-asked-for");
        expectations.on_resync(|name| name == "in-the-list");
        assert_eq!(expectations.unconfirmed().collect::<Vec<_>>(), [("unknown", "v1-0")]);
        assert_eq!(expectations.pending_creations(), 2);
    }

    #[test]
    fn a_deletion_in_flight_outlasts_a_list_that_was_read_before_it() {
        let mut expectations = Expectations::default();
        for name in ["in-flight", "accepted", "gone"] {
            expectations.deleting(name, "7");
        }
        expectations.deleted("accepted");
        expectations.relisting();
        expectations.on_resync(|name| name != "gone");
        assert!(["in-flight", "accepted"].iter().all(|name| expectations.is_leaving(name)));
        assert!(!expectations.is_leaving("gone"));
        assert_eq!(expectations.unanswered().collect::<Vec<_>>(), [("in-flight", "7")], "it is sent again");
    }

    #[test]
    fn a_victim_is_chosen_once() {
        let mut expectations = Expectations::default();
        expectations.deleting("a", "7");
        assert!(expectations.is_leaving("a") && !expectations.is_deleted("a"), "nobody knows yet");
        expectations.deleted("a");
        expectations.seen("a", "7", false); // an event from before the deletion took effect
        assert!(expectations.is_leaving("a") && expectations.is_deleted("a"));
        expectations.seen("a", "8", true);
        assert!(!expectations.is_leaving("a") && !expectations.is_deleted("a"));
    }

    #[test]
    fn a_deletion_without_an_answer_counts_until_the_watch_tells() {
        let mut expectations = Expectations::default();
        assert!(!expectations.deleting("a", "7"), "nothing was sent before");
        assert!(expectations.deleting("a", "7"), "the one before may have taken effect");
        assert!(!expectations.deleting("a", "8"), "it had no effect in another version");
        expectations.deleting("a", "7");
        expectations.seen("a", "7", false);
        assert_eq!(expectations.unanswered().collect::<Vec<_>>(), [("a", "7")]);
        expectations.seen("a", "8", false); // changed and not leaving: the deletion had no effect
        assert!(!expectations.is_leaving("a"));
    }

    /// A server-side event of a Node.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Response,
        Event,
        Refuse,
        Gone,
    }

    proptest! {
        /// In any order of responses and watch events, nothing stays pending once every Node was shown or refused.
        #[test]
        fn nothing_leaks(schedule in vec((0_usize..8, 0_usize..4), 0..80)) {
            let mut expectations = Expectations::default();
            let name = |i: usize| format!("n{i}");
            for i in 0..8 {
                expectations.creating(&name(i), "v1-0");
            }
            let mut settled = BTreeSet::new();
            for (node, step) in schedule {
                match [Step::Response, Step::Event, Step::Refuse, Step::Gone][step] {
                    Step::Response => expectations.created(&name(node)),
                    Step::Event => {
                        expectations.seen(&name(node), "1", false);
                    }
                    Step::Refuse => expectations.refused(&name(node)),
                    Step::Gone => expectations.gone(&name(node)),
                }
                if step != 0 {
                    settled.insert(node);
                }
            }
            prop_assert_eq!(expectations.pending_creations(), 8 - settled.len());
        }
    }
}
