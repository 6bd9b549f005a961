//! Compares the rights that the programs have with those that they use: fails for each that no test cluster's program
//! ever used, that another one covers, or that was needed and refused.
//!
//! `cargo run --example rights -- [FOLDER]` reads the records that `cargo test` left in FOLDER (src/testing/audit.rs); run
//! all of the tests first, since a right counts as unused until something uses it.

mod grants;
mod uses;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};

use crate::{
    grants::Right,
    uses::{Use, read},
};

/// What is granted.
const RBAC: [&str; 2] = [
    include_str!("../../charts/kube-node/files/rbac.yaml"),
    include_str!("../../charts/kube-node/files/hosts.yaml"),
];
/// What a value of the chart grants besides, and the programs do without.
const OPTIONAL: &str = include_str!("../../charts/kube-node/files/references.yaml");

fn main() -> anyhow::Result<ExitCode> {
    let folder = std::env::args_os().nth(1).map_or_else(usual_folder, |folder| Ok(PathBuf::from(folder)))?;
    let logs = logs(&folder)?;
    let mut uses: BTreeMap<Use, usize> = BTreeMap::new();
    for log in &logs {
        read(log, &mut uses).with_context(|| format!("cannot read {}", log.display()))?;
    }
    if uses.is_empty() {
        bail!("the {} records in {} hold no call of a program of ours", logs.len(), folder.display());
    }
    let (rights, optional) = (grants::parse(&RBAC.join("---\n"))?, grants::parse(OPTIONAL)?);
    let is_covered = |rights: &[Right], used: &Use| rights.iter().any(|right| right.covers(used));
    let needed = uses.keys().filter(|used| is_covered(&rights, used) || !is_covered(&optional, used));
    let verdict = verdict(&rights, &needed.cloned().collect::<Vec<_>>());
    let calls: usize = uses.values().sum();
    println!("{} records, {calls} calls, {} rights", logs.len(), verdict.rights);
    for (what, lines) in [
        ("granted and never used", &verdict.unused),
        ("granted twice", &verdict.twice),
        ("needed and refused", &verdict.refused),
    ] {
        println!("{what}: {}", lines.len());
        for line in lines {
            println!("  {line}");
        }
    }
    let good = verdict.unused.is_empty() && verdict.twice.is_empty() && verdict.refused.is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where tests leave their records: beside the folder that this program is built into.
fn usual_folder() -> anyhow::Result<PathBuf> {
    let program =
        std::env::current_exe().context("cannot find out where this program is: name the folder")?;
    let target =
        program.ancestors().nth(3).context("this program is in no target folder: name the folder")?;
    Ok(target.join("tmp/audit"))
}

/// The records in a folder.
fn logs(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let none = || format!("there are no records in {}: run cargo test first", folder.display());
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(none)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            logs.push(path);
        }
    }
    if logs.is_empty() {
        bail!(none());
    }
    logs.sort();
    Ok(logs)
}

/// What is wrong, in lines.
#[derive(Debug, Default)]
struct Verdict {
    rights: usize,
    unused: BTreeSet<String>,
    twice: BTreeSet<String>,
    refused: BTreeSet<String>,
}

fn verdict(rights: &[Right], uses: &[Use]) -> Verdict {
    let mut verdict = Verdict { rights: rights.len(), ..Verdict::default() };
    let mut is_used = vec![false; rights.len()];
    // Some records hold what others wrote, too.
    for one in uses.iter().filter(|one| rights.iter().any(|right| right.is_of(&one.identity))) {
        if !one.allowed {
            // One that is granted was refused by a server that had just started and did not know its roles yet.
            if !rights.iter().any(|right| right.covers(one)) {
                verdict.refused.insert(one.to_string());
            }
            continue;
        }
        for needed in one.needed() {
            let covering = rights.iter().enumerate().filter(|(_, right)| right.covers(&needed));
            // What a narrower right gives, the wider one is not needed for.
            if let Some((index, _)) = covering.max_by_key(|(_, right)| right.narrowness()) {
                is_used[index] = true;
            }
        }
    }
    for (right, is_used) in rights.iter().zip(is_used) {
        if rights.iter().any(|other| other != right && other.includes(right)) {
            verdict.twice.insert(right.to_string());
        } else if !is_used {
            verdict.unused.insert(right.to_string());
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r"
kind: ClusterRole
metadata: {name: a}
rules:
  - {apiGroups: [''], resources: [nodes, pods], verbs: [get, create]}
  - {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests/approval], verbs: [patch]}
  - {apiGroups: [certificates.k8s.io], resources: [signers], resourceNames: [s], verbs: [approve]}
---
kind: ClusterRoleBinding
metadata: {name: a}
roleRef: {kind: ClusterRole, name: a}
subjects: [{kind: ServiceAccount, name: o, namespace: n}]
---
kind: Role
metadata: {name: b, namespace: m}
rules:
  - {apiGroups: [''], resources: [pods], verbs: [get, delete]}
---
kind: RoleBinding
metadata: {name: b, namespace: m}
roleRef: {kind: Role, name: b}
subjects: [{kind: ServiceAccount, name: o, namespace: n}]
";

    fn of(verb: &str, resource: &str, namespace: Option<&str>, allowed: bool) -> Use {
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        Use {
            identity: "system:serviceaccount:n:o".to_owned(),
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: None,
            allowed,
            created: false,
        }
    }

    #[test]
    fn each_right_has_to_be_used_where_it_is_granted() {
        let rights = grants::parse(RULES).unwrap();
        assert_eq!(rights.len(), 8);
        let uses = [
            of("get", "nodes", None, true),
            of("get", "pods", Some("m"), true),
            of("create", "pods", Some("x"), true),
            of("patch", "certificatesigningrequests/approval.certificates.k8s.io", None, true),
            of("list", "nodes", None, false),
            of("create", "nodes", None, false),
        ];
        let Verdict { unused, twice, refused, .. } = verdict(&rights, &uses);
        let unused: Vec<&str> = unused.iter().map(String::as_str).collect();
        assert_eq!(
            unused,
            [
                "ClusterRole a for system:serviceaccount:n:o: create nodes",
                "ClusterRole a for system:serviceaccount:n:o: get pods",
                "Role m/b for system:serviceaccount:n:o: delete pods",
            ],
            "a pod was read where the narrower role gives it"
        );
        assert_eq!(
            twice.into_iter().collect::<Vec<_>>(),
            ["Role m/b for system:serviceaccount:n:o: get pods"]
        );
        assert_eq!(refused.into_iter().collect::<Vec<_>>(), ["system:serviceaccount:n:o: list nodes"]);
    }

    #[test]
    fn what_a_call_needs_besides_is_known() {
        let created = Use { created: true, ..of("patch", "nodes", None, true) };
        let needed: Vec<String> = created.needed().iter().map(|needed| needed.verb.clone()).collect();
        assert_eq!(needed, ["patch", "create"], "an apply that creates");
    }

    #[test]
    fn without_records_it_says_what_to_do() {
        let error = logs(Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("run cargo test first"), "{error}");
    }
}
