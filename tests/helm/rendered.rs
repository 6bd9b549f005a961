//! Facts of what is rendered, for values that matter.

use std::fs;

use clap::Parser;
use kube_node_cli::{Cli, InternalCli};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    program::{CHART, copy_of_chart, offline, said},
    render::{all, args, has, name, one, pod, render, render_chart, workloads},
};

/// All that brings pods along.
const EVERYTHING: &[&str] = &[
    "autoscaler.enabled=true",
    "uninstall.deleteNodes=true",
    "serviceMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "hollowHosts.big.replicas=3",
];
/// The flags that the operator has whatever the values are.
const USUAL: [&str; 8] = [
    "operator",
    "--admin-address=0.0.0.0:8080",
    "--log-format=json",
    concat!("--machine-image=localhost/kube-node:", env!("CARGO_PKG_VERSION")),
    "--machine-namespace=kubemark",
    "--hollow-service-account=kube-node-hollow",
    "--kubelet-address=10.0.0.7",
    "--kubelet-ports=11000-29999",
];

#[test]
fn lint() {
    let output = offline(&["lint", CHART, "--strict"]);
    assert!(output.status.success(), "{}", said(&output));
    let remarks = ["[INFO]", "[WARNING]", "[ERROR]"];
    assert!(!remarks.iter().any(|remark| said(&output).contains(remark)), "{}", said(&output));
}

#[test]
fn versions_are_those_of_the_program() {
    let chart: Value =
        serde_norway::from_str(&fs::read_to_string(format!("{CHART}/Chart.yaml")).unwrap()).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn every_pod_is_restricted_and_on_a_real_node() {
    let objects = render(EVERYTHING);
    let kinds: Vec<_> = workloads(&objects).iter().map(|workload| workload["kind"].clone()).collect();
    assert_eq!(kinds, ["Deployment", "StatefulSet", "Job", "CronJob", "Pod", "Job"], "in the order of helm");
    for workload in workloads(&objects) {
        let pod = &pod(workload)["spec"];
        assert_eq!(
            pod["securityContext"],
            json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})
        );
        let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let hollow = json!({"key": "kube-node.io/node-controller", "operator": "NotIn", "values": ["hollow", "kubemark"]});
        assert_eq!(terms["nodeSelectorTerms"], json!([{ "matchExpressions": [hollow] }]));
        for container in pod["containers"].as_array().unwrap() {
            let wanted = json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            });
            assert_eq!(container["securityContext"], wanted, "{}", name(workload));
            assert!(container["resources"]["limits"]["memory"].is_string());
            assert_eq!(container["image"], concat!("localhost/kube-node:", env!("CARGO_PKG_VERSION")));
        }
    }
}

#[test]
fn flags_follow_values_and_the_program_knows_them() {
    let rows: &[(&[&str], &[&str])] = &[
        (&[], &[]),
        (&["machines.apiServer=https://192.0.2.1:6443"], &["--machine-api-server=https://192.0.2.1:6443"]),
        (&["operator.providerIdPrefix="], &["--provider-id-prefix="]),
        (&["operator.providerIdPrefix=own"], &["--provider-id-prefix=own"]),
        (
            &["podCidrs.clusterCidr=10.128.0.0/9"],
            &["--cluster-cidr=10.128.0.0/9", "--node-cidr-mask-size=24"],
        ),
        (
            &["autoscaler.enabled=true", "autoscaler.options=true"],
            &[
                "--autoscaler-address=0.0.0.0:8086",
                "--autoscaler-cert=/certificates/tls.crt",
                "--autoscaler-key=/certificates/tls.key",
                "--autoscaler-client-ca=/certificates/ca.crt",
                "--autoscaler-client-name=cluster-autoscaler",
                "--autoscaler-options",
            ],
        ),
        (
            &["autoscaler.enabled=true", "autoscaler.clientNames={a.example,b}"],
            &[
                "--autoscaler-address=0.0.0.0:8086",
                "--autoscaler-cert=/certificates/tls.crt",
                "--autoscaler-key=/certificates/tls.key",
                "--autoscaler-client-ca=/certificates/ca.crt",
                "--autoscaler-client-name=a.example",
                "--autoscaler-client-name=b",
            ],
        ),
    ];
    for (set, wanted) in rows {
        let objects = render(set);
        let flags = args(one(&objects, "Deployment", "kube-node-operator"));
        assert_eq!(flags, [&USUAL, *wanted].concat(), "{set:?}");
        let line = ["kube-node"].iter().chain(&flags);
        Cli::try_parse_from(line).unwrap_or_else(|why| panic!("{set:?}: {why}"));
    }
    let objects = render(&[
        "replicas=3",
        "leaderElection.leaseDuration=30s",
        "leaderElection.renewDeadline=20s",
        "leaderElection.retryPeriod=500ms",
    ]);
    let operator = one(&objects, "Deployment", "kube-node-operator");
    assert_eq!(operator["spec"]["replicas"], 3);
    let line = args(operator);
    Cli::try_parse_from(["kube-node"].iter().chain(&line)).unwrap_or_else(|why| panic!("{line:?}: {why}"));
    assert_eq!(
        args(operator)[USUAL.len()..],
        [
            "--leader-elect-lease-duration=30s",
            "--leader-elect-renew-deadline=20s",
            "--leader-elect-retry-period=500ms",
        ]
    );
    let alone = render(&["replicas=1", "leaderElection.enabled=false"]);
    let operator = one(&alone, "Deployment", "kube-node-operator");
    assert_eq!(args(operator)[USUAL.len()..], ["--leader-elect=false"]);
    let line = args(operator);
    Cli::try_parse_from(["kube-node"].iter().chain(&line)).unwrap_or_else(|why| panic!("{line:?}: {why}"));
    assert_eq!(operator["spec"]["strategy"]["type"], "Recreate", "two would work at once");
}

#[test]
fn hosts_are_a_stateful_set_for_each_group() {
    let objects =
        render(&["hollowHosts.big.replicas=3", "hollowHosts.small.replicas=0", "operator.logFilter=debug"]);
    assert_eq!(all(&objects, "StatefulSet").len(), 2);
    let big = one(&objects, "StatefulSet", "kube-node-hollow-big");
    assert_eq!(
        (&big["spec"]["replicas"], &big["spec"]["podManagementPolicy"]),
        (&json!(3), &json!("Parallel"))
    );
    let flags = args(big);
    assert_eq!(flags[..2], ["hollow-host", "--hosts=big"]);
    assert_eq!(flags[2..4], USUAL[1..3]);
    assert_eq!(flags[4], USUAL[4]);
    assert_eq!(flags[5..], USUAL[6..]);
    Cli::try_parse_from(["kube-node"].iter().chain(&flags)).unwrap();
    let pod = &big["spec"]["template"];
    assert_eq!(pod["spec"]["serviceAccountName"], "kube-node-hollow-host");
    for kind in ["Service", "PodDisruptionBudget"] {
        let selector = &one(&objects, kind, "kube-node-hollow-big")["spec"]["selector"];
        let selector = selector.get("matchLabels").unwrap_or(selector).as_object().unwrap();
        assert!(selector.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value), "{kind}");
        assert_eq!(selector["app.kubernetes.io/component"], "hollow-host-big");
    }
    // Nobody may what nobody does.
    let without = render(&[]);
    assert!(has(&objects, "StatefulSet") && !has(&without, "StatefulSet"));
    let is_of_hosts = |object: &&Value| name(object).contains("host");
    assert!(objects.iter().any(|object| is_of_hosts(&object)));
    assert_eq!(without.iter().find(is_of_hosts), None);
}

#[test]
fn jobs_have_arguments_that_the_program_knows() {
    let objects = render(EVERYTHING);
    let jobs = ["Job", "CronJob", "Pod"].map(|kind| all(&objects, kind)).concat();
    assert_eq!(jobs.len(), 4);
    for job in jobs {
        let line = [vec!["kube-node"], args(job)].concat();
        InternalCli::try_parse_from(line).unwrap_or_else(|why| panic!("{}: {why}", name(job)));
    }
}

#[test]
fn images_are_named_by_tag_or_digest() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let rows = [
        (
            vec!["image.repository=example.com/kn".to_owned()],
            format!("example.com/kn:{}", env!("CARGO_PKG_VERSION")),
        ),
        (vec!["image.tag=v9".to_owned()], "localhost/kube-node:v9".to_owned()),
        (
            vec!["image.tag=v9".to_owned(), format!("image.digest={digest}")],
            format!("localhost/kube-node@{digest}"),
        ),
    ];
    for (set, image) in rows {
        let objects = render(&set.iter().map(String::as_str).collect::<Vec<_>>());
        let operator = one(&objects, "Deployment", "kube-node-operator");
        assert_eq!(operator["spec"]["template"]["spec"]["containers"][0]["image"], *image);
        assert!(args(operator).contains(&format!("--machine-image={image}").as_str()));
    }
}

/// An object without the labels that the chart gives to all.
fn without_labels(object: &Value) -> Value {
    let mut object = object.clone();
    let labels = object["metadata"]["labels"].as_object_mut().expect("labels of the chart");
    labels.retain(|key, _| !key.starts_with("app.kubernetes.io/") && !key.starts_with("helm.sh/"));
    if labels.is_empty() {
        object["metadata"].as_object_mut().unwrap().remove("labels");
    }
    object
}

/// With 0 in the place of 0.0, as helm writes numbers.
#[expect(clippy::cast_possible_truncation, reason = "the numbers are whole and small")]
fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, whole_numbers(value))).collect(),
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Number(number) => match number.as_f64().filter(|number| number.fract() == 0.0) {
            Some(whole) => json!(whole as i64),
            None => Value::Number(number),
        },
        other => other,
    }
}

#[test]
fn definitions_are_those_of_the_code_and_stay() {
    for (set, kept) in [(&[][..], true), (&["crds.keep=false"], false)] {
        let objects = render(set);
        let rendered = all(&objects, "CustomResourceDefinition");
        assert_eq!(rendered.len(), 2);
        for crd in kube_node_api::crds() {
            let mut wanted = whole_numbers(serde_json::to_value(crd).unwrap());
            if kept {
                wanted["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
            }
            let found = rendered.iter().any(|object| without_labels(object) == wanted);
            assert!(found, "{}", crd.spec.names.kind);
        }
    }
    assert!(!has(&render(&["crds.install=false"]), "CustomResourceDefinition"));
}

#[test]
fn what_up_applies_is_in_the_chart() {
    let objects = render(&["hollowHosts.big.replicas=3", "hollow.readReferences=true"]);
    let bare: Vec<Value> = objects.iter().map(without_labels).collect();
    let files = fs::read_dir(format!("{CHART}/files")).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|path| path.is_file()) {
        let text = fs::read_to_string(file).unwrap();
        for document in serde_norway::Deserializer::from_str(&text) {
            let wanted = Value::deserialize(document).unwrap();
            // helm makes the one, the API server the other.
            let is_theirs = ["kube-node-system", "kube-node-lease"].contains(&name(&wanted));
            assert_eq!(bare.contains(&wanted), !is_theirs, "{} {}", wanted["kind"], name(&wanted));
        }
    }
    let may_read =
        |objects: &[Value]| objects.iter().any(|object| name(object) == "kube-node-hollow-references");
    assert!(may_read(&objects) && !may_read(&render(&[])), "no right to read Secrets by default");
    let without = render(&[
        "admissionPolicies.enabled=false",
        "machines.createNamespace=false",
        "priorityAndFairness.enabled=false",
    ]);
    let kinds = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Namespace"];
    for kind in kinds.into_iter().chain(["FlowSchema", "PriorityLevelConfiguration"]) {
        assert!(has(&objects, kind) && !has(&without, kind), "{kind}");
    }
}

#[test]
fn protected_labels_are_refused_unless_they_are_allowed() {
    let name_of = "kube-node-protected-labels";
    let policies = |objects: &[Value]| {
        let kinds = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
        let named = |kind| all(objects, kind).iter().filter(|object| name(object) == name_of).count();
        (kinds.map(named), all(objects, kinds[0]).len())
    };
    let (usual, count) = policies(&render(&[]));
    assert_eq!(usual, [1, 1]);
    assert_eq!(policies(&render(&["admissionPolicies.allowProtectedLabels=true"])), ([0, 0], count - 1));
}

#[test]
fn machines_are_confined() {
    let ports = |set: &[&str]| -> Vec<i64> {
        let objects = render(set);
        let spec = one(&objects, "NetworkPolicy", "kube-node-machines")["spec"].clone();
        assert_eq!(spec["policyTypes"][0], "Ingress");
        assert!(spec["ingress"].is_null(), "nobody calls them");
        spec["egress"][0]["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| port["port"].as_i64().unwrap())
            .collect()
    };
    assert_eq!(ports(&[]), [53, 53, 5353, 5353, 443, 6443, 8443, 16443]);
    let further = |server: &str| ports(&[&format!("machines.apiServer=https://{server}")]).split_off(8);
    assert_eq!(further("192.0.2.1:7443"), [7443]);
    assert_eq!(further("192.0.2.1:7443/k8s/clusters/a"), [7443]);
    assert_eq!(further("api.example.com"), [0_i64; 0]);
    let objects = render(&[]);
    let labels = &one(&objects, "Namespace", "kubemark")["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "baseline");
    assert!(all(&render(&["networkPolicy.enabled=false"]), "NetworkPolicy").is_empty());
}

#[test]
fn jobs_have_the_least_rights() {
    let objects = render(&["autoscaler.enabled=true", "autoscaler.clientNamespace=kube-system"]);
    for (secret, namespace) in
        [("kube-node-autoscaler-server", "kube-node-system"), ("kube-node-autoscaler-client", "kube-system")]
    {
        assert_eq!(one(&objects, "Secret", secret)["metadata"]["namespace"], namespace);
        assert!(one(&objects, "Secret", secret)["data"].is_null(), "an upgrade would take the content away");
        let role = one(&objects, "Role", secret);
        assert_eq!(role["metadata"]["namespace"], namespace);
        let wanted = json!([{
            "apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": ["get", "patch"],
        }]);
        assert_eq!(role["rules"], wanted);
    }
    let verbs = |objects: &[Value]| {
        let rules = one(objects, "ClusterRole", "kube-node-uninstall")["rules"].as_array().unwrap().clone();
        rules.into_iter().map(|rule| rule["verbs"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(verbs(&objects), [json!(["list"]), json!(["list"])]);
    let deleting = render(&["uninstall.deleteNodes=true"]);
    assert_eq!(verbs(&deleting), [json!(["list", "delete"]), json!(["list", "delete"])]);
    for object in all(&objects, "ClusterRole").into_iter().chain(all(&objects, "ClusterRoleBinding")) {
        let is_hook = object["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete";
        assert_eq!(is_hook, name(object) == "kube-node-uninstall");
    }
    let certificates = one(&objects, "CronJob", "kube-node-certificates");
    assert_eq!(pod(certificates)["spec"]["serviceAccountName"], "kube-node-certificates", "that of the job");
    assert_eq!(certificates["spec"]["schedule"], "17 3 * * *");
    let job = all(&objects, "Job").into_iter().find(|job| name(job) != "kube-node-uninstall").unwrap();
    assert_eq!(args(certificates), args(job));
    let test = one(&objects, "ClusterRole", "kube-node-test");
    let wanted = json!([{
        "apiGroups": ["kube-node.io"], "resources": ["nodeclasses"], "verbs": ["list", "watch", "create", "delete"],
    }]);
    assert_eq!((&test["rules"], &test["metadata"]["annotations"]["helm.sh/hook"]), (&wanted, &json!("test")));
}

#[test]
fn no_job_outlives_its_time() {
    for (set, seconds) in [(&[][..], 285), (&["uninstall.timeout=1h30m"], 5_445)] {
        let objects = render(set);
        let job = one(&objects, "Job", "kube-node-uninstall");
        assert_eq!(job["spec"]["activeDeadlineSeconds"], seconds);
    }
    for job in all(&render(&["autoscaler.enabled=true"]), "Job") {
        assert!(job["spec"]["activeDeadlineSeconds"].is_u64(), "{}", name(job));
    }
}

#[test]
fn hollow_kubelets_have_an_identity_of_their_own() {
    let objects = render(&[]);
    let rule = json!({
        "apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["kube-node-hollow"], "verbs": ["impersonate"],
    });
    assert_eq!(one(&objects, "Role", "kube-node-operator-hollow")["rules"], json!([rule]));
}

#[test]
fn kubelets_are_served_at_the_address_of_the_pod() {
    let pod = |objects: &[Value], kind, of: &str| one(objects, kind, of)["spec"]["template"]["spec"].clone();
    let flags = |pod: &Value| -> Vec<String> {
        let args = pod["containers"][0]["args"].as_array().unwrap().iter().filter_map(Value::as_str);
        args.filter(|arg| arg.starts_with("--kubelet-")).map(ToOwned::to_owned).collect()
    };
    let ports = |objects: &[Value]| {
        let rules = one(objects, "NetworkPolicy", "kube-node")["spec"]["ingress"].clone();
        rules.as_array().unwrap().iter().any(|rule| rule["ports"][0]["endPort"] == 12_000)
    };
    let own = [
        "hollow.endpoints.ports=11000-12000",
        "hollow.endpoints.tlsSecretName=kubelets",
        "hollowHosts.big.replicas=1",
    ];
    let served = render(&own);
    for (kind, of) in [("Deployment", "kube-node-operator"), ("StatefulSet", "kube-node-hollow-big")] {
        let pod = pod(&served, kind, of);
        let wanted =
            ["--kubelet-address=$(POD_IP)", "--kubelet-ports=11000-12000", "--kubelet-tls-dir=/kubelets"];
        assert_eq!(flags(&pod), wanted, "{kind}");
        assert_eq!(pod["volumes"][0]["secret"]["secretName"], "kubelets", "{kind}");
    }
    assert!(ports(&served));
    let none = render(&["hollow.endpoints.enabled=false", "hollow.endpoints.ports=11000-12000"]);
    assert!(flags(&pod(&none, "Deployment", "kube-node-operator")).is_empty() && !ports(&none));
}

#[test]
fn certificates_come_from_three_sources() {
    let secret_of = |objects: &[Value]| {
        let operator = one(objects, "Deployment", "kube-node-operator");
        operator["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let job = render(&["autoscaler.enabled=true"]);
    assert_eq!(secret_of(&job), "kube-node-autoscaler-server");
    assert!(!has(&job, "Certificate"));
    let own = render(&[
        "autoscaler.enabled=true",
        "autoscaler.certificates.source=Secret",
        "autoscaler.certificates.secretName=own",
    ]);
    assert_eq!(secret_of(&own), "own");
    assert!(!has(&own, "Secret") && !has(&own, "Certificate") && all(&own, "Job").len() == 1);
    let manager = render(&["autoscaler.enabled=true", "autoscaler.certificates.source=CertManager"]);
    assert_eq!(secret_of(&manager), "kube-node-autoscaler-server");
    assert_eq!((all(&manager, "Issuer").len(), all(&manager, "Certificate").len()), (2, 3));
    let names = &one(&manager, "Certificate", "kube-node-autoscaler-server")["spec"]["dnsNames"];
    assert!(names.as_array().unwrap().contains(&json!("kube-node-autoscaler.kube-node-system.svc")));
    let theirs = render(&[
        "autoscaler.enabled=true",
        "autoscaler.certificates.source=CertManager",
        "autoscaler.certificates.issuerRef.name=theirs",
        "autoscaler.certificates.issuerRef.kind=ClusterIssuer",
        "autoscaler.clientNamespace=kube-system",
    ]);
    assert_eq!((all(&theirs, "Issuer").len(), all(&theirs, "Certificate").len()), (0, 2));
    let client = one(&theirs, "Certificate", "kube-node-autoscaler-client");
    assert_eq!(client["metadata"]["namespace"], "kube-system");
    assert_eq!(client["spec"]["issuerRef"], json!({"name": "theirs", "kind": "ClusterIssuer"}));
    // The same port everywhere.
    let other = render(&["autoscaler.enabled=true", "autoscaler.port=9000"]);
    assert_eq!(one(&other, "Service", "kube-node-autoscaler")["spec"]["ports"][0]["port"], 9000);
    let ingress = &one(&other, "NetworkPolicy", "kube-node")["spec"]["ingress"];
    assert_eq!(ingress[2]["ports"][0]["port"], 9000);
}

#[test]
fn traces_go_where_they_are_asked_to() {
    let variables = |objects: &[Value]| -> Vec<(String, String)> {
        let operator = one(objects, "Deployment", "kube-node-operator");
        let all = operator["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let traces = all.iter().filter(|variable| text(&variable["name"]).starts_with("OTEL_"));
        traces.map(|variable| (text(&variable["name"]), text(&variable["value"]))).collect()
    };
    let of = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let ports = |objects: &[Value]| {
        let egress = &one(objects, "NetworkPolicy", "kube-node")["spec"]["egress"][0]["ports"];
        let ports = egress.as_array().unwrap().iter().skip(4).map(|port| port["port"].as_u64().unwrap());
        ports.collect::<Vec<_>>()
    };
    let without = render(&[]);
    assert_eq!((variables(&without), ports(&without)), (Vec::new(), vec![443, 6443, 8443, 16443]));
    let process =
        ("OTEL_RESOURCE_ATTRIBUTES", "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME)");
    let plain = render(&["tracing.endpoint=http://collector.a:4317"]);
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.a:4317");
    assert_eq!(variables(&plain), of(&[endpoint, process]));
    assert_eq!(ports(&plain), [443, 6443, 8443, 16443, 4317]);
    let objects = render(&[
        "tracing.endpoint=https://[2001:db8::1]:9317",
        "tracing.percent=7",
        "tracing.tls.secretName=collector",
        "tracing.tls.clientCertificate=true",
    ]);
    let wanted = of(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://[2001:db8::1]:9317"),
        process,
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.07"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/collector/ca.crt"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/collector/tls.crt"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/collector/tls.key"),
    ]);
    assert_eq!(variables(&objects), wanted);
    let pod = &one(&objects, "Deployment", "kube-node-operator")["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "collector");
    assert_eq!(pod["containers"][0]["volumeMounts"][0]["mountPath"], "/collector");
}

#[test]
fn options_are_off_until_asked_for() {
    let kinds = ["ServiceMonitor", "PrometheusRule", "ConfigMap"];
    let copy = copy_of_chart("options", "0.0.1", |chart| {
        fs::create_dir_all(chart.join("rules")).unwrap();
        fs::create_dir_all(chart.join("dashboards")).unwrap();
        let rules = "groups:\n  - name: own\n    rules:\n      - alert: A\n        annotations: {summary: \"{{ $labels.a }}\"}\n";
        fs::write(chart.join("rules/own.yaml"), rules).unwrap();
        fs::write(chart.join("dashboards/own.json"), "{\"title\": \"{{x}}\"}\n").unwrap();
    });
    let chart = copy.to_str().unwrap();
    let without = render_chart(chart, &[]).unwrap();
    assert!(!kinds[..3].iter().any(|kind| has(&without, kind)));
    let with = render_chart(chart, &[EVERYTHING, &["serviceMonitor.labels.a=b"]].concat()).unwrap();
    let monitor = one(&with, "ServiceMonitor", "kube-node-operator");
    assert_eq!(monitor["metadata"]["labels"]["a"], "b");
    let service = one(&with, "Service", "kube-node-operator");
    for (key, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(service["metadata"]["labels"][key], *value);
    }
    let rule = one(&with, "PrometheusRule", "own");
    assert_eq!(rule["spec"]["groups"][0]["rules"][0]["annotations"]["summary"], "{{ $labels.a }}");
    let dashboard = one(&with, "ConfigMap", "own-dashboard");
    assert_eq!(dashboard["data"]["own.json"], "{\"title\": \"{{x}}\"}\n");
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    fs::remove_dir_all(copy.parent().unwrap()).unwrap();
    for (value, kind) in [
        ("podDisruptionBudget.enabled=false", "PodDisruptionBudget"),
        ("networkPolicy.enabled=false", "NetworkPolicy"),
        ("uninstall.hook=false", "Job"),
    ] {
        assert!(has(&render(&[]), kind) && !has(&render(&[value]), kind), "{value}");
    }
}
