//! Links from one document to another, or to a file of the repository, and paths of such files. What lies beyond it is not
//! asked for.

use std::path::{Component, Path, PathBuf};

use super::document::Document;

/// The folder that the book is made from.
const BOOK: &str = "docs";
/// Folders below which paths are named.
const NAMED: [&str; 8] = [".ci", "benches", "charts", "crds", "docs", "examples", "src", "tests"];

/// Whether a document is a page of the book.
pub fn is_in_book(document: &Document) -> bool {
    Path::new(&document.path).starts_with(BOOK)
}

/// The links of a document that lead nowhere, or from the book to what is not in it.
pub fn broken(root: &Path, documents: &[Document], document: &Document) -> Vec<String> {
    let mut broken = Vec::new();
    for (line, target, anchor) in targets(document) {
        let shown = target.display();
        if is_in_book(document) && !target.starts_with(BOOK) {
            broken.push(format!(
                "{}:{line}: {shown} is not in the book: name its path, without a link",
                document.path
            ));
        }
        let found = root.join(&target).exists();
        let other = documents.iter().find(|other| Path::new(&other.path) == target);
        let has_anchor =
            anchor.is_empty() || other.is_none_or(|other| other.anchors.iter().any(|a| a == anchor));
        if !found || !has_anchor {
            broken.push(format!("{}:{line}: {shown}#{anchor} leads nowhere", document.path));
        }
    }
    broken
}

/// The links of a document within the repository: line, file and heading.
pub fn targets(document: &Document) -> impl Iterator<Item = (usize, PathBuf, &str)> {
    let inside =
        document.links.iter().filter(|(_, link)| !link.contains("://") && !link.starts_with("mailto:"));
    inside.map(|(line, link)| {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let own = || PathBuf::from(&document.path);
        let target = if path.is_empty() { own() } else { resolve(&own().with_file_name(path)) };
        (*line, target, anchor)
    })
}

/// Paths in a document, as code, that are none of the repository.
pub fn missing(root: &Path, document: &Document) -> Vec<String> {
    let is_path = |text: &str| {
        NAMED.iter().any(|folder| text.starts_with(&format!("{folder}/"))) && !text.contains(' ')
    };
    let missing = document.code.iter().filter(|(_, text)| is_path(text) && !root.join(text).exists());
    missing.map(|(line, path)| format!("{}:{line}: there is no {path}", document.path)).collect()
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
