//! Whole files: names, owners, and what is no machine of kubemark.

mod golden;
mod properties;

use super::*;

const CONFIG: &str = "kind: KubemarkMachineProviderConfig\n";
const MACHINE: &str = "apiVersion: cluster.k8s.io/v1alpha1\nkind: Machine\nmetadata: {name: NAME}\nspec:\n  providerSpec:\n    value: {kind: KubemarkMachineProviderConfig}\n";

fn converted(name: Option<&str>, file: &str, text: &str) -> Converted {
    convert(text, FilePath::new(file), name).unwrap()
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
            "Machine s-1: not converted: metadata.ownerReferences[0]: convert the owner as well, in the same file"
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
        (&MACHINE.replace("Kubemark", "AWS"), "Machine NAME: not converted: its providerSpec.value is no "),
    ] {
        let Converted { objects, lost, .. } = converted(None, "f.yaml", text);
        assert!(objects.is_empty());
        assert!(lost.len() == 1 && lost[0].starts_with(wanted), "{text}: {lost:?}");
    }
}

#[test]
fn the_page_has_every_field_that_is_converted() {
    let page = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubemark.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rules = [&machines::SET_RULES[..], &machines::MACHINE_SET_RULES, &machines::MACHINE_DEPLOYMENT_RULES];
    let names = rules.concat().into_iter().filter_map(|(from, _, _)| from.rsplit('.').next());
    for name in names.chain(fields::CONFIGURATION) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}
