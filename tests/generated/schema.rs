//! What a JSON schema says of a value, in words: of a field of a kind, or of a value of the chart.

use serde_json::Value;

use crate::markdown::code;

/// How durations are told from other texts: those of the chart by a pattern, those of the kinds by a rule.
const DURATIONS: [&str; 2] = ["([0-9]+([.][0-9]+)?(h|ms|m|s))+", r"([0-9]+(\.[0-9]+)?(ms|s|m|h))"];

/// A schema with those that it refers to.
#[derive(Clone, Copy)]
pub struct Schema<'a> {
    root: &'a Value,
    value: &'a Value,
}

impl<'a> Schema<'a> {
    /// A whole one.
    pub fn root(value: &'a Value) -> Self {
        Self { root: value, value }
    }

    fn at(self, value: &'a Value) -> Self {
        let referenced =
            value["$ref"].as_str().and_then(|name| self.root.pointer(name.trim_start_matches('#')));
        Self { root: self.root, value: referenced.unwrap_or(value) }
    }

    fn child(self, key: &str) -> Option<Self> {
        self.value.get(key).filter(|value| value.is_object()).map(|value| self.at(value))
    }

    /// A keyword of it.
    pub fn get(self, key: &str) -> &'a Value {
        &self.value[key]
    }

    /// Its properties, by name.
    pub fn properties(self) -> impl Iterator<Item = (&'a String, Self)> {
        let properties = self.value["properties"].as_object().into_iter().flatten();
        properties.map(move |(name, value)| (name, self.at(value)))
    }

    /// One of them.
    pub fn property(self, name: &str) -> Option<Self> {
        self.child("properties")?.child(name)
    }

    /// Whether an object must have a property.
    pub fn requires(self, name: &str) -> bool {
        self.value["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
    }

    /// The entries of a list.
    pub fn items(self) -> Option<Self> {
        self.child("items")
    }

    /// Whether it is an object whose fields are known.
    pub fn is_object(self) -> bool {
        self.value["properties"].is_object()
    }

    /// Whether it is a single value.
    pub fn is_scalar(self) -> bool {
        !["object", "array"].iter().any(|kind| self.value["type"] == *kind)
    }

    /// Whether it is a text that is a duration.
    pub fn is_duration(self) -> bool {
        let texts = [&self.value["pattern"], &self.value["x-kubernetes-validations"][0]["rule"]];
        let is_one = |text: &str| DURATIONS.iter().any(|part| text.contains(part));
        self.value["type"] == "string" && texts.into_iter().filter_map(Value::as_str).any(is_one)
    }

    /// What kind of value it is.
    pub fn kind(self) -> String {
        if self.value["x-kubernetes-int-or-string"] == true {
            return "integer or text".to_owned();
        }
        match &self.value["type"] {
            Value::Array(kinds) => {
                kinds.iter().filter_map(Value::as_str).map(word).collect::<Vec<_>>().join(" or ")
            }
            Value::String(kind) if kind == "array" => {
                let plural = |kind: String| if kind == "object" { "objects".to_owned() } else { kind };
                self.items()
                    .map_or_else(|| "list".to_owned(), |items| format!("list of {}", plural(items.kind())))
            }
            Value::String(kind) if kind == "object" && !self.is_object() => self
                .child("additionalProperties")
                .map_or_else(|| "object".to_owned(), |values| format!("map of text to {}", values.kind())),
            Value::String(_) if self.is_duration() => "duration".to_owned(),
            Value::String(_) if self.value["format"] == "date-time" => "time".to_owned(),
            Value::String(kind) => word(kind).to_owned(),
            _ => "text".to_owned(),
        }
    }

    /// What it may be.
    pub fn limits(self) -> String {
        let mut limits = Vec::new();
        if let Some(values) = self.value["enum"].as_array() {
            limits.push(values.iter().filter_map(Value::as_str).map(code).collect::<Vec<_>>().join(", "));
        }
        for (least, most, unit) in [
            ("minimum", "maximum", ""),
            ("minLength", "maxLength", " characters"),
            ("minItems", "maxItems", " entries"),
            ("minProperties", "maxProperties", " entries"),
        ] {
            let number = |key: &str| self.value[key].as_f64();
            limits.extend(match (number(least), number(most)) {
                (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
                (Some(1.0), None) if !unit.is_empty() => Some("not empty".to_owned()),
                (Some(least), None) => Some(format!("{least}{unit} or more")),
                (None, Some(most)) => Some(format!("up to {most}{unit}")),
                (None, None) => None,
            });
        }
        limits.extend(self.value["pattern"].as_str().filter(|_| !self.is_duration()).map(code));
        if let Some(keys) = self.value["x-kubernetes-list-map-keys"].as_array() {
            let keys: Vec<_> = keys.iter().filter_map(Value::as_str).map(code).collect();
            limits.push(format!("one for each {}", keys.join(", ")));
        }
        let parts = [self.items(), self.child("additionalProperties")].into_iter().flatten();
        let each =
            parts.filter(|part| !part.is_object()).map(Self::limits).filter(|limits| !limits.is_empty());
        limits.extend(each.map(|limits| format!("each {limits}")));
        limits.join("; ")
    }
}

/// The plain word for a type.
fn word(kind: &str) -> &str {
    if kind == "string" { "text" } else { kind }
}
