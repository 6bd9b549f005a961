//! Random objects that an older definition let in: none of them stops another one, and each says what is wrong with it.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{CLUSTER, RECOVERY, SEED};
use kube_node_testing::{Fixture, class_spec, eventually};

/// Random classes, and as many sets of them.
const OBJECTS: usize = 40;
const LABEL: &str = "test=malformed";

/// Parts of a class that no API server accepts on a Node, or that no definition of today lets in.
fn class_faults() -> Vec<(&'static str, Value)> {
    let taint =
        |key: &str, value: &str, effect: &str| json!([{"key": key, "value": value, "effect": effect}]);
    vec![
        ("/template/taints", taint("a", "b", "NoScedule")),
        ("/template/taints", taint("a b", "c", "NoSchedule")),
        ("/template/taints", taint("a", "b c", "NoExecute")),
        ("/template/taints", taint("node.kubernetes.io/not-ready", "", "NoSchedule")),
        ("/template/taints", taint("kube-node.io/uninitialized", "", "NoExecute")),
        (
            "/template/taints",
            json!([{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]),
        ),
        ("/template/taints", json!("none")),
        ("/template/startupTaints", taint("", "", "")),
        ("/template/labels", json!({"a b": "x y"})),
        ("/template/labels", json!({"a": "x".repeat(64)})),
        ("/template/labels", json!({"a": 7})),
        ("/template/annotations", json!({"a": "x".repeat(200_000)})),
        ("/template/annotations", json!({"/": "x"})),
        ("/capacity", json!({"cpu": "four", "memory": "16Gi", "pods": "110"})),
        ("/capacity", json!({"cpu": "-4", "memory": "16Gi", "pods": "110"})),
        ("/capacity", json!({"cpu": "4", "memory": "16Gi", "pods": "110", "a b": "1"})),
        ("/capacity", json!({"cpu": "4", "memory": "16Gi", "pods": "110", "example.com/gpu": "500m"})),
        ("/capacity", json!(null)),
        ("/reserved", json!({"cpu": "40"})),
        ("/machineType", json!("a type")),
        ("/deletionTimeout", json!("soon")),
        ("/failures", json!({"unhealthyDuration": "-5s", "turnUnhealthyAfter": "yes"})),
        ("/limits", json!({"nodes": -1})),
        ("/nodeController", json!("somebody else")),
    ]
}

/// Parts of a set that no definition of today lets in.
fn set_faults() -> Vec<(&'static str, Value)> {
    vec![
        ("/replicas", json!(-3)),
        ("/replicas", json!("three")),
        ("/template/taints", json!([{"key": "x y", "effect": "Never"}])),
        ("/template/labels", json!({"kubernetes.io/hostname": "not mine"})),
        ("/template/labels", json!({"x": "not a value!"})),
        ("/classOverrides", json!({"capacity": {"cpu": "many"}})),
        ("/strategy", json!({"type": "Sometimes"})),
        ("/strategy", json!({"rollingUpdate": {"maxSurge": "150x", "maxUnavailable": -1}})),
        ("/drain", json!({"timeout": "1 hour"})),
        ("/remediation", json!({"maxUnhealthy": "-1%", "unhealthyConditions": [{"type": "", "for": "x"}]})),
        ("/minReadyTime", json!("-5s")),
        ("/expireAfter", json!("0s")),
        ("/autoscaling", json!({"minReplicas": 5, "maxReplicas": 1})),
        ("/scaleDown", json!({"order": "Random"})),
        ("/revision", json!("../../x")),
        ("/nodeClassName", json!("../../x")),
    ]
}

/// Writes a value at a path of at most two members, making what is missing.
fn put(object: &mut Value, path: &str, value: Value) {
    let members: Vec<&str> = path.split('/').skip(1).collect();
    match *members.as_slice() {
        [one] => object[one] = value,
        [one, two] => object[one][two] = value,
        _ => unreachable!("paths have one member or two"),
    }
}

fn json_patch(operations: Value) -> Patch<()> {
    Patch::Json(serde_json::from_value(operations).unwrap())
}

fn api(own: &Fixture, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("kube-node.io", "v1alpha1", kind);
    Api::all_with(own.client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural))
}

pub(super) async fn random_objects_past_the_schema() {
    let seed = std::env::var("KUBE_NODE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    println!("KUBE_NODE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let own = Fixture::new(&CLUSTER, "beside-malformed", 2, class_spec()).await;
    own.settled(2).await;
    let crds: Api<CustomResourceDefinition> = Api::all(own.client.clone());
    let mut whole = Vec::new();
    for name in ["nodeclasses.kube-node.io", "nodesets.kube-node.io"] {
        whole.push((name, crds.get(name).await.unwrap().spec.versions));
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let loose = json!({"spec": {"versions": [{"name": "v1alpha1", "served": true, "storage": true,
            "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}]}});
        crds.patch(name, &PatchParams::default(), &Patch::Merge(loose)).await.unwrap();
    }
    let (classes, sets) = (api(&own, "NodeClass", "nodeclasses"), api(&own, "NodeSet", "nodesets"));
    let meta = |kind: &str, name: &str, spec: Value| -> DynamicObject {
        serde_json::from_value(json!({"apiVersion": "kube-node.io/v1alpha1", "kind": kind,
            "metadata": {"name": name, "labels": {"test": "malformed"}}, "spec": spec}))
        .unwrap()
    };
    for i in 0..OBJECTS {
        let name = format!("malformed-{i}");
        let (mut class, mut set) = (class_spec(), json!({"replicas": 2, "nodeClassName": name}));
        let (of_class, of_set) = (class_faults(), set_faults());
        // One fault each, of all in turn, and by chance another one beside it.
        let (path, value) = of_class[i % of_class.len()].clone();
        put(&mut class, path, value);
        if random.random_ratio(1, 3) {
            let (path, value) = of_class[random.random_range(0..of_class.len())].clone();
            put(&mut class, path, value);
        }
        if random.random_ratio(1, 2) {
            let (path, value) = of_set[random.random_range(0..of_set.len())].clone();
            put(&mut set, path, value);
        }
        for (api, object) in
            [(&classes, meta("NodeClass", &name, class)), (&sets, meta("NodeSet", &name, set))]
        {
            let body = serde_json::to_vec(&object).unwrap();
            eventually("the loose definition works", RECOVERY, async || {
                let request = kube::core::Request::new(api.resource_url());
                let request = request.create(&kube::api::PostParams::default(), body.clone()).unwrap();
                match own.client.request::<Value>(request).await {
                    Ok(_) => Some(()),
                    Err(kube::Error::Api(status)) if status.code == 409 => Some(()),
                    Err(_) => None,
                }
            })
            .await;
        }
        if i == OBJECTS / 2 {
            // In the middle of it, as at its end below: the good set is served.
            own.patch_set(json!({"spec": {"replicas": 3}})).await;
        }
    }
    own.settled(3).await;
    for (name, versions) in whole {
        let whole = json!({"spec": {"versions": versions}});
        crds.patch(name, &PatchParams::default(), &Patch::Merge(whole)).await.unwrap();
    }
    eventually("the good set still scales", RECOVERY, async || {
        let change = Patch::Merge(json!({"spec": {"replicas": 5}}));
        own.sets.patch(&own.name, &PatchParams::default(), &change).await.ok()
    })
    .await;
    eventually("both kinds are served", RECOVERY, async || {
        let all = ListParams::default();
        sets.list(&all).await.ok()?;
        classes.list(&all).await.ok().map(drop)
    })
    .await;
    own.settled(5).await;
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
    eventually("the good set is rolled", RECOVERY, async || {
        let status = own.sets.get(&own.name).await.unwrap().status?;
        (status.updated_replicas == 5 && status.rollout.is_none() && status.ready_replicas == 5).then_some(())
    })
    .await;
    // Each has its Nodes, or says why not.
    let selector = ListParams::default().labels(LABEL);
    eventually("each says how it stands", RECOVERY, async || {
        let silent: Vec<String> = sets
            .list(&selector)
            .await
            .ok()?
            .items
            .into_iter()
            .filter(|set| {
                let conditions = set.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let says = |r#type: &str, status: &str| {
                    conditions
                        .iter()
                        .any(|c| c["type"] == r#type && c["status"] == status && c["message"] != "")
                };
                !says("Degraded", "True") && !says("Available", "True")
            })
            .filter_map(|set| set.metadata.name)
            .collect();
        if !silent.is_empty() {
            println!("silent: {silent:?}");
            sleep(Duration::from_secs(1)).await;
        }
        silent.is_empty().then_some(())
    })
    .await;
    for api in [&sets, &classes] {
        eventually("they are asked to go", RECOVERY, async || {
            api.delete_collection(&DeleteParams::default(), &selector).await.ok().map(drop)
        })
        .await;
    }
    // The API server takes no write at all of some, such as one whose replicas are negative, until the field is corrected:
    // not even an admin's, who would take the finalizer off.
    let no_finalizer = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    eventually("all of them go, once they can be written", RECOVERY, async || {
        let mut left = 0;
        for api in [&sets, &classes] {
            for object in api.list(&selector).await.ok()?.items {
                left += 1;
                let name = object.metadata.name.unwrap_or_default();
                let Err(kube::Error::Api(refused)) = api.patch(&name, &dry_run, &no_finalizer).await else {
                    continue;
                };
                if refused.code == 422 {
                    println!("corrected: {}", refused.message);
                    let spec = match object.data["spec"].get("nodeClassName") {
                        Some(_) => json!({"replicas": 0, "nodeClassName": name}),
                        None => class_spec(),
                    };
                    let whole = json_patch(json!([{"op": "replace", "path": "/spec", "value": spec}]));
                    api.patch(&name, &PatchParams::default(), &whole).await.ok()?;
                }
            }
        }
        sleep(Duration::from_secs(1)).await;
        (left == 0).then_some(())
    })
    .await;
    own.clean_up().await;
}
