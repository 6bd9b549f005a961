//! Every rule of the schema: what it refuses, and that it says what to write instead.

use kube::Api;
use kube_node_api::{NodeClass, NodeSet};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::class_spec;

mod accepted;
mod pods;
mod stored;
mod values;

/// A change of a good object, by JSON pointer, and what the refusal says; empty: it is accepted.
type Case = (&'static str, &'static str, Value, &'static str);

fn class_cases() -> Vec<Case> {
    vec![
        ("as it is", "", json!(null), ""),
        ("extended resources", "/spec/capacity/example.com~1gpu", json!("2"), ""),
        ("an amount as a number", "/spec/capacity/cpu", json!(4), ""),
        ("failures", "/spec/failures", json!({"unhealthyDuration": "40s", "turnUnhealthyAfter": true}), ""),
        ("no controller", "/spec/nodeController", json!(""), "nodeController"),
        ("kubemark", "/spec/nodeController", json!("kubemark"), ""),
        ("no capacity", "/spec/capacity", json!(null), "a hollow machine needs a capacity"),
        ("no quantity", "/spec/capacity/cpu", json!("four"), "write for example 4, 500m or 16Gi"),
        ("a negative amount", "/spec/capacity/cpu", json!("-1"), "an amount cannot be negative"),
        (
            "reserved that capacity lacks",
            "/spec/reserved/example.com~1gpu",
            json!("1"),
            "add it to capacity or take it out of reserved",
        ),
        ("reserved above capacity", "/spec/reserved/cpu", json!("5"), "reserved is larger than capacity"),
        ("no duration", "/spec/deletionTimeout", json!("soon"), "deletionTimeout"),
        ("a duration without a unit", "/spec/deletionTimeout", json!("30"), "deletionTimeout"),
        (
            "neither kind of failure",
            "/spec/failures",
            json!({"unhealthyDuration": "5s"}),
            "set exactly one of turnUnhealthyPeriodically and turnUnhealthyAfter",
        ),
        (
            "both kinds of failure",
            "/spec/failures",
            json!({"unhealthyDuration": "5s", "healthyDuration": "5s", "turnUnhealthyPeriodically": true, "turnUnhealthyAfter": true}),
            "set exactly one of turnUnhealthyPeriodically and turnUnhealthyAfter",
        ),
        (
            "turns without health",
            "/spec/failures",
            json!({"unhealthyDuration": "5s", "turnUnhealthyPeriodically": true}),
            "turnUnhealthyPeriodically needs healthyDuration",
        ),
        (
            "a phase of a millisecond",
            "/spec/failures",
            json!({"unhealthyDuration": "5s", "healthyDuration": "0.9s99ms", "turnUnhealthyPeriodically": true}),
            "healthyDuration is at least 1s",
        ),
        (
            "an unhealthy phase of a millisecond",
            "/spec/failures",
            json!({"unhealthyDuration": "1ms", "healthyDuration": "1s", "turnUnhealthyPeriodically": true}),
            "unhealthyDuration is at least 1s",
        ),
        (
            "nodes that are never healthy",
            "/spec/failures",
            json!({"unhealthyDuration": "1s", "healthyDuration": "0s", "turnUnhealthyPeriodically": true}),
            "",
        ),
        (
            "reboots",
            "/spec/failures",
            json!({"unhealthyDuration": "5s", "healthyDuration": "5s", "turnUnhealthyPeriodically": true, "reboot": true}),
            "",
        ),
        (
            "a reboot of what does not come back",
            "/spec/failures",
            json!({"unhealthyDuration": "5s", "turnUnhealthyAfter": true, "reboot": true}),
            "reboot is for nodes that come back",
        ),
        (
            "an unknown mode",
            "/spec/failures",
            json!({"unhealthyDuration": "5s", "turnUnhealthyAfter": true, "mode": "Loud"}),
            "Unsupported value: \"Loud\"",
        ),
        (
            "our label",
            "/spec/template",
            json!({"labels": {"kube-node.io/nodeset": "x"}}),
            "labels under kube-node.io/ are the controller's",
        ),
        (
            "a host name for all nodes",
            "/spec/template",
            json!({"labels": {"kubernetes.io/hostname": "x"}}),
            "the label kubernetes.io/hostname is the name of each node: leave it out",
        ),
        (
            "two machine types",
            "/spec/template",
            json!({"labels": {"node.kubernetes.io/instance-type": "x"}}),
            "machineType is the label node.kubernetes.io/instance-type: leave one of them out",
        ),
        (
            "our annotation",
            "/spec/template",
            json!({"annotations": {"kube-node.io/x": "x"}}),
            "annotations under kube-node.io/ are the controller's",
        ),
        ("an exit code of 300", "/spec/hollow", json!({"containers": {"exitCode": 300}}), "exitCode"),
        (
            "a kubelet without a version",
            "/spec/provisioning",
            json!({"kubelet": {"version": "latest"}}),
            "version",
        ),
        (
            "credentials",
            "/spec/credentialsSecretRef",
            json!({"name": "x"}),
            "a hollow machine needs no credentials",
        ),
        ("kubemark's settings", "/spec/kubemark", json!({"image": "x:1"}), "kubemark speaks of pods"),
        ("a price", "/spec/price", json!("0.25"), ""),
        ("a price with a currency", "/spec/price", json!("$1"), "write for example \"0.25\""),
        ("a negative price", "/spec/price", json!("-1"), "write for example \"0.25\""),
        (
            "files",
            "/spec/provisioning",
            json!({"files": [{"path": "/a", "content": "b"}]}),
            "a hollow machine has neither files nor commands",
        ),
        (
            "commands",
            "/spec/provisioning",
            json!({"commands": ["true"]}),
            "a hollow machine has neither files nor commands",
        ),
        ("everything of a pod", "/spec", kubemark(&json!({})), ""),
        (
            "a file with two sources",
            "/spec",
            kubemark(&json!({"provisioning": {"files": [
                {"path": "/a", "content": "b", "configMapKeyRef": {"name": "n", "key": "k"}}
            ]}})),
            "set exactly one of content, secretKeyRef and configMapKeyRef",
        ),
        (
            "two files of one path",
            "/spec",
            kubemark(&json!({"provisioning": {"files": [
                {"path": "/a", "content": "b"}, {"path": "/a", "content": "c"}
            ]}})),
            "Duplicate value",
        ),
        (
            "an image without tag and version",
            "/spec",
            kubemark(
                &json!({"provisioning": null, "kubemark": {"image": "registry.example.com:5000/kubemark"}}),
            ),
            "kubemark.image needs a tag, or provisioning.kubelet.version",
        ),
        ("hosts", "/spec/hollow", json!({"hosts": "big-0"}), ""),
        (
            "hosts of a bad name",
            "/spec/hollow",
            json!({"hosts": "Big.0"}),
            "hollow.hosts is the name of a group of hosts",
        ),
        (
            "a start time without a unit",
            "/spec/hollow",
            json!({"containers": {"startTime": "5"}}),
            "startTime",
        ),
        ("no events", "/spec/hollow", json!({"containers": {"events": "None", "readyTime": "2s"}}), ""),
        (
            "unknown events",
            "/spec/hollow",
            json!({"containers": {"events": "Some"}}),
            "Unsupported value: \"Some\"",
        ),
        ("used cpu and memory", "/spec/hollow", json!({"containers": {"cpu": "10m", "memory": "5Mi"}}), ""),
        ("no cpu", "/spec/hollow", json!({"containers": {"cpu": "0"}}), "write for example 10m"),
        ("odd memory", "/spec/hollow", json!({"containers": {"memory": "much"}}), "write for example"),
        ("an unknown field", "/spec/capcity", json!({}), "unknown field \"spec.capcity\""),
    ]
}

/// The spec of a class of pods.
fn kubemark(change: &Value) -> Value {
    let mut spec = json!({
        "nodeController": "kubemark",
        "capacity": {"cpu": "4", "memory": "16Gi"},
        "credentialsSecretRef": {"name": "hosting-cluster"},
        "provisioning": {
            "kubelet": {"version": "v1.36.3"},
            "containerRuntime": {"name": "containerd", "version": "2.1.0"},
            "files": [
                {"path": "/etc/a", "owner": "root:root", "permissions": "0640", "content": "a=b"},
                {"path": "/etc/b", "secretKeyRef": {"name": "s", "key": "k"}},
            ],
            "commands": ["true"],
        },
        "kubemark": {
            "image": "registry.example.com/kubemark",
            "resources": {"requests": {"cpu": "20m", "memory": "50Mi"}, "limits": {"cpu": "100m"}},
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": "pull"}],
            "extraArgs": ["--v=2"],
        },
    });
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn set_cases() -> Vec<Case> {
    vec![
        ("as it is", "", json!(null), ""),
        ("the longest name", "/metadata/name", json!("n".repeat(56)), ""),
        ("a name too long", "/metadata/name", json!("n".repeat(57)), "use 56 characters or fewer"),
        ("a name with a dot", "/metadata/name", json!("a.b"), "use no dots"),
        ("negative replicas", "/spec/replicas", json!(-1), "spec.replicas"),
        ("too many replicas", "/spec/replicas", json!(100_001), "spec.replicas"),
        ("replicas as a text", "/spec/replicas", json!("3"), "spec.replicas"),
        ("no class", "/spec/nodeClassName", json!(""), "nodeClassName"),
        (
            "an override that is no quantity",
            "/spec/classOverrides",
            json!({"capacity": {"cpu": "x"}}),
            "write for example 4, 500m or 16Gi",
        ),
        ("negative minReadyTime", "/spec/minReadyTime", json!("-1s"), "minReadyTime"),
        (
            "a minReadyTime of a day",
            "/spec",
            json!({"nodeClassName": "valid", "minReadyTime": "24h", "progressDeadline": "25h"}),
            "",
        ),
        ("a minReadyTime over a day", "/spec/minReadyTime", json!("24h1s"), "minReadyTime is 24h at most"),
        (
            "a deadline over a week",
            "/spec/progressDeadline",
            json!("168h1s"),
            "progressDeadline is 168h at most",
        ),
        ("an unknown order", "/spec/scaleDown", json!({"order": "Random"}), "Unsupported value: \"Random\""),
        (
            "our label",
            "/spec/template",
            json!({"labels": {"kube-node.io/nodeset": "x"}}),
            "labels under kube-node.io/ are the controller's",
        ),
        ("autoscaling", "/spec/autoscaling", json!({"minReplicas": 0, "maxReplicas": 1}), ""),
        ("autoscaling from zero", "/spec/autoscaling", json!({"maxReplicas": 100_000}), ""),
        (
            "autoscaling without a maximum",
            "/spec/autoscaling",
            json!({"minReplicas": 1}),
            "spec.autoscaling.maxReplicas: Required value",
        ),
        (
            "a minimum over the maximum",
            "/spec/autoscaling",
            json!({"minReplicas": 3, "maxReplicas": 2}),
            "lower minReplicas or raise maxReplicas",
        ),
        (
            "a negative minimum",
            "/spec/autoscaling",
            json!({"minReplicas": -1, "maxReplicas": 2}),
            "minReplicas",
        ),
        ("a maximum of none", "/spec/autoscaling", json!({"maxReplicas": 0}), "maxReplicas"),
        (
            "every option",
            "/spec/autoscaling",
            json!({"maxReplicas": 2, "options": {"scaleDownUtilizationThreshold": "0.5",
                "scaleDownGpuUtilizationThreshold": "1", "scaleDownUnneededTime": "10m", "scaleDownUnreadyTime": "20m",
                "maxNodeProvisionTime": "1h30m", "maxNodeStartupTime": "90s", "zeroOrMaxNodeScaling": false,
                "ignoreDaemonSetsUtilization": true, "allowNonAtomicScaleUpToMax": false}}),
            "",
        ),
        (
            "a threshold in percent",
            "/spec/autoscaling",
            json!({"maxReplicas": 2, "options": {"scaleDownUtilizationThreshold": "50%"}}),
            "for example \"0.5\"",
        ),
        (
            "a time without a unit",
            "/spec/autoscaling",
            json!({"maxReplicas": 2, "options": {"scaleDownUnneededTime": "10"}}),
            "write a duration, for example 30s or 1h30m",
        ),
        (
            "a switch of another form",
            "/spec/autoscaling",
            json!({"maxReplicas": 2, "options": {"zeroOrMaxNodeScaling": "yes"}}),
            "must be of type boolean",
        ),
        (
            "an option that cluster-autoscaler does not have",
            "/spec/autoscaling",
            json!({"maxReplicas": 2, "options": {"scaleDownFast": true}}),
            "unknown field \"spec.autoscaling.options.scaleDownFast\"",
        ),
        (
            "overrides that nothing serves",
            "/spec/allowedOverrides",
            json!(["capacity"]),
            "unknown field \"spec.allowedOverrides\"",
        ),
        (
            "everything of a rollout",
            "/spec",
            json!({"replicas": 10, "nodeClassName": "valid", "minReadyTime": "5s", "progressDeadline": "10m",
                "paused": false, "revisionHistoryLimit": 10, "revision": "v1-0", "expireAfter": "720h",
                "strategy": {"type": "RollingUpdate", "replacement": "SurgeFirst",
                    "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0, "partition": 0}},
                "drain": {"timeout": "10m", "deleteEmptyDirData": true, "unmanagedPods": "Evict"},
                "remediation": {"nodeStartupTimeout": "10m", "maxUnhealthy": "40%", "maxInFlight": 2,
                    "unhealthyConditions": [{"type": "Ready", "status": "Unknown", "for": "5m"}]}}),
            "",
        ),
        (
            "a surge of nonsense",
            "/spec/strategy",
            json!({"rollingUpdate": {"maxSurge": "many"}}),
            "write a number of nodes, for example 2, or a percentage of replicas from 0% to 100%",
        ),
        (
            "a percentage over 100",
            "/spec/strategy",
            json!({"rollingUpdate": {"maxUnavailable": "101%"}}),
            "a percentage of replicas from 0% to 100%",
        ),
        ("no budget at all", "/spec/strategy", json!({"rollingUpdate": {"maxSurge": 0}}), "cannot both be 0"),
        (
            "no budget in two forms",
            "/spec/strategy",
            json!({"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": 0}}),
            "cannot both be 0",
        ),
        (
            "no surge, but one may be missing",
            "/spec/strategy",
            json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
            "",
        ),
        (
            "a partition of what nobody rolls",
            "/spec/strategy",
            json!({"type": "OnDelete", "rollingUpdate": {"partition": 1}}),
            "has no meaning with type OnDelete",
        ),
        ("a negative partition", "/spec/strategy", json!({"rollingUpdate": {"partition": -1}}), "partition"),
        (
            "a deadline under minReadyTime",
            "/spec",
            json!({"nodeClassName": "valid", "minReadyTime": "1m", "progressDeadline": "60s"}),
            "must be longer than minReadyTime",
        ),
        ("a timeout that is no duration", "/spec/drain", json!({"timeout": "soon"}), "spec.drain.timeout"),
        (
            "a policy nobody knows",
            "/spec/drain",
            json!({"unmanagedPods": "Kill"}),
            "Unsupported value: \"Kill\"",
        ),
        ("no repairs at once", "/spec/remediation", json!({"maxInFlight": 0}), "maxInFlight"),
    ]
}

/// What the server says to a strict dry run; empty when it accepts.
async fn verdict<K>(api: &Api<K>, mut object: Value, case: &Case) -> String
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let (_, pointer, value, _) = case;
    if let Some((parent, key)) = pointer.rsplit_once('/') {
        // A path that is not there yet is made on the way.
        let mut at = &mut object;
        for step in parent.split('/').skip(1) {
            at = &mut at[step];
        }
        at[key.replace("~1", "/")] = value.clone();
    }
    let url = format!("{}?dryRun=All&fieldValidation=Strict", api.resource_url());
    let request = http::Request::post(url)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&object).unwrap())
        .unwrap();
    match api.clone().into_client().request::<K>(request).await {
        Ok(_) => String::new(),
        Err(kube::Error::Api(status)) => status.message.clone(),
        Err(error) => panic!("{error}"),
    }
}

async fn check<K>(api: Api<K>, object: Value, cases: Vec<Case>)
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut wrong = Vec::new();
    for case in &cases {
        let said = verdict(&api, object.clone(), case).await;
        let (name, .., wanted) = case;
        if if wanted.is_empty() { !said.is_empty() } else { !said.contains(wanted) } {
            wrong.push(format!("{name}: wanted {wanted:?}, got {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_bad_class_is_refused_with_what_to_write() {
    let object = json!({"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass",
        "metadata": {"name": "valid"}, "spec": class_spec()});
    check(Api::<NodeClass>::all(CLUSTER.client().await), object, class_cases()).await;
}

#[tokio::test]
async fn a_value_that_no_node_or_pod_may_have_is_refused_in_a_class() {
    let object = json!({"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass",
        "metadata": {"name": "valid"}, "spec": class_spec()});
    let cases =
        [values::template_cases(), values::amount_cases(), pods::provisioning_cases(), pods::pod_cases()];
    check(Api::<NodeClass>::all(CLUSTER.client().await), object, cases.concat()).await;
}

#[tokio::test]
async fn a_value_that_no_node_may_have_is_refused_in_a_set() {
    let object = json!({"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeSet",
        "metadata": {"name": "valid"}, "spec": {"replicas": 1, "nodeClassName": "valid"}});
    let cases = [values::template_cases(), values::set_cases()].concat();
    check(Api::<NodeSet>::all(CLUSTER.client().await), object, cases).await;
}

#[tokio::test]
async fn a_bad_set_is_refused_with_what_to_write() {
    let object = json!({"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeSet",
        "metadata": {"name": "valid"}, "spec": {"replicas": 1, "nodeClassName": "valid"}});
    check(Api::<NodeSet>::all(CLUSTER.client().await), object, set_cases()).await;
}

#[test]
fn kubectl_explains_every_field_it_is_asked_for() {
    let text = CLUSTER.kubectl(&["explain", "nodeset.spec.replicas"]);
    assert!(text.contains("Number of Nodes"), "{text}");
    let text = CLUSTER.kubectl(&["explain", "nodeclass.spec.failures.unhealthyDuration"]);
    assert!(text.contains("length of each unhealthy phase"), "{text}");
    let text = CLUSTER.kubectl(&["get", "kube-node"]);
    drop(text); // the category is known, else kubectl would have failed
}
