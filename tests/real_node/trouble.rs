//! What keeps kubemark machines from working: each is named on Node and set, and others go on.

use local_cluster::images;
use serde_json::json;

use crate::{
    CLUSTER,
    kinds::{Kind, UP, machine, pod_of, ready},
};
use kube_node_testing::{Fixture, eventually, name};

pub async fn what_keeps_a_pod_from_running_is_named_and_others_go_on() {
    let _node = crate::NODE.read().await;
    let missing = Fixture::new(
        &CLUSTER,
        "no-image",
        1,
        Kind::Fixture.class(json!({"kubemark": {"image": "localhost/none:v1"}})),
    )
    .await;
    let wrong = Fixture::new(
        &CLUSTER,
        "no-kubemark",
        1,
        Kind::Fixture.class(json!({"kubemark": {"image": images::PAUSE}})),
    )
    .await;
    let reported = async |own: &Fixture, reasons: &[&str]| {
        eventually(&format!("{}: {reasons:?}", own.name), UP, async || {
            let (status, reason, message) = machine(own.my_nodes().await.first()?)?;
            (status == "False" && reasons.contains(&reason.as_str())).then_some(message)
        })
        .await
    };
    let message = reported(&missing, &["ErrImagePull", "ImagePullBackOff"]).await;
    assert!(message.contains("localhost/none:v1"), "{message}");
    eventually("the set names it", UP, async || {
        let waits = missing.sets.get(&missing.name).await.unwrap().status?.waits;
        waits.iter().any(|wait| wait.reason.contains("Image")).then_some(())
    })
    .await;
    let message = reported(&wrong, &["RunContainerError", "StartError", "CrashLoopBackOff"]).await;
    assert!(message.contains("/kubemark"), "{message}");
    let good = Fixture::new(&CLUSTER, "beside", 1, Kind::Fixture.class(json!({}))).await;
    ready(&good, 1).await;
    // The class is corrected.
    missing.patch_class(json!({"spec": {"kubemark": {"image": null}}})).await;
    ready(&missing, 1).await;
    for own in [missing, wrong, good] {
        own.clean_up().await;
    }
}

/// Commands need a shell, which the images have only where somebody asks for it.
pub async fn commands_without_a_shell_are_told() {
    let _node = crate::NODE.read().await;
    for (kind, reasons) in [
        (Kind::Fixture, ["ContainerExited", "CrashLoopBackOff"]),
        (Kind::Upstream, ["RunContainerError", "StartError"]),
    ] {
        let class = kind.class(json!({"provisioning": {"commands": ["true"]}}));
        let own = Fixture::new(&CLUSTER, &kind.name("no-shell"), 1, class).await;
        eventually("it is told", UP, async || {
            let (status, reason, message) = machine(own.my_nodes().await.first()?)?;
            let reported = reasons.contains(&reason.as_str()) || reason == "CrashLoopBackOff";
            (status == "False" && reported && message.contains("/bin/sh")).then_some(())
        })
        .await;
        own.clean_up().await;
    }
}

pub async fn a_machine_out_of_memory_says_so() {
    let _node = crate::NODE.read().await;
    let resources = json!({"requests": {"memory": "10Mi"}, "limits": {"memory": "12Mi"}});
    let class = Kind::Upstream.class(json!({"kubemark": {"resources": resources}}));
    let own = Fixture::new(&CLUSTER, "no-memory", 1, class).await;
    eventually("it is told", UP, async || {
        let (status, reason, message) = machine(own.my_nodes().await.first()?)?;
        (status == "False" && reason == "OOMKilled")
            .then(|| assert!(message.contains("signal 9"), "{message}"))
    })
    .await;
    eventually("the set names it", UP, async || {
        let waits = own.sets.get(&own.name).await.unwrap().status?.waits;
        waits.iter().any(|wait| wait.reason == "OOMKilled").then_some(())
    })
    .await;
    own.patch_class(json!({"spec": {"kubemark": {"resources": null}}})).await;
    ready(&own, 1).await;
    own.clean_up().await;
}

/// The kubelet of the real node evicts a pod whose log outgrows its limit.
pub async fn an_evicted_machine_is_told_and_made_again() {
    let _node = crate::NODE.read().await;
    let resources = json!({"limits": {"ephemeral-storage": "64Ki"}});
    let class = Kind::Upstream.class(json!({"kubemark": {"resources": resources, "extraArgs": ["--v=10"]}}));
    let own = Fixture::new(&CLUSTER, "no-disk", 1, class).await;
    let (node, first) = eventually("its pod", UP, async || {
        let node = own.my_nodes().await.pop()?;
        let pod = pod_of(&own, &node).await?;
        Some((name(&node), pod.metadata.uid))
    })
    .await;
    eventually("another pod", UP, async || {
        let pod = pod_of(&own, &own.nodes.get(&node).await.unwrap()).await?;
        (pod.metadata.uid != first).then_some(())
    })
    .await;
    let why = eventually("an event says why", UP, async || own.event_of(&node, "Evicted").await).await;
    assert!(why.contains("ephemeral"), "{why}");
    own.clean_up().await;
}
