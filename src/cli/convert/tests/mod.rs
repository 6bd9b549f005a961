//! Whole files: names, owners, and what is no machine of kubemark.

mod cases;
mod fields;
mod golden;
mod owned;
mod properties;

use super::{fields as advice, *};

const CONFIG: &str = "kind: KubemarkMachineProviderConfig\n";
const MACHINE: &str = "apiVersion: cluster.k8s.io/v1alpha1\nkind: Machine\nmetadata: {name: NAME}\nspec:\n  providerSpec:\n    value: {kind: KubemarkMachineProviderConfig}\n";

fn converted(name: Option<&str>, file: &str, text: &str) -> Converted {
    convert(text, FilePath::new(file), name)
}

#[test]
fn an_object_has_a_name_of_its_own() {
    let names = |name, file, text: &str| -> Vec<String> {
        let objects = converted(name, file, text).objects.into_iter();
        objects
            .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', ""))
            .collect()
    };
    assert_eq!(names(Some("a"), "f.yaml", CONFIG), ["NodeClass a"]);
    assert_eq!(names(None, "dir/My_Config.yaml", CONFIG), ["NodeClass my-config"]);
    assert_eq!(names(None, "-", CONFIG), ["NodeClass kubemark"]);
    assert_eq!(names(Some("---"), "-", CONFIG), ["NodeClass kubemark"]);
    let two = format!("{CONFIG}---\n{CONFIG}");
    assert_eq!(names(Some("a"), "f.yaml", &two), ["NodeClass a", "NodeClass a-2"]);
    let machines = format!("{MACHINE}---\n{CONFIG}").replace("NAME", "M.1");
    assert_eq!(names(None, "f.yaml", &machines), ["NodeClass m-1", "NodeSet m-1", "NodeClass f"]);
    let notes = converted(None, "f.yaml", &machines).notes;
    assert!(notes.iter().any(|note| note == "Machine M.1: note: metadata.name M.1 is m-1 here"), "{notes:?}");
    let generated = MACHINE.replace("name: NAME", "generateName: m-");
    assert_eq!(names(None, "f.yaml", &generated), ["NodeClass m", "NodeSet m"]);
}

#[test]
fn a_machine_alone_is_a_set_of_one() {
    let Converted { objects, lost, .. } = converted(None, "f.yaml", &MACHINE.replace("NAME", "m"));
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(objects[1]["spec"], json!({"nodeClassName": "m", "replicas": 1}));
}

#[test]
fn a_machine_beside_its_set_is_one_of_its_replicas() {
    let set = "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineSet\nmetadata: {name: s}\nspec:\n  template:\n    spec:\n      taints: [{key: a, effect: NoSchedule}]\n      providerSpec:\n        value: {kind: KubemarkMachineProviderConfig}\n";
    let owned = MACHINE.replace("NAME", "s-1, ownerReferences: [{kind: MachineSet, name: s}]");
    let machine = format!("{owned}  taints: [{{key: a, effect: NoSchedule}}]\n");
    let Converted { objects, lost, notes, .. } = converted(None, "f.yaml", &format!("{machine}---\n{set}"));
    assert_eq!((objects.len(), lost), (2, Vec::new()));
    assert!(notes.contains(&"Machine s-1: note: the NodeSet of MachineSet s stands for it".to_owned()));
    // A difference is not converted, and neither is the owner of a file without it.
    let lost = converted(None, "f.yaml", &format!("{}---\n{set}", machine.replace("key: a", "key: b"))).lost;
    assert_eq!(
        lost,
        ["Machine s-1: not converted: spec.taints[0].key: MachineSet s has another value or none"]
    );
    let lost = converted(None, "f.yaml", &machine).lost;
    assert_eq!(
        lost,
        [
            "Machine s-1: not converted: metadata.ownerReferences[0]: this owner is not converted: put the owner and its configuration into the same file"
        ]
    );
}

#[test]
fn whole_objects_are_named() {
    let other_group = "apiVersion: cluster.x-k8s.io/v1beta1\nkind: MachineSet\nmetadata: {name: m}\nspec: {template: {spec: {providerSpec: {value: {kind: KubemarkMachineProviderConfig}}}}}\n";
    for (text, wanted) in [
        (
            "kind: Secret\nmetadata: {name: s}\n",
            "Secret s: not converted: kube-node convert reads Machines, ",
        ),
        ("a: b\n", "document 1: not converted: kube-node convert reads Machines, "),
        (
            "kind: MachineHealthCheck\n",
            "MachineHealthCheck in document 1: not converted: write spec.remediation ",
        ),
        (other_group, "MachineSet m: not converted: its apiVersion is \"cluster.x-k8s.io/v1beta1\", and "),
        (
            &MACHINE.replace("Kubemark", "AWS"),
            "Machine NAME: not converted: its providerSpec.value is of the kind \"AWSMachineProviderConfig\", and ",
        ),
        (
            &MACHINE.replace("kind: Kubemark", "numCores: Kubemark"),
            "Machine NAME: not converted: its providerSpec.value has no kind: write kind: KubemarkMachineProviderConfig ",
        ),
        (
            &MACHINE.replace("value: {", "value: '{").replace("Config}", "Config}'"),
            "Machine NAME: not converted: its providerSpec.value is \"{kind: KubemarkMachineProviderConfig}\" and has no fields: write ",
        ),
        (
            &MACHINE.replace("providerSpec", "provider"),
            "Machine NAME: not converted: it has no providerSpec.value: write kind: ",
        ),
    ] {
        let Converted { objects, lost, .. } = converted(None, "f.yaml", text);
        assert!(objects.is_empty());
        assert!(lost.len() == 1 && lost[0].starts_with(wanted), "{text}: {lost:?}");
    }
}

/// The lines about what is not converted.
fn lost(text: &str) -> Vec<String> {
    converted(None, "f.yaml", text).lost
}

#[test]
fn one_object_that_cannot_be_read_stops_no_other() {
    let machines = ["a", "b"].map(|name| MACHINE.replace("NAME", name));
    for bad in ["kind: X\nkind: Y\n", "a:\n\tb: c\n", "numCores: 99999999999999999999\n", "a: !foo b\n"] {
        let Converted { objects, lost, .. } =
            converted(None, "f.yaml", &format!("{}---\n{bad}---\n{}", machines[0], machines[1]));
        assert_eq!(objects.len(), 4, "{bad}");
        assert!(lost.len() == 1 && lost[0].starts_with("document 2: not converted: "), "{lost:?}");
    }
    for items in ["{a: {kind: Machine}}", "hello", "{}"] {
        let text = format!("kind: MachineList\nitems: {items}\n---\n{}", machines[0]);
        let Converted { objects, lost, .. } = converted(None, "f.yaml", &text);
        let named =
            "MachineList in document 1: not converted: items: it is no list: write one object per item";
        assert_eq!((objects.len(), lost), (2, vec![named.to_owned()]), "{items}");
    }
}

#[test]
fn an_object_is_converted_once() {
    let machine = |namespace: &str| MACHINE.replace("NAME", &format!("m, namespace: {namespace}"));
    let twice = converted(None, "f.yaml", &format!("{}---\n{}", machine("a"), machine("a")));
    assert_eq!(twice.objects.len(), 2);
    assert_eq!(twice.lost, ["Machine m in namespace a: not converted: it is in the file twice: remove one"]);
    let Converted { objects, lost, .. } =
        converted(None, "f.yaml", &format!("{}---\n{}", machine("a"), machine("b")));
    assert_eq!((objects.len(), lost), (4, Vec::new()));
}

#[test]
fn values_of_a_wrong_type_are_named_with_the_right_one() {
    let deployment = |field: &str| {
        let template = "template: {spec: {providerSpec: {value: {kind: KubemarkMachineProviderConfig}}}}";
        format!(
            "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineDeployment\nmetadata: {{name: d}}\nspec:\n  {template}\n  {field}\n"
        )
    };
    let machine = |field: &str| format!("{MACHINE}  {field}\n");
    let config = |fields: &str| MACHINE.replace("Config}", &format!("Config, {fields}}}"));
    for (text, wanted) in [
        (machine("taints: {key: a}"), "spec.taints: it is a list: write each item after a hyphen"),
        (machine("taints: {}"), "spec.taints: it is a list: write each item after a hyphen"),
        (machine("versions: 1.14.3"), "spec.versions: it has fields: write each as name: value"),
        (machine("metadata: []"), "spec.metadata: it has fields: write each as name: value"),
        (
            machine("metadata: {labels: [a]}"),
            "spec.metadata.labels: it has fields: write each as name: value",
        ),
        (
            machine("metadata: {labels: {a: {b: c}}}"),
            "spec.metadata.labels.a: {\"b\":\"c\"} is no text: write it in quotes",
        ),
        (
            machine("providerConfig: {value: {numCores: 4}}"),
            "spec.providerConfig.value: the configuration is read from spec.providerSpec.value: remove providerConfig.value",
        ),
        (deployment("strategy: RollingUpdate"), "spec.strategy: it has fields: write each as name: value"),
        (deployment("replicas: {a: 1}"), "spec.replicas: {\"a\":1} is no whole number from 0 to 100000"),
        (config("numCores: [4]"), "spec.providerSpec.value.numCores: [4] is no amount: write for example 4"),
        (
            config("unhealthyDuration: 5s, healthyDuration: {seconds: 40}, turnUnhealthyPeriodically: true"),
            "spec.providerSpec.value.healthyDuration: {\"seconds\":40} has no unit: write for example 30s",
        ),
    ] {
        let lost = lost(&text);
        assert!(
            lost.iter().any(|line| line.contains(&format!("not converted: {wanted}"))),
            "{text}: {lost:?}"
        );
    }
    let injected =
        config("unhealthyDuration: 5s, healthyDuration: {seconds: 40}, turnUnhealthyPeriodically: true");
    assert_eq!(converted(None, "f.yaml", &injected).objects[0]["spec"].get("failures"), None);
}

#[test]
fn values_that_the_schema_refuses_are_named() {
    let bound = "cluster-api-autoscaler-node-group-min-size";
    let set = format!(
        "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineDeployment\nmetadata: {{name: d, annotations: {{{bound}: '1'}}}}\nspec:\n  minReadySeconds: 60\n  progressDeadlineSeconds: 30\n  strategy: {{rollingUpdate: {{maxSurge: 0}}}}\n  template:\n    metadata: {{labels: {{a: has space}}}}\n    spec:\n      taints: [{{key: a b, value: c d, effect: NoSchedule}}]\n      metadata: {{annotations: {{scheduler.alpha.kubernetes.io/taints: x, example.com/long: {}}}}}\n      providerSpec: {{value: {{kind: KubemarkMachineProviderConfig, numCores: 010, memoryCapacity: 100Ei, image: 'Registry/Kubemark:v1.36.3'}}}}\n",
        "x".repeat(5_000),
    );
    let lost = lost(&set).join("\n");
    for wanted in [
        &format!("annotations.{bound}: cluster-autoscaler needs both"),
        "spec.progressDeadlineSeconds: a Node makes no progress before minReadySeconds are over: write more seconds",
        "maxSurge: nothing could be replaced: write maxSurge: 1 or maxUnavailable: 1",
        "labels.a: the value has at most 63 letters",
        "taints[0]: the key has at most 63 letters",
        "[scheduler.alpha.kubernetes.io/taints]: it means nothing any more: use taints",
        "[example.com/long]: it has more than 4096 characters: shorten it",
        "numCores: 010 begins with 0, which YAML 1.1 and 1.2 read differently: write 8 or 10",
        "memoryCapacity: \"100Ei\" is not less than 8Ei: write for example 16Gi",
        "image: \"Registry/Kubemark:v1.36.3\" is no name of an image: write for example",
    ] {
        assert!(lost.contains(wanted), "{wanted}: {lost}");
    }
    assert_eq!(lost.lines().count(), 10, "{lost}");
}

#[test]
fn a_name_that_changes_is_a_note() {
    for (wanted, generated, line) in [
        (Some("a"), "m-", "Machine m-: note: metadata.generateName m- is a here"),
        (None, "M.1-", "Machine M.1-: note: metadata.generateName M.1- is m-1 here"),
    ] {
        let text = MACHINE.replace("name: NAME", &format!("generateName: {generated}"));
        let Converted { lost, notes, .. } = converted(wanted, "f.yaml", &text);
        assert_eq!(lost, [""; 0]);
        assert!(notes.iter().any(|note| note == line), "{notes:?}");
    }
}

#[test]
fn an_owner_that_is_not_converted_stands_for_no_machine() {
    let set = "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineSet\nmetadata: {name: s}\n";
    let owned = MACHINE.replace("NAME", "s-1, ownerReferences: [{kind: MachineSet, name: s}]");
    let Converted { objects, lost, notes, .. } = converted(None, "f.yaml", &format!("{set}---\n{owned}"));
    assert_eq!((objects.len(), lost.len()), (2, 2), "{lost:?}");
    assert!(!notes.iter().any(|note| note.contains("stands for it")), "{notes:?}");
}

#[test]
fn the_page_has_every_field_that_is_converted() {
    let page = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubemark.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rules = [&machines::SET_RULES[..], &machines::MACHINE_SET_RULES, &machines::MACHINE_DEPLOYMENT_RULES];
    let names = rules.concat().into_iter().filter_map(|(from, _, _)| from.rsplit('.').next());
    for name in names.chain(advice::CONFIGURATION) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn what_a_template_has_no_room_for_is_named() {
    let lines = |count: usize, line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    let labels = lines(66, &|n| format!("      l{n:02}: a\n"));
    let long = "x".repeat(4_000);
    let annotations = lines(18, &|n| format!("      a{n:02}: {long}\n"));
    let taints = lines(33, &|n| format!("  - {{key: t{n:02}, effect: NoSchedule}}\n"));
    let text = format!(
        "{}  metadata:\n    labels:\n{labels}    annotations:\n{annotations}  taints:\n{taints}",
        MACHINE.replace("NAME", "m")
    );
    let Converted { objects, lost, .. } = converted(None, "f.yaml", &text);
    let template = &objects[1]["spec"]["template"];
    assert_eq!(template["labels"].as_object().unwrap().len(), 64);
    assert_eq!(template["annotations"].as_object().unwrap().len(), 16);
    assert_eq!(template["taints"].as_array().unwrap().len(), 32);
    let wanted = [
        "spec.metadata.annotations.a16: with it there are 68051 bytes of annotations, and 65536 are the most: shorten one",
        "spec.metadata.annotations.a17: with it there are 68051 bytes of annotations, and 65536 are the most: shorten one",
        "spec.metadata.labels.l64: a template has at most 64 labels",
        "spec.metadata.labels.l65: a template has at most 64 labels",
        "spec.taints[32]: a template has at most 32 taints",
    ];
    assert_eq!(lost, wanted.map(|line| format!("Machine m: not converted: {line}")));
}
