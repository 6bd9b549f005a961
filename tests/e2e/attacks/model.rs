//! What each identity may do, in words of rules, written from docs/security.md and not read from the chart: a right that somebody
//! adds there shows here.

use kube_node_testing::api_server::Random;

use super::requests::{Attack, Change};

/// Rules of a role: verbs, resources, and where. `@` names the only namespace, `=` the only object, as `get,patch secrets @kube-system =a`.
type Rules = &'static [&'static str];

/// An identity whose credential an attacker has.
pub struct Identity {
    pub name: &'static str,
    pub user: &'static str,
    pub groups: &'static [&'static str],
    rules: Rules,
    /// What policies and admission leave of the rules.
    leaves: fn(&Attack) -> bool,
}

const ACCOUNT: [&str; 3] =
    ["system:serviceaccounts", "system:serviceaccounts:kube-node-system", "system:authenticated"];
const MACHINE: [&str; 3] =
    ["system:serviceaccounts", "system:serviceaccounts:kubemark", "system:authenticated"];
const PERSON: [&str; 1] = ["system:authenticated"];

/// Nodes of the attack: a hollow one, the attacker's own, and another one. Pods have the names of their Nodes.
pub const HOLLOW: &str = "attack-hollow";
pub const MINE: &str = "attack-mine";
pub const REAL: &str = "attack-real";

const HOLLOW_RULES: [&str; 10] = [
    "patch nodes/status,pods/status",
    "delete pods",
    "create,patch events",
    "list,watch csidrivers",
    "list,create csinodes",
    "create tokenreviews,subjectaccessreviews",
    "list,create,update,patch leases @kube-node-lease",
    "get configmaps @kube-system =extension-apiserver-authentication",
    "create serviceaccounts/token @kubemark =kube-node-hollow-machine",
    // Whether the objects exist that pods refer to.
    "get secrets,configmaps,persistentvolumeclaims",
];
const HOST_RULES: [&str; 12] = [
    "patch nodes/status,pods/status",
    "delete,list,watch pods",
    "create,patch events",
    "list,create csinodes",
    "create tokenreviews,subjectaccessreviews",
    "list,create,update,patch leases @kube-node-lease",
    "get,list,watch,create,update leases @kube-node-system",
    "get configmaps @kube-system =extension-apiserver-authentication",
    "create serviceaccounts/token @kubemark =kube-node-hollow-machine",
    "get secrets,configmaps,persistentvolumeclaims",
    "list,watch nodes,nodeclasses,nodesets",
    "get controllerrevisions @kube-node-system",
];

pub const IDENTITIES: [Identity; 8] = [
    Identity {
        name: "hollow kubelets",
        user: "system:serviceaccount:kube-node-system:kube-node-hollow",
        groups: &ACCOUNT,
        rules: &HOLLOW_RULES,
        leaves: is_of_hollow_nodes,
    },
    Identity {
        name: "worker",
        user: "system:serviceaccount:kube-node-system:kube-node-hollow-host",
        groups: &ACCOUNT,
        rules: &HOST_RULES,
        leaves: is_of_hollow_nodes,
    },
    Identity {
        name: "machine without a certificate",
        user: "system:serviceaccount:kubemark:kube-node-machine",
        groups: &MACHINE,
        rules: &["create,watch certificatesigningrequests"],
        // The attack asks for another signer.
        leaves: |_| false,
    },
    Identity {
        name: "hollow machine without a certificate",
        user: "system:serviceaccount:kubemark:kube-node-hollow-machine",
        groups: &MACHINE,
        rules: &["create,watch certificatesigningrequests"],
        leaves: |_| false,
    },
    Identity {
        name: "machine",
        user: "system:node:attack-mine",
        groups: &["system:nodes", "system:authenticated"],
        rules: &[
            "get nodes,pods =attack-mine",
            // NodeRestriction, which compares the names, comes after authorization.
            "create,update,patch nodes",
            "update,patch nodes/status,pods/status",
            "create,delete pods",
            "create pods/eviction",
            "create,update,patch events",
            "get,list,watch services",
            "get,create,update,patch,delete leases @kube-node-lease =attack-mine",
            "get,create,update,patch,delete csinodes =attack-mine",
            "create,get,list,watch certificatesigningrequests",
            "create tokenreviews,subjectaccessreviews",
        ],
        leaves: is_of_the_own_node,
    },
    Identity {
        name: "viewer",
        user: "attack-viewer",
        groups: &PERSON,
        rules: &[
            "get,list,watch nodeclasses,nodesets",
            "get nodeclasses/status,nodesets/status,nodesets/scale",
        ],
        leaves: |_| true,
    },
    Identity {
        name: "developer",
        user: "attack-developer",
        groups: &PERSON,
        rules: &[
            "get,list,watch nodeclasses,nodesets,nodes",
            "get nodeclasses/status,nodesets/status",
            "get,update,patch nodesets/scale",
        ],
        leaves: |_| true,
    },
    Identity {
        name: "admin",
        user: "attack-admin",
        groups: &PERSON,
        rules: &[
            "get,list,watch,create,update,patch,delete,deletecollection nodeclasses,nodesets",
            "get nodeclasses/status,nodesets/status",
            "get,update,patch nodesets/scale",
            "get,list,watch nodes,certificatesigningrequests",
            "get,list,watch controllerrevisions @kube-node-system",
            "get,list,watch,create,update,patch,delete configmaps @kube-node-system",
            "create,update,delete secrets @kube-node-system",
            "get,list,watch pods,pods/log @kubemark",
            "get,list,watch leases @kube-node-lease",
        ],
        leaves: |attack| {
            !attack.is_of("secrets", None) || attack.verb == "delete" || attack.change != Change::Finalizer
        },
    },
];

impl Identity {
    /// A verb and a resource of a random rule; None for a watch, which would last.
    pub fn draw(&self, random: &mut Random) -> Option<(&'static str, &'static str)> {
        let mut words = self.rules[random.below(self.rules.len())]
            .split(' ')
            .map(|list| list.split(',').collect::<Vec<_>>());
        let (verbs, resources) = (words.next()?, words.next()?);
        let verb = verbs[random.below(verbs.len())];
        (verb != "watch").then(|| (verb, resources[random.below(resources.len())]))
    }

    /// Whether authorization lets the request pass: all others are answered with 403.
    pub fn is_authorized(&self, attack: &Attack) -> bool {
        self.rules.iter().any(|rule| {
            let words: Vec<&str> = rule.split_whitespace().collect();
            let [verbs, resources, limits @ ..] = &words[..] else { return false };
            let has = |list: &str, wanted: &str| list.split(',').any(|one| one == wanted);
            let fits = |limit: &&str| match limit.split_at(1) {
                ("@", namespace) => attack.namespace == Some(namespace),
                // A creation has no name that a rule could compare.
                (_, name) => {
                    attack.name.as_deref() == Some(name)
                        || (attack.verb == "create" && attack.subresource.is_none())
                }
            };
            has(verbs, attack.verb) && has(resources, &attack.resource()) && limits.iter().all(fits)
        })
    }

    /// Whether the request may succeed.
    pub fn may(&self, attack: &Attack) -> bool {
        self.is_authorized(attack) && (self.leaves)(attack)
    }
}

const fn is_metadata(change: Change) -> bool {
    matches!(
        change,
        Change::Label
            | Change::OurLabel
            | Change::Annotation
            | Change::OurAnnotation
            | Change::Finalizer
            | Change::Owner
    )
}

/// Hollow kubelets write the status of hollow Nodes and of their pods, and nothing of metadata.
fn is_of_hollow_nodes(attack: &Attack) -> bool {
    let name = attack.name.as_deref().unwrap_or_default();
    let is_other = [MINE, REAL].contains(&name);
    match (attack.resource, attack.subresource) {
        ("nodes", Some("status")) => !is_other && !is_metadata(attack.change),
        // The API server keeps the owners of a pod in a write of its status, and says nothing.
        ("pods", Some("status")) => {
            !is_other && (!is_metadata(attack.change) || attack.change == Change::Owner)
        }
        ("pods", None) if attack.verb == "delete" => !is_other,
        ("leases", None) if attack.namespace == Some("kube-node-system") => {
            matches!(attack.verb, "get" | "list") || name.starts_with("hollow-host.")
        }
        ("leases" | "csinodes", None) => !is_other,
        // The attack binds its tokens to no Node.
        ("serviceaccounts", Some("token")) => false,
        _ => true,
    }
}

/// A machine writes the status of its Node, and nothing that the operator decides by.
fn is_of_the_own_node(attack: &Attack) -> bool {
    if ["nodes", "pods"].contains(&attack.resource) && attack.name.as_deref() != Some(MINE) {
        return false;
    }
    match (attack.resource, attack.subresource) {
        // The API server keeps the spec in a write of the status, and says nothing.
        ("nodes", Some("status")) if attack.change == Change::Spec => true,
        ("nodes", Some("status") | None) if attack.verb != "get" => {
            matches!(attack.change, Change::Nothing | Change::Status | Change::Annotation | Change::Data)
        }
        // Only a static pod, which the attack has none of.
        ("pods", None) if attack.verb == "create" => false,
        ("pods", Some("status")) => !matches!(attack.change, Change::Label | Change::OurLabel),
        ("leases" | "csinodes", None) => attack.name.as_deref() == Some(MINE),
        _ => true,
    }
}
