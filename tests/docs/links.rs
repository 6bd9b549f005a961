//! Links from one document to another, or to a file of the repository. What lies beyond it is not asked for.

use std::path::{Component, Path, PathBuf};

use super::document::Document;

/// The links of a document that lead nowhere.
pub fn broken(root: &Path, documents: &[Document], document: &Document) -> Vec<String> {
    let mut broken = Vec::new();
    for (line, link) in &document.links {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() {
            PathBuf::from(&document.path)
        } else {
            resolve(&Path::new(&document.path).with_file_name(path))
        };
        let found = root.join(&target).exists();
        let other = documents.iter().find(|other| Path::new(&other.path) == target);
        let named = anchor.is_empty() || other.is_none_or(|other| other.anchors.iter().any(|a| a == anchor));
        if !found || !named {
            broken.push(format!("{}:{line}: {link} leads nowhere", document.path));
        }
    }
    broken
}

/// Without `.` and `..`.
fn resolve(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut resolved, component| {
        match component {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            other => resolved.push(other),
        }
        resolved
    })
}
