//! What is granted: the rules of roles, each verb on each resource by itself, for whom it is bound to.

use std::fmt;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::uses::Use;

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Kind and name of the role.
    role: String,
    /// User name.
    identity: String,
    /// Where; None for everywhere.
    namespace: Option<String>,
    group: String,
    /// With its subresource.
    resource: String,
    verb: String,
    /// Objects; all when empty.
    names: Vec<String>,
}

impl Right {
    /// Whether it is this user's.
    pub fn is_of(&self, identity: &str) -> bool {
        self.identity == identity
    }

    /// Whether it allows this.
    pub fn covers(&self, used: &Use) -> bool {
        self.identity == used.identity
            && (&self.group, &self.resource, &self.verb) == (&used.group, &used.resource, &used.verb)
            && (self.namespace.is_none() || self.namespace == used.namespace)
            && (self.names.is_empty() || used.name.as_ref().is_none_or(|name| self.names.contains(name)))
    }

    /// Whether it allows all that `other` does.
    pub fn includes(&self, other: &Self) -> bool {
        self.identity == other.identity
            && (&self.group, &self.resource, &self.verb) == (&other.group, &other.resource, &other.verb)
            && (self.namespace.is_none() || self.namespace == other.namespace)
            && (self.names.is_empty()
                || (!other.names.is_empty() && other.names.iter().all(|name| self.names.contains(name))))
    }

    /// How little it allows.
    pub fn narrowness(&self) -> usize {
        usize::from(self.namespace.is_some()) + usize::from(!self.names.is_empty())
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} for {}: ", self.role, self.identity)?;
        write!(f, "{} {}{dot}{}", self.verb, self.resource, self.group)?;
        if self.names.is_empty() { Ok(()) } else { write!(f, " {}", self.names.join(", ")) }
    }
}

/// The rights in these manifests that are bound to somebody.
pub fn parse(text: &str) -> anyhow::Result<Vec<Right>> {
    let documents: Vec<Value> = serde_norway::Deserializer::from_str(text)
        .map(Value::deserialize)
        .collect::<Result<_, _>>()
        .context("the roles are not valid")?;
    let field = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let mut rights = Vec::new();
    for binding in &documents {
        let kind = field(binding, "/kind").unwrap_or_default();
        // Admission policies are bound, too.
        let Some(wanted) = kind.strip_suffix("Binding").filter(|kind| kind.ends_with("Role")) else {
            continue;
        };
        let namespace = field(binding, "/metadata/namespace");
        let name = field(binding, "/roleRef/name");
        let role = documents
            .iter()
            .find(|role| {
                field(role, "/kind").as_deref() == Some(wanted)
                    && field(role, "/metadata/name") == name
                    && field(role, "/metadata/namespace") == namespace
            })
            .with_context(|| format!("{kind} names no {wanted} that is here"))?;
        let name = name.unwrap_or_default();
        let label = namespace
            .as_ref()
            .map_or_else(|| format!("{wanted} {name}"), |namespace| format!("{wanted} {namespace}/{name}"));
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            let identity = format!(
                "system:serviceaccount:{}:{}",
                field(subject, "/namespace").unwrap_or_default(),
                field(subject, "/name").unwrap_or_default()
            );
            for rule in role["rules"].as_array().into_iter().flatten() {
                let list = |key: &str| -> Vec<String> {
                    let all = rule[key].as_array().into_iter().flatten();
                    all.filter_map(Value::as_str).map(str::to_owned).collect()
                };
                let (groups, resources, verbs) = (list("apiGroups"), list("resources"), list("verbs"));
                let all = || groups.iter().chain(&resources).chain(&verbs);
                ensure!(all().all(|word| word != "*"), "{label} grants *: say what is needed");
                for group in &groups {
                    for resource in &resources {
                        rights.extend(verbs.iter().map(|verb| Right {
                            role: label.clone(),
                            identity: identity.clone(),
                            namespace: namespace.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            verb: verb.clone(),
                            names: list("resourceNames"),
                        }));
                    }
                }
            }
        }
    }
    Ok(rights)
}
