//! Values and their schema say the same, and every value is explained.

use std::fs;

use serde_json::Value;

use crate::program::CHART;

fn read(file: &str) -> String {
    fs::read_to_string(format!("{CHART}/{file}")).unwrap()
}

/// Values whose content is the user's.
fn is_free(schema: &Value) -> bool {
    schema["properties"].is_null() || schema["type"] != "object"
}

fn compare(values: &Value, schema: &Value, path: &str, wrong: &mut Vec<String>) {
    if is_free(schema) {
        return;
    }
    if schema["additionalProperties"] != false {
        wrong.push(format!("{path}: unknown keys are let in"));
    }
    let (Some(values), Some(properties)) = (values.as_object(), schema["properties"].as_object()) else {
        return wrong.push(format!("{path}: no object"));
    };
    for (key, value) in values {
        match properties.get(key) {
            Some(schema) => compare(value, schema, &format!("{path}.{key}"), wrong),
            None => wrong.push(format!("{path}.{key}: not in the schema")),
        }
    }
    for key in properties.keys() {
        // What an issuer or resources may have besides; what a chart above this one has.
        let is_of_umbrella = path.is_empty() && ["global", "enabled", "tags"].contains(&key.as_str());
        let is_optional = path.ends_with("issuerRef") || path.ends_with("resources") || is_of_umbrella;
        if !values.contains_key(key) && !is_optional {
            wrong.push(format!("{path}.{key}: not in values.yaml"));
        }
    }
}

#[test]
fn values_and_schema_have_the_same_keys() {
    let values: Value = serde_norway::from_str(&read("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let mut wrong = Vec::new();
    compare(&values, &schema, "", &mut wrong);
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_value_has_a_comment() {
    let text = read("values.yaml");
    let mut above = "";
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        // Deeper ones are parts of a value that is explained as a whole.
        let is_key = depth <= 2 && !line.trim_start().starts_with('#') && !line.is_empty();
        // The first of a group may be what the group's comment is about.
        let is_first = above.ends_with(':') && depth > above.len() - above.trim_start().len();
        if is_key {
            assert!(above.trim_start().starts_with('#') || is_first, "no comment: {line}");
        }
        above = line;
    }
}
