//! YAML that kubectl reads as it was meant. It reads YAML 1.1, in which more words than those of 1.2 are no texts: a label
//! `on` would become a boolean, and be refused.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// Words of YAML 1.1 for booleans and nothing that 1.2 takes for texts.
const WORDS: [&str; 6] = ["y", "n", "yes", "no", "on", "off"];
/// Around what is to be in quotes: characters that no object of Kubernetes has.
const QUOTES: [char; 2] = ['\u{f8fe}', '\u{f8ff}'];

/// A document, with the line that begins it.
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

/// Whether 1.1 takes for a boolean or a number what 1.2 takes for a text: `0b1`, `1_000` and `0777` are numbers there.
fn is_misread(text: &str) -> bool {
    let begins = |c: char| c.is_ascii_digit() || c == '.' || c == '-' || c == '+';
    let goes_on = |c: char| c.is_ascii_hexdigit() || "xob_.:+-".contains(c);
    WORDS.contains(&text.to_ascii_lowercase().as_str())
        || (text.starts_with(begins) && text.chars().all(goes_on))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
