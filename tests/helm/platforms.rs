//! The chart with the values of five platforms (charts/kube-node/ci), in other namespaces, and as a part of another chart.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    program::{CHART, copy_of_chart, offline, said},
    render::{all, has, name, one, pod, render, template, workloads},
};

/// No cluster.
const NONE: &str = "/nonexistent";

/// The objects with the values of a platform.
fn platform(name: &str) -> Vec<Value> {
    let values = format!("{CHART}/ci/{name}-values.yaml");
    let lint = offline(&["lint", CHART, "--strict", "--values", &values]);
    assert!(lint.status.success(), "{}", said(&lint));
    template(Path::new(NONE), &[CHART, "--values", &values]).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// The pod of the operator.
fn operator(objects: &[Value]) -> &Value {
    &pod(one(objects, "Deployment", "kube-node-operator"))["spec"]
}

/// Ports to which operators may connect.
fn ports(objects: &[Value]) -> Vec<u64> {
    let egress = one(objects, "NetworkPolicy", "kube-node")["spec"]["egress"][0]["ports"].clone();
    egress.as_array().unwrap().iter().map(|port| port["port"].as_u64().unwrap()).collect()
}

#[test]
fn every_platform_is_tried() {
    let files = fs::read_dir(format!("{CHART}/ci")).unwrap();
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["eks", "gke", "k3s", "kind", "openshift"].map(|name| format!("{name}-values.yaml")));
}

#[test]
fn kind_has_one_node_and_no_registry() {
    let objects = platform("kind");
    for workload in workloads(&objects) {
        let container = &pod(workload)["spec"]["containers"][0];
        assert_eq!(container["imagePullPolicy"], "Never", "{}", name(workload));
        assert!(container["image"].as_str().unwrap().starts_with("localhost/kube-node:"));
    }
    assert_eq!(one(&objects, "Deployment", "kube-node-operator")["spec"]["replicas"], 1);
}

#[test]
fn gke_admits_pods_without_a_priority_class() {
    let objects = platform("gke");
    assert!(workloads(&objects).iter().all(|workload| pod(workload)["spec"]["priorityClassName"].is_null()));
    assert!(!has(&objects, "ResourceQuota"));
    let account = one(&objects, "ServiceAccount", "kube-node-operator");
    assert!(account["metadata"]["annotations"]["iam.gke.io/gcp-service-account"].is_string());
}

#[test]
fn eks_has_roles_for_pods_and_another_namespace_for_cluster_autoscaler() {
    let objects = platform("eks");
    let account = one(&objects, "ServiceAccount", "kube-node-operator");
    assert!(account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].is_string());
    let required =
        &operator(&objects)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let keys: Vec<_> = required["nodeSelectorTerms"][0]["matchExpressions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|expression| expression["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["eks.amazonaws.com/capacityType", "kube-node.io/node-controller"]);
    let secret = one(&objects, "Secret", "kube-node-autoscaler-client");
    assert_eq!(secret["metadata"]["namespace"], "kube-system");
}

#[test]
fn openshift_chooses_the_user_and_has_its_own_dns_port() {
    let objects = platform("openshift");
    let mut volumes = 0;
    for workload in workloads(&objects) {
        let spec = &pod(workload)["spec"];
        for context in [&spec["securityContext"], &spec["containers"][0]["securityContext"]] {
            for id in ["runAsUser", "runAsGroup", "fsGroup"] {
                assert!(context[id].is_null(), "{} {id}", name(workload));
            }
        }
        // Any user reads them.
        for volume in spec["volumes"].as_array().into_iter().flatten() {
            assert_eq!(volume["secret"]["defaultMode"], json!(0o444), "{}", name(workload));
            volumes += 1;
        }
    }
    assert!(volumes > 0);
    assert_eq!(ports(&objects)[..5], [53, 53, 5353, 5353, 443]);
    assert!(has(&objects, "ServiceMonitor") && has(&objects, "PrometheusRule"));
}

#[test]
fn k3s_has_operators_on_its_servers() {
    let objects = platform("k3s");
    let pod = operator(&objects);
    assert_eq!(pod["nodeSelector"], json!({"node-role.kubernetes.io/control-plane": "true"}));
    assert_eq!(pod["tolerations"][0]["key"], "node-role.kubernetes.io/control-plane");
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert!(has(&objects, "ResourceQuota"));
}

/// Every text of an object.
fn texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| texts(value, found)),
        _ => {}
    }
}

#[test]
fn namespaces_are_free_and_need_not_be_named() {
    let everything = [
        "--set=autoscaler.enabled=true,serviceMonitor.enabled=true,hollowHosts.big.replicas=1",
        "--set=operator.priorityClassName=system-cluster-critical",
    ];
    // Names that contain the default of the other.
    for (own, machines) in
        [("a", "b"), ("kubemark", "kube-node-system"), ("kubemark-a", "kube-node-system-b")]
    {
        let chosen = ["--namespace", own, "--set", &format!("machines.namespace={machines}")];
        let objects = template(Path::new(NONE), &[&[CHART], &chosen[..], &everything].concat()).unwrap();
        let usual = template(
            Path::new(NONE),
            &[&[CHART, "--namespace", "kube-node-system"], &everything[..]].concat(),
        );
        let usual = serde_json::to_string(&without_definitions(usual.unwrap())).unwrap();
        // With the names put where the usual ones are, nothing differs: neither is left, and neither is elsewhere.
        let renamed = usual
            .replace("[\"hollow\",\"kubemark\"]", "[\"hollow\",\"<provider>\"]")
            .replace("kube-node-system", "<own>")
            .replace("kubemark", "<machines>")
            .replace("<own>", own)
            .replace("<machines>", machines)
            .replace("<provider>", "kubemark");
        let renamed = without_definitions(serde_json::from_str(&renamed).unwrap());
        let objects = without_definitions(objects);
        for (object, wanted) in objects.iter().zip(&renamed) {
            // Its name is made of the values.
            if name(object).starts_with("kube-node-certificates-") {
                continue;
            }
            assert_eq!(object, wanted);
        }
        assert_eq!(objects.len(), renamed.len());
        assert_eq!(one(&objects, "Namespace", machines)["metadata"]["name"], machines);
        assert_eq!(all(&objects, "Namespace").len(), 1);
    }
    let objects = template(Path::new(NONE), &[CHART, "--set=machines.namespace=machines"]).unwrap();
    let objects = without_definitions(objects);
    for object in &objects {
        let mut found = Vec::new();
        texts(object, &mut found);
        let left = found.iter().find(|text| text.contains("kube-node-system") || text.contains(":kubemark:"));
        assert_eq!(left, None, "{} {}", object["kind"], name(object));
        assert_ne!(object["metadata"]["namespace"], "kubemark", "{} {}", object["kind"], name(object));
    }
    assert_eq!(one(&objects, "Deployment", "kube-node-operator")["metadata"]["namespace"], "default");
}

/// Definitions speak of kubemark, and of no namespace.
fn without_definitions(mut objects: Vec<Value>) -> Vec<Value> {
    objects.retain(|object| object["kind"] != "CustomResourceDefinition");
    objects.sort_by_cached_key(|object| {
        format!("{} {} {}", object["kind"], object["metadata"]["name"], object["metadata"]["namespace"])
    });
    objects
}

#[test]
fn another_chart_takes_this_one_in() {
    let copy = copy_of_chart("umbrella", "0.0.1", |_| {});
    let umbrella = copy.parent().unwrap().join("platform");
    for folder in ["charts", "templates"] {
        fs::create_dir_all(umbrella.join(folder)).unwrap();
    }
    fs::rename(&copy, umbrella.join("charts/kube-node")).unwrap();
    let chart = "apiVersion: v2\nname: platform\nversion: 1.0.0\nicon: data:,\ndependencies:\n\
                 - {name: kube-node, version: 0.0.1, repository: 'file://charts/kube-node', condition: kube-node.enabled, tags: [nodes]}\n";
    fs::write(umbrella.join("Chart.yaml"), chart).unwrap();
    let values = "global: {imageRegistry: registry.example.com}\ntags: {nodes: true}\n\
                  kube-node: {enabled: true, replicas: 3, tags: {}}\n";
    fs::write(umbrella.join("values.yaml"), values).unwrap();
    let path = umbrella.to_str().unwrap();
    let lint = offline(&["lint", path, "--strict", "--with-subcharts"]);
    assert!(lint.status.success(), "{}", said(&lint));
    let with = |set: &str| template(Path::new(NONE), &[path, "--namespace=platform", "--set", set]);
    let objects = with("kube-node.enabled=true").unwrap();
    assert_eq!(one(&objects, "Deployment", "kube-node-operator")["spec"]["replicas"], 3);
    assert_eq!(objects.len(), render(&[]).len());
    assert_eq!(with("kube-node.enabled=false").unwrap(), Vec::<Value>::new());
    let refused = with("kube-node.replica=2").unwrap_err();
    assert!(refused.contains("additional properties 'replica' not allowed"), "{refused}");
    fs::remove_dir_all(umbrella.parent().unwrap()).unwrap();
}
