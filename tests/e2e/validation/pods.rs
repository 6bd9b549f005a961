//! Values that the API server would refuse later on the pod of a machine, or that its Secret could not hold.

use serde_json::{Value, json};

use super::{Case, kubemark};

/// What a machine that is a pod begins with.
pub fn provisioning_cases() -> Vec<Case> {
    let file = |change: Value| {
        let mut file = json!({"path": "/a", "content": "b"});
        file.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        kubemark(&json!({"provisioning": {"kubelet": {"version": "v1.36.3"}, "files": [file]}}))
    };
    let files = |count: usize, letter: &str| {
        let file = |at: usize| json!({"path": format!("/{at}"), "content": letter.repeat(50_000)});
        kubemark(
            &json!({"provisioning": {"files": (1..=count).map(file).collect::<Vec<_>>()}, "kubemark": null}),
        )
    };
    let commands = |count: usize| {
        kubemark(&json!({"provisioning": {"commands": vec!["x".repeat(4096); count]}, "kubemark": null}))
    };
    let own = "are the machine's own";
    let owner = "write user and group, each root, nonroot or a number";
    let name = "it is the name of an object";
    let case = |name, spec, refusal| (name, "/spec", spec, refusal);
    vec![
        case(
            "odd but valid files",
            file(json!({"path": "/tmp/a:b c", "owner": "4294967295:nonroot", "permissions": "777"})),
            "",
        ),
        case("a path from nowhere", file(json!({"path": "etc/a"})), "write an absolute path"),
        case("a file instead of /tmp", file(json!({"path": "/tmp"})), own),
        case(
            "a file instead of the machine's state",
            file(json!({"path": "/var/run/kube-node/state/"})),
            own,
        ),
        case(
            "a file among what the machine is told",
            file(json!({"path": "/var/run/kube-node/machine/x"})),
            own,
        ),
        case("an owner nobody knows", file(json!({"owner": "admin"})), owner),
        case("an owner out of range", file(json!({"owner": "4294967296"})), owner),
        case("an owner of three parts", file(json!({"owner": "0:0:0"})), owner),
        case("no octal mode", file(json!({"permissions": "0888"})), "write an octal mode"),
        case(
            "a Secret of a bad name",
            file(json!({"content": null, "secretKeyRef": {"name": "My_Secret", "key": "k"}})),
            name,
        ),
        case(
            "a key of a bad name",
            file(json!({"content": null, "configMapKeyRef": {"name": "n", "key": "a b"}})),
            "it is a key of a Secret or ConfigMap",
        ),
        case("files as large as a Secret", files(20, "x"), ""),
        case("files larger than a Secret", files(21, "x"), "more than the 1000000 bytes"),
        case("files counted in bytes", files(11, "ä"), "more than the 1000000 bytes"),
        case("many commands", commands(32), ""),
        case("too many commands", commands(33), "all commands are more than 131072 bytes together"),
        case("credentials of a bad name", kubemark(&json!({"credentialsSecretRef": {"name": "a/b"}})), name),
    ]
}

/// What a machine's pod has besides.
pub fn pod_cases() -> Vec<Case> {
    let with =
        |field: &str, value: Value| kubemark(&json!({"kubemark": {"image": "kubemark:v1", field: value}}));
    let toleration = |toleration: Value| with("tolerations", json!([toleration]));
    let resources = |resources: Value| with("resources", resources);
    let image = |image: &str| kubemark(&json!({"kubemark": {"image": image}}));
    let nodes = |requirement: Value| {
        with(
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}),
        )
    };
    let pods = |term: Value| {
        with("affinity", json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}))
    };
    let weighted = |weight: i32, value: &str| {
        with(
            "affinity",
            json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": weight, "preference": {"matchExpressions": [{"key": "a", "operator": "In", "values": [value]}]}}]}}),
        )
    };
    let name = |name: &str| {
        with(
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": name, "operator": "In", "values": ["node-0"]}]}]}}}),
        )
    };
    let reference = "it is no reference of an image";
    let values = "In and NotIn need values";
    let qualified = "write at most 63 letters";
    let case = |name, spec, refusal| (name, "/spec", spec, refusal);
    vec![
        case("an image by digest", image(&format!("[::1]:5000/a-b/c__d.e@sha256:{}", "0".repeat(64))), ""),
        case("an image with a tag", image("Registry.example.com:5000/a/b:V1_2.3-x"), ""),
        case("an image with a space", image("a b:v1"), reference),
        case("an image in capitals", image("example.com/Kubemark:v1"), reference),
        case("an image with a newline", image("kubemark:v1\n"), reference),
        case(
            "a selector of a bad key",
            with("nodeSelector", json!({"a b": "x"})),
            "the key of a label has at most 63 letters",
        ),
        case(
            "a selector of a bad value",
            with("nodeSelector", json!({"a": "x y"})),
            "the value of a label has at most 63 letters",
        ),
        case(
            "a pull secret of a bad name",
            with("imagePullSecrets", json!([{"name": "My_Secret"}])),
            "it is the name of an object",
        ),
        case(
            "too many arguments",
            with("extraArgs", json!(vec!["--v=2"; 129])),
            "must have at most 128 items",
        ),
        case(
            "odd but valid tolerations",
            with(
                "tolerations",
                json!([{"operator": "Exists"}, {"key": "a", "operator": ""}, {"key": "a.b/C", "value": "", "effect": ""},
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1}]),
            ),
            "",
        ),
        case("a toleration of nothing", toleration(json!({})), "write operator: Exists, or add a key"),
        case("a toleration of a bad key", toleration(json!({"key": "a b"})), "it is the key of a taint"),
        case(
            "a toleration of a bad value",
            toleration(json!({"key": "a", "value": "b c"})),
            "it becomes the value of a label",
        ),
        case(
            "an operator nobody knows",
            toleration(json!({"key": "a", "operator": "In"})),
            "Unsupported value: \"In\"",
        ),
        case(
            "an effect nobody knows",
            toleration(json!({"key": "a", "effect": "NoScedule"})),
            "Unsupported value: \"NoScedule\"",
        ),
        case(
            "a value that nobody looks at",
            toleration(json!({"key": "a", "operator": "Exists", "value": "b"})),
            "operator Exists looks at no value",
        ),
        case(
            "a comparison of texts",
            toleration(json!({"key": "a", "operator": "Gt", "value": "b"})),
            "operators Lt and Gt compare numbers",
        ),
        case(
            "seconds of no eviction",
            toleration(json!({"key": "a", "operator": "Exists", "tolerationSeconds": 5})),
            "write effect: NoExecute",
        ),
        case(
            "odd but valid resources",
            resources(
                json!({"requests": {"cpu": 1, "hugepages-2Mi": "4Mi", "a.b/c": "1"}, "limits": {"cpu": "1", "hugepages-2Mi": "4Mi", "a.b/c": "1000m"}, "claims": []}),
            ),
            "",
        ),
        case(
            "a request above its limit",
            resources(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
            "a request is larger than its limit",
        ),
        case(
            "a request of no quantity",
            resources(json!({"requests": {"cpu": "two"}})),
            "write for example 4, 500m or 16Gi",
        ),
        case(
            "pods of a container",
            resources(json!({"limits": {"pods": "1"}})),
            "a container has cpu, memory",
        ),
        case(
            "a device without a limit",
            resources(json!({"requests": {"a.b/c": "1"}})),
            "write a limit that equals the request",
        ),
        case(
            "a device of another limit",
            resources(json!({"requests": {"a.b/c": "1"}, "limits": {"a.b/c": "2"}})),
            "write a limit that equals the request",
        ),
        case(
            "half a huge page",
            resources(json!({"limits": {"cpu": "1", "hugepages-2Mi": "1Mi"}})),
            "huge pages come whole",
        ),
        case(
            "huge pages alone",
            resources(json!({"limits": {"hugepages-2Mi": "2Mi"}})),
            "huge pages need cpu or memory",
        ),
        case("claims", resources(json!({"claims": [{"name": "a"}]})), "must have at most 0 items"),
        case(
            "odd but valid requirements of nodes",
            nodes(json!({"key": "a", "operator": "Gt", "values": ["5"]})),
            "",
        ),
        case("a requirement of a bad key", nodes(json!({"key": "a b", "operator": "Exists"})), qualified),
        case(
            "a requirement of a bad value",
            nodes(json!({"key": "a", "operator": "In", "values": ["x y"]})),
            "it becomes the value of a label",
        ),
        case("a requirement without values", nodes(json!({"key": "a", "operator": "In"})), values),
        case(
            "a requirement with too many values",
            nodes(json!({"key": "a", "operator": "Lt", "values": ["1", "2"]})),
            values,
        ),
        case(
            "a requirement of nothing",
            nodes(json!({"key": "a", "operator": "Exists", "values": ["x"]})),
            values,
        ),
        case(
            "a requirement of an unknown kind",
            nodes(json!({"key": "a", "operator": "Equal", "values": ["x"]})),
            "Unsupported value: \"Equal\"",
        ),
        case("a node's field", name("metadata.name"), ""),
        case("a field nobody has", name("metadata.uid"), "Unsupported value: \"metadata.uid\""),
        case("a preference of any value", weighted(100, "x y"), ""),
        case("a preference of no weight", weighted(0, "x"), "should be greater than or equal to 1"),
        case("a preference of too much weight", weighted(101, "x"), "should be less than or equal to 100"),
        case(
            "odd but valid pods",
            pods(json!({"topologyKey": "a.b/C", "namespaces": ["n"], "namespaceSelector": {},
            "labelSelector": {"matchLabels": {"a": ""}, "matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["x", ""]}]}, "matchLabelKeys": ["c"]})),
            "",
        ),
        case("pods of a bad topology", pods(json!({"topologyKey": ""})), qualified),
        case(
            "pods of a bad namespace",
            pods(json!({"topologyKey": "a", "namespaces": ["a.b"]})),
            "it is the name of a namespace",
        ),
        case(
            "pods of a bad label",
            pods(json!({"topologyKey": "a", "labelSelector": {"matchLabels": {"a b": "x"}}})),
            "it is the key of a label",
        ),
        case(
            "pods of a comparison",
            pods(
                json!({"topologyKey": "a", "labelSelector": {"matchExpressions": [{"key": "b", "operator": "Gt", "values": ["5"]}]}}),
            ),
            "Unsupported value: \"Gt\"",
        ),
        case(
            "keys of no selector",
            pods(json!({"topologyKey": "a", "matchLabelKeys": ["c"]})),
            "add to a labelSelector",
        ),
        case(
            "keys of both kinds",
            pods(
                json!({"topologyKey": "a", "labelSelector": {}, "matchLabelKeys": ["c"], "mismatchLabelKeys": ["c"]}),
            ),
            "remove it from one of them",
        ),
    ]
}
