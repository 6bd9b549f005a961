//! What the chart makes of values, as objects.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::program::{CHART, said, try_helm};

/// The objects of a chart with these `--set` values.
pub fn render_chart(chart: &str, set: &[&str]) -> Result<Vec<Value>, String> {
    let mut args = vec![chart, "--namespace", "kube-node-system"];
    for &value in set {
        args.extend(["--set", value]);
    }
    template(Path::new("/nonexistent"), &args)
}

/// The objects that `helm template kube-node` makes with these arguments.
pub fn template(kubeconfig: &Path, args: &[&str]) -> Result<Vec<Value>, String> {
    let output = try_helm(kubeconfig, &[&["template", "kube-node"], args].concat());
    if !output.status.success() {
        return Err(said(&output));
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = serde_norway::Deserializer::from_str(&text);
    Ok(documents
        .map(|document| Value::deserialize(document).unwrap())
        .filter(|object| !object.is_null())
        .collect())
}

/// The objects of our chart.
pub fn render(set: &[&str]) -> Vec<Value> {
    render_chart(CHART, set).unwrap_or_else(|why| panic!("{set:?}: {why}"))
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// All objects of a kind.
pub fn all<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The object of a kind and a name.
pub fn one<'a>(objects: &'a [Value], kind: &str, wanted: &str) -> &'a Value {
    let found: Vec<_> = all(objects, kind).into_iter().filter(|object| name(object) == wanted).collect();
    assert_eq!(found.len(), 1, "{kind} {wanted}");
    found[0]
}

/// Whether there is any of a kind.
pub fn has(objects: &[Value], kind: &str) -> bool {
    !all(objects, kind).is_empty()
}

/// The pod template of an object that makes pods, or the Pod itself; null for others.
pub fn pod(object: &Value) -> &Value {
    match object["kind"].as_str() {
        Some("Pod") => object,
        Some("CronJob") => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => &object["spec"]["template"],
    }
}

/// All objects that make pods.
pub fn workloads(objects: &[Value]) -> Vec<&Value> {
    objects.iter().filter(|object| pod(object)["spec"]["containers"].is_array()).collect()
}

/// Arguments of the one container of a workload.
pub fn args(workload: &Value) -> Vec<&str> {
    let args = pod(workload)["spec"]["containers"][0]["args"].as_array().unwrap();
    // What the kubelet that starts the pod puts in.
    let filled = |arg| match arg {
        "--kubelet-address=$(POD_IP)" => "--kubelet-address=10.0.0.7",
        arg => arg,
    };
    args.iter().map(|arg| filled(arg.as_str().unwrap())).collect()
}
