//! What this process has asked the API server for and the watch has not shown yet.
//!
//! A set that is looked at again before its new Nodes came back through the watch must not create them twice, nor
//! choose a second victim for one whose deletion is under way. Counting on the watch alone would: it lags behind.

use std::collections::BTreeMap;

/// How far a creation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Creation {
    /// Sent; whether it took effect is not known.
    Sent,
    /// The API server said that it exists, in this epoch of the watch.
    Confirmed { epoch: u32 },
}

/// How far a deletion has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Deletion {
    /// Sent for a Node in this version; whether it took effect is not known.
    Sent { version: String },
    /// The API server accepted it.
    Accepted,
}

/// The outstanding creations and deletions of one set, by Node name. Names are never reused, so a name is enough.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    creations: BTreeMap<String, Creation>,
    deletions: BTreeMap<String, Deletion>,
    /// Counts the lists that the watch began with.
    epoch: u32,
}

impl Expectations {
    /// To be called before the creation is sent: its echo may come back first.
    pub fn creating(&mut self, name: &str) {
        self.creations.insert(name.to_owned(), Creation::Sent);
    }

    /// The API server confirmed the creation.
    pub fn created(&mut self, name: &str) {
        if let Some(creation) = self.creations.get_mut(name) {
            *creation = Creation::Confirmed { epoch: self.epoch };
        }
    }

    /// The API server refused the creation for good: it will never show up.
    pub fn refused(&mut self, name: &str) {
        self.creations.remove(name);
    }

    /// To be called before the deletion of a Node in this version is sent: should the answer be lost, the Node counts as
    /// leaving all the same, or another one would go in its place.
    pub fn deleting(&mut self, name: &str, version: &str) {
        self.deletions.insert(name.to_owned(), Deletion::Sent { version: version.to_owned() });
    }

    /// The deletion was accepted.
    pub fn deleted(&mut self, name: &str) {
        if let Some(deletion) = self.deletions.get_mut(name) {
            *deletion = Deletion::Accepted;
        }
    }

    /// The API server refused the deletion for good.
    pub fn kept(&mut self, name: &str) {
        self.deletions.remove(name);
    }

    /// The watch showed the Node in a version: `leaving` when it carries a deletion timestamp.
    pub fn seen(&mut self, name: &str, version: &str, leaving: bool) {
        self.creations.remove(name);
        // A deletion is only of the version that it names: another one that does not leave says that it had no effect.
        let over = match self.deletions.get(name) {
            Some(Deletion::Sent { version: sent }) => leaving || sent != version,
            Some(Deletion::Accepted) => leaving,
            None => false,
        };
        if over {
            self.deletions.remove(name);
        }
    }

    /// The watch showed that the Node is gone.
    pub fn gone(&mut self, name: &str) {
        self.creations.remove(name);
        self.deletions.remove(name);
    }

    /// The watch is about to ask for a new list.
    pub fn relisting(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The list that was announced is there, read at the server's latest state: what was confirmed before it was asked
    /// for and is not in it came and went meanwhile. A deletion of a Node that is not in it is over, too. One of a Node
    /// that is in it stays: the list may have been read before the deletion took effect, and where it had none, it is sent
    /// again.
    pub fn on_resync(&mut self, listed: impl Fn(&str) -> bool) {
        let before =
            |creation: &Creation| matches!(creation, Creation::Confirmed { epoch } if *epoch != self.epoch);
        self.creations.retain(|name, creation| !before(creation) && !listed(name));
        self.deletions.retain(|name, _| listed(name));
    }

    /// Names of Nodes that count as existing although the watch has not shown them.
    pub fn creations(&self) -> impl Iterator<Item = &str> {
        self.creations.keys().map(String::as_str)
    }

    /// Nodes that count as existing although the watch has not shown them.
    #[must_use]
    pub fn pending_creations(&self) -> usize {
        self.creations.len()
    }

    /// Creations whose outcome is unknown: to be sent again under the same name, which is harmless if they succeeded.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &str> {
        self.creations
            .iter()
            .filter(|(_, creation)| **creation == Creation::Sent)
            .map(|(name, _)| name.as_str())
    }

    /// Whether the Node's deletion is under way although the watch may not show it.
    #[must_use]
    pub fn is_leaving(&self, name: &str) -> bool {
        self.deletions.contains_key(name)
    }

    /// Deletions whose outcome is unknown: to be sent again for the same version, which is harmless if they succeeded.
    pub fn unanswered(&self) -> impl Iterator<Item = &str> {
        self.deletions
            .iter()
            .filter(|(_, deletion)| **deletion != Deletion::Accepted)
            .map(|(name, _)| name.as_str())
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
        expectations.creating("a");
        expectations.seen("a", "1", false);
        expectations.created("a");
        assert_eq!(expectations.pending_creations(), 0);
    }

    #[test]
    fn a_node_that_came_and_went_during_a_relist_is_not_waited_for() {
        let mut expectations = Expectations::default();
        for name in ["came-and-went", "in-the-list", "unknown"] {
            expectations.creating(name);
        }
        expectations.created("came-and-went");
        expectations.created("in-the-list");
        expectations.relisting();
        expectations.creating("after-the-list-was-asked-for");
        expectations.created("after-the-list-was-asked-for");
        expectations.on_resync(|name| name == "in-the-list");
        assert_eq!(expectations.unconfirmed().collect::<Vec<_>>(), ["unknown"]);
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
        assert_eq!(expectations.unanswered().collect::<Vec<_>>(), ["in-flight"], "it is sent again");
    }

    #[test]
    fn a_victim_is_chosen_once() {
        let mut expectations = Expectations::default();
        expectations.deleting("a", "7");
        expectations.deleted("a");
        expectations.seen("a", "7", false); // still under way when the deletion was accepted
        assert!(expectations.is_leaving("a"));
        expectations.seen("a", "8", true);
        assert!(!expectations.is_leaving("a"));
    }

    #[test]
    fn a_deletion_without_an_answer_counts_until_the_watch_tells() {
        let mut expectations = Expectations::default();
        expectations.deleting("a", "7");
        expectations.seen("a", "7", false);
        assert_eq!(expectations.unanswered().collect::<Vec<_>>(), ["a"]);
        expectations.seen("a", "8", false); // it changed and does not leave: the deletion had no effect
        assert!(!expectations.is_leaving("a"));
    }

    /// The server's side of a Node in the schedules below.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Answer,
        Echo,
        Refuse,
        Gone,
    }

    proptest! {
        /// Whatever the order of answers and echoes, nothing stays pending once every Node was shown or refused.
        #[test]
        fn nothing_leaks(schedule in vec((0_usize..8, 0_usize..4), 0..80)) {
            let mut expectations = Expectations::default();
            let name = |i: usize| format!("n{i}");
            for i in 0..8 {
                expectations.creating(&name(i));
            }
            let mut settled = BTreeSet::new();
            for (node, step) in schedule {
                match [Step::Answer, Step::Echo, Step::Refuse, Step::Gone][step] {
                    Step::Answer => expectations.created(&name(node)),
                    Step::Echo => expectations.seen(&name(node), "1", false),
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
