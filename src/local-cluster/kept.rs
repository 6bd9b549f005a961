//! Report of an object that exists and differs from the one that a command would create. Commands leave such an object
//! alone: its fields may be the user's. No I/O.

use serde_json::{Value, json};

/// A sentence with the differing fields and the command that sets them; `None` if `found` has every field of `wanted`.
pub fn kept(kind: &str, name: &str, found: &Value, wanted: &Value) -> Option<String> {
    let (mut fields, mut patch) = (Vec::new(), json!({}));
    compare(&mut Vec::new(), found, wanted, &mut fields, &mut patch);
    (!fields.is_empty()).then(|| {
        let (fields, resource) = (fields.join(", "), kind.to_lowercase());
        let object = if fields.contains(", ") { "them" } else { "it" };
        format!(
            "{kind} {name} stays as it is, with {fields}; to change {object}: kubectl patch {resource} {name} --type=merge -p '{patch}'"
        )
    })
}

/// Describes each field of `wanted` that `found` has otherwise, and adds the field to the merge patch.
fn compare<'a>(
    keys: &mut Vec<&'a str>,
    found: &Value,
    wanted: &'a Value,
    fields: &mut Vec<String>,
    patch: &mut Value,
) {
    if let Value::Object(wanted) = wanted {
        for (key, wanted) in wanted {
            keys.push(key);
            compare(keys, &found[key], wanted, fields, patch);
            keys.pop();
        }
    } else if found != wanted {
        let found = if found.is_null() { "absent".to_owned() } else { text(found) };
        fields.push(format!("{} {found} instead of {}", keys.join("."), text(wanted)));
        let leaf = keys.iter().fold(patch, |at, key| &mut at[*key]);
        *leaf = wanted.clone();
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_differs_is_named_with_one_command_for_all() {
        let wanted = json!({"spec": {"machineType": "a", "capacity": {"cpu": "4", "memory": "16Gi"}}});
        assert_eq!(kept("NodeClass", "hollow", &wanted, &wanted), None);
        let mut more = wanted.clone();
        more["spec"]["capacity"]["pods"] = json!("110");
        assert_eq!(kept("NodeClass", "hollow", &more, &wanted), None, "further fields do not differ");
        let found = json!({"spec": {"machineType": "a", "capacity": {"cpu": "64"}}});
        assert_eq!(
            kept("NodeClass", "hollow", &found, &wanted).unwrap(),
            "NodeClass hollow stays as it is, with spec.capacity.cpu 64 instead of 4, spec.capacity.memory absent instead of 16Gi; to change them: kubectl patch nodeclass hollow --type=merge -p '{\"spec\":{\"capacity\":{\"cpu\":\"4\",\"memory\":\"16Gi\"}}}'"
        );
    }
}
