//! What was used: the calls in the record of an API server.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::Context;
use serde_json::Value;

/// Resources that are granted by every cluster to everybody.
const EVERYBODYS: [&str; 2] = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];

/// A call that was allowed, or not; equal ones are one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    pub identity: String,
    pub verb: String,
    pub group: String,
    /// With its subresource.
    pub resource: String,
    pub namespace: Option<String>,
    /// Of the object, where the right may name objects.
    pub name: Option<String>,
    pub allowed: bool,
    /// Whether the answer was that something was created.
    pub created: bool,
}

impl Use {
    /// What is needed for it: itself, and what the API server asks for besides without a record.
    pub fn needed(&self) -> Vec<Self> {
        let mut needed = vec![self.clone()];
        let mut further = |verb: &str, resource: &str, name: Option<String>| {
            needed.push(Self { verb: verb.into(), resource: resource.into(), name, ..self.clone() });
        };
        match (self.verb.as_str(), self.resource.as_str()) {
            // A server-side apply of what is not there.
            ("patch", resource) if self.created => further("create", resource, self.name.clone()),
            // Admission asks whether the signer may be approved for.
            ("patch", "certificatesigningrequests/approval") => further("approve", "signers", None),
            _ => {}
        }
        needed
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{}: {} {}{dot}{}", self.identity, self.verb, self.resource, self.group)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        Ok(())
    }
}

/// Adds the calls of a record, and how often each came.
pub fn read(path: &Path, uses: &mut BTreeMap<Use, usize>) -> anyhow::Result<()> {
    let mut lines = BufReader::new(File::open(path)?).lines().peekable();
    while let Some(line) = lines.next() {
        let event: Value = match serde_json::from_str(&line?) {
            Ok(event) => event,
            // The server was killed while it wrote.
            Err(_) if lines.peek().is_none() => break,
            Err(error) => return Err(error).context("a line is no event"),
        };
        if let Some(used) = parse(&event) {
            *uses.entry(used).or_default() += 1;
        }
    }
    Ok(())
}

fn parse(event: &Value) -> Option<Use> {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let object = event.get("objectRef")?;
    let mut resource = text("/objectRef/resource");
    if EVERYBODYS.contains(&resource.as_str()) {
        return None;
    }
    if object.get("subresource").is_some() {
        resource = format!("{resource}/{}", text("/objectRef/subresource"));
    }
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    // Few resources are granted by name; of the others names would only be many.
    let by_name = ["namespaces", "serviceaccounts/token"].contains(&resource.as_str())
        // Of Leases that of the election; those of Nodes are elsewhere.
        || resource == "leases" && text("/objectRef/namespace") == "kube-node-system";
    let namespaced = resource != "namespaces";
    let decision = event.pointer("/annotations/authorization.k8s.io~1decision")?.as_str()?;
    Some(Use {
        identity: text("/user/username"),
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource,
        namespace: some(text("/objectRef/namespace")).filter(|_| namespaced),
        name: some(text("/objectRef/name")).filter(|_| by_name),
        allowed: decision == "allow",
        created: event.pointer("/responseStatus/code").and_then(Value::as_i64) == Some(201),
    })
}
