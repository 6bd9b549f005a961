//! Checks of clauses against the recorded states of Nodes, oldest first. No I/O.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube_node_api::names;

use super::manifests::{KEY, MARK_TAINT, STARTUP_TAINT};

/// `Ok`: the observation that keeps the clause. `Err`: the observation that breaks it.
pub(super) type Checked = Result<String, String>;

/// Returns true if a kubelet has posted a status.
pub(super) fn has_posted(node: &Node) -> bool {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.is_some_and(|info| !info.kubelet_version.is_empty())
}

/// Status, reason and message of one condition of a Node.
pub(super) fn condition<'a>(node: &'a Node, r#type: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == r#type)?;
    let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
    Some((&found.status, text(&found.reason), text(&found.message)))
}

/// Reason and message of a condition that is `False`; `None` without either.
pub(super) fn obstacle(node: &Node, r#type: &str) -> Option<String> {
    let (status, reason, message) = condition(node, r#type)?;
    (status == "False" && !reason.is_empty() && !message.is_empty()).then(|| format!("{reason}: {message}"))
}

pub(super) fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|(status, ..)| status == "True")
}

/// Returns true if the Node has a taint with this key, and with this effect if one is given.
pub(super) fn has_taint(node: &Node, key: &str, effect: Option<&str>) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == key && effect.is_none_or(|effect| taint.effect == effect))
}

/// Returns true if pods may be scheduled to the Node, start-up taints aside.
pub(super) fn is_initialized(node: &Node) -> bool {
    is_ready(node) && !has_taint(node, names::TAINT_UNINITIALIZED, None)
}

pub(super) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
}

pub(super) fn is_leaving(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_some()
}

pub(super) fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

/// Name of the Node with these states.
fn name(states: &[Node]) -> String {
    states.first().map(ResourceExt::name_any).unwrap_or_default()
}

fn has_finalizer(node: &Node) -> bool {
    node.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER_MACHINE)
}

/// Clause 2.1, checked on a Node of another controller's class.
pub(super) fn untouched(states: &[Node]) -> Checked {
    for node in states {
        let lacks_taint = |effect: &str| !has_taint(node, names::TAINT_UNINITIALIZED, Some(effect));
        let is_taken_off = ["NoExecute", "NoSchedule"].into_iter().any(lacks_taint);
        let has_condition = condition(node, names::CONDITION_MACHINE).is_some();
        let touches = [
            (has_posted(node), "a kubelet posted a status"),
            (provider_id(node).is_some(), "its spec.providerID was set"),
            (is_taken_off, "the taint kube-node.io/uninitialized was taken off"),
            (!has_finalizer(node), "its finalizer was taken off"),
            (is_cordoned(node), "it was closed to the scheduler"),
            (has_condition, "it got the condition kube-node.io/Machine"),
        ];
        if let Some((_, touched)) = touches.iter().find(|(holds, _)| *holds) {
            return Err(format!("{} of another controller: {touched}", node.name_any()));
        }
    }
    Ok(format!("a Node of another controller stayed as it was, {} states", states.len()))
}

/// Clause 2.3: everything that the Node's creator and this test run have written stays.
pub(super) fn rest_stays(states: &[Node]) -> Checked {
    let Some(first) = states.first() else { return Ok(String::new()) };
    let name = first.name_any();
    let is_protected = |key: &str| key.starts_with("kube-node.io/") || key == KEY;
    let mut marked = false;
    for node in states {
        let is_changed =
            |(key, value): &(&String, &String)| is_protected(key) && node.labels().get(*key) != Some(*value);
        if let Some((key, value)) = first.labels().iter().find(is_changed) {
            return Err(format!("{name}: the label {key}={value} was changed or taken off"));
        }
        if node.annotations().get(KEY) != first.annotations().get(KEY) {
            return Err(format!("{name}: the annotation {KEY} was changed or taken off"));
        }
        if node.owner_references() != first.owner_references() {
            return Err(format!("{name}: its owner references were changed"));
        }
        marked |= has_taint(node, MARK_TAINT, None);
        if marked && !has_taint(node, MARK_TAINT, None) {
            return Err(format!("{name}: the taint {MARK_TAINT}, set by somebody else, was taken off"));
        }
        // This test run removes the start-up taint only after the Node is initialized.
        if has_taint(first, STARTUP_TAINT, None)
            && has_taint(node, names::TAINT_UNINITIALIZED, None)
            && !has_taint(node, STARTUP_TAINT, None)
        {
            return Err(format!(
                "{name}: the start-up taint {STARTUP_TAINT} was taken off by whom it does not wait for"
            ));
        }
    }
    Ok(name)
}

/// Clause 3.1.
pub(super) fn finalizer_first(states: &[Node]) -> Checked {
    // A Node shows a machine once its kubelet or its provider has written.
    match states.iter().find(|node| has_posted(node) || provider_id(node).is_some()) {
        Some(node) if has_finalizer(node) => Ok(format!("{} had it before its machine", node.name_any())),
        Some(node) => Err(format!("{} has a machine and no finalizer", node.name_any())),
        None => Err("the Node without a finalizer got no machine".to_owned()),
    }
}

/// Clause 4.2.
pub(super) fn no_execute(states: &[Node]) -> Checked {
    let is_there = |node: &&Node| has_taint(node, names::TAINT_UNINITIALIZED, Some("NoExecute"));
    let name = name(states);
    match states.iter().find(|node| !is_there(node)) {
        Some(node) if !has_posted(node) => Err(format!("{name} lost NoExecute before a kubelet had posted")),
        Some(_) => Ok(name),
        None => Err(format!("{name} kept NoExecute")),
    }
}

/// Clause 4.3. The writes of the kubelet and of the controller may appear in one state or in two.
pub(super) fn no_schedule(states: &[Node]) -> Checked {
    let is_there = |node: &Node| has_taint(node, names::TAINT_UNINITIALIZED, Some("NoSchedule"));
    let name = name(states);
    match states.iter().position(|node| !is_there(node)) {
        Some(at) if states[at.saturating_sub(1)..=at].iter().any(is_ready) => Ok(name),
        Some(_) => Err(format!("{name} lost NoSchedule before it was Ready")),
        None => Err(format!("{name} kept NoSchedule")),
    }
}

/// Clause 3.5, checked on every Node that pods may be scheduled to.
pub(super) fn provider_ids(nodes: &[Vec<Node>]) -> Checked {
    let open = nodes.iter().filter_map(|states| states.iter().find(|node| is_initialized(node)));
    let id = |node| provider_id(node).ok_or_else(|| format!("{} takes pods and has none", node.name_any()));
    let mut ids = open.map(id).collect::<Result<Vec<_>, _>>()?;
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair.first() == pair.last()) {
        return Err(format!("two Nodes have {}", twice.join(" = ")));
    }
    let id = ids.first().ok_or("no Node takes pods")?;
    Ok(format!("{} of them, such as {id}", ids.len()))
}

/// Clause 5.1, checked on a Node that was drained and is gone.
pub(super) fn cordoned_first(states: &[Node]) -> Checked {
    let name = name(states);
    match states.iter().find(|node| is_cordoned(node)).map(is_leaving) {
        Some(true) => Ok(format!("{name} was closed to the scheduler before its pods left")),
        Some(false) => Err(format!("{name} was closed to the scheduler before its deletion was asked for")),
        None => Err(format!("{name} was never closed to the scheduler")),
    }
}

/// Clause 3.2: Nodes report a resource that only the new revision has. `None` if no such Node was observed.
pub(super) fn from_revisions(nodes: &[Node], resource: &str, with: &str) -> Option<Checked> {
    let reports = |node: &&Node| {
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        capacity.is_some_and(|capacity| capacity.contains_key(resource))
    };
    let is_new = |node: &Node| node.labels().get(names::LABEL_REVISION).map(String::as_str) == Some(with);
    let (new, old): (Vec<&Node>, Vec<&Node>) =
        nodes.iter().filter(|node| is_ready(node)).partition(|node| is_new(node));
    if let Some(node) = old.iter().find(|node| reports(node)) {
        return Some(Err(format!(
            "{} reports {resource}, which its revision does not have and the class has by now",
            node.name_any()
        )));
    }
    let (all, count, old) = (new.len(), new.iter().filter(|node| reports(node)).count(), old.len());
    Some(match all - count {
        _ if count == 0 => return None,
        0 => Ok(format!("{count} Nodes of the new revision report {resource}, {old} of the old one do not")),
        lacking => Err(format!("{lacking} of {all} Nodes of the new revision do not report {resource}")),
    })
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
