//! Configurations of the README and typical user configurations.

use std::path::Path as FilePath;

use kube_node_api::NodeClass;
use serde_json::{Value, json};

use super::super::{Converted, convert};

fn converted(yaml: &str) -> Converted {
    let yaml = format!(
        "apiVersion: kubemarkproviderconfig.k8s.io/v1alpha1\nkind: KubemarkMachineProviderConfig\n{yaml}"
    );
    convert(&yaml, FilePath::new("a.yaml"), None)
}

/// Spec of a class that was converted without loss.
fn spec(yaml: &str) -> Value {
    let Converted { objects, lost, .. } = converted(yaml);
    assert!(lost.is_empty(), "{lost:?}");
    let [class] = <[Value; 1]>::try_from(objects).unwrap();
    let read: NodeClass = serde_json::from_value(class.clone()).unwrap();
    assert_eq!(read.metadata.name.as_deref(), Some("a"));
    class["spec"].clone()
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
    let spec = spec("unhealthyDuration: 40s\nturnUnhealthyAfter: true\nturnUnhealthyPeriodically: false\n");
    assert_eq!(spec["failures"], json!({"unhealthyDuration": "40s", "turnUnhealthyAfter": true}));
    assert!(spec.get("kubemark").is_none());
}

#[test]
fn the_other_options() {
    let spec = spec("deletionTimeout: 90s\nnumCores: 4\nmemoryCapacity: 16Gi\n");
    assert_eq!(spec["deletionTimeout"], "90s");
    assert_eq!(spec["capacity"], json!({"cpu": "4", "memory": "16Gi", "pods": "110"}));
    assert_eq!(self::spec("memoryCapacity: 4026531840\n")["capacity"]["memory"], "4026531840");
    assert_eq!(self::spec("image: r:5000/kubemark\n")["kubemark"]["image"], "r:5000/kubemark:latest");
}

#[test]
fn nothing_is_what_kubemark_is_by_itself() {
    let Converted { objects, notes, .. } = converted("");
    assert_eq!(objects[0]["spec"]["capacity"], json!({"cpu": "1", "memory": "3840Mi", "pods": "110"}));
    assert_eq!(notes.len(), 2, "{notes:?}");
}

#[test]
fn what_cannot_be_is_said_with_what_to_write() {
    for (yaml, wanted) in [
        ("deletionTimeout: 30\n", "deletionTimeout: 30 has no unit: write for example 30s"),
        ("deletionTimeout: 1d\n", "deletionTimeout: \"1d\" is no duration"),
        ("deletionTimeout: -5s\n", "\"-5s\" is no duration"),
        ("numCores: four\n", "numCores: \"four\" is no amount: write for example 4"),
        ("numCores: 0\n", "numCores: 0 is no amount"),
        ("memoryCapacity: 16GB\n", "memoryCapacity: \"16GB\" is no amount: write for example 16Gi"),
        ("turnUnhealthyAfter: yes please\nunhealthyDuration: 5s\n", "is neither true nor false"),
        ("turnUnhealthyAfter: true\nunhealthyDuration: 5ms\n", "\"5ms\" is too short: write at least 1s"),
        (
            "unhealthyDuration: 5s\nturnUnhealthyAfter: true\nturnUnhealthyPeriodically: true\n",
            "exclude each other",
        ),
        ("turnUnhealthyAfter: true\n", "turnUnhealthyAfter: unhealthyDuration is missing"),
        ("image: 7\n", "image: 7 is no name of an image"),
        ("numcores: 4\n", "numcores: is numCores meant?"),
        ("nodeLabels: {a: b}\n", "nodeLabels.a: write spec.template.labels in the NodeClass"),
        ("metadata: {labels: {a: b}}\n", "metadata.labels.a: write spec.template.labels in the NodeClass"),
    ] {
        let said = converted(yaml).lost.join("; ");
        assert!(said.contains(wanted), "{yaml}: {said}");
    }
    // An invalid duration is not missing too, and takes the other fields along.
    let said = converted("unhealthyDuration: soon\nturnUnhealthyAfter: true\n").lost;
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(!said.join("; ").contains("missing"), "{said:?}");
}

#[test]
fn what_has_no_effect_is_a_note() {
    for (yaml, wanted) in [
        ("unhealthyDuration: 5s\n", "unhealthyDuration has no effect without turnUnhealthyPeriodically"),
        (
            "unhealthyDuration: 5s\nhealthyDuration: 5s\nturnUnhealthyAfter: true\n",
            "healthyDuration has no effect beside turnUnhealthyAfter",
        ),
        ("unhealthyDuration: 5s\nturnUnhealthyPeriodically: true\n", "nodes are never healthy"),
        ("image: gofed/kubemark:v1.11.3-6\n", "may not know its arguments"),
    ] {
        let Converted { lost, notes, .. } = converted(yaml);
        assert!(lost.is_empty(), "{lost:?}");
        assert!(notes.join("; ").contains(wanted), "{yaml}: {notes:?}");
    }
    let notes = converted("image: registry.example.com:5000/kubemark:v1.36.3\n").notes;
    assert!(!notes.join("; ").contains("arguments"), "{notes:?}");
}
