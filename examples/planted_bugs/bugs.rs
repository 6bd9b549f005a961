//! The list of planted bugs: `tests/simulation/planted_bugs*.yaml`.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// Folder of the lists.
const FOLDER: &str = "tests/simulation";

/// A planted bug.
#[derive(Debug)]
pub struct Bug {
    pub name: String,
    /// A schedule that is known to find it.
    pub seed: Option<u64>,
    /// A scenario that is known to find it, with a fault or without one.
    pub scenario: Option<String>,
    /// A test of the simulation that finds it by itself.
    pub test: Option<String>,
    /// Why nothing can find it; None if something has to.
    pub harmless: Option<String>,
    pub edits: Vec<Edit>,
}

/// An edit of one file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// Path in the repository.
    pub file: String,
    /// Text that occurs once in the file.
    pub find: String,
    /// The same text, with the bug under `planted(name)`.
    pub replace: String,
}

/// An entry of a list: one edit, or several.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    seed: Option<u64>,
    scenario: Option<String>,
    test: Option<String>,
    harmless: Option<String>,
    file: Option<String>,
    find: Option<String>,
    replace: Option<String>,
    #[serde(default)]
    edits: Vec<Edit>,
}

/// Reads all lists of a repository.
pub fn read(root: &Path) -> anyhow::Result<Vec<Bug>> {
    let mut lists = Vec::new();
    for entry in std::fs::read_dir(root.join(FOLDER)).with_context(|| format!("cannot read {FOLDER}"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml");
        if name.starts_with("planted_bugs") && is_yaml {
            lists.push(path);
        }
    }
    lists.sort();
    let (mut bugs, mut names) = (Vec::new(), BTreeSet::new());
    for path in lists {
        let unreadable = || format!("cannot read {}", path.display());
        let text = std::fs::read_to_string(&path).with_context(unreadable)?;
        let entries: Vec<Entry> = serde_norway::from_str(&text).with_context(unreadable)?;
        for entry in entries {
            ensure!(names.insert(entry.name.clone()), "two bugs have the name {}", entry.name);
            bugs.push(bug(entry)?);
        }
    }
    Ok(bugs)
}

fn bug(entry: Entry) -> anyhow::Result<Bug> {
    let Entry { name, seed, scenario, test, harmless, file, find, replace, mut edits } = entry;
    match (file, find, replace) {
        (Some(file), Some(find), Some(replace)) => edits.push(Edit { file, find, replace }),
        (None, None, None) if !edits.is_empty() => {}
        _ => bail!("bug {name} needs file, find and replace, or edits"),
    }
    let switch = format!("\"{name}\"");
    ensure!(
        edits.iter().any(|edit| edit.replace.contains(&switch)),
        "no edit of bug {name} is under planted({switch})"
    );
    Ok(Bug { name, seed, scenario, test, harmless, edits })
}
