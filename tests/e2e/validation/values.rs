//! Values that the API server would refuse later on a Node: the schema refuses them first, and says what to write.

use serde_json::{Value, json};

use super::Case;

/// What a label, a taint or an annotation must not be, in the template of either kind.
pub fn template_cases() -> Vec<Case> {
    let long = "x".repeat(64);
    let key = "the key of a label has at most 63 letters";
    let value = "the value of a label has at most 63 letters";
    let label = |key: &str| json!({"labels": {key: "x"}});
    let taint = |key: &str, value: &str, effect: &str| json!({"taints": [{"key": key, "value": value, "effect": effect}]});
    let startup = |key: &str| json!({"startupTaints": [{"key": key, "effect": "NoSchedule"}]});
    let case = |name, template, refusal| (name, "/spec/template", template, refusal);
    let mut cases = vec![
        case(
            "odd but valid labels",
            json!({"labels": {"A": "", "a.b/C_d-e.f": "A.b_c-9", "x".repeat(63): "x".repeat(63)}}),
            "",
        ),
        case("a key with a space", label("a b"), key),
        case("a key without a name", label("example.com/"), key),
        case("an empty key", label(""), key),
        case("a key with an empty prefix", label("/a"), key),
        case("a key with two slashes", label("a/b/c"), key),
        case("a prefix in capitals", label("Example.com/a"), key),
        case("a key that ends with a hyphen", label("a-"), key),
        case("a key that is too long", label(&long), key),
        case("a prefix that is too long", label(&format!("{}/a", "p".repeat(254))), key),
        case("the longest prefix", label(&format!("{}/a", "p".repeat(253))), ""),
        case("a value with a space", json!({"labels": {"a": "x y"}}), value),
        case("a value that begins with a dot", json!({"labels": {"a": ".x"}}), value),
        case("a value that is too long", json!({"labels": {"a": long}}), "may not be more than 63"),
        case("a value that is a number", json!({"labels": {"a": 1}}), "must be of type string"),
        case(
            "odd but valid annotations",
            json!({"annotations": {"Example.COM/Owner": "any text: ä\n\u{1F980}", "a": ""}}),
            "",
        ),
        case(
            "an annotation's key with a space",
            json!({"annotations": {"a b": "x"}}),
            "the key of an annotation has at most 63 letters",
        ),
        case("a long annotation", json!({"annotations": {"a": "x".repeat(4096)}}), ""),
        case(
            "an annotation that is too long",
            json!({"annotations": {"a": "x".repeat(4097)}}),
            "may not be more than 4096",
        ),
        case(
            "annotations that are too long together",
            json!({"annotations": annotations(16, "x", 4096)}),
            "annotations are more than 65536 bytes together",
        ),
        case("annotations of as many bytes as fit", json!({"annotations": annotations(15, "x", 4096)}), ""),
        case(
            "annotations counted in bytes",
            json!({"annotations": annotations(10, "ä", 4096)}),
            "annotations are more than 65536 bytes together",
        ),
        case(
            "taints of long ago",
            json!({"annotations": {"scheduler.alpha.kubernetes.io/taints": "x"}}),
            "mean nothing any more",
        ),
        case(
            "odd but valid taints",
            json!({"taints": [
            {"key": "a.b/C", "value": "", "effect": "NoSchedule"}, {"key": "a.b/C", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]}),
            "",
        ),
        case("the taint of hollow nodes", taint("kube-node.io/hollow", "", "NoSchedule"), ""),
        case(
            "a mistyped effect",
            taint("a", "b", "NoScedule"),
            "supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
        case("no effect", json!({"taints": [{"key": "a"}]}), "effect: Required value"),
        case("a taint without a key", taint("", "b", "NoSchedule"), "write at most 63 letters"),
        case("a taint's key with a space", taint("a b", "b", "NoSchedule"), "write at most 63 letters"),
        case("a taint's value with a space", taint("a", "b c", "NoSchedule"), "write at most 63 letters"),
        case("a taint's value that is too long", taint("a", &long, "NoSchedule"), "may not be more than 63"),
        case(
            "one taint twice",
            json!({"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "a", "value": "c", "effect": "NoSchedule"}]}),
            "two taints have the same key and effect",
        ),
        case(
            "a taint of ours",
            startup("kube-node.io/uninitialized"),
            "taints under kube-node.io/ are the controller's",
        ),
        case(
            "a taint like one of ours",
            taint("kube-node.io/anything", "", "NoSchedule"),
            "taints under kube-node.io/ are the controller's",
        ),
        case(
            "what a cloud-controller-manager takes off",
            startup("node.cloudprovider.kubernetes.io/uninitialized"),
            "",
        ),
        case(
            "what nobody could keep",
            taint("node.cloudprovider.kubernetes.io/uninitialized", "", "NoSchedule"),
            "Kubernetes or cluster-autoscaler sets",
        ),
    ];
    for reserved in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
    ] {
        cases.push(case(reserved, startup(reserved), "Kubernetes or cluster-autoscaler sets"));
        cases.push(case(reserved, taint(reserved, "", "NoExecute"), "Kubernetes or cluster-autoscaler sets"));
    }
    cases
}

fn annotations(count: usize, letter: &str, letters: usize) -> Value {
    (0..count)
        .map(|at| (format!("a{at}"), Value::from(letter.repeat(letters))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Amounts of a class, and what becomes a label of its Nodes.
pub fn amount_cases() -> Vec<Case> {
    let whole = "pods and extended resources come in whole numbers";
    let name = "the name of a resource has at most 63 letters";
    let no_quantity = "write for example 4, 500m or 16Gi";
    vec![
        (
            "odd but valid amounts",
            "/spec/capacity",
            json!({"cpu": "+1.5", "memory": "1e9", "pods": "3000m", "hugepages-2Mi": "0",
            "a.b/C": "1e3", "foo": ".5", "ephemeral-storage": "15.625000000000000001Gi", "example.com/a": 7}),
            "",
        ),
        ("a resource of a bad name", "/spec/capacity/a b", json!("1"), name),
        ("a resource without a name", "/spec/capacity/example.com~1", json!("1"), name),
        ("half a pod", "/spec/capacity/pods", json!("1.5"), whole),
        ("half a device", "/spec/capacity/example.com~1gpu", json!("500m"), whole),
        ("nearly a device", "/spec/capacity/example.com~1gpu", json!("0.999999999"), whole),
        ("more devices than can be counted", "/spec/capacity/example.com~1gpu", json!("9P"), whole),
        ("half of what is no device", "/spec/capacity/requests.example.com~1gpu", json!("500m"), ""),
        ("an empty amount", "/spec/capacity/cpu", json!(""), no_quantity),
        ("a suffix alone", "/spec/capacity/memory", json!("Gi"), no_quantity),
        ("a sign alone", "/spec/capacity/cpu", json!("-"), no_quantity),
        ("a suffix of nobody", "/spec/capacity/memory", json!("4gb"), no_quantity),
        ("an amount with a space", "/spec/capacity/memory", json!("4 Gi"), no_quantity),
        ("a fraction as a number", "/spec/capacity/cpu", json!(1.5), "must be of type integer,string"),
        ("an amount beyond all", "/spec/capacity/memory", json!("1e99"), "an amount is less than 8Ei"),
        (
            "an amount that would be capped",
            "/spec/capacity/memory",
            json!("9Ei"),
            "an amount is less than 8Ei",
        ),
        ("a negative reservation", "/spec/reserved", json!({"cpu": "-100m"}), "an amount cannot be negative"),
        (
            "a machine type with a space",
            "/spec/machineType",
            json!("m medium"),
            "it becomes the value of a label",
        ),
        (
            "a machine type with a slash",
            "/spec/machineType",
            json!("m/medium"),
            "it becomes the value of a label",
        ),
        ("an odd machine type", "/spec/machineType", json!("M.x_2-large"), ""),
        ("no machine type", "/spec/machineType", json!(""), ""),
        (
            "a controller with a slash",
            "/spec",
            json!({"nodeController": "example.com/x"}),
            "it becomes the value of a label",
        ),
        ("a controller of others", "/spec", json!({"nodeController": "processes.example.com"}), ""),
        ("the longest name", "/metadata/name", json!("n".repeat(63)), ""),
        ("a name too long", "/metadata/name", json!("n".repeat(64)), "use 63 characters or fewer"),
        ("a longest duration", "/spec/deletionTimeout", json!("99999999999h"), ""),
        (
            "what a duration is",
            "/spec/deletionTimeout",
            json!("1d"),
            "write a duration, for example 30s or 1h30m",
        ),
        (
            "a version without a v",
            "/spec/provisioning",
            json!({"kubelet": {"version": "1.36.3"}}),
            "write a version, for example v1.36.3",
        ),
        ("an absent value", "/spec/machineType", json!(null), ""),
    ]
}

/// What a set must not say.
pub fn set_cases() -> Vec<Case> {
    let remediation = |change: Value| {
        let mut condition = json!({"type": "Ready", "status": "False", "for": "5m"});
        condition.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"unhealthyConditions": [condition]})
    };
    let update = |field: &str, value: Value| json!({"rollingUpdate": {field: value}});
    vec![
        ("a class of a bad name", "/spec/nodeClassName", json!("Medium"), "it is the name of an object"),
        ("a class of a long name", "/spec/nodeClassName", json!("n".repeat(64)), "may not be more than 63"),
        ("a class with a dot", "/spec/nodeClassName", json!("a.b"), ""),
        (
            "a revision with a space",
            "/spec/revision",
            json!("v1 0"),
            "write a revision as kube-node rollout history",
        ),
        (
            "a revision of another class",
            "/spec/revision",
            json!("gpu-v1-0a"),
            "write a revision as kube-node",
        ),
        (
            "a machine type with a space",
            "/spec/classOverrides",
            json!({"machineType": "m medium"}),
            "it becomes the value of a label",
        ),
        ("half a pod", "/spec/classOverrides", json!({"capacity": {"pods": "1.5"}}), "come in whole numbers"),
        (
            "reserved above capacity",
            "/spec/classOverrides",
            json!({"capacity": {"cpu": "1"}, "reserved": {"cpu": "2"}}),
            "reserved is larger than capacity",
        ),
        (
            "reserved that fits the class's capacity",
            "/spec/classOverrides",
            json!({"capacity": {"cpu": "1"}, "reserved": {"memory": "2Gi"}}),
            "",
        ),
        (
            "a condition of a bad type",
            "/spec/remediation",
            remediation(json!({"type": "Ready?"})),
            "write at most 63 letters",
        ),
        (
            "a condition of an odd type",
            "/spec/remediation",
            remediation(json!({"type": "example.com/Disk_0"})),
            "",
        ),
        (
            "a status nobody knows",
            "/spec/remediation",
            remediation(json!({"status": "Bad"})),
            "supported values: \"True\", \"False\", \"Unknown\"",
        ),
        (
            "a condition for a while",
            "/spec/remediation",
            remediation(json!({"for": "a while"})),
            "write a duration",
        ),
        (
            "a timeout of no unit",
            "/spec/drain",
            json!({"timeout": "10"}),
            "write a duration, for example 30s or 1h30m",
        ),
        ("an age of no unit", "/spec/expireAfter", json!("30 days"), "write a duration"),
        (
            "a surge beyond all",
            "/spec/strategy",
            update("maxSurge", json!(3_000_000_000_i64)),
            "write a number of nodes",
        ),
        ("a negative surge", "/spec/strategy", update("maxSurge", json!(-1)), "write a number of nodes"),
        (
            "a partition beyond all",
            "/spec/strategy",
            update("partition", json!(3_000_000_000_i64)),
            "partition",
        ),
        ("repairs beyond all", "/spec/remediation", json!({"maxInFlight": 3_000_000_000_i64}), "maxInFlight"),
        (
            "failures of no unit",
            "/spec/classOverrides",
            json!({"failures": {"unhealthyDuration": "5", "turnUnhealthyAfter": true}}),
            "write a duration",
        ),
    ]
}
