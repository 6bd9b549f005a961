//! Groups Nodes into few objects: a NodeClass per shape, a NodeSet per shape with its labels and taints.
//!
//! Machines of one type differ slightly in memory, since firmware and kernel reserve different amounts.
//! Amounts of bytes that are close to each other therefore form one shape with the smallest of them: pods
//! that fit on the copy fit on all.

use std::{cmp::Ordering, collections::BTreeSet};

use kube_node_api::{Resources, quantity};
use serde_json::{Value, json};

use super::machine_template::{MachineTemplate, Shape};
use crate::manifest::object;

/// Maximum difference of close amounts, in percent.
const CLOSE_PERCENT: i128 = 2;
/// Maximum length of a NodeSet's name; names of its Nodes are seven characters longer.
const SET_NAME_MAX: usize = 56;
/// Labels by which clouds and operators name node groups.
const POOLS: [&str; 8] = [
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
    "doks.digitalocean.com/node-pool",
    "k8s.scaleway.com/pool-name",
    "node.cluster.x-k8s.io/pool",
    "pool",
];
const ZONE: &str = "topology.kubernetes.io/zone";

/// NodeClasses and NodeSets as JSON; the Rust types would add their defaults.
pub(super) fn objects(
    machine_templates: &[MachineTemplate],
    prefix: &str,
    node_controller: &str,
) -> anyhow::Result<(Vec<Value>, Vec<Value>)> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for member in machine_templates {
        match groups.iter_mut().find(|group| group.is_of(&member.shape)) {
            Some(group) => group.add(member),
            None => groups.push(Group {
                least: member.shape.clone(),
                most: member.shape.clone(),
                members: vec![member],
            }),
        }
    }
    let (mut class_names, mut set_names) = (Names::default(), Names::default());
    let (mut classes, mut sets) = (Vec::new(), Vec::new());
    for group in groups {
        let machine_type = group.least.machine_type.as_deref().unwrap_or("node");
        let name = class_names.free(&format!("{prefix}{machine_type}"));
        classes.push(object("NodeClass", &name, group.spec(node_controller)?));
        sets.extend(group.sets(prefix, &name, &mut set_names));
    }
    Ok((classes, sets))
}

/// Nodes of one shape.
struct Group<'a> {
    /// Common shape, with the smallest of each amount.
    least: Shape,
    /// The same with the largest: a group does not drift, however many members it gets.
    most: Shape,
    members: Vec<&'a MachineTemplate>,
}

impl<'a> Group<'a> {
    fn is_of(&self, shape: &Shape) -> bool {
        let own = &self.least;
        own.machine_type == shape.machine_type
            && own.kubelet == shape.kubelet
            && own.runtime == shape.runtime
            && [own, &self.most].into_iter().all(|bound| {
                are_close(&bound.capacity, &shape.capacity)
                    && are_close(&bound.allocatable, &shape.allocatable)
            })
    }

    fn add(&mut self, member: &'a MachineTemplate) {
        let Shape { capacity, allocatable, .. } = &member.shape;
        for (bound, order) in [(&mut self.least, Ordering::Less), (&mut self.most, Ordering::Greater)] {
            take(&mut bound.capacity, capacity, order);
            take(&mut bound.allocatable, allocatable, order);
        }
        self.members.push(member);
    }

    fn spec(&self, node_controller: &str) -> anyhow::Result<Value> {
        let Shape { machine_type, kubelet, runtime, capacity, allocatable } = &self.least;
        // A resource without an allocatable amount is reserved entirely.
        let mut reserved = quantity::allocatable(capacity, allocatable)?;
        reserved.retain(|_, amount| amount.0 != "0");
        let (runtime, version) = runtime.clone().unzip();
        Ok(json!({
            "nodeController": node_controller,
            "capacity": capacity,
            "machineType": machine_type,
            "reserved": reserved,
            "provisioning": {
                "kubelet": { "version": kubelet },
                "containerRuntime": { "name": runtime, "version": version },
            },
        }))
    }

    fn sets(&self, prefix: &str, class: &str, names: &mut Names) -> Vec<Value> {
        let mut alike: Vec<(&MachineTemplate, i32)> = Vec::new();
        for member in &self.members {
            let is_alike =
                |first: &MachineTemplate| (&first.labels, &first.taints) == (&member.labels, &member.taints);
            match alike.iter_mut().find(|(first, _)| is_alike(first)) {
                Some((_, count)) => *count += 1,
                None => alike.push((member, 1)),
            }
        }
        let set = |(MachineTemplate { labels, taints, .. }, replicas): (&MachineTemplate, i32)| {
            let pool = POOLS.iter().find_map(|key| labels.get(*key).filter(|pool| !pool.is_empty()));
            let pool = pool.map_or_else(|| class.to_owned(), |pool| format!("{prefix}{pool}"));
            let zone = labels.get(ZONE).map(|zone| format!("-{zone}")).unwrap_or_default();
            let name = names.free(&format!("{pool}{zone}"));
            let template = json!({ "labels": labels, "taints": taints });
            let spec = json!({ "nodeClassName": class, "replicas": replicas, "template": template });
            object("NodeSet", &name, spec)
        };
        alike.into_iter().map(set).collect()
    }
}

/// Returns true for the same resources in close amounts. Countable resources must be equal.
fn are_close(one: &Resources, other: &Resources) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((name, one), (other_name, other))| {
            let (Ok(one), Ok(other)) = (quantity::nanos(one), quantity::nanos(other)) else { return false };
            let is_measured = name == "memory" || name == "ephemeral-storage";
            name == other_name
                && (one == other
                    || (is_measured && (one - other).abs() * 100 <= one.max(other) * CLOSE_PERCENT))
        })
}

/// Takes each of the other amounts that compares so with the own one.
fn take(amounts: &mut Resources, others: &Resources, order: Ordering) {
    for (name, amount) in amounts {
        if let Some(other) = others.get(name)
            && let (Ok(theirs), Ok(own)) = (quantity::nanos(other), quantity::nanos(amount))
            && theirs.cmp(&own) == order
        {
            *amount = other.clone();
        }
    }
}

/// Names in use of one kind.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// Makes a free name of lower-case letters, digits and hyphens, `node` if there are none; appends a number if the
    /// name is taken.
    pub(crate) fn free(&mut self, text: &str) -> String {
        let fit = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let whole: String = text.chars().map(fit).collect();
        // Leaves space for a number.
        let base: String = whole.trim_matches('-').chars().take(SET_NAME_MAX - 5).collect();
        let base = match base.trim_end_matches('-') {
            "" => "node",
            base => base,
        };
        let (mut name, mut count) = (base.to_owned(), 1);
        while !self.0.insert(name.clone()) {
            count += 1;
            name = format!("{base}-{count}");
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::{super::machine_template::of_all, *};
    use kube_node_api::{NodeClass, NodeSet};

    fn machine_template(memory: &str, labels: &Value) -> MachineTemplate {
        let node = json!({
            "metadata": {"name": "n", "labels": labels},
            "spec": {"taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]},
            "status": {
                "capacity": {"cpu": "4", "memory": memory, "pods": "58"},
                "allocatable": {"cpu": "3920m", "memory": "15000000Ki", "pods": "58"},
            },
        });
        of_all(&[serde_json::from_value(node).unwrap()], &[]).0.remove(0)
    }

    fn import(machine_templates: &[MachineTemplate]) -> (Vec<Value>, Vec<Value>) {
        objects(machine_templates, "copy-", "hollow").unwrap()
    }

    #[test]
    fn machines_of_about_one_size_are_one_class() {
        let all = [
            machine_template("16393132Ki", &json!({})),
            machine_template("16393128Ki", &json!({})),
            machine_template("32393128Ki", &json!({})),
            machine_template("16390000Ki", &json!({"zone": "b"})),
        ];
        let (classes, sets) = import(&all);
        assert_eq!(classes.len(), 2);
        let spec = &classes[0]["spec"];
        assert_eq!(spec["capacity"]["memory"], "16390000Ki", "the least");
        assert_eq!(spec["reserved"], json!({"cpu": "80m", "memory": "1423360000"}));
        let replicas: Vec<_> =
            sets.iter().map(|set| (&set["spec"]["nodeClassName"], &set["spec"]["replicas"])).collect();
        assert_eq!(json!(replicas), json!([["copy-node", 2], ["copy-node", 1], ["copy-node-2", 1]]));
        assert_eq!(sets[1]["spec"]["template"]["labels"], json!({"zone": "b"}));
        assert_eq!(sets[0]["spec"]["template"]["taints"][0]["key"], "dedicated");
        let typed: Vec<NodeClass> =
            classes.into_iter().map(|class| serde_json::from_value(class).unwrap()).collect();
        assert!(typed.iter().all(|class| class.spec.node_controller == "hollow"));
        let typed: Vec<NodeSet> = sets.into_iter().map(|set| serde_json::from_value(set).unwrap()).collect();
        assert_eq!(typed[0].spec.replicas, 2);
    }

    #[test]
    fn sets_are_named_by_pool_and_zone() {
        let of = |pool: &str, zone: &str| {
            machine_template("16Gi", &json!({"karpenter.sh/nodepool": pool, ZONE: zone}))
        };
        let sets = import(&[of("Spot.A", "eu-1a"), of("Spot.A", "eu-1b"), of("spot-a", "eu-1a")]).1;
        let names: Vec<_> = sets.iter().map(|set| set["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["copy-spot-a-eu-1a", "copy-spot-a-eu-1b", "copy-spot-a-eu-1a-2"]);
    }

    #[test]
    fn a_class_does_not_drift() {
        let of = |memory: u64| machine_template(&format!("{memory}Ki"), &json!({}));
        let amounts: Vec<u64> = (0..10).map(|step| 32_800_000 - step * 450_000).collect();
        for amounts in [amounts.clone(), amounts.into_iter().rev().collect()] {
            let (classes, _) = import(&amounts.into_iter().map(of).collect::<Vec<_>>());
            assert_eq!(classes.len(), 5, "a second one is within 2 %, and a third one is not");
        }
    }

    #[test]
    fn a_pool_without_a_name_names_nothing() {
        let sets = import(&[machine_template("16Gi", &json!({"pool": ""}))]).1;
        assert_eq!(sets[0]["metadata"]["name"], "copy-node");
        assert_eq!(Names::default().free("--"), "node");
    }

    #[test]
    fn names_fit_and_are_free() {
        let mut names = Names::default();
        assert_eq!(
            [names.free("a"), names.free("a"), names.free("a-2"), names.free("A")],
            ["a", "a-2", "a-2-2", "a-3"]
        );
        let long = "x".repeat(90);
        assert_eq!((names.free(&long).len(), names.free(&long).len()), (51, 53));
        assert_eq!(Names::default().free("a"), "a", "each kind has names of its own");
    }
}
