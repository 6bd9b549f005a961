//! What happens to kubemark machines. Each test runs for both images, by the same body.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, PropagationPolicy},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use crate::{
    CLUSTER,
    kinds::{BOTH, Kind, UP, machine, pod_of, pods, process, ready},
};
use kube_node_testing::{Fixture, delete, eventually, git_version, is_ready, phase};

/// How soon it has to be known that a machine is gone. A watch tells it within a tenth of a second, or within some seconds on a
/// busy machine; the comparison of all machines with all Nodes, once a minute, would take longer.
const NOTICED: Duration = Duration::from_secs(10);

pub async fn five_of_each_are_ready_and_what_their_class_says() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Fixture::new(&CLUSTER, &kind.name("five"), 5, kind.class(json!({}))).await;
        let nodes = ready(&own, 5).await;
        for node in &nodes {
            let name = node.name_any();
            assert_eq!(node.spec.as_ref().unwrap().provider_id, Some(format!("kubemark://{name}")));
            let status = node.status.as_ref().unwrap();
            let amount = |of: &Option<
                std::collections::BTreeMap<_, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
            >,
                          what: &str| {
                of.as_ref().unwrap().get(what).map(|amount| amount.0.clone())
            };
            for (what, has, leaves) in
                [("cpu", "4", "3500m"), ("pods", "30", "30"), ("example.com/gpu", "2", "2")]
            {
                assert_eq!(amount(&status.capacity, what).as_deref(), Some(has), "{kind:?} {what}");
                assert_eq!(amount(&status.allocatable, what).as_deref(), Some(leaves), "{kind:?} {what}");
            }
            let info = status.node_info.as_ref().unwrap();
            // Of the release whose kubelet it is: our own says what the class says, or its default.
            let version = if kind == Kind::Upstream { git_version() } else { "v1.36.3".to_owned() };
            assert_eq!(info.kubelet_version, version, "{kind:?}");
            assert_eq!(info.container_runtime_version, "cri-o://1.33.0", "{kind:?}");
            let pod = pod_of(&own, node).await.unwrap();
            assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("real-node"));
            let pid = process(&kind.program(&name)).expect("its process");
            assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), 65_532, "{kind:?} is not root");
            // The small one: here both lie side by side.
            let program = fs::metadata(format!("/proc/{pid}/exe")).unwrap().len();
            let small = fs::metadata(env!("CARGO_BIN_EXE_kube-node-machine")).unwrap().len();
            assert_eq!(program == small, kind == Kind::Fixture, "{kind:?}: a program of {program} bytes");
        }
        // Pods are taken and run, as far as a hollow kubelet runs them.
        own.workload(5).await;
        own.end_workload().await;
        own.patch_set(json!({"spec": {"replicas": 2}})).await;
        ready(&own, 2).await;
        let of_set = async || {
            let listed = pods(&own).list(&ListParams::default()).await.unwrap().items;
            listed.into_iter().filter(|pod| pod.name_any().starts_with(&own.name)).count()
        };
        eventually("two pods are left", UP, async || (of_set().await == 2).then_some(())).await;
        own.clean_up().await;
    }
}

pub async fn a_changed_class_rolls_through() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Fixture::new(&CLUSTER, &kind.name("roll"), 2, kind.class(json!({}))).await;
        let before: HashSet<_> = ready(&own, 2).await.iter().map(ResourceExt::uid).collect();
        own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
        eventually("all are new", UP, async || {
            let nodes = own.my_nodes().await;
            let new = |node: &Node| {
                let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
                !before.contains(&node.uid())
                    && capacity.is_some_and(|c| c.get("cpu").is_some_and(|cpu| cpu.0 == "8"))
            };
            (nodes.len() == 2 && nodes.iter().all(|node| new(node) && is_ready(node))).then_some(())
        })
        .await;
        own.clean_up().await;
    }
}

pub async fn a_machine_lingers_for_the_deletion_timeout() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own =
            Fixture::new(&CLUSTER, &kind.name("linger"), 1, kind.class(json!({"deletionTimeout": "10s"})))
                .await;
        let node = ready(&own, 1).await.remove(0);
        let pod = pod_of(&own, &node).await.unwrap();
        own.patch_set(json!({"spec": {"replicas": 0}})).await;
        let deleted = eventually("its deletion is asked for", UP, async || {
            let node = own.nodes.get(&node.name_any()).await.ok()?;
            node.metadata.deletion_timestamp.map(|_| Instant::now())
        })
        .await;
        let gone = eventually("its pod is told to go", UP, async || {
            let pod = pods(&own).get_opt(&pod.name_any()).await.unwrap();
            pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()).then(Instant::now)
        })
        .await;
        let lingered = gone - deleted;
        assert!(
            lingered > Duration::from_millis(8_500) && lingered < Duration::from_secs(20),
            "{kind:?}: {lingered:?}"
        );
        own.clean_up().await;
    }
}

pub async fn a_killed_process_is_told_and_comes_back_as_the_same_machine() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Fixture::new(&CLUSTER, &kind.name("kill"), 1, kind.class(json!({}))).await;
        let node = ready(&own, 1).await.remove(0);
        let boot = |node: &Node| node.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id.clone();
        let pid = process(&kind.program(&node.name_any())).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let start = Instant::now();
        eventually("its end is told", UP, async || {
            let (_, reason, message) = machine(&own.nodes.get(&node.name_any()).await.unwrap())?;
            let is_reported = ["ContainerExited", "Restarted"].contains(&reason.as_str());
            (is_reported && message.contains("signal 9")).then_some(())
        })
        .await;
        println!("{kind:?}: the end of a process was told after {:?}", start.elapsed());
        eventually("it runs again", UP, async || {
            let node = own.nodes.get(&node.name_any()).await.unwrap();
            (machine(&node)?.0 == "True" && is_ready(&node)).then_some(())
        })
        .await;
        let again = own.nodes.get(&node.name_any()).await.unwrap();
        assert_eq!((again.uid(), boot(&again)), (node.uid(), boot(&node)), "{kind:?}");
        assert_ne!(process(&kind.program(&node.name_any())), Some(pid));
        own.clean_up().await;
    }
}

pub async fn a_pod_deleted_by_hand_is_noticed_and_made_again() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Fixture::new(&CLUSTER, &kind.name("lost"), 1, kind.class(json!({}))).await;
        let node = ready(&own, 1).await.remove(0);
        let pod = pod_of(&own, &node).await.unwrap();
        pods(&own).delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
        let start = Instant::now();
        eventually("it is told", UP, async || own.event_of(&node.name_any(), "MachineLost").await).await;
        let noticed = start.elapsed();
        println!("{kind:?}: a pod that was deleted was missed after {noticed:?}");
        assert!(noticed < NOTICED, "{kind:?}: {noticed:?}");
        eventually("another pod runs", UP, async || {
            let again = pod_of(&own, &node).await?;
            let node = own.nodes.get(&node.name_any()).await.unwrap();
            (again.uid() != pod.uid() && phase(&again) == "Running" && machine(&node)?.0 == "True")
                .then_some(())
        })
        .await;
        own.clean_up().await;
    }
}

pub async fn a_machine_that_dies_while_nobody_looks_is_made_again() {
    let _node = crate::NODE.read().await;
    let own = Fixture::new(&CLUSTER, "unseen", 1, Kind::Fixture.class(json!({}))).await;
    let node = ready(&own, 1).await.remove(0);
    let pod = pod_of(&own, &node).await.unwrap();
    assert!(CLUSTER.kill("operator"));
    delete(&pods(&own), &pod.name_any(), PropagationPolicy::Background).await;
    eventually("another pod runs", UP, async || {
        let again = pod_of(&own, &node).await?;
        (again.uid() != pod.uid() && phase(&again) == "Running").then_some(())
    })
    .await;
    assert_eq!(ready(&own, 1).await[0].uid(), node.uid(), "the Node is the same");
    own.clean_up().await;
}
