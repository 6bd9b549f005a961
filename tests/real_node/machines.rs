//! Machines that are pods: five of upstream kubemark and five of our own image, and what happens to them. Each test runs
//! for both images, by the same body.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PropagationPolicy},
};
use kube_node::images;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::bed::{Own, bed, condition, delete, eventually, is_ready, phase};

/// Until a few pods run, on a machine that runs much else.
const UP: Duration = Duration::from_mins(3);
/// How far a phase may be from what was asked for, in seconds.
const SLACK: i64 = 2;
/// How soon it has to be known that a machine is gone; it takes a tenth of a second.
const NOTICED: Duration = Duration::from_secs(2);

/// An image of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own,
    Upstream,
}

const BOTH: [Kind; 2] = [Kind::Own, Kind::Upstream];

impl Kind {
    /// A class of such machines; `more` is merged into its spec.
    fn class(self, more: Value) -> Value {
        let mut spec = json!({
            "nodeController": "kubemark",
            "machineType": "m.small",
            "capacity": {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "30", "example.com/gpu": "2"},
            "reserved": {"cpu": "500m", "memory": "1Gi"},
            "provisioning": {"containerRuntime": {"name": "cri-o", "version": "1.33.0"}},
            "kubemark": {},
        });
        if self == Self::Upstream {
            spec["kubemark"]["image"] = json!(images::KUBEMARK);
        }
        merge(&mut spec, more);
        spec
    }

    fn name(self, what: &str) -> String {
        match self {
            Self::Own => format!("own-{what}"),
            Self::Upstream => format!("up-{what}"),
        }
    }

    /// What the hollow kubelet's command line holds.
    fn program(self, node: &str) -> [String; 2] {
        match self {
            Self::Own => ["hollow-node".to_owned(), format!("--node={node}")],
            Self::Upstream => ["--morph=kubelet".to_owned(), format!("--name={node}")],
        }
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn pods(own: &Own) -> Api<Pod> {
    Api::namespaced(own.client.clone(), "kubemark")
}

/// The pod of a Node.
async fn pod_of(own: &Own, node: &Node) -> Option<Pod> {
    let selector = format!("kube-node.io/node-uid={}", node.uid().unwrap());
    let mut listed = pods(own).list(&ListParams::default().labels(&selector)).await.unwrap().items;
    listed.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
    listed.into_iter().next()
}

/// The process on this machine with these words on its command line.
fn process(words: &[String]) -> Option<i32> {
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let args: HashSet<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.iter().all(|word| args.contains(word.as_bytes())).then_some(pid)
    })
}

/// A line of `/proc/PID/status`, in KiB.
fn memory(pid: i32, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Status and reason of the Node's condition that speaks of its machine.
fn machine(node: &Node) -> Option<(String, String, String)> {
    let told = condition(node, "kube-node.io/Machine")?;
    Some((
        told.status.clone(),
        told.reason.clone().unwrap_or_default(),
        told.message.clone().unwrap_or_default(),
    ))
}

async fn ready(own: &Own, count: usize) -> Vec<Node> {
    eventually(&format!("{count} Ready nodes of {}", own.name), UP, async || {
        let nodes = own.my_nodes().await;
        (nodes.len() == count && nodes.iter().all(is_ready)).then_some(())
    })
    .await;
    own.settled(count).await
}

#[tokio::test]
async fn five_of_each_are_ready_and_what_their_class_says() {
    let _node = crate::NODE.read().await;
    let mut resident = Vec::new();
    for kind in BOTH {
        let own = Own::new(&kind.name("five"), 5, kind.class(json!({}))).await;
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
            assert_eq!(info.kubelet_version, "v1.36.3", "{kind:?}");
            assert_eq!(info.container_runtime_version, "cri-o://1.33.0", "{kind:?}");
            let pod = pod_of(&own, node).await.unwrap();
            assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("real-node"));
            let pid = process(&kind.program(&name)).expect("its process");
            assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), 65_532, "{kind:?} is not root");
            resident.push((kind, memory(pid, "VmRSS:"), memory(pid, "RssAnon:")));
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
    let mean = |kind, read: fn(&(Kind, u64, u64)) -> u64| {
        let of: Vec<u64> = resident.iter().filter(|(of, ..)| *of == kind).map(read).collect();
        of.iter().sum::<u64>() / of.len() as u64
    };
    let (own, upstream) = (mean(Kind::Own, |m| m.1), mean(Kind::Upstream, |m| m.1));
    println!(
        "a machine takes {own} KiB of ours ({} anonymous), {upstream} KiB of upstream ({} anonymous): 1/{:.1}",
        mean(Kind::Own, |m| m.2),
        mean(Kind::Upstream, |m| m.2),
        upstream as f64 / own as f64
    );
}

#[tokio::test]
async fn a_changed_class_rolls_through() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Own::new(&kind.name("roll"), 2, kind.class(json!({}))).await;
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

#[tokio::test]
async fn a_machine_lingers_for_the_deletion_timeout() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Own::new(&kind.name("linger"), 1, kind.class(json!({"deletionTimeout": "10s"}))).await;
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

/// Unhealthy for 5 s, healthy for 10 s, and again, as the Node's own condition tells it.
#[tokio::test]
async fn the_disruptor_works_in_pods_to_the_second() {
    let _node = crate::NODE.read().await;
    let failures = json!({"failures": {
        "unhealthyDuration": "5s", "healthyDuration": "10s", "turnUnhealthyPeriodically": true,
    }});
    for kind in BOTH {
        let own = Own::new(&kind.name("sick"), 1, kind.class(failures.clone())).await;
        let mut turns: Vec<(String, i64)> = Vec::new();
        eventually("four turns", UP, async || {
            let nodes = own.my_nodes().await;
            let ready = condition(nodes.first()?, "Ready")?;
            let turn = (ready.status.clone(), ready.last_transition_time.as_ref()?.0.as_second());
            // Before its kubelet has spoken it is not the disruptor's.
            let is_its = ready.reason.as_deref() != Some("Provisioning");
            if is_its && turns.last().is_none_or(|last| last.0 != turn.0) {
                turns.push(turn);
            }
            (turns.len() == 6).then_some(())
        })
        .await;
        // How kubemark itself starts is in the first two.
        for pair in turns[2..].windows(2) {
            let (status, lasted) = (&pair[0].0, pair[1].1 - pair[0].1);
            let wanted = if status == "True" { 10 } else { 5 };
            assert!((lasted - wanted).abs() <= SLACK, "{kind:?}: {status} for {lasted} s: {turns:?}");
        }
        own.clean_up().await;
    }
}

#[tokio::test]
async fn a_killed_process_is_told_and_comes_back_as_the_same_machine() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Own::new(&kind.name("kill"), 1, kind.class(json!({}))).await;
        let node = ready(&own, 1).await.remove(0);
        let boot = |node: &Node| node.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id.clone();
        let pid = process(&kind.program(&node.name_any())).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let start = Instant::now();
        eventually("its end is told", UP, async || {
            let (_, reason, message) = machine(&own.nodes.get(&node.name_any()).await.unwrap())?;
            let told = ["ContainerExited", "Restarted"].contains(&reason.as_str());
            (told && message.contains("signal 9")).then_some(())
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

#[tokio::test]
async fn a_pod_deleted_by_hand_is_noticed_and_made_again() {
    let _node = crate::NODE.read().await;
    for kind in BOTH {
        let own = Own::new(&kind.name("lost"), 1, kind.class(json!({}))).await;
        let node = ready(&own, 1).await.remove(0);
        let pod = pod_of(&own, &node).await.unwrap();
        pods(&own).delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
        let start = Instant::now();
        eventually("it is told", UP, async || {
            (machine(&own.nodes.get(&node.name_any()).await.unwrap())?.1 == "MachineLost").then_some(())
        })
        .await;
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

#[tokio::test]
async fn what_keeps_a_pod_from_running_is_named_and_others_go_on() {
    let _node = crate::NODE.read().await;
    let missing =
        Own::new("no-image", 1, Kind::Own.class(json!({"kubemark": {"image": "localhost/none:v1"}}))).await;
    let wrong =
        Own::new("no-kubemark", 1, Kind::Own.class(json!({"kubemark": {"image": images::PAUSE}}))).await;
    let told = async |own: &Own, reasons: &[&str]| {
        eventually(&format!("{}: {reasons:?}", own.name), UP, async || {
            let (status, reason, message) = machine(own.my_nodes().await.first()?)?;
            (status == "False" && reasons.contains(&reason.as_str())).then_some(message)
        })
        .await
    };
    let message = told(&missing, &["ErrImagePull", "ImagePullBackOff"]).await;
    assert!(message.contains("localhost/none:v1"), "{message}");
    eventually("the set names it", UP, async || {
        let waits = missing.sets.get(&missing.name).await.unwrap().status?.waits;
        waits.iter().any(|wait| wait.reason.contains("Image")).then_some(())
    })
    .await;
    let message = told(&wrong, &["RunContainerError", "StartError", "CrashLoopBackOff"]).await;
    assert!(message.contains("/kubemark"), "{message}");
    let good = Own::new("beside", 1, Kind::Own.class(json!({}))).await;
    ready(&good, 1).await;
    // The class is corrected.
    missing.patch_class(json!({"spec": {"kubemark": {"image": null}}})).await;
    ready(&missing, 1).await;
    for own in [missing, wrong, good] {
        own.clean_up().await;
    }
}

#[tokio::test]
async fn files_reach_the_machine_as_they_were_asked_for() {
    let _node = crate::NODE.read().await;
    let files = json!({"provisioning": {"files": [
        {"path": "/etc/demo/unit.conf", "owner": "root:root", "permissions": "0640", "content": "a=b"},
        {"path": "/etc/demo/own", "content": "c"},
        {"path": "/etc/demo/number", "owner": "1000:2000", "permissions": "0600", "content": "d"},
    ]}});
    for kind in BOTH {
        let own = Own::new(&kind.name("files"), 1, kind.class(files.clone())).await;
        let node = ready(&own, 1).await.remove(0);
        let pid = process(&kind.program(&node.name_any())).unwrap();
        let root = format!("/proc/{pid}/root");
        for (path, content, owner, mode) in [
            ("unit.conf", "a=b", (0, 0), 0o640),
            ("own", "c", (65_532, 65_532), 0o644),
            ("number", "d", (1_000, 2_000), 0o600),
        ] {
            let path = Path::new(&root).join("etc/demo").join(path);
            assert_eq!(fs::read_to_string(&path).unwrap(), content, "{kind:?} {}", path.display());
            let is = fs::metadata(&path).unwrap();
            assert_eq!(
                ((is.uid(), is.gid()), is.mode() & 0o777),
                (owner, mode),
                "{kind:?} {}",
                path.display()
            );
        }
        own.clean_up().await;
    }
}

#[tokio::test]
async fn a_machine_that_dies_while_nobody_looks_is_made_again() {
    let _node = crate::NODE.read().await;
    let own = Own::new("unseen", 1, Kind::Own.class(json!({}))).await;
    let node = ready(&own, 1).await.remove(0);
    let pod = pod_of(&own, &node).await.unwrap();
    assert!(bed().kill("operator"));
    delete(&pods(&own), &pod.name_any(), PropagationPolicy::Background).await;
    eventually("another pod runs", UP, async || {
        let again = pod_of(&own, &node).await?;
        (again.uid() != pod.uid() && phase(&again) == "Running").then_some(())
    })
    .await;
    assert_eq!(ready(&own, 1).await[0].uid(), node.uid(), "the Node is the same");
    own.clean_up().await;
}
