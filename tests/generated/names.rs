//! The page of labels, annotations, finalizers, taints and conditions, from the comments in src/api/names.rs:
//! `<what> of <whom>: <meaning>. By <writer>.`

use std::fmt::Write as _;

use crate::{
    markdown::{self, code, prose},
    read,
};

const SOURCE: &str = "src/api/names.rs";
/// What a name may be, and the heading of those that are.
const SORTS: [(&str, &str); 5] = [
    ("Label", "Labels"),
    ("Annotation", "Annotations"),
    ("Finalizer", "Finalizers"),
    ("Taint", "Taints"),
    ("Condition", "Conditions"),
];

struct Name {
    comment: String,
    value: String,
}

pub fn page() -> String {
    let names = names(&read(SOURCE));
    let mut page = markdown::page("Labels, annotations, taints", SOURCE);
    page.push_str(
        "\nWhat kube-node writes onto objects, and what it reads there. «You» are people, and programs of theirs. No kubelet may change \
         what is below `kube-node.io/`.\n",
    );
    for (sort, heading) in SORTS {
        let rows: Vec<_> = names.iter().filter_map(|name| row(name, sort)).collect();
        let table = markdown::table(["name", "of", "meaning", "written by"], &rows);
        write!(page, "\n## {heading}\n\n{table}").unwrap();
    }
    let is_sorted = |name: &Name| SORTS.iter().any(|(sort, _)| row(name, sort).is_some());
    let rest: Vec<_> = names
        .iter()
        .filter(|name| !is_sorted(name))
        .map(|name| [code(&name.value), prose(&name.comment)])
        .collect();
    write!(page, "\n## Others\n\n{}", markdown::table(["name", "meaning"], &rest)).unwrap();
    page
}

/// The constants with their comments, by value.
fn names(source: &str) -> Vec<Name> {
    let mut names = Vec::new();
    let mut comment = String::new();
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("/// ") {
            comment = comment + text + " ";
        } else if let Some(text) = line.strip_prefix("pub const ") {
            let value = text.split('"').nth(1).unwrap().to_owned();
            names.push(Name { comment: std::mem::take(&mut comment), value });
        }
    }
    names.sort_by(|a, b| a.value.cmp(&b.value));
    names
}

/// The row of a name in the table of a sort; None for one of another sort.
fn row(name: &Name, sort: &str) -> Option<[String; 4]> {
    let of = name.comment.strip_prefix(sort)?.strip_prefix(" of ")?;
    let (bearer, meaning) = of.split_once(": ").unwrap_or_else(|| panic!("{}: of what?", name.value));
    let (meaning, writer) = meaning.split_once(" By ").unwrap_or_else(|| panic!("{}: by whom?", name.value));
    let writer = writer.trim().trim_end_matches('.');
    Some([code(&name.value), bearer.to_owned(), prose(meaning), prose(writer)])
}
