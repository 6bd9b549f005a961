//! Each promise of docs/security.md names tests that are there, or says why there is none.

use std::{fs, path::Path};

const DOCS: &str = include_str!("../../docs/security.md");

/// All sources below a folder, as one text.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: std::path::PathBuf| {
        if path.is_dir() {
            sources(&path)
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            fs::read_to_string(path).unwrap()
        } else {
            String::new()
        }
    };
    entries.map(text).collect()
}

#[test]
fn each_promise_of_the_docs_names_its_tests_or_why_there_is_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources(&root.join("src")) + &sources(&root.join("tests"));
    let section = DOCS.split("<!-- promises -->").nth(1).expect("a table between two marks");
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [promise, tests] = cells[..] else { panic!("two cells: {row}") };
        if tests.strip_prefix("none: ").is_some_and(|reason| !reason.is_empty()) {
            continue;
        }
        // What follows a semicolon is about the tests before it.
        let names: Vec<_> =
            tests.split(';').next().unwrap_or_default().split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{promise}: names no test");
        for name in names {
            let is_example = name.strip_prefix("cargo run --example ");
            let is_there = match is_example {
                Some(example) => root.join("examples").join(example).join("main.rs").exists(),
                None => sources.contains(&format!("fn {name}()")),
            };
            assert!(is_there, "{promise}: there is no test {name}");
        }
    }
}
