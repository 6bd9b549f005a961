//! Examples as files: `NAME.yaml` becomes `NAME.converted.yaml`, and `NAME.txt` has the lines on standard error. A file that
//! would be empty is absent.
//!
//! `KUBE_NODE_WRITE=1` writes the expected files instead of comparing them. `tests/e2e/convert.rs` applies them.

use std::{env, fs, path::PathBuf};

use kube_node_api::{NodeClass, NodeSet};

use super::*;

fn examples() -> Vec<PathBuf> {
    let folder = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("convert/examples");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_input = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        path.extension().is_some_and(|extension| extension == "yaml") && !stem.ends_with(".converted")
    };
    files.filter(is_input).collect()
}

/// Every value of an object is in what its type reads and writes.
fn is_within(object: &Value, typed: &Value) -> bool {
    match (object, typed) {
        (Value::Object(object), Value::Object(typed)) => {
            object.iter().all(|(key, value)| typed.get(key).is_some_and(|typed| is_within(value, typed)))
        }
        (object, typed) => object == typed,
    }
}

#[test]
fn examples_become_what_is_expected() {
    let examples = examples();
    assert_eq!(examples.len(), 8);
    for file in examples {
        let converted = convert(&fs::read_to_string(&file).unwrap(), &file, None);
        let objects: String =
            converted.objects.iter().map(|object| manifest::document(object).unwrap() + "\n").collect();
        let lines: String = converted.lines().map(|line| line + "\n").collect();
        for (extension, text) in [("converted.yaml", objects), ("txt", lines)] {
            let expected = file.with_extension(extension);
            if env::var_os("KUBE_NODE_WRITE").is_some() && !text.is_empty() {
                fs::write(&expected, &text).unwrap();
            }
            assert_eq!(fs::read_to_string(&expected).unwrap_or_default(), text, "{}", expected.display());
        }
        for object in &converted.objects {
            let typed = if object["kind"] == "NodeClass" {
                json!(serde_json::from_value::<NodeClass>(object.clone()).unwrap())
            } else {
                json!(serde_json::from_value::<NodeSet>(object.clone()).unwrap())
            };
            assert!(is_within(object, &typed), "{object} is not {typed}");
        }
    }
}
