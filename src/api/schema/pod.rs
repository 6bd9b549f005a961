//! Schema of a machine's pod: image, resources, node selector, tolerations and affinity.

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::{
    QUALIFIED_LENGTH, SUBDOMAIN,
    amounts::{is_extended, resources},
    is_qualified, keys, label_value, merge, qualified, rule,
};

/// Maximum number of entries of a list in an affinity.
const ENTRIES: u32 = 16;
/// Maximum number of values of one requirement in an affinity.
const VALUES: u32 = 64;

/// Rule for the image of a container.
pub fn image() -> Value {
    let component = "[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*";
    rule(
        format!(
            "self.matches('^([A-Za-z0-9][-.A-Za-z0-9]*(:[0-9]+)?/|[[][0-9a-fA-F:]+[]](:[0-9]+)?/)?{component}(/{component})*(:[A-Za-z0-9_][-.A-Za-z0-9_]{{0,127}})?(@[A-Za-z][-_+.A-Za-z0-9]*:[0-9a-fA-F]{{32,}})?$')"
        ),
        "it is no reference of an image: write for example registry.example.com/kubemark:v1.36.3",
    )
}

/// Schema of a container's requests and limits.
pub fn requirements(generator: &mut SchemaGenerator) -> Schema {
    let mut amounts = resources(generator);
    let known = keys(
        "(k.contains('/') ? k.contains('kubernetes.io/') || (!k.startsWith('requests.') && k.indexOf('/') <= 244) : k in ['cpu', 'memory', 'ephemeral-storage'] || k.startsWith('hugepages-'))",
        "a container has cpu, memory, ephemeral-storage, hugepages-<size> and extended resources: write for example memory or example.com/gpu",
    );
    let hugepages = rule(
        "self.all(k, !k.startsWith('hugepages-') || !isQuantity(string(self[k])) || (isQuantity(k.substring(10)) && quantity(k.substring(10)).isInteger() && quantity(k.substring(10)).asInteger() > 0 && quantity(string(self[k])).isInteger() && quantity(string(self[k])).asInteger() % quantity(k.substring(10)).asInteger() == 0))",
        "huge pages come whole: write a multiple of the size of one, for example hugepages-2Mi: 4Mi",
    );
    if let Some(Value::Array(rules)) = amounts.get_mut("x-kubernetes-validations") {
        rules.extend([known, hugepages]);
    }
    let mut schema = generator.subschema_for::<ResourceRequirements>();
    for amount in ["requests", "limits"] {
        let found = schema.pointer_mut(&format!("/properties/{amount}")).and_then(Value::as_object_mut);
        if let (Some(found), Some(amounts)) = (found, amounts.as_object()) {
            found.extend(amounts.clone());
        }
    }
    let (request, limit) = ("string(self.requests[k])", "string(self.limits[k])");
    let is_scarce = format!("(({}) || k.startsWith('hugepages-'))", is_extended("k"));
    merge(
        schema.ensure_object(),
        json!({ "properties": { "claims": { "maxItems": 0 } }, "x-kubernetes-validations": [
            rule(
                format!(
                    "!has(self.requests) || self.requests.all(k, !has(self.limits) || !(k in self.limits) || !isQuantity({request}) || !isQuantity({limit}) || !quantity({request}).isGreaterThan(quantity({limit})))"
                ),
                "a request is larger than its limit: raise the limit or lower the request",
            ),
            rule(
                format!(
                    "!has(self.requests) || self.requests.all(k, !{is_scarce} || (has(self.limits) && k in self.limits && (!isQuantity({request}) || !isQuantity({limit}) || quantity({request}).compareTo(quantity({limit})) == 0)))"
                ),
                "extended resources and huge pages are never shared: write a limit that equals the request",
            ),
            rule(
                "[has(self.requests) && self.requests.exists(k, k.startsWith('hugepages-')), has(self.limits) && self.limits.exists(k, k.startsWith('hugepages-'))].all(huge, !huge) || (has(self.requests) && ('cpu' in self.requests || 'memory' in self.requests)) || (has(self.limits) && ('cpu' in self.limits || 'memory' in self.limits))",
                "huge pages need cpu or memory beside them: add one, for example cpu: 20m",
            )
        ] }),
    );
    schema
}

/// Schema of tolerations.
pub fn tolerations(generator: &mut SchemaGenerator) -> Schema {
    let mut toleration = generator.subschema_for::<Toleration>();
    merge(
        toleration.ensure_object(),
        json!({ "properties": {
            "key": { "maxLength": QUALIFIED_LENGTH, "x-kubernetes-validations": [rule(
                format!("self == '' || ({})", is_qualified("self")),
                "it is the key of a taint: write for example example.com/dedicated",
            )] },
            "value": { "maxLength": 63, "x-kubernetes-validations": [label_value()] },
            "operator": { "enum": ["", "Equal", "Exists", "Lt", "Gt"] },
            "effect": { "enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"] },
        }, "x-kubernetes-validations": [
            rule(
                "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
                "a toleration without a key is one of all taints: write operator: Exists, or add a key",
            ),
            rule(
                "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
                "operator Exists looks at no value: remove the value, or write operator: Equal",
            ),
            rule(
                "!has(self.operator) || !(self.operator in ['Lt', 'Gt']) || (has(self.value) && self.value.matches('^(0|-?[1-9][0-9]{0,17})$'))",
                "operators Lt and Gt compare numbers: write a whole number as the value, for example \"5\"",
            ),
            rule(
                "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                "tolerationSeconds is about taints that evict: write effect: NoExecute, or remove tolerationSeconds",
            )
        ] }),
    );
    json_schema!({
        "type": "array", "maxItems": 64, "items": toleration, "x-kubernetes-list-type": "atomic"
    })
}

/// Schema of an affinity.
pub fn affinity(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Affinity>();
    bound(schema.ensure_object(), AffinityContext::default());
    schema
}

/// Context of a schema in an affinity.
#[derive(Clone, Copy, Default)]
struct AffinityContext {
    /// Inside `nodeAffinity`, whose requirements have Gt and Lt.
    of_nodes: bool,
    /// Inside a preference for nodes, in which Kubernetes accepts values that no label can have.
    preferred: bool,
}

/// Restricts the properties of an object recursively, by their names.
fn bound(object: &mut Map<String, Value>, context: AffinityContext) {
    let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
    for (name, schema) in properties {
        let Value::Object(schema) = schema else { continue };
        let inside = AffinityContext {
            of_nodes: context.of_nodes || name == "nodeAffinity",
            preferred: context.preferred || name.starts_with("preferred"),
        };
        let is_list = schema.get("type").and_then(Value::as_str) == Some("array");
        merge(schema, keywords(name, is_list));
        let item = match name.as_str() {
            "matchExpressions" => requirement(inside),
            "matchFields" => field_requirement(),
            "namespaces" => json!({ "maxLength": 63, "x-kubernetes-validations": [rule(
                format!("!self.contains('.') && self.matches('^{SUBDOMAIN}$')"),
                "it is the name of a namespace: write lower case letters, digits and '-'",
            )] }),
            "matchLabelKeys" | "mismatchLabelKeys" => key(),
            _ => Value::Null,
        };
        match schema.get_mut("items") {
            Some(Value::Object(items)) => {
                bound(items, inside);
                merge(items, item);
            }
            _ => bound(schema, inside),
        }
    }
    if object.get("properties").is_some_and(|properties| properties.get("topologyKey").is_some()) {
        object.insert("x-kubernetes-validations".to_owned(), json!([rule(
            "has(self.labelSelector) || ((!has(self.matchLabelKeys) || self.matchLabelKeys.size() == 0) && (!has(self.mismatchLabelKeys) || self.mismatchLabelKeys.size() == 0))",
            "matchLabelKeys and mismatchLabelKeys add to a labelSelector: write one, for example labelSelector: {}",
        ), rule(
            "!has(self.matchLabelKeys) || !has(self.mismatchLabelKeys) || self.matchLabelKeys.all(k, !(k in self.mismatchLabelKeys))",
            "a key is in both matchLabelKeys and mismatchLabelKeys: remove it from one of them",
        )]));
    }
}

/// Keywords for a property itself.
fn keywords(name: &str, is_list: bool) -> Value {
    match name {
        "weight" => json!({ "minimum": 1, "maximum": 100 }),
        "topologyKey" => key(),
        "matchLabels" => json!({
            "maxProperties": ENTRIES,
            "additionalProperties": { "type": "string", "maxLength": 63, "x-kubernetes-validations": [label_value()] },
            "x-kubernetes-validations": [keys(
                &is_qualified("k"),
                "it is the key of a label: write for example app.kubernetes.io/name",
            )]
        }),
        // The values of a requirement get a maximum of their own afterwards.
        _ if is_list => json!({ "maxItems": ENTRIES }),
        _ => Value::Null,
    }
}

/// Keywords for a label requirement.
fn requirement(context: AffinityContext) -> Value {
    let mut operators = vec!["In", "NotIn", "Exists", "DoesNotExist"];
    let compares = "self.operator in ['Gt', 'Lt'] ? has(self.values) && self.values.size() == 1 : ";
    if context.of_nodes {
        operators.extend(["Gt", "Lt"]);
    }
    let mut value = json!({ "maxLength": 253 });
    if !(context.of_nodes && context.preferred) {
        value = json!({ "maxLength": 63, "x-kubernetes-validations": [label_value()] });
    }
    json!({
        "properties": {
            "key": key(),
            "operator": { "enum": operators },
            "values": { "maxItems": VALUES, "items": value },
        },
        "x-kubernetes-validations": [rule(
            format!(
                "{}self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values) || self.values.size() == 0",
                if context.of_nodes { compares } else { "" }
            ),
            "operators In and NotIn need values, Gt and Lt need one, Exists and DoesNotExist have none: add or remove values",
        )]
    })
}

/// Keywords for a field requirement.
fn field_requirement() -> Value {
    json!({
        "properties": {
            "key": { "enum": ["metadata.name"] },
            "operator": { "enum": ["In", "NotIn"] },
            "values": { "minItems": 1, "maxItems": 1, "items": {
                "maxLength": 253,
                "x-kubernetes-validations": [super::object_name()],
            } },
        },
        "required": ["key", "operator", "values"]
    })
}

fn key() -> Value {
    json!({ "maxLength": QUALIFIED_LENGTH, "x-kubernetes-validations": [qualified()] })
}
