//! Scale requests that change the size of a group: the resulting write or the refusal. A request is applied
//! completely or not at all.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{Bounds, Code, GroupNode, MOST_VICTIMS, ScaleRefusal, SetSnapshot};

/// One write of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    /// `spec.replicas`.
    pub replicas: i32,
    /// UIDs of all recorded victims, those of earlier requests included.
    pub victims: BTreeSet<String>,
}

impl ReplicaChange {
    /// Returns true if the set already has this change; a later read may find it applied.
    pub fn is_done(&self, snapshot: &SetSnapshot) -> bool {
        snapshot.replicas == self.replicas && snapshot.victims.is_superset(&self.victims)
    }
}

/// A Node that a scale request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRef<'a> {
    /// The providerID; empty if the sender does not know it.
    pub provider_id: &'a str,
    /// The Node's name, or the providerID if the sender has never seen the Node.
    pub name: &'a str,
}

impl NodeRef<'_> {
    /// Checks that the request has a providerID or a name.
    pub fn check(self) -> Result<(), ScaleRefusal> {
        let nameless = self.provider_id.is_empty() && self.name.is_empty();
        let refusal =
            || ScaleRefusal::new(Code::InvalidArgument, "a node has neither a providerID nor a name");
        if nameless { Err(refusal()) } else { Ok(()) }
    }
}

/// Resolution of a named Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimState<'a> {
    /// The Node no longer exists.
    Gone,
    /// The Node belongs to this group.
    Ours {
        /// UID of the Node.
        uid: &'a str,
        /// True if the Node has a deletion timestamp.
        leaving: bool,
    },
    /// The Node belongs to another group, or to none.
    Foreign {
        /// Name of the Node.
        name: &'a str,
    },
}

/// Finds the named Node: by its providerID byte for byte, otherwise by its name, unless that Node has another
/// providerID.
///
/// `by_id` and `by_name` look up a Node; `id_of` returns its providerID.
pub fn resolve<N>(
    node_ref: NodeRef<'_>,
    by_id: impl FnOnce(&str) -> Option<N>,
    by_name: impl FnOnce(&str) -> Option<N>,
    id_of: impl FnOnce(&N) -> Option<String>,
) -> Result<Option<N>, ScaleRefusal> {
    node_ref.check()?;
    let NodeRef { provider_id, name } = node_ref;
    if provider_id.is_empty() {
        return Ok(by_name(name));
    }
    if let Some(node) = by_id(provider_id) {
        return Ok(Some(node));
    }
    let node = by_name(name);
    match node.as_ref().and_then(id_of) {
        Some(own) if own != provider_id => {
            let message = format!("node {name} has the providerID {own:?}, not {provider_id:?}");
            Err(ScaleRefusal::new(Code::InvalidArgument, message))
        }
        _ => Ok(node),
    }
}

/// Raises the replicas by `delta`.
pub fn increase(snapshot: &SetSnapshot, delta: i32) -> Result<ReplicaChange, ScaleRefusal> {
    if delta <= 0 {
        return Err(wrong_delta(delta, "a group grows by 1 or more"));
    }
    let SetSnapshot { bounds: Bounds { max, .. }, replicas, .. } = *snapshot;
    if let Some(replicas) = replicas.checked_add(delta).filter(|sum| *sum <= max) {
        return Ok(ReplicaChange { replicas, victims: snapshot.victims.clone() });
    }
    let message = format!(
        "{replicas} replicas and {delta} more are beyond {max}, by maxReplicas or by the limits.nodes of the NodeClass"
    );
    Err(ScaleRefusal::new(Code::OutOfRange, message))
}

fn wrong_delta(delta: i32, expected: &str) -> ScaleRefusal {
    ScaleRefusal::new(Code::InvalidArgument, format!("a delta of {delta}: {expected}"))
}

/// Removes exactly these Nodes; None if all of them are already going.
///
/// `staying` is the number of Nodes of the set that are not going ([`serving`](super::serving)). Those above the
/// replicas, such as the surge of a rollout, were counted as machines for the sender and are subtracted first: otherwise another
/// Node, not named in the request, would have to go.
pub fn delete(
    set: &str,
    snapshot: &SetSnapshot,
    staying: usize,
    targets: &[VictimState<'_>],
) -> Result<Option<ReplicaChange>, ScaleRefusal> {
    if targets.len() > MOST_VICTIMS {
        return Err(ScaleRefusal::too_many(targets.len()));
    }
    let mut victims = snapshot.victims.clone();
    for target in targets {
        match *target {
            VictimState::Gone | VictimState::Ours { leaving: true, .. } => {}
            VictimState::Ours { uid, .. } => drop(victims.insert(uid.to_owned())),
            VictimState::Foreign { name } => return Err(ScaleRefusal::foreign(name, set)),
        }
    }
    let new = victims.len() - snapshot.victims.len();
    if new == 0 {
        return Ok(None);
    }
    if victims.len() > MOST_VICTIMS {
        return Err(ScaleRefusal::too_many(victims.len()));
    }
    let SetSnapshot { bounds, replicas, .. } = *snapshot;
    let above = staying.saturating_sub(usize::try_from(replicas).unwrap_or(0));
    let fewer = i32::try_from(new.saturating_sub(above)).ok().and_then(|fewer| replicas.checked_sub(fewer));
    if let Some(replicas) = fewer.filter(|fewer| *fewer >= bounds.min.max(0) || *fewer == replicas) {
        return Ok(Some(ReplicaChange { replicas, victims }));
    }
    let message =
        format!("{replicas} replicas without {new} nodes are fewer than minReplicas ({})", bounds.min);
    Err(ScaleRefusal::new(Code::FailedPrecondition, message))
}

/// Gives up replicas that never got a working machine, and never falls below the minimum. Replicas without a Node go
/// first, then the youngest Nodes; during a rollout no Nodes, since the new ones are its replacements. `coming` is the
/// number of Nodes that are created and not in the cache yet: these stay, since a victim is named by its UID. Refused with
/// `FailedPrecondition` if no replica may go.
pub fn decrease(
    snapshot: &SetSnapshot,
    machines: &[GroupNode<'_>],
    coming: usize,
    rollout: bool,
    delta: i32,
) -> Result<ReplicaChange, ScaleRefusal> {
    if delta >= 0 {
        return Err(wrong_delta(delta, "a group is given up by -1 or less"));
    }
    let staying = || machines.iter().filter(|machine| !machine.goes(&snapshot.victims));
    let replicas = usize::try_from(snapshot.replicas).unwrap_or(0);
    let may = usize::try_from(snapshot.replicas.saturating_sub(snapshot.bounds.min)).unwrap_or(0);
    // New Nodes of a rollout, which exist before the old ones go, are no waiting replicas.
    let without = replicas.saturating_sub(staying().filter(|machine| machine.initialized).count());
    let requested = usize::try_from(delta.unsigned_abs()).unwrap_or(usize::MAX).min(may).min(without);
    let missing = replicas.saturating_sub(staying().count() + coming);
    let mut waiting: Vec<&GroupNode<'_>> = staying().filter(|machine| !machine.initialized).collect();
    waiting.sort_by_key(|machine| (machine.has_kubelet, Reverse(machine.created), machine.name));
    let left = MOST_VICTIMS.saturating_sub(snapshot.victims.len());
    let count = if rollout { 0 } else { requested.saturating_sub(missing).min(left) };
    let chosen: Vec<String> = waiting.into_iter().take(count).map(|machine| machine.uid.to_owned()).collect();
    let taken = requested.min(missing) + chosen.len();
    if taken == 0 {
        let message = "all replicas that may go have a machine or are being created: delete the nodes by name, or ask again";
        return Err(ScaleRefusal::new(Code::FailedPrecondition, message));
    }
    let victims = snapshot.victims.iter().cloned().chain(chosen).collect();
    let fewer = snapshot.replicas.saturating_sub(i32::try_from(taken).unwrap_or(i32::MAX));
    Ok(ReplicaChange { replicas: fewer, victims })
}
