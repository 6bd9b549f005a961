//! The page of the chart's values, and the chart's README: keys, defaults and comments of values.yaml, types and limits of
//! values.schema.json.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    markdown::{self, code, prose},
    read,
    schema::Schema,
};

const VALUES: &str = "charts/kube-node/values.yaml";
const SCHEMA: &str = "charts/kube-node/values.schema.json";
const CHART: &str = "charts/kube-node/Chart.yaml";
/// Commands at the top of the README.
const INSTALL: &str = "
## Install

From the sources, since no registry has the image yet: push it to a registry of yours, and name that one.

```console,ignore=installs
$ kube-node image kube-node --push REGISTRY/NAME
$ helm install kube-node charts/kube-node --namespace kube-node-system --create-namespace --set image.repository=REGISTRY/NAME --wait
$ helm test kube-node --namespace kube-node-system
```

Without a registry bring the image to the nodes, before `helm install` without `image.repository`:

```console,ignore=engine
$ kube-node image kube-node --output-dir .
$ kind load image-archive kube-node.tar
$ minikube image load kube-node.tar
$ k3d image import kube-node.tar
```

Values for kind, GKE, EKS, OpenShift and k3s are in `charts/kube-node/ci`. [Install, upgrade, uninstall](../../docs/install.md) has
the rest: what is checked, certificates, other namespaces, an uninstall that leaves nothing stuck.

## Values

Unknown ones are refused.
";

/// docs/reference/chart.md.
pub fn page() -> String {
    let mut page = markdown::page("Values of the chart", &format!("{VALUES} and its schema"));
    page.push_str("\nFor `helm install --set` and `--values`; [how they go together](../install.md). Unknown ones are refused.\n");
    page + &tables("##")
}

/// charts/kube-node/README.md.
pub fn readme() -> String {
    let chart: Value = serde_norway::from_str(&read(CHART)).unwrap();
    let mut page = markdown::page("kube-node", &format!("{CHART}, {VALUES} and its schema"));
    write!(page, "\n{}.\n{INSTALL}", chart["description"].as_str().unwrap()).unwrap();
    page + &tables("###")
}

/// A table of all values that are no groups, and one for each group, below a heading of this level.
fn tables(heading: &str) -> String {
    let text = read(VALUES);
    let values: Value = serde_norway::from_str(&text).unwrap();
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let comments = comments(&text);
    let mut page = String::new();
    let is_group = |path: &str| comments.iter().any(|(other, _)| other.starts_with(&format!("{path}.")));
    let (groups, single): (Vec<_>, Vec<_>) =
        comments.iter().filter(|(path, _)| !path.contains('.')).partition(|(path, _)| is_group(path));
    let row = |(path, comment): &(String, String)| {
        let schema = find(Schema::root(&schema), path);
        let default = || code(&values.pointer(&format!("/{}", path.replace('.', "/"))).unwrap().to_string());
        let default = if is_group(path) { String::new() } else { default() };
        [code(path), schema.kind(), default, schema.limits(), prose(comment)]
    };
    let columns = ["value", "type", "default", "limits", "meaning"];
    write!(page, "\n{}", markdown::table(columns, &single.into_iter().map(row).collect::<Vec<_>>())).unwrap();
    for (group, comment) in groups {
        let inside = comments.iter().filter(|(path, _)| path.starts_with(&format!("{group}.")));
        let rows: Vec<_> = inside.map(row).collect();
        write!(
            page,
            "\n{heading} {}\n\n{}\n\n{}",
            code(group),
            prose(comment),
            markdown::table(columns, &rows)
        )
        .unwrap();
    }
    page
}

/// The schema of a value.
fn find<'a>(schema: Schema<'a>, path: &str) -> Schema<'a> {
    path.split('.').fold(schema, |schema, key| {
        schema.property(key).unwrap_or_else(|| panic!("{path} is not in the schema"))
    })
}

/// The values that are explained, by path; what is deeper is a part of one. The first of a group may have no comment of its
/// own: it is what the group's is about.
fn comments(text: &str) -> Vec<(String, String)> {
    let mut comments: Vec<(String, String)> = Vec::new();
    let mut above: Vec<(usize, &str)> = Vec::new();
    let mut comment = String::new();
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        if let Some(words) = line.trim_start().strip_prefix('#') {
            comment += words;
        } else if let Some((key, _)) = line.trim_start().split_once(':') {
            above.retain(|(other, _)| *other < depth);
            let group = path(&above);
            above.push((depth, key));
            let is_first = comments.last().is_some_and(|(last, _)| *last == group);
            if !comment.is_empty() || (is_first && depth == 2) {
                comments.push((path(&above), std::mem::take(&mut comment)));
            }
        }
    }
    comments
}

fn path(keys: &[(usize, &str)]) -> String {
    keys.iter().map(|(_, key)| *key).collect::<Vec<_>>().join(".")
}

#[test]
fn comments_belong_to_what_follows() {
    let text = "# A.\na: 1\n# B\n# goes on.\nb:\n  on: true\n  # C.\n  c:\n    d: 1\n";
    let all = [("a", " A."), ("b", " B goes on."), ("b.on", ""), ("b.c", " C.")];
    assert_eq!(comments(text), all.map(|(path, comment)| (path.to_owned(), comment.to_owned())));
}
