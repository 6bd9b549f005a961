//! Manifests: objects as JSON, YAML for kubectl, and the files that commands read.
//!
//! kubectl reads YAML 1.1, which has more words that are not strings than 1.2: a label `on` would be read as a boolean
//! and refused.

use std::{fs, io, path::Path};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

/// Booleans of YAML 1.1 that are strings in 1.2.
const WORDS: [&str; 6] = ["y", "n", "yes", "no", "on", "off"];
/// Private-use characters that mark a string for quotes; no Kubernetes object contains them.
const QUOTES: [char; 2] = ['\u{f8fe}', '\u{f8ff}'];

/// An object of our API group. Null and empty fields of `spec` are left out.
pub(super) fn object(kind: &str, name: &str, spec: Value) -> Value {
    let spec = pruned(spec);
    json!({ "apiVersion": "kube-node.io/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

fn pruned(value: Value) -> Value {
    let Value::Object(fields) = value else { return value };
    let fields = fields.into_iter().map(|(key, value)| (key, pruned(value)));
    fields.filter(|(_, value)| ![json!(null), json!({}), json!([])].contains(value)).collect()
}

/// Text of a file; `-` is standard input.
pub(super) fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        return io::read_to_string(io::stdin()).context("cannot read standard input");
    }
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// A YAML document with its `---` line.
pub(super) fn document(object: &impl Serialize) -> anyhow::Result<String> {
    let marked = marked(serde_json::to_value(object).context("the object cannot be written")?);
    let text = serde_norway::to_string(&marked).context("the object cannot be written as YAML")?;
    Ok(format!("---\n{}", text.trim_end().replace(QUOTES, "\"")))
}

fn marked(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(quoted(text)),
        Value::Array(items) => items.into_iter().map(marked).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (quoted(key), marked(value))).collect()
        }
        other => other,
    }
}

fn quoted(text: String) -> String {
    if is_misread(&text) { format!("{}{text}{}", QUOTES[0], QUOTES[1]) } else { text }
}

/// Returns true if 1.1 reads a boolean or a number where 1.2 reads a string: `0b1`, `1_000` and `0777` are
/// numbers in 1.1.
fn is_misread(text: &str) -> bool {
    let begins = |c: char| c.is_ascii_digit() || c == '.' || c == '-' || c == '+';
    let goes_on = |c: char| c.is_ascii_hexdigit() || "xob_.:+-".contains(c);
    WORDS.contains(&text.to_ascii_lowercase().as_str())
        || (text.starts_with(begins) && text.chars().all(goes_on))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_1_1_would_misread_is_in_quotes() {
        let object = json!({
            "labels": {"on": "yes", "a": "No", "b": "0777", "c": "1_000", "d": "true", "e": "north", "f": "1:30", "g": "2"},
            "lines": "yes\nno\n", "count": 2, "version": "v1.36.3", "amount": "16Gi",
        });
        let text = document(&object).unwrap();
        for line in [
            "  \"on\": \"yes\"",
            "  a: \"No\"",
            "  b: \"0777\"",
            "  c: \"1_000\"",
            "  e: north",
            "count: 2",
            "amount: 16Gi",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
        assert!(text.starts_with("---\n"));
        let back: Value = serde_norway::from_str(&text).unwrap();
        assert_eq!(back, object);
    }
}
