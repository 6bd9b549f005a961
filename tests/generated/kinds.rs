//! The pages of NodeClass and NodeSet: every field with its type, default and limits, the rules, and examples that have
//! every field between them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    markdown::{self, code, prose},
    read,
    schema::Schema,
};

/// Fields whose types are Kubernetes' own: `kubectl explain` describes them.
const OF_KUBERNETES: [(&str, &str); 6] = [
    ("affinity", "Kubernetes' Affinity"),
    ("conditions", "list of Kubernetes' Conditions"),
    ("resources", "Kubernetes' ResourceRequirements"),
    ("startupTaints", "list of Kubernetes' Taints"),
    ("taints", "list of Kubernetes' Taints"),
    ("tolerations", "list of Kubernetes' Tolerations"),
];

/// The pages of a kind, by version.
pub fn pages(kind: &str) -> Vec<(String, String)> {
    let definition = format!("crds/{kind}{}.yaml", if kind.ends_with('s') { "es" } else { "s" });
    let crd: Value = serde_norway::from_str(&read(&definition)).unwrap();
    let examples = read(&format!("examples/{kind}.yaml"));
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let page = |version| {
        let page = page(&crd["spec"], version, &examples, &definition);
        (version["name"].as_str().unwrap().to_owned(), page)
    };
    versions.iter().map(page).collect()
}

fn page(spec: &Value, version: &Value, examples: &str, definition: &str) -> String {
    let schema = Schema::root(&version["schema"]["openAPIV3Schema"]);
    let values = |list: &Value| {
        let values = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        values.map(code).collect::<Vec<_>>().join(", ")
    };
    let subresources: Vec<_> =
        version["subresources"].as_object().into_iter().flatten().map(|(name, _)| code(name)).collect();
    let names = &spec["names"];
    let kind = names["kind"].as_str().unwrap();
    let mut page = markdown::page(kind, &format!("{definition} and examples/"));
    writeln!(
        page,
        "\n{}\n\n`apiVersion: {}/{}`, of the {}. Short name {}, category {}; subresources {}.\n\nA field that is absent has its \
         default. A duration is a text as Go writes it, such as `5s` or `1m30s`; a time is one of RFC 3339. A rule that refuses an object says \
         what stands before its expression.",
        prose(schema.get("description").as_str().unwrap()),
        spec["group"].as_str().unwrap(),
        version["name"].as_str().unwrap(),
        spec["scope"].as_str().unwrap().to_lowercase(),
        values(&names["shortNames"]),
        values(&names["categories"]),
        subresources.join(", "),
    )
    .unwrap();
    rules(&mut page, schema);
    let mut shown = Vec::new();
    page.push_str("\n## Examples\n");
    for example in examples.split("\n---\n") {
        write!(page, "\n```yaml\n{}\n```\n", example.trim()).unwrap();
        shown.push(serde_norway::from_str::<Value>(example).unwrap());
    }
    for part in ["spec", "status"] {
        section(&mut page, part, schema.property(part).unwrap());
    }
    let mut missing = Vec::new();
    let shown: Vec<_> = shown.iter().map(|example| &example["spec"]).collect();
    not_shown(schema.property("spec").unwrap(), "spec", &shown, &mut missing);
    assert_eq!(missing, Vec::<String>::new(), "no example of {kind} has these");
    page
}

/// What Kubernetes calls the type of a field.
fn of_kubernetes(name: &str) -> Option<&'static str> {
    OF_KUBERNETES.iter().find(|(field, _)| *field == name).map(|(_, kind)| *kind)
}

/// The schema of an object's fields, or of those of a list's entries, and what is added to the path of either.
fn inner<'a>(name: &str, schema: Schema<'a>) -> Option<(&'static str, Schema<'a>)> {
    let entries = || schema.items().map(|items| ("[]", items));
    let own = if schema.is_object() { Some(("", schema)) } else { entries() };
    own.filter(|(_, schema)| schema.is_object() && of_kubernetes(name).is_none())
}

/// The section of an object, and those of the objects in it.
fn section(page: &mut String, path: &str, schema: Schema<'_>) {
    let heading = if path.contains('.') { "###" } else { "##" };
    write!(page, "\n{heading} {}\n\n", code(path)).unwrap();
    if let Some(description) = schema.get("description").as_str() {
        write!(page, "{}\n\n", prose(description)).unwrap();
    }
    let (refused, needed) = (told_by_rules(schema, "!has(self."), told_by_rules(schema, "has(self."));
    let rows: Vec<_> = schema
        .properties()
        .map(|(name, field)| {
            let description = field.get("description").as_str().unwrap_or_default();
            let is_served = !refused.contains(&name.as_str());
            let default = match &field.get("default") {
                _ if !is_served => "not served".to_owned(),
                _ if schema.requires(name) || needed.contains(&name.as_str()) => "required".to_owned(),
                Value::Null => absent(description),
                default => code(&default.to_string()),
            };
            let is_said = !default.is_empty() || !field.is_scalar() || description.contains("absent");
            assert!(is_said || path.starts_with("status"), "{path}.{name}: say what holds when it is absent");
            let kind = match (of_kubernetes(name), inner(name, field)) {
                (Some(kind), _) => kind.to_owned(),
                (None, Some((list, _))) => {
                    let anchor = format!("{path}{name}").replace(['.', '[', ']'], "").to_lowercase();
                    format!("[{}](#{anchor})", if list.is_empty() { "object" } else { "list of objects" })
                }
                (None, None) => field.kind(),
            };
            [code(name), kind, default, field.limits(), prose(description)]
        })
        .collect();
    page.push_str(&markdown::table(["field", "type", "default", "limits", "meaning"], &rows));
    rules(page, schema);
    for (name, field) in schema.properties() {
        if let Some((list, schema)) = inner(name, field) {
            section(page, &format!("{path}.{name}{list}"), schema);
        }
    }
}

/// What a description says of a field that is absent: `...; 10 when absent`, `...; absent, never`.
fn absent(description: &str) -> String {
    let text = prose(description);
    let before = text.split_once(" when absent").map(|(before, _)| {
        let begin = ["; ", ". ", "("].iter().filter_map(|end| Some(before.rfind(end)? + end.len())).max();
        before[begin.unwrap_or_default()..].trim_end_matches(',')
    });
    let after = || text.split_once("absent, ")?.1.split(['.', ';']).next();
    before.or_else(after).unwrap_or_default().to_owned()
}

/// The rules of an object itself and of those of its fields that have no section.
fn rules(page: &mut String, schema: Schema<'_>) {
    let of = |schema: Schema<'_>, field: &str| {
        let rules = schema.get("x-kubernetes-validations").as_array().cloned().unwrap_or_default();
        let line = |rule: Value| {
            let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
            format!("- {field}{}\\\n  {}\n", prose(&text("message")), code(&text("rule")))
        };
        rules.into_iter().map(line).collect::<String>()
    };
    let own = of(schema, "");
    // What a duration is stands at the top of the page.
    let fields = schema.properties().filter(|(_, field)| !field.is_object() && !field.is_duration());
    let all = fields.fold(own, |all, (name, field)| all + &of(field, &format!("{}: ", code(name))));
    if !all.is_empty() {
        write!(page, "\nRules:\n\n{all}").unwrap();
    }
}

/// Fields of which the rules of an object say nothing but this: `!has(self.a) && !has(self.b)` refuses two,
/// `has(self.c)` needs one.
fn told_by_rules<'a>(schema: Schema<'a>, has: &str) -> Vec<&'a str> {
    let rules = schema.get("x-kubernetes-validations").as_array().into_iter().flatten();
    let sentences = rules.filter_map(|rule| {
        let field = |term: &'a str| term.strip_prefix(has)?.strip_suffix(')');
        rule["rule"].as_str()?.split(" && ").map(field).collect::<Option<Vec<_>>>()
    });
    sentences.flatten().collect()
}

/// Fields that none of the examples has.
fn not_shown(schema: Schema<'_>, path: &str, examples: &[&Value], missing: &mut Vec<String>) {
    let refused = told_by_rules(schema, "!has(self.");
    for (name, field) in schema.properties().filter(|(name, _)| !refused.contains(&name.as_str())) {
        let path = format!("{path}.{name}");
        let values: Vec<_> = examples.iter().filter_map(|example| example.get(name)).collect();
        if values.is_empty() {
            missing.push(path);
        } else if let Some((list, schema)) = inner(name, field) {
            let entries = values.iter().flat_map(|value| match value {
                Value::Array(entries) => entries.iter().collect(),
                value => vec![*value],
            });
            not_shown(schema, &format!("{path}{list}"), &entries.collect::<Vec<_>>(), missing);
        }
    }
}

#[test]
fn a_default_is_found_in_what_is_said() {
    for (description, wanted) in [
        ("How many, in seconds; 600 when\nabsent.", "600"),
        ("When it counts; absent, never.", "never"),
        ("Whether they are evicted (true, when absent) or not.", "true"),
        ("A name. The machine's own user when absent.", "The machine's own user"),
        ("Nothing of it.", ""),
    ] {
        assert_eq!(absent(description), wanted);
    }
}
