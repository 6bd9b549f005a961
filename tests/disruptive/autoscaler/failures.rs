//! Machines that do not come: cluster-autoscaler is told why, where it may take them back.

use std::time::Duration;

use kube_node_controllers::autoscaler::proto::instance_status::InstanceState;
use prost::Message;
use serde_json::json;
use tonic::Code;

use super::{
    CLUSTER, caller,
    caller::{external, fake, state},
    group, replicas,
};
use kube_node_testing::{Fixture, LONG, class_spec, eventually};

pub async fn a_machine_without_room() {
    // A machine that is a pod, and no node takes pods.
    let class =
        json!({"nodeController": "kubemark", "capacity": {"cpu": "4", "memory": "8Gi", "pods": "30"}});
    let own = group("as-no-room", 1, 1, 5, class).await;
    let mut caller = caller().await;
    caller.increase("as-no-room", 1).await.unwrap();
    let failed = eventually("one failure is told", Duration::from_mins(2), async || {
        let instances = caller.nodes("as-no-room").await.unwrap();
        assert!(
            instances.iter().all(|instance| state(instance) == InstanceState::InstanceCreating),
            "{instances:?}"
        );
        let errors =
            instances.into_iter().filter_map(|instance| Some((instance.id, instance.status?.error_info?)));
        let errors: Vec<_> = errors.collect();
        assert!(errors.len() < 2, "one is the minimum, and is not to be taken: {errors:?}");
        errors.into_iter().next()
    })
    .await;
    let (id, error) = failed;
    assert_eq!((error.error_code.as_str(), error.instance_error_class), ("Unschedulable", 1));
    assert!(error.error_message.contains("no node takes its pod"), "{error:?}");
    // As cluster-autoscaler does it at every loop: it has not seen such a Node work.
    caller.delete("as-no-room", vec![fake(&id)]).await.unwrap();
    assert_eq!(replicas(&own).await, 1);
    eventually("it is gone", Duration::from_mins(1), async || {
        let instances = caller.nodes("as-no-room").await.unwrap();
        (instances.len() == 1 && instances[0].id != id).then_some(())
    })
    .await;
    let left = caller.nodes("as-no-room").await.unwrap();
    assert!(left[0].status.as_ref().unwrap().error_info.is_none(), "{left:?}");
    own.clean_up().await;
}

/// A set whose class does not exist, and one that gets another class while it is scaled.
pub async fn a_set_without_its_class() {
    let own = group("as-classes", 0, 0, 5, class_spec()).await;
    let sound = group("as-sound", 0, 0, 5, class_spec()).await;
    let mut caller = caller().await;
    caller.increase("as-classes", 1).await.unwrap();
    let before = caller.template("as-classes").await.unwrap();
    own.patch_set(json!({"spec": {"nodeClassName": "as-nowhere"}})).await;
    eventually("the set says so", LONG, async || {
        let conditions = own.sets.get("as-classes").await.unwrap().status?.conditions;
        conditions.iter().any(|condition| condition.reason == "ClassNotFound").then_some(())
    })
    .await;
    // What was known last: without a template this group would keep others from growing.
    assert_eq!(caller.template("as-classes").await.unwrap().0.len(), before.0.len());
    // One that never had one. Any other code would end the loop for all groups.
    let never = Fixture::without_set(&CLUSTER, "as-never", class_spec()).await;
    let bounds = json!({"minReplicas": 2, "maxReplicas": 4});
    never.create_set(2, json!({"nodeClassName": "as-nothing", "autoscaling": bounds})).await;
    eventually("it is a group", LONG, async || caller.group("as-never").await).await;
    let refused = caller.template("as-never").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("there is no NodeClass as-nothing"), "{refused}");
    // It is as small as it may be and has no Node: its replicas are placeholders, which are of it.
    let placeholders = caller.nodes("as-never").await.unwrap();
    assert_eq!(placeholders.len(), 2);
    for placeholder in &placeholders {
        assert_eq!(state(placeholder), InstanceState::InstanceCreating);
        assert_eq!(caller.group_of(fake(&placeholder.id)).await.unwrap(), "as-never");
        caller.delete("as-never", vec![fake(&placeholder.id)]).await.unwrap();
    }
    assert_eq!((caller.target("as-never").await.unwrap(), replicas(&never).await), (2, 2));
    never.clean_up().await;
    caller.refresh().await.unwrap();
    assert_eq!(caller.target("as-classes").await.unwrap(), 1);
    caller.increase("as-classes", 1).await.unwrap();
    assert_eq!(caller.target("as-classes").await.unwrap(), 2);
    caller.nodes("as-classes").await.unwrap();
    assert!(!caller.template("as-sound").await.unwrap().1.is_empty());
    caller.increase("as-sound", 1).await.unwrap();
    sound.settled(1).await;

    let mut wide = class_spec();
    wide["capacity"]["cpu"] = json!("64");
    let other = Fixture::without_set(&CLUSTER, "as-wide", wide).await;
    own.patch_set(json!({"spec": {"nodeClassName": "as-wide"}})).await;
    eventually("the template is of the other class", LONG, async || {
        let (_, bytes) = caller.template("as-classes").await.ok()?;
        let node = k8s_pb::api::core::v1::Node::decode(bytes.as_slice()).unwrap();
        (node.status?.capacity["cpu"].string.as_deref() == Some("64")).then_some(())
    })
    .await;
    let nodes = own.settled(2).await;
    for node in &nodes {
        assert_eq!(caller.group_of(external(node)).await.unwrap(), "as-classes");
    }
    own.clean_up().await;
    sound.clean_up().await;
    other.clean_up().await;
}
