//! Orders that change the size of a group: what each comes to, or why it is refused. An order is carried out as a whole
//! or not at all.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{Machine, Refusal, SetSnapshot};

/// Most Nodes that one call may name, and most that a set keeps on record: cluster-autoscaler names one or a few.
pub const MOST_VICTIMS: usize = 1_000;

/// One write of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `spec.replicas`.
    pub replicas: i32,
    /// UIDs of all Nodes that are on record to go, those of earlier orders included.
    pub victims: BTreeSet<String>,
}

impl Change {
    /// Whether the set stands as this asks for: another look at it may have found it done.
    #[must_use]
    pub fn is_done(&self, standing: &SetSnapshot) -> bool {
        standing.replicas == self.replicas && standing.victims.is_superset(&self.victims)
    }
}

/// A Node that an order names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Its providerID; empty where the sender knows none.
    pub provider_id: &'a str,
    /// Its name; the providerID again where the sender has never seen the Node.
    pub name: &'a str,
}

/// What such a Node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// There is none any more.
    Gone,
    /// Of this group.
    Ours {
        /// Its UID.
        uid: &'a str,
        /// Whether its deletion was asked for.
        leaving: bool,
    },
    /// Of another group, or of none.
    Foreign {
        /// Its name.
        name: &'a str,
    },
}

/// The Node that is meant: by its providerID byte for byte, else by its name, unless that one has another providerID.
///
/// `by_id` and `by_name` look a Node up, `id_of` says which providerID it has.
pub fn resolve<N>(
    wanted: Wanted<'_>,
    by_id: impl FnOnce(&str) -> Option<N>,
    by_name: impl FnOnce(&str) -> Option<N>,
    id_of: impl FnOnce(&N) -> Option<String>,
) -> Result<Option<N>, Refusal> {
    let Wanted { provider_id, name } = wanted;
    if provider_id.is_empty() && name.is_empty() {
        return Err(Refusal::Nameless);
    }
    if !provider_id.is_empty()
        && let Some(node) = by_id(provider_id)
    {
        return Ok(Some(node));
    }
    let Some(node) = by_name(name) else { return Ok(None) };
    match id_of(&node) {
        Some(has) if !provider_id.is_empty() && has != provider_id => {
            Err(Refusal::OtherId { name: name.to_owned(), has, said: provider_id.to_owned() })
        }
        _ => Ok(Some(node)),
    }
}

/// So many more.
pub fn increase(standing: &SetSnapshot, delta: i32) -> Result<Change, Refusal> {
    if delta <= 0 {
        return Err(Refusal::Delta { delta, wanted: "a group grows by 1 or more" });
    }
    let SetSnapshot { bounds, replicas, .. } = *standing;
    match replicas.checked_add(delta) {
        Some(sum) if sum <= bounds.max => Ok(Change { replicas: sum, victims: standing.victims.clone() }),
        _ => Err(Refusal::AboveMax { replicas, delta, max: bounds.max }),
    }
}

/// Exactly these; None where all of them go already. `staying` Nodes of the set do not go so far: those above its
/// replicas, such as the surge of a rollout, were counted as machines to their sender and are the first to be taken from.
/// Else another Node, which nobody named, would have to go for them.
pub fn delete(
    set: &str,
    standing: &SetSnapshot,
    staying: usize,
    targets: &[Target<'_>],
) -> Result<Option<Change>, Refusal> {
    if targets.len() > MOST_VICTIMS {
        return Err(Refusal::TooMany { asked: targets.len(), most: MOST_VICTIMS });
    }
    let mut victims = standing.victims.clone();
    for target in targets {
        match *target {
            Target::Gone | Target::Ours { leaving: true, .. } => {}
            Target::Ours { uid, .. } => drop(victims.insert(uid.to_owned())),
            Target::Foreign { name } => {
                return Err(Refusal::Foreign { node: name.to_owned(), set: set.to_owned() });
            }
        }
    }
    let new = victims.len() - standing.victims.len();
    if new == 0 {
        return Ok(None);
    }
    if victims.len() > MOST_VICTIMS {
        return Err(Refusal::TooMany { asked: victims.len(), most: MOST_VICTIMS });
    }
    let SetSnapshot { bounds, replicas, .. } = *standing;
    let above = staying.saturating_sub(usize::try_from(replicas).unwrap_or(0));
    let fewer = i32::try_from(new.saturating_sub(above)).ok().and_then(|fewer| replicas.checked_sub(fewer));
    match fewer.filter(|fewer| *fewer >= bounds.min.max(0) || *fewer == replicas) {
        Some(replicas) => Ok(Some(Change { replicas, victims })),
        None => Err(Refusal::BelowMin { replicas, victims: new, min: bounds.min }),
    }
}

/// So many that never came are not waited for any more: at most as many as have no machine that ever worked, and never
/// below the least size. Replicas without a Node go first, then the youngest Nodes; while a rollout is under way none of these,
/// since they are its replacements.
pub fn decrease(
    standing: &SetSnapshot,
    machines: &[Machine<'_>],
    rollout: bool,
    delta: i32,
) -> Result<Change, Refusal> {
    if delta >= 0 {
        return Err(Refusal::Delta { delta, wanted: "a group is given up by -1 or less" });
    }
    let staying = || machines.iter().filter(|machine| !machine.goes(&standing.victims));
    let replicas = usize::try_from(standing.replicas).unwrap_or(0);
    let may = usize::try_from(standing.replicas.saturating_sub(standing.bounds.min)).unwrap_or(0);
    // A rollout's new Nodes, which come before the old ones go, are no replicas that wait.
    let without = replicas.saturating_sub(staying().filter(|machine| machine.started).count());
    let asked = usize::try_from(delta.unsigned_abs()).unwrap_or(usize::MAX).min(may).min(without);
    let missing = replicas.saturating_sub(staying().count());
    let mut waiting: Vec<&Machine<'_>> = staying().filter(|machine| !machine.started).collect();
    waiting.sort_by_key(|machine| (machine.has_kubelet, Reverse(machine.created), machine.name));
    let room = MOST_VICTIMS.saturating_sub(standing.victims.len());
    let named = if rollout { 0 } else { asked.saturating_sub(missing).min(room) };
    let chosen: Vec<String> = waiting.into_iter().take(named).map(|machine| machine.uid.to_owned()).collect();
    let taken = asked.min(missing) + chosen.len();
    if taken == 0 {
        return Err(Refusal::NothingToTake);
    }
    let victims = standing.victims.iter().cloned().chain(chosen).collect();
    let fewer = standing.replicas.saturating_sub(i32::try_from(taken).unwrap_or(i32::MAX));
    Ok(Change { replicas: fewer, victims })
}
