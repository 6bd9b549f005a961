//! Values that charts have by convention, and notes.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};

use crate::{
    program::{CHART, offline, said},
    render::{all, name, one, pod, render, template, workloads},
};

/// All that makes objects.
const EVERYTHING: &[&str] = &[
    "autoscaler.enabled=true",
    "autoscaler.clientNamespace=kube-system",
    "serviceMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "hollowHosts.big.replicas=3",
    "operator.priorityClassName=system-cluster-critical",
];

#[test]
fn every_object_has_the_common_labels_and_annotations() {
    let common = ["commonLabels.team=nodes", "commonAnnotations.example\\.com/cost=high"];
    let manager = ["autoscaler.enabled=true", "autoscaler.certificates.source=CertManager"];
    for set in [EVERYTHING, &manager] {
        let objects = render(&[set, &common].concat());
        for object in &objects {
            let metadata = &object["metadata"];
            let what = format!("{} {}", object["kind"], name(object));
            assert_eq!(metadata["labels"]["team"], "nodes", "{what}");
            assert_eq!(metadata["labels"]["app.kubernetes.io/instance"], "kube-node", "{what}");
            assert_eq!(metadata["annotations"]["example.com/cost"], "high", "{what}");
        }
        for workload in workloads(&objects) {
            let is_selected = pod(workload)["metadata"]["labels"]["team"] == "nodes";
            assert!(is_selected, "{}", name(workload));
            assert!(
                workload["spec"]["selector"]["matchLabels"]["team"].is_null(),
                "a selector cannot change"
            );
        }
    }
    let crd = &render(&common)[..];
    let crd = one(crd, "CustomResourceDefinition", "nodesets.kube-node.io");
    assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
}

#[test]
fn an_affinity_of_ones_own_joins_the_rule_of_the_chart() {
    let required =
        "operator.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let term = |number: usize, key: &str| {
        let term = format!("{required}[{number}].matchExpressions[0]");
        [format!("{term}.key={key}"), format!("{term}.operator=Exists")]
    };
    let preferred =
        "operator.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1";
    let set = [term(0, "a"), term(1, "b")].concat();
    let set: Vec<&str> = set.iter().map(String::as_str).chain([preferred]).collect();
    let objects = render(&set);
    let own = |key: &str| json!({"key": key, "operator": "Exists"});
    let rule =
        json!({"key": "kube-node.io/node-controller", "operator": "NotIn", "values": ["hollow", "kubemark"]});
    for workload in workloads(&objects) {
        let affinity = &pod(workload)["spec"]["affinity"];
        let terms =
            &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        // One term suffices, so each has the rule.
        let wanted = ["a", "b"].map(|key| json!({"matchExpressions": [own(key), rule]}));
        assert_eq!(*terms, json!(wanted), "{}", name(workload));
        let preferred = &affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(preferred[0]["weight"], 1);
    }
}

#[test]
fn variables_and_volumes_reach_operators_and_workers() {
    let objects = render(&[
        "hollowHosts.big.replicas=1",
        "operator.extraEnv[0].name=OTEL_EXPORTER_OTLP_HEADERS",
        "operator.extraEnv[0].value=tenant=a",
        "operator.extraVolumes[0].name=own",
        "operator.extraVolumes[0].emptyDir.sizeLimit=1Mi",
        "operator.extraVolumeMounts[0].name=own",
        "operator.extraVolumeMounts[0].mountPath=/own",
    ]);
    for (kind, of) in [("Deployment", "kube-node-operator"), ("StatefulSet", "kube-node-hollow-big")] {
        let pod = &pod(one(&objects, kind, of))["spec"];
        let container = &pod["containers"][0];
        let variable = json!({"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": "tenant=a"});
        assert!(container["env"].as_array().unwrap().contains(&variable), "{kind}");
        assert_eq!(container["volumeMounts"], json!([{"name": "own", "mountPath": "/own"}]), "{kind}");
        assert_eq!(pod["volumes"], json!([{"name": "own", "emptyDir": {"sizeLimit": "1Mi"}}]), "{kind}");
    }
}

#[test]
fn annotations_and_resources_go_where_their_names_say() {
    let objects = render(&[
        "autoscaler.enabled=true",
        "hollowHosts.big.replicas=1",
        "operator.annotations.of=deployment",
        "operator.podAnnotations.of=pod",
        "serviceAccount.annotations.of=account",
        "jobs.annotations.of=job",
        "jobs.resources.limits.memory=64Mi",
    ]);
    let of = |object: &Value| object["metadata"]["annotations"]["of"].clone();
    let operator = one(&objects, "Deployment", "kube-node-operator");
    assert_eq!((of(operator), of(pod(operator))), (json!("deployment"), json!("pod")));
    let mut annotated: Vec<&str> = all(&objects, "ServiceAccount")
        .into_iter()
        .filter(|account| of(account) == "account")
        .map(name)
        .collect();
    annotated.sort_unstable();
    assert_eq!(annotated, ["kube-node-hollow-host", "kube-node-operator"]);
    let jobs = ["Job", "CronJob", "Pod"].map(|kind| all(&objects, kind)).concat();
    assert_eq!(jobs.len(), 4);
    for job in jobs {
        assert_eq!((of(job), of(pod(job))), (json!("job"), json!("job")), "{}", name(job));
        assert_eq!(pod(job)["spec"]["containers"][0]["resources"]["limits"]["memory"], "64Mi");
    }
    let uninstall = &one(&objects, "Job", "kube-node-uninstall")["metadata"]["annotations"];
    assert_eq!(
        (&uninstall["helm.sh/hook-weight"], &uninstall["helm.sh/hook-output-log-policy"]),
        (&json!("0"), &json!("hook-failed")),
        "after the objects that it needs"
    );
}

#[test]
fn a_system_priority_class_comes_with_the_quota_that_admits_it() {
    let quota = |class: &str| {
        let objects = render(&[&format!("operator.priorityClassName={class}")]);
        let operator =
            pod(one(&objects, "Deployment", "kube-node-operator"))["spec"]["priorityClassName"].clone();
        let quotas = all(&objects, "ResourceQuota");
        let scope = quotas.first().map(|quota| quota["spec"]["scopeSelector"]["matchExpressions"][0].clone());
        (operator, scope)
    };
    assert_eq!(quota(""), (Value::Null, None));
    assert_eq!(quota("own"), (json!("own"), None));
    let scope =
        json!({"scopeName": "PriorityClass", "operator": "In", "values": ["system-cluster-critical"]});
    assert_eq!(quota("system-cluster-critical"), (json!("system-cluster-critical"), Some(scope)));
}

/// What helm prints after an installation with these values.
fn notes(set: &str) -> String {
    let output = offline(&["install", "own", CHART, "--namespace", "a", "--dry-run=client", "--set", set]);
    let said = said(&output);
    said[said.find("NOTES:").unwrap_or_else(|| panic!("{said}"))..].to_owned()
}

#[test]
fn notes_say_how_nodes_get_the_image_and_what_is_unusual() {
    let usual = notes("replicas=2");
    for line in [
        concat!("The image localhost/kube-node:", env!("CARGO_PKG_VERSION"), " is in no registry"),
        "kube-node image kube-node --push REGISTRY/NAME",
        "helm upgrade own CHART --namespace a --reset-then-reuse-values --set image.repository=REGISTRY/NAME",
        "kind load image-archive kube-node.tar",
        "minikube image load kube-node.tar",
        "k3d image import kube-node.tar",
        "helm test own --namespace a",
        "kube-node doctor --namespace=a --machine-namespace=kubemark",
    ] {
        assert!(usual.contains(line), "{line}: {usual}");
    }
    assert!(!usual.contains("WARNING") && !usual.contains("pod-security"), "{usual}");
    let published = notes("image.repository=registry.example.com/kube-node");
    assert!(!published.contains("is in no registry"), "{published}");
    let theirs = notes("machines.createNamespace=false,machines.namespace=theirs");
    assert!(
        theirs.contains("kubectl label namespace theirs pod-security.kubernetes.io/enforce=baseline"),
        "{theirs}"
    );
}

/// YAML 1.1 takes a number or a `no` for something else than text, and both are legal names.
#[test]
fn a_namespace_may_be_called_like_a_number_or_no() {
    let mut args = vec![CHART, "--namespace", "123", "--set-string", "machines.namespace=no"];
    args.extend(EVERYTHING.iter().flat_map(|value| ["--set", value]));
    let objects = template(Path::new("/nonexistent"), &args).unwrap();
    assert_eq!(one(&objects, "Namespace", "no")["metadata"]["name"], "no");
    let namespaces: BTreeSet<String> = objects.iter().flat_map(named_namespaces).collect();
    let expected = ["123", "kube-node-lease", "kube-system", "no"].map(|name| json!(name).to_string());
    assert_eq!(namespaces.into_iter().collect::<Vec<_>>(), expected);
}

/// All values of fields called `namespace`, as JSON.
fn named_namespaces(value: &Value) -> Vec<String> {
    let below: Vec<&Value> = match value {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    let own = value.get("namespace").filter(|namespace| !namespace.is_object()).map(Value::to_string);
    own.into_iter().chain(below.into_iter().flat_map(named_namespaces)).collect()
}
