//! Pod-level resources in the pod status (`pkg/kubelet/kubelet_pods.go`,
//! `convertToAPIPodLevelResourcesStatus`).

use kube_node_cache::{PodSpecView, ResourceList};
use serde_json::{Map, Value, json};

/// Quantities by resource, as written.
type Written = Map<String, Value>;

/// Resources allocated to a pod, and the resources that it has, as patches. A pod that `runs` or ran has them
/// from its cgroups: CPU and memory only, and a memory limit only if each container has one; others are null.
pub fn of(spec: &PodSpecView, runs: bool) -> (Written, Value) {
    let requests = written(&spec.requests);
    let mut has = requests.clone();
    let mut limits = written(&spec.limits);
    if runs {
        let limited = |memory: &str| {
            let listed = |limits: &[(Box<str>, Box<str>)]| limits.iter().any(|(name, _)| **name == *memory);
            spec.containers.iter().all(|container| listed(&container.resources.limits))
        };
        let is_of_cgroups = |name: &str| ["cpu", "memory"].contains(&name);
        has.iter_mut().filter(|(name, _)| !is_of_cgroups(name)).for_each(|(_, amount)| *amount = Value::Null);
        let has_none = |name: &str| !is_of_cgroups(name) || (name == "memory" && !limited(name));
        limits.iter_mut().filter(|(name, _)| has_none(name)).for_each(|(_, amount)| *amount = Value::Null);
    }
    (requests, shown(has, limits))
}

/// Resources as a status shows them, without empty lists.
pub fn shown(requests: Written, limits: Written) -> Value {
    let lists = [("requests", requests), ("limits", limits)].into_iter();
    lists.filter(|(_, list)| !list.is_empty()).map(|(name, list)| (name, Value::Object(list))).collect()
}

fn written(amounts: &ResourceList) -> Written {
    let ResourceList { milli_cpu, memory, ephemeral_storage, others } = amounts;
    let cpu = if milli_cpu % 1_000 == 0 { (milli_cpu / 1_000).to_string() } else { format!("{milli_cpu}m") };
    let listed = [
        ("cpu", *milli_cpu, cpu),
        ("memory", *memory, bytes(*memory)),
        ("ephemeral-storage", *ephemeral_storage, bytes(*ephemeral_storage)),
    ];
    let others = others.iter().map(|(name, amount)| (&**name, *amount, amount.to_string()));
    let some = listed.into_iter().chain(others).filter(|(_, amount, _)| *amount > 0);
    some.map(|(name, _, text)| (name.to_owned(), json!(text))).collect()
}

/// Bytes in the largest unit that divides them.
fn bytes(bytes: i64) -> String {
    let (mut amount, mut unit) = (bytes, "");
    for larger in ["Ki", "Mi", "Gi", "Ti", "Pi"] {
        if amount == 0 || amount % 1_024 != 0 {
            break;
        }
        (amount, unit) = (amount / 1_024, larger);
    }
    format!("{amount}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_node_cache::{Container, ContainerResources};

    #[test]
    fn what_runs_has_what_cgroups_know() {
        let slot =
            |amount| ResourceList { others: [("a/slot".into(), amount)].into(), ..ResourceList::default() };
        let container = |limits: &[(&str, &str)]| Container {
            resources: ContainerResources {
                limits: limits.iter().map(|(name, amount)| ((*name).into(), (*amount).into())).collect(),
                ..ContainerResources::default()
            },
            ..Container::default()
        };
        let spec = PodSpecView {
            containers: [container(&[("memory", "64Mi")]), container(&[])].into(),
            requests: ResourceList { milli_cpu: 1_500, memory: 16 << 20, ..slot(1) },
            limits: ResourceList { milli_cpu: 2_000, memory: 64 << 20, ..slot(1) },
            ..PodSpecView::default()
        };
        let (allotted, has) = of(&spec, false);
        assert_eq!(json!(allotted), json!({"cpu": "1500m", "memory": "16Mi", "a/slot": "1"}));
        assert_eq!(has["limits"], json!({"cpu": "2", "memory": "64Mi", "a/slot": "1"}));
        let (again, has) = of(&spec, true);
        assert_eq!(again, allotted);
        let requests = json!({"cpu": "1500m", "memory": "16Mi", "a/slot": null});
        assert_eq!(
            has,
            json!({"requests": requests, "limits": {"cpu": "2", "memory": null, "a/slot": null}})
        );
        assert_eq!(of(&PodSpecView::default(), true), (Map::new(), json!({})));
    }

    #[test]
    fn bytes_are_written_in_the_largest_unit() {
        for (amount, text) in
            [(1_000, "1000"), (1_536, "1536"), (3 << 10, "3Ki"), (16 << 30, "16Gi"), (1 << 60, "1024Pi")]
        {
            assert_eq!(bytes(amount), text);
        }
    }
}
