//! Manifests: objects as JSON, YAML for kubectl, and the files that commands read.
//!
//! kubectl reads YAML 1.1, which has more words that are not strings than 1.2: a label `on` would be read as a boolean
//! and refused.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

/// Most labels, and most annotations, of a template: the limits of the schema.
pub(super) const TEXTS_MAX: usize = 64;
/// Most taints of a template.
pub(super) const TAINTS_MAX: usize = 32;
/// Booleans of YAML 1.1 that are strings in 1.2.
const WORDS: [&str; 6] = ["y", "n", "yes", "no", "on", "off"];

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
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        return text(bytes).context("standard input is no text");
    }
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    text(bytes).with_context(|| format!("{} is no text", file.display()))
}

/// Text in UTF-8, without the mark with which some editors begin a file.
fn text(bytes: Vec<u8>) -> anyhow::Result<String> {
    let text = String::from_utf8(bytes).context("save the file as UTF-8")?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// A YAML document with its `---` line.
pub(super) fn document(object: &impl Serialize) -> anyhow::Result<String> {
    let object = serde_json::to_value(object).context("the object cannot be written")?;
    let plain = object.to_string();
    // A character for private use that the object does not contain marks its strings for quotes.
    let mark = ('\u{e000}'..='\u{f8ff}').find(|mark| !plain.contains(*mark));
    let mark = mark.context("the object has every character for private use: remove one of them")?;
    let text =
        serde_norway::to_string(&marked(object, mark)).context("the object cannot be written as YAML")?;
    Ok(format!("---\n{}", text.trim_end().replace(mark, "\"")))
}

fn marked(value: Value, mark: char) -> Value {
    let quoted = |text: String| if is_misread(&text) { format!("{mark}{text}{mark}") } else { text };
    match value {
        Value::String(text) => Value::String(quoted(text)),
        Value::Array(items) => items.into_iter().map(|item| marked(item, mark)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (quoted(key), marked(value, mark))).collect()
        }
        other => other,
    }
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
    fn characters_for_private_use_stay() {
        for text in ["\u{f8ff}on", "\u{f8fe}on\u{f8ff}", "\u{e000}", "\u{e000}\u{e001} on"] {
            let object = json!({"a": text, "b": "on"});
            let back: Value = serde_norway::from_str(&document(&object).unwrap()).unwrap();
            assert_eq!(back, object);
        }
    }

    #[test]
    fn files_are_utf_8() {
        assert_eq!(text("\u{feff}a: \u{feff}".into()).unwrap(), "a: \u{feff}");
        let utf_16 = vec![0xff, 0xfe, b'a', 0];
        assert_eq!(text(utf_16).unwrap_err().to_string(), "save the file as UTF-8");
    }

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
