//! Configurations of the README and typical user configurations.

use kube_node_api::NodeClass;

use super::*;

fn config(yaml: &str) -> Value {
    let yaml = format!(
        "apiVersion: kubemarkproviderconfig.k8s.io/v1alpha1\nkind: KubemarkMachineProviderConfig\n{yaml}"
    );
    serde_norway::from_str(&yaml).unwrap()
}

fn converted(config: &Value) -> Conversion<'_> {
    convert("a", config)
}

/// Spec of a class that was converted without loss.
fn spec(yaml: &str) -> Value {
    let Conversion { class, lost, .. } = converted(&config(yaml));
    assert!(lost.is_empty(), "{lost:?}");
    let read: NodeClass = serde_json::from_value(class.clone()).unwrap();
    assert_eq!(read.metadata.name.as_deref(), Some("a"));
    class["spec"].clone()
}

fn lost(yaml: &str) -> String {
    converted(&config(yaml)).lost.join("; ")
}

#[test]
fn unready_for_5s_then_ready_for_40s_and_again() {
    let spec = spec(
        "unhealthyDuration: 5s\nhealthyDuration: 40s\nturnUnhealthyPeriodically: true\nimage: gofed/kubemark:v1.11.3-6\n",
    );
    assert_eq!(
        spec["failures"],
        json!({"unhealthyDuration": "5s", "healthyDuration": "40s", "turnUnhealthyPeriodically": true})
    );
    assert_eq!(spec["kubemark"]["image"], "gofed/kubemark:v1.11.3-6");
    assert_eq!(spec["nodeController"], "kubemark");
}

#[test]
fn unready_40s_after_the_start_for_ever() {
    let spec = spec("unhealthyDuration: 40s\nturnUnhealthyAfter: true\n");
    assert_eq!(spec["failures"], json!({"unhealthyDuration": "40s", "turnUnhealthyAfter": true}));
    assert!(spec.get("kubemark").is_none());
}

#[test]
fn the_other_options() {
    let spec = spec("deletionTimeout: 1m30s\nnumCores: 4\nmemoryCapacity: 16Gi\n");
    assert_eq!(spec["deletionTimeout"], "1m30s");
    assert_eq!(spec["capacity"], json!({"cpu": "4", "memory": "16Gi", "pods": "110"}));
    assert_eq!(self::spec("memoryCapacity: 4026531840\n")["capacity"]["memory"], "4026531840");
}

#[test]
fn nothing_is_what_kubemark_is_by_itself() {
    let Conversion { class, notes, .. } = converted(&config(""));
    assert_eq!(class["spec"]["capacity"], json!({"cpu": "1", "memory": "3840Mi", "pods": "110"}));
    assert_eq!(notes.len(), 2, "{notes:?}");
}

#[test]
fn what_cannot_be_is_said_with_what_to_write() {
    for (yaml, wanted) in [
        ("deletionTimeout: 30\n", "deletionTimeout: 30 has no unit: write for example 30s"),
        ("deletionTimeout: 1d\n", "\"1d\" is no duration"),
        ("deletionTimeout: -5s\n", "\"-5s\" is no duration"),
        ("numCores: four\n", "numCores: \"four\" is no amount: write for example 4"),
        ("numCores: 0\n", "numCores: \"0\" is no amount"),
        ("memoryCapacity: 16GB\n", "memoryCapacity: \"16GB\" is no amount: write for example 16Gi"),
        ("turnUnhealthyAfter: yes please\nunhealthyDuration: 5s\n", "is neither true nor false"),
        (
            "unhealthyDuration: 5s\nturnUnhealthyAfter: true\nturnUnhealthyPeriodically: true\n",
            "exclude each other",
        ),
        ("turnUnhealthyAfter: true\n", "unhealthyDuration is missing"),
        ("image: 7\n", "image: 7 is no name of an image"),
        ("numcores: 4\n", "unknown field numcores: is numCores meant?"),
        ("nodeLabels: {a: b}\n", "unknown field nodeLabels: write spec.template.labels in the NodeClass"),
    ] {
        let said = lost(yaml);
        assert!(said.contains(wanted), "{yaml}: {said}");
    }
    // An invalid duration is reported once, not as missing too.
    let said = lost("unhealthyDuration: soon\nturnUnhealthyAfter: true\n");
    assert!(!said.contains("missing"), "{said}");
}

#[test]
fn what_has_no_effect_is_a_note() {
    for (yaml, wanted) in [
        ("unhealthyDuration: 5s\n", "the durations have no effect"),
        (
            "unhealthyDuration: 5s\nhealthyDuration: 5s\nturnUnhealthyAfter: true\n",
            "healthyDuration has no effect",
        ),
        ("unhealthyDuration: 5s\nturnUnhealthyPeriodically: true\n", "nodes are never healthy"),
        ("image: gofed/kubemark:v1.11.3-6\n", "may not know its arguments"),
    ] {
        let Conversion { lost, notes, .. } = converted(&config(yaml));
        assert!(lost.is_empty(), "{lost:?}");
        assert!(notes.join("; ").contains(wanted), "{yaml}: {notes:?}");
    }
    let notes = converted(&config("image: registry.example.com:5000/kubemark:v1.36.3\n")).notes;
    assert!(!notes.join("; ").contains("arguments"), "{notes:?}");
}

#[test]
fn configurations_are_found_inside_machines() {
    let set = json!({"kind": "MachineSet", "spec": {"template": {"spec": {"providerSpec": {"value": config("")}}}}});
    assert_eq!(find(&set).len(), 1);
    assert!(find(&json!({"kind": "Machine"})).is_empty());
}
