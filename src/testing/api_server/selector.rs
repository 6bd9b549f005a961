//! Label and field selectors, as clients of kube-node write them.

use serde_json::Value;

/// A parsed selector: all of its parts must hold.
#[derive(Clone, Debug, Default)]
pub struct Selector(Vec<Part>);

#[derive(Clone, Debug)]
struct Part {
    /// Path of a field, or key of a label.
    key: String,
    /// Values of which the object's must be one; None if any will do.
    values: Option<Vec<String>>,
    /// True if the object's value must be none of them.
    negated: bool,
}

impl Part {
    /// Returns true if a value fulfils the part. A label that is missing is in no set.
    fn holds(&self, value: Option<&str>) -> bool {
        let is_in = match (&self.values, value) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(values), Some(value)) => values.iter().any(|wanted| wanted == value),
        };
        is_in != self.negated
    }
}

impl Selector {
    /// Parses the parameter of a request; an error names what cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        split(text).into_iter().map(part).collect::<Result<_, _>>().map(Self)
    }

    /// Returns true if an object has the selected labels.
    pub fn matches_labels(&self, object: &Value) -> bool {
        self.0.iter().all(|part| part.holds(object["metadata"]["labels"][&part.key].as_str()))
    }

    /// Returns true if an object has the selected fields. A field that is missing is empty.
    pub fn matches_fields(&self, object: &Value) -> bool {
        self.0.iter().all(|part| {
            let value = part.key.split('.').fold(object, |value, key| &value[key]);
            let text = value.as_bool().map(|value| value.to_string());
            part.holds(Some(text.as_deref().or(value.as_str()).unwrap_or_default()))
        })
    }
}

/// Splits at the commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn part(text: &str) -> Result<Part, String> {
    let part = |key: &str, values: Option<Vec<String>>, negated| {
        Ok(Part { key: key.trim().to_owned(), values, negated })
    };
    for (mark, negated) in [(" notin ", true), (" in ", false)] {
        if let Some((key, values)) = text.split_once(mark) {
            let values = values.trim().strip_prefix('(').and_then(|values| values.strip_suffix(')'));
            let values = values.ok_or_else(|| format!("unable to parse requirement: {text}"))?;
            return part(
                key,
                Some(values.split(',').map(|value| value.trim().to_owned()).collect()),
                negated,
            );
        }
    }
    for (mark, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = text.split_once(mark) {
            return part(key, Some(vec![value.trim().to_owned()]), negated);
        }
    }
    match text.strip_prefix('!') {
        Some(key) => part(key, None, true),
        None => part(text, None, false),
    }
}
